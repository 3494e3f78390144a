"""Signs that follow from others: bounds of a sub-problem's values, narrowed by its splits and by the rows of its case.

A case asks for a point where all its rows are > 0. With that, every row of the reduced network and of the case is an
inequality a.v + b >= 0 of columns v that lie between ends: where the others are as large as they can be, each column
still has to make up for the rest (interval constraint propagation; Davis 1987). ReLUs pass bounds on in both
directions. Ends that meet refute the sub-problem; a ReLU input that keeps one sign is split for nothing. Where a
network encodes a combinatorial problem this is its unit propagation (Davis et al. 1962), and cuts are chosen by what
follows from them; where rows say little about single values, it is not used at all.

property:  sound: every end is moved outwards by the rounding error bound of its computation (docs/soundness.md)
reference: Tjeng et al. 2019, section 4.2; Zhou et al. 2025 (Clip-and-Verify: domains clipped by linear bounds)
"""

from __future__ import annotations

import dataclasses
from functools import cached_property

import torch
from torch import Tensor

from surebound.bounds.reduced.passes import Multipliers
from surebound.bounds.reduced.targets import Targets
from surebound.interval import Interval
from surebound.search.signs.domains import Domains
from surebound.search.signs.inequalities import LayerInequalities, narrowed_by_rows
from surebound.search.signs.ranges import Ranges

#: Rounds over all inequalities, at most: later ones narrow less and less.
_ROUNDS = 20

#: A round that narrows no column by this part of its width is the last.
_LEAST_GAIN = 0.01

#: Propagation is for cases whose rows alone, without any split, halve the gaps of this part of the ReLUs.
_GRIPS = 0.25

#: Coefficients, times sub-problems, that one step takes at once.
_ENTRIES = 1 << 22


class Propagation:
    """Narrows sub-problems of one reduced network; float64 passes."""

    def __init__(self, targets: Targets) -> None:
        passes = targets.passes
        self._targets, self._passes = targets, passes
        both = sum(layer.up.entries + layer.low.entries for layer in passes.layers)
        self._entries = targets.width * passes.columns + both
        self.grips = torch.zeros(len(targets.valid), dtype=torch.bool)  # (N,) cases for which it is of use
        self.goes_on = False  # for sub-problems, too: it does not refute all of these at once

    @cached_property
    def _layers(self) -> list[LayerInequalities]:
        # Not before they are needed: of a large network they take more memory than all else.
        return [LayerInequalities.of(self._passes, number) for number in range(len(self._passes.layers))]

    def prepare(self, roots: Domains) -> None:
        """Find the cases whose rows say much about single values."""
        numbers = [self._passes.lower, self._passes.upper_end, self._passes.largest, self._passes.outputs.up_offset]
        if not self._passes.layers or self._entries > _ENTRIES:
            return
        if not all(bool(x.isfinite().all()) for x in (*numbers, *(layer.slack for layer in self._layers))):
            return
        before, after = self._start(len(roots)), self.narrowed(roots)
        halved = 2 * after.gaps <= before.gaps
        self.grips = after.refuted | (halved.double().mean(1) >= _GRIPS)
        self.goes_on = bool((self.grips & ~after.refuted).any())

    def narrowed(self, batch: Domains, start: Ranges | None = None, rounds: int = _ROUNDS) -> Ranges:
        """Narrow the values of sub-problems until little changes, from ``start`` if given."""
        pieces = torch.split(torch.arange(len(batch)), max(1, _ENTRIES // self._entries))
        return Ranges.cat([self._narrowed(batch[i], None if start is None else start[i], rounds) for i in pieces])

    def _narrowed(self, batch: Domains, start: Ranges | None, rounds: int) -> Ranges:
        ranges = self._start(len(batch)) if start is None else start
        rows, offset = self._targets.rows(batch.case)
        offset = torch.where(self._targets.valid[batch.case], offset, torch.inf)
        signs = batch.m.signs
        for _ in range(rounds):
            before, signs = ranges.width, torch.where(signs == 0, ranges.signs, signs)
            ranges = ranges.with_signs(signs)
            for layer in self._layers:
                ranges = layer.forward(ranges)
            ranges = narrowed_by_rows(ranges, rows, offset, self._passes)
            ranges = narrowed_by_rows(ranges, *self._pulled(batch, rows, offset, signs), self._passes)
            for layer in reversed(self._layers):
                ranges = layer.backward(ranges)
            ranges = self._reaching(ranges)
            if not bool((ranges.width < (1 - _LEAST_GAIN) * before)[~ranges.refuted].any()):
                break
        return ranges

    def _start(self, count: int) -> Ranges:
        """Return the bounds that the reduced network came with, for ``count`` sub-problems."""
        passes = self._passes
        z = [torch.cat([getattr(layer, end) for layer in passes.layers]) for end in ("lower", "upper")]
        unknown = passes.lower.new_full((passes.unstable,), torch.inf)
        v = [torch.cat([passes.lower, -unknown]), torch.cat([passes.upper_end, unknown])]
        known, own, reach = (Interval(*(end.expand(count, -1) for end in ends)) for ends in (v, z, (-unknown, unknown)))
        ranges = Ranges(known, own, reach, torch.zeros(count, dtype=torch.bool))
        for layer in self._layers:
            ranges = layer.forward(ranges)
        return self._reaching(ranges)

    def _reaching(self, ranges: Ranges) -> Ranges:
        """Narrow the ReLUs' inputs by the columns before them, and their outputs by these, from the first layer on."""
        reaches = []
        for layer in self._layers:
            reaches.append(layer.reach(ranges))
            ranges = layer.forward(ranges.with_inputs(layer.own, reaches[-1]))
        reach = Interval(torch.cat([x.lower for x in reaches], 1), torch.cat([x.upper for x in reaches], 1))
        return dataclasses.replace(ranges, reach=reach)

    def _pulled(self, batch: Domains, rows: Tensor, offset: Tensor, signs: Tensor) -> tuple[Tensor, Tensor]:
        """Bound the rows by affine functions of the input alone: (N, S, n), (N, S)."""
        count, width = offset.shape
        m = Multipliers(signs, batch.m.alphas.double(), torch.zeros_like(batch.m.betas, dtype=torch.float64))
        finite = torch.where(offset.isfinite(), offset, 0.0)
        again = torch.arange(count).repeat_interleave(width)
        found = self._passes.pull(rows.flatten(0, 1), finite.flatten(), m[again])
        sound = self._passes.sound_offset(found).reshape(count, width)
        return found.a.reshape(count, width, -1), torch.where(offset.isfinite(), sound, torch.inf)

    def corner(self, ranges: Ranges) -> Tensor:
        """Return points (N, n) of what is left of the boxes, at ends of the whole box where these are left."""
        passes = self._passes
        x = ranges.columns(slice(0, passes.inputs))
        inside = torch.where(x.upper < passes.upper_end, (x.lower + x.upper) / 2, x.upper)
        return torch.where(x.lower > passes.lower, inside, x.lower)

    def best(self, batch: Domains) -> Tensor:
        """Return the free entry (N,) of each sub-problem from whose cut most follows; -1 if nothing does."""
        found = torch.full((len(batch),), -1)
        for i in self.grips[batch.case].nonzero():  # (1,) each
            one = batch[i]
            ranges = self.narrowed(one)
            entries = (one.free & ranges.straddle).nonzero()[:, 1:].t()  # (1, k)
            if entries.numel():
                score, at = self.effects(one, ranges, entries)[0].max(0)
                found[i] = torch.where(score > 0, entries[0, at], -1)
        return found

    def effects(self, batch: Domains, ranges: Ranges, entries: Tensor) -> Tensor:
        """Score cuts of sub-problems at ``entries`` (N, k) by how much follows from either half: (N, k).

        A half counts the ReLUs that it narrows, each by the part of its reach; one that is refuted counts them all.
        What matters is the product: a cut that leaves one half as it was gains nothing.
        """
        count, width = entries.shape
        index = torch.arange(count).repeat_interleave(width).repeat(2)
        sign = torch.ones(len(index), 1, dtype=torch.int8)
        sign[: count * width] = -1
        halves, start = batch[index], ranges[index]
        signs = halves.m.signs.scatter(1, entries.flatten().repeat(2).unsqueeze(1), sign)
        halves = dataclasses.replace(halves, m=dataclasses.replace(halves.m, signs=signs))
        after, before = self.narrowed(halves, start, rounds=1), start.open
        lost = torch.where(before & ~after.open, 1.0, (1 - after.length / start.length).nan_to_num(0.0).clamp(0, 1))
        effect = torch.where(after.refuted, before.sum(1).double(), torch.where(before, lost, 0.0).sum(1))
        return effect.reshape(2, count, width).prod(0)
