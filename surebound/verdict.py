"""What can be said about one example: five statuses that are never confused, and their evidence."""

from __future__ import annotations

import dataclasses
import enum
import math

import torch

from surebound.errors import InputError
from surebound.markup import facts


class Status(enum.Enum):
    """Outcome of a verification; each member carries a message and a remedy.

    >>> Status("robust") is Status.ROBUST
    True
    >>> Status.TIMEOUT.remedy
    'raise the time limit, or use a cascade with more stages'
    """

    ROBUST = "robust"
    FALSIFIED = "falsified"
    UNKNOWN = "unknown"
    TIMEOUT = "timeout"
    ERROR = "error"

    @property
    def message(self) -> str:
        """One sentence for people."""
        return _EXPLAINED[self][0]

    @property
    def remedy(self) -> str:
        """What to do about it; empty when there is nothing to do."""
        return _EXPLAINED[self][1]

    @property
    def decided(self) -> bool:
        """Whether the question is settled: a proof, or a witness that was re-run."""
        return self in (Status.ROBUST, Status.FALSIFIED)


_EXPLAINED = {
    Status.ROBUST: ("the property is proved for every point of the region", ""),
    Status.FALSIFIED: ("a point of the region violates the property; the witness was re-run", ""),
    Status.UNKNOWN: (
        "no stage could decide; counts as attackable",
        "use a cascade with a complete stage (branch-and-bound, mip)",
    ),
    Status.TIMEOUT: (
        "the time limit ended the search; counts as attackable",
        "raise the time limit, or use a cascade with more stages",
    ),
    Status.ERROR: (
        "a stage failed; this says nothing about the network and counts as attackable",
        "read the detail, then run again: errors are retried",
    ),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Verdict:
    """A status and what it rests on. A claim without its evidence cannot be constructed.

    ``bound`` is the smallest proved upper bound of the worst margin (the largest ``z_k - z_true`` over the
    region), or infinity when none is known. ``float_sound`` says whether the verdict holds for the float32
    network as it is deployed: a proof for every order of summation, or a witness that was re-run. A proof
    that rests on a solver's tolerance is not float-sound.

    >>> Verdict(Status.ROBUST, stage="interval", bound=-0.5, float_sound=True)
    Verdict(robust by interval, bound -0.5, float-sound)
    >>> Verdict(Status.ROBUST, stage="interval", bound=float("nan"))
    Traceback (most recent call last):
    ...
    surebound.errors.InputError: a robust verdict needs a bound <= 0, got nan
    """

    status: Status
    stage: str
    bound: float = math.inf
    witness: torch.Tensor | None = None  # (C, H, W), float32, inside the region
    seconds: float = 0.0
    float_sound: bool = False
    detail: str = ""
    read_as: int | None = None  # the class that the network gives the witness, where classes were asked about

    def __post_init__(self) -> None:
        # "proved" only if the comparison is True: NaN is never a proof.
        if self.status is Status.ROBUST and not self.bound <= 0:
            raise InputError(f"a robust verdict needs a bound <= 0, got {self.bound}")
        if self.status is Status.FALSIFIED and self.witness is None:
            raise InputError("a falsified verdict needs the witness that was re-run through the network")
        if self.status is not Status.FALSIFIED and self.witness is not None:
            raise InputError(f"only a falsified verdict carries a witness, not {self.status.value!r}")
        if self.float_sound and not self.status.decided:
            raise InputError(f"float_sound describes a decision; the status is {self.status.value!r}")

    def __repr__(self) -> str:
        bound = f", bound {self.bound:.4g}" if math.isfinite(self.bound) else ""
        sound = ", float-sound" if self.float_sound else ""
        detail = f": {self.detail}" if self.detail else ""
        return f"Verdict({self.status.value} by {self.stage}{bound}{sound}{detail})"

    def _repr_html_(self) -> str:
        values: dict[str, object] = {
            "verdict": self.status.value,
            "means": self.status.message,
            "by": self.stage,
            "bound of the worst margin": self.bound,
            "holds for the float32 network": "yes" if self.float_sound else "no",
            "counterexample read as": self.read_as,
            "detail": self.detail,
            "what to do": self.status.remedy,
        }
        return facts("Verdict", {name: value for name, value in values.items() if value not in (None, "", math.inf)})
