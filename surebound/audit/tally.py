"""Count what was tried, and keep what was found."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any


@dataclasses.dataclass(frozen=True)
class Find:
    """Something that must not be: a bound that is violated, a wrong verdict, or an error that is none of ours."""

    generator: str
    seed: tuple[int, int]  # of the audit, and the number of the trial
    what: str
    script: str  # shows it by itself

    def __str__(self) -> str:
        again = f"surebound audit --seed {self.seed[0]} --only {self.generator} --trial {self.seed[1]}"
        return f"{self.what}\n# again: {again}\n{self.script}"


@dataclasses.dataclass
class Tally:
    """Numbers of an audit: by generator, by operator and by method."""

    trials: Counter[str] = dataclasses.field(default_factory=Counter)
    refused: Counter[str] = dataclasses.field(default_factory=Counter)  # by generator: not even begun
    generators: Counter[str] = dataclasses.field(default_factory=Counter)  # comparisons
    operators: Counter[str] = dataclasses.field(default_factory=Counter)
    methods: Counter[str] = dataclasses.field(default_factory=Counter)
    silent: Counter[str] = dataclasses.field(default_factory=Counter)  # by method: refusals and undecided questions
    finds: list[Find] = dataclasses.field(default_factory=list)

    @property
    def comparisons(self) -> int:
        """How often a claim was held against a point, a file or exact arithmetic."""
        return sum(self.generators.values())

    def compared(self, generator: str, operators: set[str], method: str, count: int) -> None:
        """Count comparisons of one method on one network."""
        self.generators[generator] += count
        self.methods[method] += count
        self.operators.update(dict.fromkeys(operators, count))

    def summary(self) -> dict[str, Any]:
        """Return everything as plain values, for a JSON file."""
        counts = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        found = [dataclasses.asdict(find) for find in self.finds]
        return {name: dict(value) for name, value in counts.items() if name != "finds"} | {
            "comparisons": self.comparisons,
            "finds": found,
        }
