"""Does a network take such inputs? Running it, with an answer in words where it does not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from surebound.errors import InputError, SureboundError, first_line
from surebound.flags import own_state


def forward(model: nn.Module, x: Tensor) -> Tensor:
    """Return ``model(x)`` of x (B, ...), or raise an InputError that says which inputs the network does not take.

    >>> import torch
    >>> forward(nn.Linear(2, 3), torch.zeros(1, 2)).shape
    torch.Size([1, 3])
    """
    try:
        result: Tensor = model(x)
    except SureboundError:
        raise
    except (RuntimeError, ValueError, TypeError, LookupError, AssertionError) as error:
        raise _misfit(model, x, error) from error
    if not isinstance(result, Tensor):
        raise InputError(_no_tensor(model, result))
    return result


def _no_tensor(model: Callable[[Tensor], object], result: object) -> str:
    """Say what a network returns instead of a tensor, and how to choose one of its parts."""
    name = type(model).__name__
    if isinstance(result, Mapping):
        keys = ", ".join(repr(key) for key in result)
        what, part = f"a {type(result).__name__} with {keys or 'nothing in it'}", repr(next(iter(result), "logits"))
    elif isinstance(result, tuple | list):
        what, part = f"a {type(result).__name__} of {len(result)}", "0"
    else:
        kind = type(result).__name__
        return f"the network {name} returns a {kind}; it must return a tensor (B, ...); sb.choose(net, NAME) takes one"
    plain = part.strip("'")
    return (
        f"the network {name} returns {what}; a statement is about one tensor: choose it, sb.choose(net, {part}), or "
        f"NET#{plain} on the command line"
    )


def _misfit(model: nn.Module, x: Tensor, error: Exception) -> InputError:
    other = other_dtype(model, x)
    if other is not None:
        return other
    return InputError(f"the network does not take inputs of shape {tuple(x.shape[1:])} ({first_line(error)})")


def other_dtype(model: nn.Module, x: Tensor) -> InputError | None:
    """Return the error for inputs of another dtype than the network's weights; None if they have the same."""
    values = (*model.parameters(), *model.buffers())
    weights = sorted({str(value.dtype) for value in values if value.is_floating_point()})
    if weights and str(x.dtype) not in weights:
        given, own = str(x.dtype).removeprefix("torch."), weights[0].removeprefix("torch.")
        return InputError(
            f"the inputs are {given}, the network {own}: convert one of them, x.to({weights[0]}) or model.to({x.dtype})"
        )
    return None


@contextlib.contextmanager
def evaluating(model: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Enter evaluation mode, without autocast and with gradients allowed; restore each submodule's mode after."""
    if not callable(model):
        raise InputError(f"the model is a {type(model).__name__}; give a torch.nn.Module or a callable")
    training = [m for m in model.modules() if m.training] if isinstance(model, nn.Module) else []
    try:
        # One flag per submodule, not model.eval(): parts that their owner has frozen stay frozen after.
        for module in training:
            module.training = False
        with own_state(), torch.inference_mode(False):
            yield
    finally:
        for module in training:
            module.training = True


def in_batches(call: Callable[[Tensor], Tensor], x: Tensor, size: int) -> Tensor:
    """Run ``call`` on x (N, ...) in batches of exactly ``size``, the last one filled up with repetitions: (N, ...).

    >>> import torch
    >>> in_batches(lambda x: 2 * x.view(2), torch.tensor([1, 2, 3]), 2)
    tensor([2, 4, 6])
    """
    missing = -len(x) % size
    whole = torch.cat([x, x[:1].expand(missing, *x.shape[1:])])
    return torch.cat([call(part) for part in torch.split(whole, size)])[: len(x)]
