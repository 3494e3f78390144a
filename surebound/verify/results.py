"""What `verify` returns: records, and the questions people ask of them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

from surebound.numerics import exact_fraction
from surebound.search.record import Record
from surebound.verify.export import render, write_witnesses
from surebound.verify.summary import Summary, summarise


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

    @property
    def radii(self) -> tuple[Fraction, ...]:
        """The radii that there are records of."""
        return tuple(sorted({record.eps for record in self.records}))

    def at(self, eps: str | int | float | Fraction) -> Results:
        """The records of one radius."""
        radius = exact_fraction(eps)
        return Results(tuple(record for record in self.records if record.eps == radius), self.path)

    def summary(self, eps: str | int | float | Fraction | None = None) -> Summary:
        """Error rates and counts at one radius; it need not be given if there is only one."""
        return summarise(self.records if eps is None else self.at(eps).records)

    def export(self, format: str = "csv") -> bytes:
        """All records as csv, json or parquet."""
        return render(self.records, format)

    def write_witnesses(self, directory: str | Path) -> int:
        """Each counterexample as INDEX.npy; returns how many."""
        return write_witnesses(self.records, directory)
