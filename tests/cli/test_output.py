"""Tables in every format."""

from __future__ import annotations

import csv
import io
import json

import pytest

from surebound.cli.output import Cell, Format, print_table

COLUMNS = ("name", "value", "proved")
ROWS: list[list[Cell]] = [["a|b [red]", 1.23456789, True], ["c", 2, False], ["d", None, None]]


def printed(form: Format, capsys: pytest.CaptureFixture[str]) -> str:
    print_table(COLUMNS, ROWS, form)
    return capsys.readouterr().out


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(Format.TABLE, capsys).splitlines()
    assert lines[0].split() == ["name", "value", "proved"]
    assert lines[1].split() == ["a|b", "[red]", "1.23457", "yes"], "brackets are text, not markup"
    assert lines[2].split() == ["c", "2", "no"]


def test_a_wide_table_is_not_folded_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("x", "y"), [["w" * 70, "v" * 70]])
    assert "w" * 70 + "  " + "v" * 70 in capsys.readouterr().out


def test_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(Format.MARKDOWN, capsys).splitlines()
    assert lines[:3] == [
        "| name | value | proved |",
        "| --- | --- | --- |",
        "| a\\|b [red] | 1.23457 | yes |",
    ]


def test_csv_keeps_every_digit(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(printed(Format.CSV, capsys))))
    assert rows[0] == {"name": "a|b [red]", "value": "1.23456789", "proved": "True"}
    assert rows[2] == {"name": "d", "value": "", "proved": ""}


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(printed(Format.JSON, capsys))[0] == {
        "name": "a|b [red]",
        "value": 1.23456789,
        "proved": True,
    }
