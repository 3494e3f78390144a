"""What a user gives to `sb.train`, checked and made a Task: network, data, method, plan."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import nn

from surebound.data.augment import Augment
from surebound.data.order import stream
from surebound.data.types import Dataset, to_unit
from surebound.errors import ConfigError, InputError, nearest
from surebound.graph import forward
from surebound.graph.fit import evaluating
from surebound.train.evaluate import Clip, Evaluation
from surebound.train.examples import Examples, examples_of
from surebound.train.methods import METHODS, Method
from surebound.train.plan import Plan
from surebound.train.task import OptimiserFactory, SchedulerFactory, Task


def make_task(
    model: nn.Module,
    data: object,
    method: Method,
    plan: Plan,
    *,
    epochs: float | None = None,
    held_out: object = None,
    evaluation: Evaluation | None = None,
    augment: Augment | None = None,
    clip: Clip = (0.0, 1.0),
    optimiser: OptimiserFactory | None = None,
    scheduler: SchedulerFactory | None = None,
) -> Task:
    """Check what `sb.train` was given, and say what is wrong before anything is trained or written."""
    if not isinstance(model, nn.Module):
        raise InputError(f"the model is a {type(model).__name__}; give a torch.nn.Module")
    _check_method(method)
    if not isinstance(plan, Plan):
        raise InputError(f"the plan is a {type(plan).__name__}; give sb.Plan(steps=..., eps_train=...)")
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
        evaluation=evaluation or Evaluation(radii=(plan.eps_train,) if plan.eps_train else (), norm=plan.norm),
        optimiser=optimiser,
        scheduler=scheduler,
    )
    _check_clip(task.train, clip)
    _check_outputs(task)
    return task if epochs is None else _over_epochs(task, epochs)


def _over_epochs(task: Task, epochs: float) -> Task:
    """Return the task with its plan stretched to `epochs` passes over the data, as `surebound train --epochs` does."""
    if not epochs > 0:
        raise ConfigError(f"epochs={epochs}; give a number above 0")
    steps = max(1, math.ceil(epochs * len(task.train) / task.plan.batch_size))
    return replace(task, plan=task.plan.stretched(steps))


def _check_method(method: object) -> None:
    """Refuse a method's name and a method's class: what trains is an instance, with its settings."""
    if isinstance(method, Method):
        return
    if isinstance(method, str):
        found = METHODS.get(method)
        advice = f"; give sb.training.{found.__name__}()." if found else nearest(method, METHODS)
        raise InputError(f"the method is the text {method!r}{advice} Known: {', '.join(sorted(METHODS))}")
    if isinstance(method, type) and issubclass(method, Method):
        raise InputError(
            f"the method is the class {method.__name__}; give an instance, sb.training.{method.__name__}()"
        )
    raise InputError(f"the method is a {type(method).__name__}; give one of sb.training, e.g. sb.training.IBP()")


def _check_outputs(task: Task) -> None:
    """Run one example: the network must take it, and return one row of outputs."""
    if not len(task.train):
        return
    pixels = task.train.pixels(torch.arange(min(len(task.train), 2)))
    if task.augment is not None:  # it may cut images to another size
        pixels = task.augment(pixels, stream(task.plan.seed, "augment", 0))
    inputs = to_unit(pixels)
    with evaluating(task.model), torch.no_grad():
        outputs = forward(task.model, inputs)
    if outputs.dim() != 2:
        raise InputError(
            f"the network returns {tuple(outputs.shape)} for {len(inputs)} inputs; training needs one row of class "
            "outputs per input, (B, K)"
        )


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
