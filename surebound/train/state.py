"""The state of a run between two steps, to and from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from surebound.errors import RunError
from surebound.train.average import WeightAverage
from surebound.train.checkpoint import Checkpoint, restore_rng, rng_state

#: How a checkpoint calls the average of the weights among the tensors of the optimiser.
AVERAGE = "average"
#: How it calls what the method trains jointly with the network.
PARTNER = "partner"


def capture(
    step: int,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    parameters: Sequence[Tensor],
    extra: dict[str, Any],
    average: WeightAverage | None = None,
    partner: nn.Module | None = None,
) -> Checkpoint:
    """Everything the next step depends on; `extra` is plain JSON beside it."""
    entries = {f"{i}.{key}": value for i, p in enumerate(parameters) for key, value in optimiser.state[p].items()}
    tensors = {name: value for name, value in entries.items() if isinstance(value, Tensor)}
    numbers = {name: value for name, value in entries.items() if name not in tensors}
    if average is not None:
        tensors |= {f"{AVERAGE}.{i}": value for i, value in enumerate(average.mean)}
        extra = {**extra, AVERAGE: average.count}
    if partner is not None:
        tensors |= {f"{PARTNER}.{name}": value for name, value in partner.state_dict().items()}
    state = {**extra, "optimiser": numbers, "rng": rng_state(parameters[0].device)}
    return Checkpoint(step, model.state_dict(), tensors, state)


def restore(
    found: Checkpoint,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    parameters: Sequence[Tensor],
    average: WeightAverage | None = None,
    partner: nn.Module | None = None,
) -> None:
    """Set network, optimiser, average and global generators to what `capture` saw."""
    device = parameters[0].device
    try:
        model.load_state_dict({name: value.to(device) for name, value in found.weights.items()})
        for name, value in {**found.optimiser, **found.state.get("optimiser", {})}.items():
            index, key = name.split(".", 1)
            if index not in (AVERAGE, PARTNER):
                moved = value.to(device) if isinstance(value, Tensor) else value
                optimiser.state[parameters[int(index)]][key] = moved
        if average is not None:
            average.mean = [found.optimiser[f"{AVERAGE}.{i}"].to(device) for i in range(len(parameters))]
            average.count = found.state[AVERAGE]
        if partner is not None:
            kept = {name: found.optimiser[f"{PARTNER}.{name}"].to(device) for name in partner.state_dict()}
            partner.load_state_dict(kept)
        restore_rng(found.state["rng"], device)
    except (RuntimeError, IndexError, KeyError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise RunError(f"the checkpoint of step {found.step} does not fit this network: {reason}") from error


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Say whether no value is NaN or infinite; one synchronisation with the host."""
    sums = [t.detach().sum(dtype=torch.float64) for t in tensors if t.is_floating_point()]
    return not sums or bool(torch.isfinite(torch.stack(sums).sum()))
