"""Training methods, one file each; `METHODS` maps the names configurations use to their classes."""

from __future__ import annotations

from surebound.train.methods.adversarial import Adversarial
from surebound.train.methods.base import Batch, Loss, Method
from surebound.train.methods.cc_ibp import CCIBP
from surebound.train.methods.crown_ibp import CROWNIBP
from surebound.train.methods.dvijotham import Dvijotham
from surebound.train.methods.exp_ibp import ExpIBP
from surebound.train.methods.ibp import IBP
from surebound.train.methods.inner import InnerAttack
from surebound.train.methods.mirman import Mirman
from surebound.train.methods.mixtrain import MixTrain
from surebound.train.methods.mtl_ibp import MTLIBP
from surebound.train.methods.nominal import Nominal
from surebound.train.methods.raghunathan import Raghunathan
from surebound.train.methods.sabr import SABR
from surebound.train.methods.taps import TAPS
from surebound.train.methods.wong import Wong
from surebound.train.methods.xiao import Xiao

METHODS: dict[str, type[Method]] = {}


def register(method: type[Method]) -> type[Method]:
    """Make a method known to configurations under its `name`; usable as a decorator."""
    if METHODS.get(method.name, method) is not method:
        raise ValueError(f"a training method named {method.name!r} is registered already: {METHODS[method.name]}")
    METHODS[method.name] = method
    return method


_PAPER = (Nominal, Adversarial, IBP, Wong, Mirman, MixTrain, Dvijotham, Raghunathan, Xiao)
for _method in (*_PAPER, CROWNIBP, MTLIBP, CCIBP, ExpIBP, SABR, TAPS):
    register(_method)

__all__ = [
    "CCIBP",
    "CROWNIBP",
    "IBP",
    "METHODS",
    "MTLIBP",
    "SABR",
    "TAPS",
    "Adversarial",
    "Batch",
    "Dvijotham",
    "ExpIBP",
    "InnerAttack",
    "Loss",
    "Method",
    "Mirman",
    "MixTrain",
    "Nominal",
    "Raghunathan",
    "Wong",
    "Xiao",
    "register",
]
