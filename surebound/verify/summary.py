"""Error rates of a set of records, and where they and the time came from."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction

from surebound.errors import InputError
from surebound.markup import table
from surebound.search.record import Record
from surebound.search.stages import Stage
from surebound.verdict import Status


@dataclasses.dataclass(frozen=True)
class Summary:
    """Shares of all examples at one radius. Whatever is not proved counts as attackable.

    ``interval`` is where the true robust error lies: from what attacks broke to what nobody proved.
    ``falsified_error`` is the tighter lower end: every witness counts, whichever stage found it.
    """

    eps: Fraction
    total: int
    clean_error: float
    pgd_error: float  # wrong without perturbation, or broken by a gradient attack
    falsified_error: float  # every witness
    verified_error: float  # everything but ROBUST
    float_sound_error: float  # everything but ROBUST with a proof that holds in float32
    statuses: tuple[tuple[str, int], ...]
    stages: tuple[tuple[str, str, int], ...]  # (stage, status, how many it settled so)
    stage_seconds: tuple[tuple[str, float], ...]

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {status}" for status, count in self.statuses)
        return f"Summary(eps {self.eps}: {counts} of {self.total}; verified error {self.verified_error:.2%})"

    def _repr_html_(self) -> str:
        return summaries_html([self])

    @property
    def interval(self) -> tuple[float, float]:
        """[PGD error, verified error]."""
        return self.pgd_error, self.verified_error

    @property
    def seconds(self) -> float:
        """Time over all examples and stages."""
        return sum(spent for _, spent in self.stage_seconds)


def summaries_html(summaries: Sequence[Summary], note: str = "") -> str:
    """Show one line per radius in a notebook."""
    rows = [
        (s.eps, s.total, f"{1 - s.verified_error:.2%}", f"{1 - s.falsified_error:.2%}", f"{1 - s.clean_error:.2%}",
         s.total - sum(n for status, n in s.statuses if Status(status).decided), f"{s.seconds:.1f}")
        for s in summaries
    ]  # fmt: skip
    return table(("eps", "images", "proved", "no counterexample", "accuracy", "undecided", "seconds"), rows, note)


def _attacks() -> set[str]:
    """Names of the stages that are attacks, users' own included."""
    kinds, found = list(Stage.__subclasses__()), set()
    while kinds:
        kind = kinds.pop()
        kinds.extend(kind.__subclasses__())
        if kind.is_attack:
            found.add(kind.name)
    return found


def summarise(records: Iterable[Record]) -> Summary:
    """Summarise records of one radius."""
    rows = list(records)
    radii = {record.eps for record in rows}
    if len(radii) != 1:
        listed = ", ".join(str(eps) for eps in sorted(radii)) or "no records"
        raise InputError(f"a summary is about one radius; given: {listed}. Choose one of them.")
    total = len(rows)
    falsified = [record for record in rows if record.verdict.status is Status.FALSIFIED]
    clean = sum(record.verdict.stage == "clean" for record in falsified)
    attacks = _attacks()
    attacked = sum(record.verdict.stage in attacks for record in falsified)
    robust = [record for record in rows if record.verdict.status is Status.ROBUST]
    sound = sum(record.verdict.float_sound for record in robust)
    settled = Counter((record.verdict.stage, record.verdict.status.value) for record in rows)
    seconds: Counter[str] = Counter()
    for record in rows:
        for stage, spent in record.stage_seconds:
            seconds[stage] += spent  # type: ignore[assignment]
    place = {stage: i for i, stage in enumerate(seconds)}  # the order of the cascade: every record has its beginning
    return Summary(
        eps=radii.pop(),
        total=total,
        clean_error=clean / total,
        pgd_error=(clean + attacked) / total,
        falsified_error=len(falsified) / total,
        verified_error=(total - len(robust)) / total,
        float_sound_error=(total - sound) / total,
        statuses=tuple(sorted(Counter(record.verdict.status.value for record in rows).items())),
        stages=tuple(
            (stage, status, settled[stage, status])
            for stage, status in sorted(settled, key=lambda line: (place.get(line[0], len(place)), *line))
        ),
        stage_seconds=tuple(seconds.items()),
    )
