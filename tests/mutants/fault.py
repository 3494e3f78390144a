"""A fault as a patch: a file, a text that occurs in it exactly once, and what to write instead."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutant:
    """One fault; ``tests`` are the arguments of a pytest run that should fail."""

    file: str  # in surebound/
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        """The file and what changes, for people."""
        return f"{self.file}: {self.old.strip().splitlines()[0][:60]} -> {self.new.strip()[:60] or '(nothing)'}"

    def applied(self, root: Path = ROOT) -> str:
        """The file's text with the fault in it."""
        text = (root / "surebound" / self.file).read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file}: {self.old!r} occurs {text.count(self.old)} times; say it otherwise")
        return text.replace(self.old, self.new)
