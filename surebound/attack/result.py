"""The result of an attack, and its progress while it is at work."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class AttackResult:
    """The worst input found for every example, judged by a clean forward pass after the search.

    ``success`` is a fact about the network: ``adversarial`` lies in the region, and the network was run on it
    again. Failure is none: it says only that this attack found nothing.
    """

    adversarial: Tensor  # (B, ...) inside the region; the example itself where nothing worse was found
    success: Tensor  # (B,) bool: the specification is violated at `adversarial`
    margins: Tensor  # (B,) largest c.z + d (z_k - z_true for labels) at `adversarial`
    predictions: Tensor  # (B,) argmax of the outputs at `adversarial`
    clean_success: Tensor  # (B,) bool: violated without any perturbation
    attacked: Tensor  # (B,) bool: searched; False if broken from the start or already proved
    finished: Tensor  # (B,) bool: broken, or nothing of its search is left; False only after a `stop`
    steps: Tensor  # (B,) steps taken, as if the trials were made one after the other
    queries: Tensor  # (B,) forward passes for the search, counted the same way

    @property
    def clean_error(self) -> float:
        """Share of examples that are broken without any perturbation; NaN of an empty batch."""
        return float(self.clean_success.double().mean())

    @property
    def error(self) -> float:
        """Share of examples that are broken under attack: a lower bound of the true robust error."""
        return float(self.success.double().mean())

    def __len__(self) -> int:
        return int(self.success.shape[0])

    def __repr__(self) -> str:
        wrong, broken, searched = (int(x.sum()) for x in (self.clean_success, self.success, self.attacked))
        return f"AttackResult({len(self)} examples: {wrong} wrong from the start, {searched} attacked, {broken} broken)"


@dataclass(frozen=True)
class AttackProgress:
    """How far a search is; given to the ``progress`` callback after every step."""

    done: int  # row-steps made, or no longer needed because their example fell
    total: int  # row-steps of the whole search if nothing fell
    examples: int  # examples searched
    broken: int  # of them, broken so far


class Ledger:
    """The best of every example over all its trials; what it holds does not depend on the order of arrival.

    A trial is one restart, or one restart towards one target. The lowest trial that breaks an example
    decides, by its first violating iterate; else the largest value does, the lowest trial first among equals.
    So running several trials at a time, or one after the other, gives the same answer.
    """

    def __init__(self, x: Tensor, value: Tensor, fallen: Tensor, trials: int) -> None:
        self.x = x.clone()  # (B, ...)
        self.value = value.clone()  # (B,)
        never = torch.full_like(fallen, trials, dtype=torch.int64)
        # (B,) lowest trial that broke the example: `trials` if none did, -1 if it was broken from the start
        self.winner = torch.where(fallen, -1, never)
        self.holder = torch.full_like(self.winner, -1)  # (B,) trial that `x` is from; -1: the example itself
        self.trials = trials
        self.steps = torch.zeros(len(x), trials, dtype=torch.int64, device=x.device)  # (B, T)
        self.queries = torch.zeros_like(self.steps)  # (B, T)
        self.finished = torch.zeros_like(self.steps, dtype=torch.bool)  # (B, T) searched to the end

    @property
    def fallen(self) -> Tensor:
        """Examples that are broken: (B,) bool."""
        return self.winner < self.trials

    def broke(self, example: Tensor, trial: Tensor) -> None:
        """Note rows that found a violation, while they still run: (N,) and (N,)."""
        self.winner.scatter_reduce_(0, example, trial, "amin")

    def enter(self, example: Tensor, trial: Tensor, x: Tensor, value: Tensor, steps: Tensor, queries: Tensor) -> None:
        """Enter rows that have ended, each with its worst iterate; their first violating one if they broke."""
        self.steps[example, trial] = steps
        self.queries[example, trial] = queries
        for number in sorted(set(trial.tolist())):  # each example has at most one row per trial
            rows = (trial == number).nonzero().squeeze(1)
            at = example[rows]
            decided = self.winner[at] < self.trials
            level = (value[rows] == self.value[at]) & (number < self.holder[at])
            better = torch.where(decided, self.winner[at] == number, (value[rows] > self.value[at]) | level)
            rows, at = rows[better], at[better]
            self.x[at], self.value[at], self.holder[at] = x[rows], value[rows], number

    def spent(self, counts: Tensor) -> Tensor:
        """Sum ``steps`` or ``queries`` over the trials that were needed: (B,)."""
        number = torch.arange(self.trials, device=counts.device)
        return (counts * (number <= self.winner.unsqueeze(1))).sum(1)
