"""Optimised slopes and split multipliers (alpha- and beta-CROWN) by projected Adam.

property:  sound whatever the optimiser does: any slope in [0, 1] and any multiplier give a valid bound, and the bound
           that is returned comes from a pass with all rounding paid; never looser than its start
reference: Xu et al. 2021 (alpha); Wang et al. 2021 (beta), eq. 8-12
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.bounds.linear.backward import Relaxed
from surebound.errors import InputError
from surebound.rules.relax.lines import Index, Lines
from surebound.rules.relax.products import Products

#: Planes of a product of more summands than this, over all rows, stay as they are: Adam keeps three arrays of them.
MOST_TURNED = 1 << 22


@dataclass(frozen=True)
class NamedMultipliers:
    """Slopes by activation and multipliers by value that is cut (S, B, *value); planes of products (S, B, *params)."""

    alphas: Mapping[str, Tensor]
    betas: Mapping[str, Tensor]

    @classmethod
    def start(cls, relaxed: Relaxed, specs: int) -> NamedMultipliers:
        """Return plain CROWN's slopes and planes, and multipliers of 0 where something is split."""
        alphas, betas = {}, {}
        for name in relaxed.activations:
            step = relaxed.steps[name]
            if isinstance(step, Lines) and isinstance(step.lower[0], Tensor):
                alphas[name] = step.lower[0].detach().expand(specs, *step.lower[0].shape).clone()
        for name in relaxed.cut:
            box, dtype = relaxed.bounds[name], relaxed.dtype_of(name)
            betas[name] = torch.zeros((specs, *box.shape), dtype=dtype, device=box.device)
        for name, step in relaxed.steps.items():
            turned = step.turned if isinstance(step, Products) else None
            fanned = isinstance(step, Lines) and step.fan is not None
            shape = relaxed.bounds[name].shape if fanned else turned
            if shape is None:
                continue
            shape = torch.Size((specs, relaxed.batch, *shape[1:]))
            if shape.numel() <= MOST_TURNED:
                alphas[name] = torch.full(shape, 0.5, dtype=relaxed.dtype_of(name))
        return cls(alphas, betas)

    def select(self, index: Index) -> NamedMultipliers:
        """Select examples, in any order and with repetitions."""
        return self.map(lambda v: v[:, index])

    def map(self, fn: Callable[[Tensor], Tensor]) -> NamedMultipliers:
        """Apply a function to every tensor."""
        return NamedMultipliers({k: fn(v) for k, v in self.alphas.items()}, {k: fn(v) for k, v in self.betas.items()})

    def zip(self, other: NamedMultipliers, fn: Callable[[Tensor, Tensor], Tensor]) -> NamedMultipliers:
        """Combine with another of the same shapes."""
        return NamedMultipliers(
            {k: fn(v, other.alphas[k]) for k, v in self.alphas.items()},
            {k: fn(v, other.betas[k]) for k, v in self.betas.items()},
        )

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every tensor, with "alpha" or "beta"."""
        yield from (("alpha", v) for v in self.alphas.values())
        yield from (("beta", v) for v in self.betas.values())


@dataclass(frozen=True)
class Adam:
    """Projected Adam: rates of slopes, and of multipliers by the size of the coefficients, times ``decay`` per step."""

    steps: int = 20
    alpha_rate: float = 0.25
    beta_rate: float = 0.1
    decay: float = 0.97

    def __post_init__(self) -> None:
        if self.steps < 0 or not (self.alpha_rate > 0 and self.beta_rate > 0 and 0 < self.decay <= 1):
            raise InputError(f"{self}: steps must be >= 0, rates > 0 and the decay in (0, 1]")


def optimise(
    relaxed: Relaxed, c: Tensor, d: Tensor, adam: Adam, start: NamedMultipliers | None = None
) -> tuple[Tensor, NamedMultipliers]:
    """Bound c.z + d from above, c (B, S, K), d (B, S): return bounds (B, S) and the multipliers that give them.

    An example whose rows are all proved is dropped from the optimisation. The steps are taken on the bound without
    its rounding terms, which hardly move; the result is evaluated with them.
    """
    start = start or NamedMultipliers.start(relaxed, c.shape[1])
    first = relaxed.evaluate(c, d, alphas=start.alphas, betas=start.betas).upper  # (B, S)
    if adam.steps == 0 or not (start.alphas or start.betas) or not first.numel():
        return first, start
    best = _descend(relaxed.unpaid(), c, d, adam, start, first)
    last = relaxed.evaluate(c, d, alphas=best.alphas, betas=best.betas).upper
    better = (last < first).t()  # (S, B); NaN is not better

    def pick(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(_over(better, new), new, old)

    return torch.fmin(first, last), best.zip(start, pick)


def _descend(
    free: Relaxed, c: Tensor, d: Tensor, adam: Adam, start: NamedMultipliers, paid: Tensor
) -> NamedMultipliers:
    """Optimise every row by itself by projected Adam, and keep the best iterate of each."""
    best = start.map(torch.clone)
    value = torch.full_like(paid.t(), torch.inf)  # (S, B), of the best iterates
    active = torch.arange(c.shape[0], device=c.device)
    now, state, goal = start.map(torch.clone), _State.of(start), None
    sizes = dict[str, Tensor]()  # of the coefficients that multipliers are a part of
    for step in range(adam.steps + 1):
        leaves = now.map(lambda v: v.detach().requires_grad_())
        with torch.enable_grad():
            form = free.pull(*free.query(c, d), alphas=leaves.alphas, betas=leaves.betas, record=leaves.betas)
            upper = free.upper(form)
        sizes = sizes or {name: _size(a.detach()) for name, a in form.recorded.items()}
        if not upper.requires_grad:  # every slope lies behind a call that is bounded by intervals
            return start
        if goal is None:  # rounding will cost about as much as it does at the start
            goal = -2 * (paid.t() - upper.detach()).clamp(min=0).nan_to_num(0.0, posinf=0.0)
        better = upper.detach() < value[:, active]
        value[:, active] = torch.where(better, upper.detach(), value[:, active])
        for (_, kept), (_, new) in zip(best.tensors(), now.tensors(), strict=True):
            kept[:, active] = torch.where(_over(better, new), new, kept[:, active])
        open_rows = ~(value[:, active] <= goal[:, active])  # (S, B)
        alive = open_rows.any(0)
        if step == adam.steps or not bool(alive.any()):
            break
        grads = _gradients(upper, open_rows, leaves)
        now = state.step(now, grads, adam, adam.decay**step, sizes)
        if 2 * int(alive.sum()) <= alive.numel():
            index = alive.nonzero()[:, 0]
            active, free, c, d = active[index], free.select(index), c[index], d[index]
            now, state = now.select(index), state.select(index)
            sizes = {name: size[:, index] for name, size in sizes.items()}
    return best


def _gradients(upper: Tensor, rows: Tensor, leaves: NamedMultipliers) -> NamedMultipliers:
    wanted = [v for _, v in leaves.tensors()]
    with torch.enable_grad():
        total = torch.where(rows & upper.isfinite(), upper, torch.zeros_like(upper)).sum()
    found = torch.autograd.grad(total, wanted, allow_unused=True)
    known = {id(v): g if g is not None else torch.zeros_like(v) for v, g in zip(wanted, found, strict=True)}
    return leaves.map(lambda v: known[id(v)].nan_to_num(0.0, 0.0, 0.0))


@dataclass
class _State:
    """Adam's moments."""

    mean: NamedMultipliers
    square: NamedMultipliers
    count: int = 0

    @classmethod
    def of(cls, like: NamedMultipliers) -> _State:
        return cls(like.map(torch.zeros_like), like.map(torch.zeros_like))

    def step(
        self, now: NamedMultipliers, grads: NamedMultipliers, adam: Adam, rate: float, sizes: Mapping[str, Tensor]
    ) -> NamedMultipliers:
        self.count += 1
        self.mean = self.mean.zip(grads, lambda m, g: m.lerp(g, 0.1))
        self.square = self.square.zip(grads, lambda s, g: s.lerp(g * g, 0.001))
        scale = (1 - 0.999**self.count) ** 0.5 / (1 - 0.9**self.count)
        move = self.mean.zip(self.square, lambda m, s: m * scale / (s.sqrt() + 1e-12))  # heuristic: Adam's
        return NamedMultipliers(
            {k: (v - adam.alpha_rate * rate * move.alphas[k]).clamp_(0, 1) for k, v in now.alphas.items()},
            {k: v - adam.beta_rate * rate * sizes.get(k, 1.0) * move.betas[k] for k, v in now.betas.items()},
        )

    def select(self, index: Tensor) -> _State:
        return _State(self.mean.select(index), self.square.select(index), self.count)


def _size(a: Tensor) -> Tensor:
    """Return the largest of coefficients a (S, B, *value): (S, B, *1)."""
    return _over(a.abs().flatten(2).amax(2), a)


def _over(rows: Tensor, like: Tensor) -> Tensor:
    """Return (S, B) as a mask over (S, B, *value)."""
    return rows.reshape(*rows.shape, *([1] * (like.dim() - 2)))
