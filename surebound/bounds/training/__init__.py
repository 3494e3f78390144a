"""The training engine: clean outputs and bounds in one fused pass, with gradients; and differentiable linear bounds."""
