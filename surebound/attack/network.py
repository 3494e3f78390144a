"""The network under attack: any callable, evaluated as it is deployed, and left as it was found."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from surebound.attack.derivative import derivative
from surebound.attack.input_gradient import InputGradients
from surebound.errors import SpecError
from surebound.graph.fit import in_batches, other_dtype

Model = Callable[[Tensor], Tensor]


class FixedBatch(nn.Module):
    """A network that takes batches of one size only, run on any number of inputs."""

    def __init__(self, model: Model, size: int) -> None:
        super().__init__()
        self.model, self.size = model, size

    def forward(self, x: Tensor) -> Tensor:
        return in_batches(self.model, x, self.size)


def any_batch(model: Model, x: Tensor) -> Model:
    """Return the network, made to take any batch size if it takes x (B, ...) as a whole only (x.view(3, -1))."""
    if len(x) < 2:
        return model
    with torch.no_grad():
        try:
            model(x[:1].clone())
        except (RuntimeError, ValueError):
            try:
                model(x.clone())
            except (RuntimeError, ValueError):
                return model  # another mistake: the search will tell it
            return FixedBatch(model, len(x))
    return model


class AttackedNetwork:
    """Logits, and gradients of them with respect to the input only.

    ``torch.autograd.grad`` with the input as its one target visits no weight: no weight gradient is computed
    and no ``.grad`` is touched, although the weights keep their ``requires_grad``. The network gets a copy of
    the input, because a layer that works in place would otherwise move the iterate.
    """

    def __init__(self, model: Model) -> None:
        self._model = model

    def logits(self, x: Tensor, rows: int) -> Tensor:
        """Return outputs without a graph, at most ``rows`` inputs at a time: (R, K)."""
        with torch.no_grad():
            parts = [self._forward(x[first : first + rows]) for first in range(0, len(x), rows)]
        if not parts:
            return x.new_zeros(0, 0)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def ascent(self, x: Tensor, loss: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Return logits (R, K) at x and the gradient (R, ...) of each row's loss; 0 where it does not exist."""
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            with InputGradients():
                logits = self._forward(x)
            total = loss(logits).sum()
        # It may be expanded, which nothing can be written to; else this copies nothing.
        return logits.detach(), derivative(total, x).contiguous().nan_to_num_(0.0, 0.0, 0.0)

    def _forward(self, x: Tensor) -> Tensor:
        try:
            logits = self._model(x.clone())
        except Exception as error:
            other = other_dtype(self._model, x) if isinstance(self._model, nn.Module) else None
            if other is not None:
                raise other from error
            error.add_note(f"while running the network on {x.dtype} inputs of shape {tuple(x.shape)}")
            raise
        if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(x):
            given = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
            raise SpecError(
                f"the network returned {given} for {len(x)} inputs; an attack needs outputs of shape (B, K)"
            )
        return logits
