"""The choice of a number of threads."""

from __future__ import annotations

import pytest

from surebound.errors import ConfigError
from surebound.train import threads
from surebound.train.threads import choose_threads


@pytest.fixture
def two_processors(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "available_cpus", lambda: 2)
    return monkeypatch


def test_a_busy_neighbour_is_noticed_and_named(two_processors: pytest.MonkeyPatch) -> None:
    two_processors.setattr(threads, "_seconds", lambda n: {1: 0.01, 2: 0.2}[n])
    choice = choose_threads()
    assert choice.threads == 1
    assert "2 threads took 20.0 times as long as 1" in choice.note
    assert "--threads" in choice.note


def test_an_idle_machine_is_used(two_processors: pytest.MonkeyPatch) -> None:
    two_processors.setattr(threads, "_seconds", lambda n: {1: 0.01, 2: 0.006}[n])
    assert choose_threads() == threads.ThreadChoice(2)


def test_requests_and_the_environment_are_obeyed(two_processors: pytest.MonkeyPatch) -> None:
    assert choose_threads(1) == threads.ThreadChoice(1)
    assert "4 threads on 2 processors" in choose_threads(4).note
    two_processors.setenv("OMP_NUM_THREADS", "3")
    assert choose_threads().threads == 3
    with pytest.raises(ConfigError, match="threads must be at least 1, got 0"):
        choose_threads(0)


def test_the_trial_measures_and_restores() -> None:
    import torch

    before = torch.get_num_threads()
    assert threads._seconds(1) > 0
    assert torch.get_num_threads() == before
