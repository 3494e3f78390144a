"""What `verify` returns: records, and the questions people ask of them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from surebound.errors import InputError, MissingPackageError
from surebound.numerics import exact_fraction
from surebound.search.record import Record
from surebound.verdict import Status
from surebound.verify.export import COLUMNS, render, row, write_witnesses
from surebound.verify.summary import Summary, summaries_html, summarise

if TYPE_CHECKING:
    from pandas import DataFrame

    from surebound.verify.plot import Plot


@dataclasses.dataclass(frozen=True, eq=False)
class Results:
    """Records of one network, in the order of radius and index; ``path`` is their store, if there is one."""

    records: tuple[Record, ...]
    path: Path | None = None

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __repr__(self) -> str:
        counts = Counter(record.verdict.status.value for record in self.records)
        found = ", ".join(f"{count} {status}" for status, count in counts.most_common()) or "no records"
        radii = ", ".join(str(eps) for eps in self.radii[:4]) + (", ..." if len(self.radii) > 4 else "")
        return f"Results({found}; eps {radii or 'none'}{f'; {self.path}' if self.path else ''})"

    def _repr_html_(self) -> str:
        found = [self.summary(eps) for eps in self.radii]
        return summaries_html(found, f"results: {self.path}" if self.path else "")

    @property
    def radii(self) -> tuple[Fraction, ...]:
        """The radii that there are records of."""
        return tuple(sorted({record.eps for record in self.records}))

    def at(self, eps: str | int | float | Fraction) -> Results:
        """Return the records of one radius."""
        radius = exact_fraction(eps)
        return Results(tuple(record for record in self.records if record.eps == radius), self.path)

    def by_image(self, each: int, predictions: Sequence[int] | None = None) -> Results:
        """Join the records of the examples that stand for one image, ``each`` in a row, as those of a patch's places.

        An image is robust if all its examples are, and falsified if one is. ``predictions``: what the network makes of
        the images themselves; a first look that breaks one of those that are read right is no error without a threat.
        """
        groups: dict[tuple[Fraction, int], list[Record]] = {}
        for record in self.records:
            groups.setdefault((record.eps, record.index // each), []).append(record)
        for (eps, index), group in groups.items():
            if len({record.index for record in group}) != each and not any(
                r.verdict.witness is not None for r in group
            ):
                raise InputError(f"image {index} has {len(group)} of {each} records at {eps}; none of them breaks it")
        joined = (
            _joined(index, group, None if predictions is None else int(predictions[index]))
            for (_, index), group in groups.items()
        )
        return Results(tuple(joined), self.path)

    def summary(self, eps: str | int | float | Fraction | None = None) -> Summary:
        """Error rates and counts at one radius; it need not be given if there is only one."""
        return summarise(self.records if eps is None else self.at(eps).records)

    def export(self, format: str = "csv") -> bytes:
        """Write all records as csv, json or parquet."""
        return render(self.records, format)

    def to_frame(self) -> DataFrame:
        """Return all records as a pandas.DataFrame, a row each; the radius is an exact fraction as text."""
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise MissingPackageError("pandas", "A data frame") from error
        return DataFrame([row(record) for record in self.records], columns=list(COLUMNS))

    def plot(self) -> Plot:
        """Draw what is proved, open and broken: by radius, or as one bar if there is one radius.

        The figure is matplotlib's, shown by notebooks and saved by ``savefig("proved.png")`` (.svg, .pdf).
        """
        from surebound.verify.plot import plot

        return plot([self.summary(eps) for eps in self.radii])

    def write_witnesses(self, directory: str | Path) -> int:
        """Write each counterexample as INDEX.npy; return how many."""
        return write_witnesses(self.records, directory)


#: Which of several verdicts is that of all together, the first that one of them has.
_WORST = (Status.FALSIFIED, Status.ERROR, Status.TIMEOUT, Status.UNKNOWN, Status.ROBUST)


def _joined(index: int, group: Sequence[Record], prediction: int | None) -> Record:
    """Return the record of an image whose examples these are: the worst of theirs, with the time of all."""
    ranked = min(group, key=lambda r: (_WORST.index(r.verdict.status), r.verdict.float_sound, -r.verdict.bound))
    verdict, spent = ranked.verdict, Counter[str]()
    for record in group:
        spent.update(dict(record.stage_seconds))
    read = ranked.prediction if prediction is None else prediction
    if verdict.stage == "clean" and prediction == ranked.label:
        verdict = dataclasses.replace(verdict, stage="middle of the region")
    verdict = dataclasses.replace(verdict, seconds=sum(record.verdict.seconds for record in group))
    return dataclasses.replace(
        ranked, index=index, prediction=read, verdict=verdict, stage_seconds=tuple(spent.items()), proof=None
    )
