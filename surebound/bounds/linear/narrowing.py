"""Parts of the ranges of values inside a network: relaxations over narrower bounds, for branch and bound.

A sub-problem are the executions in which some entries of some values, as computed, lie in given parts of their bounds.
Whatever holds of all executions over the box holds of these, so everything is kept from the whole but the steps of the
calls that read such a value, which are made again over the part (Shi et al. 2024). What the part itself is worth enters
by a multiplier (``Relaxed.pull``, betas).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from surebound.bounds.interval import apply_rule
from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.linear.steps import AffineStep, step_of
from surebound.errors import InputError
from surebound.graph import Node
from surebound.graph.program import resolve, resolve_kwargs
from surebound.interval import Interval, intersect
from surebound.numerics import by_rows
from surebound.rules import Context, find
from surebound.rules.relax.lines import Fan, Lines, Relaxation


def narrowed(relaxed: Relaxed, parts: Mapping[str, Interval]) -> Relaxed:
    """Restrict boxes to the executions whose values lie in parts of their bounds, by name of the value (B, *value)."""
    values, changed = dict(relaxed.bounds), dict[str, Tensor]()
    infeasible = relaxed.infeasible
    if infeasible is None:
        infeasible = torch.zeros(relaxed.batch, dtype=torch.bool, device=values[relaxed.program.graph.input].device)
    for name, part in parts.items():
        if name not in values or name == relaxed.program.graph.input:
            raise InputError(f"{name!r} is no value inside the network; these are: {', '.join(relaxed.steps)}")
        if part.shape != values[name].shape:
            raise InputError(f"the part of {name} has shape {tuple(part.shape)}; give {tuple(values[name].shape)}")
        whole, both = values[name], intersect(values[name], part)
        empty = by_rows(both.lower > both.upper).any(1)
        infeasible = infeasible | empty
        over = empty.reshape(-1, *[1] * (len(part.shape) - 1))  # of these nothing is asked
        kept = Interval(torch.where(over, whole.lower, both.lower), torch.where(over, whole.upper, both.upper))
        values[name], changed[name] = kept, (kept.lower != whole.lower) | (kept.upper != whole.upper)
    steps, constants = dict(relaxed.steps), relaxed.constants
    for node in constants.calls():
        sources = constants.sources(node)
        if node.name not in steps or not any(name in changed for name in sources):
            continue
        if isinstance(steps[node.name], AffineStep):  # nothing to gain
            continue
        where = changed[sources[0]] if alone(relaxed, node) else None
        if where is not None and bool(where.any()):
            values[node.name], changed[node.name] = _followed(relaxed, node, values)
        steps[node.name] = _remade(relaxed, node, values, where)
    return dataclasses.replace(relaxed, bounds=values, steps=steps, cut=tuple(parts), infeasible=infeasible)


def with_fans(relaxed: Relaxed) -> Relaxed:
    """Give lines of elementwise functions others to choose from, where the operands' bounds are what they are."""
    steps, context = dict(relaxed.steps), Context(relaxed.mode, fans=True)
    for node in relaxed.constants.calls():
        old = steps.get(node.name)
        if isinstance(old, Lines) and old.free is None and not old.exact and not relaxed.wide and alone(relaxed, node):
            rule, (source,) = find(node.op), relaxed.constants.sources(node)
            env = {source: relaxed.bounds[source]}
            if rule is not None and rule.relax is not None:
                new = rule.relax(context, *resolve(node.args, env), **resolve_kwargs(node.kwargs, env))
                steps[node.name] = new if isinstance(new, Lines) and new.fan is not None else old
    return dataclasses.replace(relaxed, steps=steps)


def alone(relaxed: Relaxed, node: Node) -> bool:
    """Is a call an elementwise function of one value and of numbers, the same for every entry?"""
    rule, sources = find(node.op), relaxed.constants.sources(node)
    return rule is not None and rule.activation is not None and tuple(node.refs()) == sources and len(sources) == 1


def _followed(relaxed: Relaxed, node: Node, values: Mapping[str, Interval]) -> tuple[Interval, Tensor]:
    """Bound an elementwise function's value by its operand's part: the bounds, and where they changed."""
    before = values[node.name]
    after = intersect(before, apply_rule(Context(relaxed.mode), node, *node.arguments(dict(values))))
    sound = after.lower <= after.upper  # else rounding took them apart
    after = Interval(torch.where(sound, after.lower, before.lower), torch.where(sound, after.upper, before.upper))
    return after, (after.lower != before.lower) | (after.upper != before.upper)


def _remade(relaxed: Relaxed, node: Node, values: Mapping[str, Interval], where: Tensor | None) -> Relaxation:
    """Relax a call again, if possible only ``where`` (B, *value) its operand changed."""
    old = relaxed.steps[node.name]
    if where is not None and not bool(where.any()):
        return old
    if where is not None and isinstance(old, Lines) and not relaxed.wide:
        source = values[relaxed.constants.sources(node)[0]]
        part = Interval(source.lower[where], source.upper[where])
        entries = lines_of_entries(relaxed, node, part, fans=old.fan is not None)
        found = None if entries is None else _put(old, entries, where)
        if found is not None:
            return found
    return step_of(relaxed.constants, node, values, relaxed.mode, relaxed.slopes, wide=relaxed.wide)


def lines_of_entries(relaxed: Relaxed, node: Node, x: Interval, *, fans: bool = False) -> Lines | None:
    """Relax an elementwise function (``alone``) over M intervals: lines of which the first M entries count.

    They are arranged in examples (R, *value) of the value's own shape, so that what lines pay for sums over a value is
    the same; which entry stands where does not matter to them.
    """
    (source,) = relaxed.constants.sources(node)
    shape, count = relaxed.bounds[source].shape[1:], len(x.lower)
    rows = max(1, -(-count // math.prod(shape)))

    def arranged(end: Tensor) -> Tensor:
        full = end[-1:].repeat(rows * math.prod(shape))
        full[:count] = end
        return full.reshape(rows, *shape)

    env = {source: Interval(arranged(x.lower), arranged(x.upper))}
    rule = find(node.op)
    if rule is None or rule.relax is None or not count:
        return None
    context = Context(relaxed.mode, fans=fans)
    step = rule.relax(context, *resolve(node.args, env), **resolve_kwargs(node.kwargs, env))
    return step.with_lower(relaxed.slopes) if isinstance(step, Lines) else None


def _put(old: Lines, entries: Lines, where: Tensor) -> Lines | None:
    """Return lines with those of some entries (R, *value) put ``where`` (B, *value) they belong; None if they differ in
    kind."""
    pairs = [(old.lower[0], entries.lower[0]), (old.upper[0], entries.upper[0])]
    alike = (old.lower_intercept is None) == (entries.lower_intercept is None)
    alike = alike and (old.free is None) == (entries.free is None) and old.owes == entries.owes
    alike = alike and (old.fan is None) == (entries.fan is None)
    if not alike or old.free_range != entries.free_range or len(old.upper) != 1:
        return None

    def put(kept: object, new: object) -> Tensor | None:
        if not isinstance(new, Tensor) or not isinstance(kept, Tensor):
            return None
        found = kept.clone()
        found[where] = new.flatten()[: int(where.sum())]
        return found

    lower, upper = (put(*pair) for pair in pairs)
    top = put(old.upper_intercept, entries.upper_intercept)
    if lower is None or upper is None or top is None:
        return None
    fan = old.fan
    if fan is not None and entries.fan is not None:
        first, last = _put(fan.first, entries.fan.first, where), _put(fan.last, entries.fan.last, where)
        paid = put(fan.paid, entries.fan.paid)
        fan = None if first is None or last is None or paid is None else Fan(first, last, paid)
    return dataclasses.replace(
        old,
        lower=(lower,),
        upper=(upper,),
        lower_intercept=put(old.lower_intercept, entries.lower_intercept),
        upper_intercept=top,
        absolute=torch.maximum(old.absolute, entries.absolute.max()),
        free=put(old.free, entries.free),
        fan=fan,
    )
