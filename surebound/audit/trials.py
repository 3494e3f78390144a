"""Trials of networks: draw one, ask about it, and make a script of what is wrong, as small as it goes."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from types import ModuleType

from surebound.audit.claims import AuditedNetwork, Violation, violations
from surebound.audit.draw import Draw
from surebound.audit.networks import network
from surebound.audit.operators import called, rules
from surebound.audit.pieces import drawn
from surebound.audit.tally import Tally
from surebound.audit.text import NetworkText, loaded, shrunk
from surebound.bounds import interval_bounds, worst_margins
from surebound.bounds.margins import METHODS
from surebound.errors import SureboundError
from surebound.graph import program_of


@dataclasses.dataclass(frozen=True, eq=False)
class Trial:
    """One trial of a generator: everything in it is drawn from the seed and its number."""

    generator: str
    seed: int
    number: int
    tally: Tally

    def draw(self, part: str) -> Draw:
        """Return a random source for one part of the trial."""
        return Draw(self.seed, self.generator, self.number, part)


@dataclasses.dataclass(frozen=True)
class Fault:
    """What a trial found, and a script that shows it."""

    what: str
    script: str


def try_network(trial: Trial) -> Iterator[Fault]:
    """Try a drawn network of layers and of code as people write it."""
    text = network(trial.draw("network"))
    if text is not None:
        yield from judged(trial, text)


def try_operator(trial: Trial) -> Iterator[Fault]:
    """Try one operator, the next of the registry, with drawn arguments; drawn until they fit."""
    table, draw = rules(), trial.draw("operator")
    rule = table[trial.number % len(table)]
    call = f"torch.ops.{rule.op}("
    for _ in range(20):
        around = [drawn] if draw.chance(0.5) else []
        text = network(draw, *around, lambda *_: called(draw, rule), *around)
        if text is not None and call in str(text):
            yield from judged(trial, text)
            return
    trial.tally.refused[trial.generator] += 1


def judged(trial: Trial, text: NetworkText, *, apart: bool = True) -> Iterator[Fault]:
    """Yield what is wrong with the answers about a network: one fault, with the smallest network that shows it."""
    found = next(iter(_wrong(trial, text, apart)), None)
    if found is None:
        return
    kind = found.what.split(":")[0]

    def still(smaller: NetworkText) -> bool:
        with suppress(Exception):  # it does not run
            other = next(iter(_wrong(dataclasses.replace(trial, tally=Tally()), smaller, apart)), None)
            return other is not None and other.what.split(":")[0] == kind
        return False

    text = shrunk(text, still)
    found = next(iter(_wrong(dataclasses.replace(trial, tally=Tally()), text, apart)), found)
    yield Fault(found.what, f"{text}\n{found.shown}")


def _wrong(trial: Trial, text: NetworkText, apart: bool) -> Iterator[Violation]:
    with loaded(str(text)) as script:
        draw, change = trial.draw("questions"), hasattr(script, "change")
        asked = AuditedNetwork(
            trial.generator,
            script.net,
            script.region,
            script.labels,
            draw,
            trial.tally,
            methods=(draw.choice(list(METHODS)),) if change else tuple(METHODS),
            apart=apart,
            within=getattr(script, "within", nullcontext),
        )
        try:
            if not _begun(asked, script):
                trial.tally.refused[trial.generator] += 1
                return
            yield from violations(asked)
        except SureboundError:
            trial.tally.refused[trial.generator] += 1
        except Exception as error:
            yield crash(error)


def _begun(asked: AuditedNetwork, script: ModuleType) -> bool:
    """Ask once and make the change that the script speaks of, if it speaks of one; can the network be traced?"""
    change = getattr(script, "change", None)
    if change is None:
        with suppress(SureboundError):
            program_of(asked.net, asked.region.reference)
            return True
        return False
    with suppress(SureboundError):
        interval_bounds(asked.net, asked.region)
        worst_margins(asked.net, asked.region, asked.labels, method=asked.methods[0])
    change()
    return True


def crash(error: Exception) -> Violation:
    """Return the violation that an error of another kind than ours is."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    ours = [each for each in traceback.extract_tb(error.__traceback__) if "/surebound/" in each.filename]
    at = ours[-1] if ours else where
    text = str(error).splitlines()[0][:160] if str(error) else ""
    place = f"{at.filename.rpartition('/surebound/')[2]}:{at.lineno}"
    return Violation(f"crash {type(error).__name__} at {place}: {text}", "")
