"""Trials of what surrounds a network: its state after a question, its batch, the caller's settings, kept results."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

from surebound.audit.claims import SECONDS
from surebound.audit.draw import Draw
from surebound.audit.networks import network
from surebound.audit.pieces import drawn
from surebound.audit.text import NetworkText, Piece, loaded
from surebound.audit.trials import Fault, Trial, judged
from surebound.errors import SureboundError
from surebound.verdict import Status
from surebound.verify import verify

#: Places where a network may keep a number: how it is made, how forward() reads it, and how it changes.
_KNOBS = {
    "attribute": (("self.k = 1.0",), "self.k", "net.k = {v}"),
    "integer": (("self.k = 1",), "self.k", "net.k = -2"),
    "plain tensor replaced": (("self.k = torch.ones(1)",), "self.k", "net.k = torch.full((1,), {v})"),
    "plain tensor in place": (("self.k = torch.ones(1)",), "self.k", "net.k.mul_({v})"),
    "plain tensor's data": (("self.k = torch.ones(1)",), "self.k", "net.k.data = torch.full((1,), {v})"),
    "list in a dictionary": (('self.k = {"a": [1.0]}',), 'self.k["a"][0]', 'net.k["a"][0] = {v}'),
    "object": (("self.k = Settings()",), "self.k.k", "net.k.k = {v}"),
    "object with slots": (("self.k = Slots()",), "self.k.k", "net.k.k = {v}"),
    "class": ((), "self.factor", "Net.factor = {v}"),
    "property": (("self.k = [1.0]",), "self.twice", "net.k[0] = {v}"),
    "buffer": (('self.register_buffer("k", torch.ones(1))',), "self.k", "net.k.mul_({v})"),
    "buffer that is not kept": (
        ('self.register_buffer("k", torch.ones(1), persistent=False)',), "self.k", "net.k.mul_({v})",
    ),
    "parameter": (("self.k = nn.Parameter(torch.ones(1))",), "self.k", "net.k.data.mul_({v})"),
    "parameter replaced": (
        ("self.k = nn.Parameter(torch.ones(1))",), "self.k", "net.k = nn.Parameter(torch.full((1,), {v}))",
    ),
    "closure": (("self.k = [1.0]", "self.f = (lambda k: lambda: k[0])(self.k)"), "self.f()", "net.k[0] = {v}"),
    "default argument": (("self.f = scaled",), "self.f(1.0)", "scaled.__defaults__ = ({v},)"),
    "partial": (
        ("self.f = functools.partial(scaled, k=1.0)",), "self.f(1.0)", "net.f = functools.partial(scaled, k={v})",
    ),
    "module in a list": (("self.k = [Holder()]",), "self.k[0].k", "net.k[0].k = {v}"),
    "submodule swapped": (
        ("self.m = nn.Identity()",), "self.m(torch.ones(1))", "net.m = nn.Hardtanh(-2.0, -1.5)",
    ),
    "appended": (
        ("self.m = nn.Sequential(nn.Identity())",), "self.m(torch.ones(1))", "net.m.append(nn.Hardtanh(-2.0, -1.5))",
    ),
    "hook": (
        ("self.m = nn.Identity()",), "self.m(torch.ones(1))", "net.m.register_forward_hook(lambda m, i, o: {v} * o)",
    ),
    "pre-hook": ((), "1.0", "net.register_forward_pre_hook(lambda m, a: ({v} * a[0],))"),
    "forward of the instance": ((), "1.0", "net.forward = lambda x, f=net.forward: {v} * f(x)"),
    "first call under autocast": (
        (), "1.0", 'with torch.autocast("cpu", torch.bfloat16): sb.interval_bounds(net, region)',
    ),
}  # fmt: skip

_HEAD = """\
import functools


class Settings:
    k = 1.0


class Slots:
    __slots__ = ("k",)

    def __init__(self):
        self.k = 1.0


class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = 1.0


def scaled(x, k=1.0):
    return x * k
"""

#: What a caller may have switched on while we are asked.
_STATES = (
    'torch.autocast("cpu", torch.bfloat16)',
    'torch.autocast("cpu", torch.bfloat16)',
    "torch.inference_mode()",
    "torch.enable_grad()",
    "torch.backends.mkldnn.flags(enabled=False)",
)

#: Code that looks at its batch.
_BATCH = (
    "x = x * (2.0 if x.shape[0] == 1 else 1.0)",
    "x = x * (2.0 if x.shape[0] > 2 else 1.0)",
    "x = x * x.shape[0]",
    "x = x[torch.arange(x.shape[0]).clamp(max=1)]",
    "x = x[torch.arange(x.shape[0]).clamp(min=x.shape[0] - 2)]",
    "x = x + x.mean(0)",
    "x = x - x[:1]",
    "x = x.flip(0)",
    "x = x.roll(1, 0)",
    "x = x.roll(3, 0)",
    "x = x * (torch.arange(x.shape[0]).reshape(-1, *[1] * (x.dim() - 1)) % 3)",
    "x = x.sort(0)[0]",
    "x = x.cumsum(0)",
    "x = x + 0.1 * x.max()",
    "x = torch.where((x > x.mean(0)), x, -x)",
    "x = x.reshape(-1).reshape(x.shape)",
    "x = x.transpose(0, -1).transpose(0, -1)",
)
_HARMLESS = _BATCH[-2:]  # they mix examples and put them apart again


def try_change(trial: Trial) -> Iterator[Fault]:
    """Change a network in some way after a first question, or ask under a caller's settings."""
    text = changed(trial.draw("network"))
    if text is not None:
        yield from judged(trial, text)


def changed(draw: Draw) -> NetworkText | None:
    """Draw a network with a knob and the function ``change`` that turns it; or with a state to be asked in."""
    text = network(draw, drawn)
    if text is None or draw.chance(0.25):
        state = draw.choice(_STATES)
        return text and dataclasses.replace(text, after=(*text.after, f"within = lambda: {state}"))
    init, read, change = _KNOBS[draw.choice(list(_KNOBS))]
    lines = ["def change():", f"    {change.format(v=draw.pick(-1.0, 3.0, 0.5, 0.0))}"]
    extra = ("factor = 1.0", "@property", "def twice(self): return self.k[0]")
    piece = Piece((f"x = x * {read}",), init, needed=True)
    place = draw.randint(0, len(text.pieces) - 1)
    pieces = (*text.pieces[:place], piece, *text.pieces[place:])
    return dataclasses.replace(text, pieces=pieces, after=(*text.after, *lines), head=(_HEAD,), members=extra)


def try_batch(trial: Trial) -> Iterator[Fault]:
    """Try a network that looks at its batch: at every batch size the bounds are those of that batch, or refused.

    The ways to look at it take turns. Where a network's answers do not show it, behind a saturated function or for one
    example, another network is drawn: no wrong bound could be seen there. Nor could it if bounds are wide, so that most
    regions are small.
    """
    draw, line = trial.draw("network"), _BATCH[trial.number % len(_BATCH)]
    found = None
    for _ in range(8):
        text = network(draw, drawn)
        if text is None:
            continue
        place = draw.randint(0, len(text.pieces) - 1)
        pieces = (*text.pieces[:place], Piece((line,), needed=True), *text.pieces[place:])
        after = (*text.after, 'region = sb.LinfBall(region.reference, "1/1000")') if draw.chance(0.7) else text.after
        found = dataclasses.replace(text, pieces=pieces, after=after)
        if line in _HARMLESS or _shows(found):
            break
    if found is not None:
        yield from judged(trial, found, apart=False)


def _shows(text: NetworkText) -> bool:
    """Does an example's answer depend on how many others there are, or on which?"""
    with suppress(Exception), loaded(str(text)) as script, torch.no_grad():  # whatever does not run is drawn again
        x, one = script.region.reference, script.region.reference[:1]
        others = torch.cat([one, *([one * 0.5 + 0.25] * (len(x) - 1))])
        answers = [script.net(each.clone())[0] for each in (x, others, one.repeat(3, *[1] * (x.dim() - 1)))]
        return not all(torch.allclose(each, answers[0], 1e-3, 1e-4, equal_nan=True) for each in answers)
    return False


def try_store(trial: Trial) -> Iterator[Fault]:
    """Verify into a store, change the network, and verify into the same store again."""
    draw = trial.draw("network")
    text = changed(draw)
    if text is None or not any(line.startswith("def change") for line in text.after):
        return
    with loaded(str(text)) as script, tempfile.TemporaryDirectory() as folder:
        if not hasattr(script.region, "eps") or script.region.x.dtype != torch.float32:
            return
        try:
            verify(script.net, script.region, script.labels, "fast", out=folder, timeout=SECONDS)
            script.change()
            records = verify(script.net, script.region, script.labels, "fast", out=Path(folder), timeout=SECONDS)
        except SureboundError:  # the store belongs to the network as it was
            trial.tally.compared(trial.generator, set(), "store", len(script.labels))
            return
        trial.tally.compared(trial.generator, set(), "store", len(records.records))
        with torch.no_grad():
            z = script.net(script.region.reference)
        for record in records:
            own, label = z[record.index], int(script.labels[record.index])
            if record.verdict.status is Status.ROBUST and not bool((own <= own[label]).all()):
                shown = (
                    'sb.verify(net, region, labels, "fast", out="kept")\nchange()\n'
                    f'print(sb.verify(net, region, labels, "fast", out="kept").records[{record.index}].verdict)\n'
                    f"print(net(region.reference)[{record.index}], labels[{record.index}])\n"
                )
                yield Fault(f"a store answers for another network: {record.verdict}", f"{text}\n{shown}")
                return
