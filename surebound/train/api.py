"""`surebound.train`: the loop on a user's own network and data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from surebound.data.augment import Augment
from surebound.data.types import Dataset
from surebound.errors import InputError
from surebound.train.checkpoint import CheckpointStore
from surebound.train.distributed import process_group
from surebound.train.evaluate import Clip, Evaluation
from surebound.train.examples import Examples, examples_of
from surebound.train.loop import Loop
from surebound.train.methods.base import Method
from surebound.train.observe import Observer
from surebound.train.plan import Plan
from surebound.train.task import Outcome, Surroundings, Task


def train(
    model: nn.Module,
    data: object,
    method: Method,
    plan: Plan,
    *,
    held_out: object = None,
    evaluation: Evaluation | None = None,
    augment: Augment | None = None,
    clip: Clip = (0.0, 1.0),
    checkpoints: str | Path | None = None,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Train `model` in place, on the device it is on.

    `data` and `held_out` are a `surebound.data.Split`, a pair of tensors (inputs, labels), or a torch Dataset of
    (tensor, label); a `surebound.data.Dataset` as `data` brings both, and its augmentation. Inputs outside
    `clip` are outside the threat model: balls are cut to it (None: not cut). With `checkpoints`, a directory,
    the run continues from the last checkpoint found there, to the same bits. Under torchrun the processes share
    every batch.

    >>> from surebound.train.methods import IBP
    >>> x = torch.rand(200, 2, generator=torch.Generator().manual_seed(0))
    >>> net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> plan = Plan(steps=50, batch_size=50, eps_train="1/100", warmup=10, ramp=20)
    >>> train(net, (x, (x[:, 0] > x[:, 1]).long()), IBP(), plan).finished
    True
    """
    device = _device_of(model)
    if isinstance(data, Dataset):
        held_out = data.test if held_out is None else held_out
        augment = data.augment if augment is None else augment
        data = data.train
    task = Task(
        model=model,
        train=examples_of(data, "data", device),
        method=method,
        plan=plan,
        held_out=None if held_out is None else examples_of(held_out, "held_out", device),
        augment=augment,
        clip=clip,
        evaluation=evaluation or Evaluation(),
    )
    _check_clip(task.train, clip)
    with process_group() as group:
        around = Surroundings(
            group=group,
            checkpoints=CheckpointStore(Path(checkpoints)) if checkpoints is not None else None,
            observer=observer if observer is not None and group.leader else Observer(),
            stop=stop,
        )
        return Loop(task, around).run()


def _check_clip(train: Examples, clip: Clip) -> None:
    """Inputs of another scale than the clip range would give balls that are empty; a look at the first ones tells."""
    if clip is None or not len(train):
        return
    inputs, _ = train.batch(torch.arange(min(len(train), 1000)))
    low, high = (float(end) for end in inputs.aminmax())
    if low < clip[0] or high > clip[1]:
        raise InputError(
            f"data has inputs from {low:g} to {high:g}, outside of the clip range {clip}; scale them "
            f"(images of 0 to 255: divide by 255), or give clip=({low:g}, {high:g}) or clip=None"
        )


def _device_of(model: nn.Module) -> torch.device:
    devices = {p.device for p in model.parameters()}
    if len(devices) != 1:
        raise InputError(
            f"the network's parameters are on {len(devices)} devices ({', '.join(map(str, devices)) or 'none'}); "
            "training needs at least one parameter, and all of them on one device"
        )
    return devices.pop()
