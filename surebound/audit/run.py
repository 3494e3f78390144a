"""Run trials of all generators in turn, for so long or so many, and count."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence

from surebound.audit import changes, files, queries, trials
from surebound.audit.tally import Find, Tally
from surebound.audit.trials import Fault, Trial
from surebound.errors import InputError

Generator = Callable[[Trial], Iterator[Fault]]

#: What is drawn, by its name on the command line.
GENERATORS: dict[str, Generator] = {
    "networks": trials.try_network,
    "operators": trials.try_operator,
    "changes": changes.try_change,
    "batches": changes.try_batch,
    "stores": changes.try_store,
    "files": files.try_file,
    "exports": files.try_export,
    "instances": files.try_instances,
    "queries": queries.try_query,
}


def audit(
    seconds: float = math.inf,
    *,
    seed: int = 0,
    only: Sequence[str] = (),
    trials: int | None = None,
    first: int = 0,
    report: Callable[[Tally, float], None] | None = None,
    tally: Tally | None = None,
) -> Tally:
    """Try networks, files and queries until the time is over or so many ``trials`` of each generator are done.

    ``only``: names of generators, all of them if none. ``first``: the number of the first trial. ``report`` hears of
    the tally and of the seconds that are over, after every trial. ``tally``: where to count, so that it is there if
    somebody stops the audit.
    """
    unknown = [name for name in only if name not in GENERATORS]
    if unknown:
        raise InputError(f"no generator is called {unknown[0]!r}; choose from {', '.join(GENERATORS)}")
    tally, began, number = tally or Tally(), time.monotonic(), first
    while trials is None or number < first + trials:
        for name in only or GENERATORS:
            over = time.monotonic() - began
            if over >= seconds:
                return tally
            _try(name, seed, number, tally)
            if report is not None:
                report(tally, over)
        number += 1
    return tally


def _try(name: str, seed: int, number: int, tally: Tally) -> None:
    tally.trials[name] += 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for fault in GENERATORS[name](Trial(name, seed, number, tally)):
            tally.finds.append(Find(name, (seed, number), fault.what, fault.script))
