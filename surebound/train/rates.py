"""The optimiser of a run and its learning rates: the plan's, or those of a user's factories."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from surebound.errors import ConfigError
from surebound.train.optimise import OPTIMISERS
from surebound.train.task import Task


def make_optimiser(task: Task, parameters: list[nn.Parameter]) -> Optimizer:
    """Make the optimiser of `parameters`: the task's own, or the plan's."""
    if task.optimiser is None:
        plan = task.plan
        return OPTIMISERS[plan.optimiser](parameters, lr=plan.learning_rate, weight_decay=plan.weight_decay)
    made = task.optimiser(parameters)
    if not isinstance(made, Optimizer):
        raise ConfigError(
            f"optimiser= gave a {type(made).__name__}; give a function of the parameters that returns an optimiser, "
            "e.g. optimiser=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)"
        )
    return made


class Rates:
    """Sets the learning rates: what each group began with times the plan's decays, or what a scheduler says."""

    def __init__(self, optimiser: Optimizer, task: Task) -> None:
        self._groups, self._plan = optimiser.param_groups, task.plan
        # None: the plan's own rate, to the bit.
        self._begun = None if task.optimiser is None else [float(group["lr"]) for group in self._groups]
        self._scheduler = None if task.scheduler is None else task.scheduler(optimiser)
        plateau = isinstance(self._scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)  # waits for a loss
        if task.scheduler is not None and (plateau or not hasattr(self._scheduler, "step")):
            raise ConfigError(
                f"scheduler= gave a {type(self._scheduler).__name__}; give a function of the optimiser that returns "
                "one of torch.optim.lr_scheduler whose step() needs no argument; it is called after every training step"
            )

    def before(self, step: int) -> None:
        """Set the rates of the plan for `step`; a scheduler has set its own after the step before."""
        if self._scheduler is None:
            for number, group in enumerate(self._groups):
                group["lr"] = self._planned(step, number)

    def after(self) -> None:
        """Let a scheduler set the rates of the next step."""
        if self._scheduler is not None:
            self._scheduler.step()

    def at(self, step: int) -> float:
        """Return the first group's rate at `step`; of a scheduler, the one that is set now."""
        return self._planned(step, 0) if self._scheduler is None else float(self._groups[0]["lr"])

    def _planned(self, step: int, group: int) -> float:
        rate = self._plan.rate.at(step)
        return rate if self._begun is None else self._begun[group] * (rate / self._plan.learning_rate)

    def state(self) -> dict[str, Any] | None:
        """Return what a scheduler needs to go on, as JSON values; None without one."""
        if self._scheduler is None:
            return None
        groups = [{key: value for key, value in group.items() if key != "params"} for group in self._groups]
        state = {"scheduler": self._scheduler.state_dict(), "groups": groups}
        try:
            return dict(json.loads(json.dumps(state)))
        except TypeError as error:
            raise ConfigError(
                f"the scheduler {type(self._scheduler).__name__} cannot be checkpointed ({error}); "
                "use one whose state_dict() has numbers only, or train without out="
            ) from error

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Set what ``state`` returned."""
        if self._scheduler is None or state is None:
            return
        self._scheduler.load_state_dict(state["scheduler"])
        for group, saved in zip(self._groups, state["groups"], strict=True):
            group.update(saved)
