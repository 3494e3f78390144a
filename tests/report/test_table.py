"""Tables in every form."""

from __future__ import annotations

import csv
from html.parser import HTMLParser
from pathlib import Path

import pytest

from surebound.errors import InputError
from surebound.report.table import Table

TABLE = Table(
    "t",
    ("net & co", "error, %"),
    (("a|b_c", "1.5 %"), ("<x>", "–"), (None, "10.0 %")),
    "A 100 % ε",
    ("note",),
)


def test_markdown_escapes_bars_and_aligns_numbers() -> None:
    lines = TABLE.markdown().splitlines()
    assert lines[1] == "| --- | ---: |"
    assert lines[2] == r"| a\|b_c | 1.5 % |"
    assert lines[-1] == "note"


def test_csv_reads_back() -> None:
    rows = list(csv.reader(TABLE.csv().splitlines()))
    assert rows == [["net & co", "error, %"], ["a|b_c", "1.5 %"], ["<x>", "–"], ["", "10.0 %"]]


def test_latex_has_nothing_left_to_escape() -> None:
    text = TABLE.latex()
    assert r"a|b\_c & 1.5 \%" in text and r"net \& co" in text and r"$\epsilon$" in text
    assert text.count(r"\\") == 4
    assert r"\begin{tabular}{lr}" in text


def test_html_escapes() -> None:
    class Reader(HTMLParser):
        cells: list[str]

        def handle_data(self, data: str) -> None:
            self.cells.append(data)

    reader = Reader()
    reader.cells = []
    reader.feed(TABLE.html())
    assert "<x>" in reader.cells and "net & co" in reader.cells


def test_a_short_row_is_refused() -> None:
    with pytest.raises(InputError, match="1 cells, not 2"):
        Table("t", ("a", "b"), (("x",),))


def test_all_forms_are_written(tmp_path: Path) -> None:
    assert {p.suffix for p in TABLE.write(tmp_path / "new")} == {".md", ".csv", ".tex"}
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        TABLE.write(tmp_path / "file")
