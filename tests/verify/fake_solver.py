"""A solver that does what a file says: every way in which a real one can end."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from surebound.solvers.outcome import SolverOutcome, SolverStatus
from surebound.solvers.problem import Limits, MathProgram

BEHAVIOUR = "SUREBOUND_FAKE_SOLVER"


def solve(problem: MathProgram, limits: Limits) -> SolverOutcome:
    """Behave as the file that the environment names says: a status's name, or a way to misbehave."""
    behaviour = Path(os.environ[BEHAVIOUR]).read_text()
    point = (problem.lower + problem.upper) / 2
    if behaviour in SolverStatus.__members__:
        # Numbers that would prove robustness if anybody used them.
        return SolverOutcome(SolverStatus[behaviour], -0.3, -0.25, point, detail="fake")
    actions = {
        "absurd": lambda: SolverOutcome(SolverStatus.OPTIMAL, -9.0, -9.0, point, detail="below what is there"),
        "liar": lambda: SolverOutcome(SolverStatus.ABOVE, 5.0, 7.0, point),
        "nan": lambda: SolverOutcome(SolverStatus.OPTIMAL, math.nan, math.nan, np.full_like(point, math.nan)),
        "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
        "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "exit": lambda: os._exit(3),
        "raise": lambda: _raise(RuntimeError("out of cheese")),
        "hang": lambda: time.sleep(60),
        "memory": lambda: bytearray(1 << 36),
        "print": lambda: _talk(point),
    }
    answer = actions[behaviour]()
    if not isinstance(answer, SolverOutcome):
        raise AssertionError(f"{behaviour} survived")
    return answer


def _raise(error: Exception) -> None:
    raise error


def _talk(point: np.ndarray) -> SolverOutcome:
    print("Academic licence - for non-commercial use only")
    sys.stdout.flush()
    return SolverOutcome(SolverStatus.OPTIMAL, 1.0, 1.0, point)
