"""One line of a results store: which example was asked about, and the verdict."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

from surebound.certificates.evidence import Evidences
from surebound.search.question import Proof
from surebound.verdict import Verdict


@dataclasses.dataclass(frozen=True, eq=False)
class Record:
    """The verdict on one example at one radius; ``example`` is the example's hash.

    ``stage_seconds`` holds, in order, the time that each stage spent on this example (a batched stage's time
    is shared out evenly), so that a summary can say where the time went. ``proof``: what a proof holds of and what each
    case rests on, for a certificate; not kept in stores.
    """

    index: int
    label: int
    prediction: int
    eps: Fraction
    verdict: Verdict
    example: str = ""
    stage_seconds: tuple[tuple[str, float], ...] = ()
    proof: tuple[Proof, Evidences] | None = None
