"""Tables in every format."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from surebound.cli.output import Cell, Format, percent, print_table, print_text

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


def test_a_narrow_terminal_cuts_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    columns = ("eps", "clean error", "PGD error", "verified error", "float-sound", "truth in", "timeout", "seconds")
    row: list[Cell] = [
        "1/10",
        percent(0.225),
        percent(0.45),
        percent(0.625),
        percent(0.625),
        "[45.00%, 62.50%]",
        0,
        12.5,
    ]
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    print_table(columns, [row, row])
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)  # without the terminal's colours
    assert all(len(line) <= 80 for line in out.splitlines()) and "…" not in out
    for name in (*columns, "22.50%", "[45.00%, 62.50%]"):
        assert name in out
    assert out.count("1/10") == 4, "both parts say which line is which"


def test_shares_are_numbers_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    for form, shown in ((Format.TABLE, "22.50%"), (Format.CSV, "0.225"), (Format.JSON, "0.225")):
        print_table(("error",), [[percent(0.225)]], form)
        assert shown in capsys.readouterr().out


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


def test_sentences_break_between_words_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "\n4 images, 3 classified correctly, 2 proved robust at eps = 1/10 for every float32 execution"
    print_text(text)
    assert capsys.readouterr().out == text + "\n", "a pipe gets one line"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    print_text(text)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and " ".join(lines).split() == text.split() and lines[0] == ""
