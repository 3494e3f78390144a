"""The command that a packaged network records is one that anybody can repeat."""

from __future__ import annotations

from surebound.experiment.publish import portable


def test_directories_and_threads_of_one_machine_are_left_out():
    machine = "--threads 1 --out /home/me/run --data-dir=/home/me/data --reuse /home/me/runs --jobs 1"
    given = f"/home/me/bin/surebound train mnist-small-ibp --eps-train 0.4 {machine} --seed 0"
    assert portable(given) == "surebound train mnist-small-ibp --eps-train 0.4 --seed 0"
