"""A table as a value, and its renderings: Markdown, CSV, LaTeX, HTML."""

from __future__ import annotations

import csv
import html
import io
import re
from dataclasses import dataclass, field
from pathlib import Path

from surebound.disk import explained, write_whole
from surebound.errors import InputError

Cell = str | int | float | None

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "ε": r"$\epsilon$", "κ": r"$\kappa$",
    "±": r"$\pm$", "−": "$-$", "–": "--", "—": "---", "×": r"$\times$", "≥": r"$\ge$", "≤": r"$\le$",
    "∞": r"$\infty$", "§": r"\S{}", "…": r"\dots{}", "→": r"$\to$", "‡": r"$\ddagger$", "†": r"$\dagger$",
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Columns, rows of plain cells, and notes that belong below them.

    >>> print(Table("t", ("net", "error"), (("small", "1.00 %"),)).markdown())
    | net | error |
    | --- | ---: |
    | small | 1.00 % |
    """

    name: str  # a file's stem
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        wrong = [row for row in self.rows if len(row) != len(self.columns)]
        if wrong:
            raise InputError(f"table {self.name!r}: a row has {len(wrong[0])} cells, not {len(self.columns)}")

    def numeric(self, column: int) -> bool:
        """Whether a column is aligned to the right: every filled cell is a number."""
        cells = [text(row[column]) for row in self.rows]
        return any(cells) and all(_is_number(cell) for cell in cells if cell not in ("", "–"))

    def markdown(self) -> str:
        """A table for GitHub and mkdocs, with the notes as small paragraphs."""
        marks = ["---:" if self.numeric(i) else "---" for i in range(len(self.columns))]
        rows = [[text(cell).replace("|", "\\|") for cell in row] for row in self.rows]
        lines = ["| " + " | ".join(line) + " |" for line in (list(self.columns), marks, *rows)]
        return "\n".join(lines + [f"\n{note}" for note in self.notes])

    def csv(self) -> str:
        """Header and rows, no notes."""
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows([self.columns, *self.rows])
        return buffer.getvalue()

    def latex(self) -> str:
        """A booktabs table that compiles in a plain article."""
        align = "".join("r" if self.numeric(i) else "l" for i in range(len(self.columns)))
        lines = [[_latex(text(cell)) for cell in row] for row in ((self.columns), *self.rows)]
        head, *body = (" & ".join(line) + r" \\" for line in lines)
        notes = "".join(f"\n\\par\\smallskip\\footnotesize {_latex(note)}" for note in self.notes)
        inner = "\n".join(["\\toprule", head, "\\midrule", *body, "\\bottomrule"])
        return (
            "% needs \\usepackage{booktabs}\n\\begin{table}\n\\centering\n"
            f"\\begin{{tabular}}{{{align}}}\n{inner}\n\\end{{tabular}}{notes}\n"
            f"\\caption{{{_latex(self.caption)}}}\n\\label{{tab:{self.name}}}\n\\end{{table}}\n"
        )

    def html(self) -> str:
        """A table whose columns the page's script sorts."""
        right = [' class="n"' if self.numeric(i) else "" for i in range(len(self.columns))]
        head = "".join(
            f'<th{r} scope="col"><button type="button">{html.escape(c)}</button></th>'
            for c, r in zip(self.columns, right, strict=True)
        )
        body = "".join(
            "<tr>" + "".join(f"<td{r}>{html.escape(text(c))}</td>" for c, r in zip(row, right, strict=True))
            + "</tr>\n"
            for row in self.rows
        )  # fmt: skip
        notes = "".join(f'<p class="note">{html.escape(note)}</p>' for note in self.notes)
        caption = f"<caption>{html.escape(self.caption)}</caption>" if self.caption else ""
        return (
            f'<div class="wide"><table class="sortable" id="{html.escape(self.name)}">{caption}'
            f"<thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>{notes}"
        )

    def write(self, directory: Path) -> list[Path]:
        """NAME.md, NAME.csv and NAME.tex in `directory`."""
        contents = {"md": self.markdown() + "\n", "csv": self.csv(), "tex": self.latex()}
        paths = []
        for suffix, content in contents.items():
            path = directory / f"{self.name}.{suffix}"
            write_text(path, content)
            paths.append(path)
        return paths


def text(cell: Cell) -> str:
    """One cell for people: nothing for None, five digits."""
    if cell is None:
        return ""
    return f"{cell:.5g}" if isinstance(cell, float) else str(cell)


def percent(share: float | None, digits: int = 2) -> str:
    """A share as the papers print it; a dash where there is none.

    >>> percent(0.23405), percent(None)
    ('23.41 %', '–')
    """
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def write_text(path: Path, content: str) -> None:
    """Write a file and its directory; a failure says which."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content.encode())
    except OSError as error:
        raise InputError(f"{path} cannot be written: {explained(error)}") from error


def _is_number(cell: str) -> bool:
    return re.fullmatch(r"[+−-]?[\d.,]+(e[+-]?\d+)?(/\d+)?( ?%| s)?", cell) is not None


def _latex(value: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in value)
