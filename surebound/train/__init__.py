"""Training: methods, schedules, and a loop that resumes to the same bits."""

from __future__ import annotations

from surebound.train.average import Averaging
from surebound.train.evaluate import Errors, Evaluation, measure
from surebound.train.loop import Loop
from surebound.train.methods import (
    CCIBP,
    CROWNIBP,
    IBP,
    METHODS,
    MTLIBP,
    SABR,
    TAPS,
    Adversarial,
    Batch,
    Dvijotham,
    ExpIBP,
    InnerAttack,
    Loss,
    Method,
    Mirman,
    MixTrain,
    Nominal,
    Raghunathan,
    Wong,
    Xiao,
    register,
)
from surebound.train.observe import Observer, Progress
from surebound.train.plan import Plan
from surebound.train.regularise import BoundRegulariser
from surebound.train.task import Outcome, Surroundings, Task

__all__ = [
    "CCIBP",
    "CROWNIBP",
    "IBP",
    "METHODS",
    "MTLIBP",
    "SABR",
    "TAPS",
    "Adversarial",
    "Averaging",
    "Batch",
    "BoundRegulariser",
    "Dvijotham",
    "Errors",
    "Evaluation",
    "ExpIBP",
    "InnerAttack",
    "Loop",
    "Loss",
    "Method",
    "Mirman",
    "MixTrain",
    "Nominal",
    "Observer",
    "Outcome",
    "Plan",
    "Progress",
    "Raghunathan",
    "Surroundings",
    "Task",
    "Wong",
    "Xiao",
    "measure",
    "register",
]
