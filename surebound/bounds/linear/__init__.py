"""Backward linear bounds: CROWN, alpha-CROWN, and the bounds inside the network that they rest on."""
