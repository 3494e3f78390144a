"""Arguments of specifications as exact numbers and places, or an error that says what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from torch import Tensor, nn

from surebound.errors import SpecError
from surebound.numerics import exact_fraction

Number = str | int | float | Fraction
Numbers = Number | Sequence[Number] | Tensor


def check_network(network: object) -> None:
    if not isinstance(network, nn.Module):
        raise SpecError(f"the other network is a {type(network).__name__}; give a torch.nn.Module")


def index(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SpecError(f"{name}: {value!r} is no place; give an integer of 0 or more")
    return value


def listed(given: int | Sequence[int]) -> Sequence[int]:
    return [given] if isinstance(given, int) else given


def numbers(given: Numbers | None, name: str) -> tuple[Fraction, ...] | None:
    """Exact numbers; one stands for all outputs."""
    if given is None:
        return None
    if isinstance(given, Tensor):
        if not bool(given.isfinite().all()):
            raise SpecError(f"{name} contains NaN or infinity; every limit must be a number")
        return tuple(Fraction(value) for value in given.detach().double().reshape(-1).tolist())
    if isinstance(given, (str, int, float, Fraction)):
        return (exact_fraction(given, name),)
    return tuple(exact_fraction(value, name) for value in given)


def per_output(limits: tuple[Fraction, ...] | None, outputs: int, name: str) -> tuple[Fraction, ...]:
    if limits is None:
        return ()
    if len(limits) not in (1, outputs):
        raise SpecError(f"{name} has {len(limits)} numbers but the network {outputs} outputs; give 1 or {outputs}")
    return limits * outputs if len(limits) == 1 else limits


def shown(limits: tuple[Fraction, ...] | None, none: str) -> str:
    if limits is None:
        return none
    return str(limits[0]) if len(limits) == 1 else "(" + ", ".join(str(float(v)) for v in limits) + ")"
