"""The bar of commands that take long: on a terminal, off one, and when the user stops it."""

from __future__ import annotations

import io
import sys

import pytest

from surebound.cli.bar import Bar
from surebound.experiment import live
from surebound.experiment.terminal import describe
from surebound.train.observe import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Bar("attacking") as shown:
        shown.show(25, 100, "2 of 7 broken")
        shown.show(100, 100, "3 of 7 broken")
    assert "3 of 7 broken" in terminal.getvalue()
    assert "100%" in terminal.getvalue()


def test_lines_elsewhere(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = iter([0.0, 10.0, 40.0, 40.0, 50.0])
    monkeypatch.setattr(live.time, "monotonic", lambda: next(now))
    with Bar("bounding") as shown:
        shown.show(10, 100)  # too early
        shown.show(25, 100)
        shown.show(30, 100)  # too early again
    assert capsys.readouterr().err == "bounding: 25%, 120 s left\n"


def test_when_the_user_stops_it(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Bar("measuring")
    shown.show(1, 2)
    with pytest.raises(KeyboardInterrupt), shown:
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "stopped at 50%; nothing was kept\n"
    with pytest.raises(KeyboardInterrupt), Bar("measuring", "go on"):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "stopped; go on\n"


def test_other_errors_speak_for_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="odd"), Bar("measuring"):
        raise ValueError("odd")
    assert capsys.readouterr().err == ""


def test_a_training_line_that_is_too_long_loses_whole_parts() -> None:
    names = {"loss": 0.18, "clean_error": 0.039, "verified_error": 0.086}
    progress = Progress(200, 3000, names, 0.00408, 0.98, 6e-4, 689.0, 12.0)
    whole = describe(progress)
    assert whole.endswith("eps 0.00408 kappa 0.98 689/s") and len(whole) > 80
    assert describe(progress, 80) == whole.removesuffix(" 689/s")
    assert describe(progress, 20) == "200/3000 ETA 0:00:12"
