"""Sub-problems of branch and bound: signs of ReLU inputs, stored compactly over the entries that can be split.

E examples, P pairs of an example and a target class, N sub-problems, A entries of all activations together, U the
largest number of them that are unstable in one example: splits, slopes and multipliers are (N, U), not (N, A).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from surebound.bounds.linear.alpha import Multipliers
from surebound.bounds.linear.backward import Relaxed
from surebound.rules.relax_lines import Lines


@dataclass(frozen=True, eq=False)
class Domains:
    """Open sub-problems: the executions whose ReLU inputs have the given signs, and what is known of them."""

    pair: Tensor  # (N,) int64
    signs: Tensor  # (N, U) int8: -1, 0 (free), +1
    alphas: Tensor  # (N, U) lower slopes
    betas: Tensor  # (N, U) multipliers of the splits
    upper: Tensor  # (N,) sound upper bounds of the target's margin

    def __len__(self) -> int:
        return len(self.pair)

    def __getitem__(self, index: Tensor) -> Domains:
        return Domains(*(getattr(self, part.name)[index] for part in fields(self)))

    @classmethod
    def cat(cls, parts: list[Domains]) -> Domains:
        """All of several."""
        if len(parts) == 1:
            return parts[0]
        return cls(*(torch.cat([getattr(p, part.name) for p in parts]) for part in fields(cls)))

    def split(self, entry: Tensor) -> Domains:
        """Both halves of every sub-problem, cut at one entry each (N,): (2N), negative halves first."""
        both = self[torch.arange(len(self)).repeat(2)]
        sign = torch.ones(len(both), dtype=torch.int8)
        sign[: len(self)] = -1
        signs = both.signs.scatter(1, entry.repeat(2).unsqueeze(1), sign.unsqueeze(1))
        return Domains(both.pair, signs, both.alphas, both.betas, both.upper)


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the unstable entries of each example lie among the activations of the network."""

    shapes: Mapping[str, torch.Size]  # by activation, without the batch axis
    index: Tensor  # (E, U) int64 into the A entries; A itself where an example has fewer

    @classmethod
    def of(cls, root: Relaxed) -> Layout:
        """The unstable entries of the root's examples."""
        shapes = {name: root.bounds[name].shape[1:] for name in root.activations}
        free = [_free(root, name) for name in shapes]
        flat = torch.cat([f.flatten(1) for f in free], 1) if free else torch.zeros(root.batch, 0).bool()
        count = int(flat.sum(1).max()) if flat.numel() else 0
        order = flat.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :count]  # (E, U)
        return cls(shapes, torch.where(flat.gather(1, order), order, flat.shape[1]))

    @property
    def entries(self) -> int:
        """A."""
        return sum(shape.numel() for shape in self.shapes.values())

    def dense(self, values: Tensor, example: Tensor) -> dict[str, Tensor]:
        """Values (N, U) of sub-problems of these examples (N,) by activation, (N, *value); 0 elsewhere."""
        flat = values.new_zeros(len(values), self.entries + 1).scatter(1, self.index[example], values)
        parts = torch.split(flat[:, :-1], [shape.numel() for shape in self.shapes.values()], 1)
        pairs = zip(self.shapes.items(), parts, strict=True)
        return {name: part.reshape(-1, *shape) for (name, shape), part in pairs}

    def compact(self, values: Mapping[str, Tensor], example: Tensor) -> Tensor:
        """Values by activation (N, *value) at the unstable entries of each example: (N, U); 0 where there is none."""
        if not self.shapes:
            return torch.zeros(len(example), 0)
        flat = torch.cat([values[name].flatten(1) for name in self.shapes], 1)
        padded = torch.cat([flat, flat.new_zeros(len(flat), 1)], 1)
        return padded.gather(1, self.index[example])

    def restrict(self, root: Relaxed, domains: Domains, example: Tensor) -> Relaxed:
        """The relaxation of the sub-problems, (N) boxes."""
        return root.select(example).restrict(self.dense(domains.signs, example))

    def multipliers(self, domains: Domains, example: Tensor) -> Multipliers:
        """Slopes and multipliers of the sub-problems, (1, N, *value) each."""
        alphas = self.dense(domains.alphas, example)
        betas = self.dense(domains.betas, example)
        split = self.dense(domains.signs, example)
        return Multipliers(
            {name: v.unsqueeze(0) for name, v in alphas.items()},
            {name: v.unsqueeze(0) for name, v in betas.items() if bool((split[name] != 0).any())},
        )

    def free(self, node: Relaxed, example: Tensor) -> Tensor:
        """Which entries are still unstable in the sub-problems: (N, U) bool."""
        return self.compact({name: _free(node, name) for name in self.shapes}, example).bool()


def _free(relaxed: Relaxed, name: str) -> Tensor:
    step = relaxed.steps[name]
    if isinstance(step, Lines) and step.free is not None:
        return step.free
    return torch.zeros(relaxed.bounds[name].shape, dtype=torch.bool)
