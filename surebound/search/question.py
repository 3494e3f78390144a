"""The one question that a search answers: can a case hold anywhere in its box? And what stages find out about it.

A label that must stay the largest, a linear specification, a tree of them and a VNN-LIB formula all become cases: rows
c.z + d of the outputs that would all have to be > 0. Where no case can hold, the property is proved.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from surebound.certificates.evidence import Evidence
from surebound.errors import BoundError
from surebound.graph import Program
from surebound.interval import Interval
from surebound.norm_ball import Ball
from surebound.numerics import Soundness, strictly_above
from surebound.region import Region


class Proof(enum.IntEnum):
    """What a bound holds of, the strongest first; a stronger one is also a weaker one."""

    DEPLOYED = 0  # every float32 execution
    REAL = 1  # the network over the reals
    TOLERANCE = 2  # the network over the reals, within a solver's tolerance

    @property
    def mode(self) -> str:
        """How certificates name it."""
        return "deployed" if self is Proof.DEPLOYED else "real"

    @classmethod
    def of(cls, mode: Soundness) -> Proof:
        """Return what bounds computed in a mode prove."""
        return cls.DEPLOYED if mode is Soundness.DEPLOYED else cls.REAL


@dataclass(frozen=True, eq=False)
class Cases:
    """N cases of up to S rows over G boxes: case i holds at a point of its box where all its rows c.z + d are > 0."""

    c: Tensor  # (N, S, K)
    d: Tensor  # (N, S) float64; infinite where a case has fewer rows
    lower: Tensor  # (G, *input): boxes that contain every input asked about
    upper: Tensor  # (G, *input)
    box: Tensor  # (N,) int64: the box of each case
    ball: Ball | None = None  # (1, *input): the inputs asked about, of the norm l1 or l2; boxes are cut out of it

    @classmethod
    def over(cls, box: Interval, c: Tensor, d: Tensor, strict: Tensor | None = None) -> Cases:
        """Make cases over one box (1, *input); ``strict`` (N, S): rows that may not be 0, all by default."""
        d = d.double() if strict is None else torch.where(strict, d.double(), strictly_above(d.double()))
        ball = box if isinstance(box, Ball) and box.norm in (1, 2) else None
        return cls(c, d, box.lower, box.upper, torch.zeros(len(c), dtype=torch.int64), ball)

    def __len__(self) -> int:
        return len(self.c)

    def __getitem__(self, index: Tensor) -> Cases:
        return dataclasses.replace(self, c=self.c[index], d=self.d[index], box=self.box[index])

    @property
    def valid(self) -> Tensor:
        """Say which rows there are: (N, S) bool."""
        return self.d < math.inf

    @property
    def finite_d(self) -> Tensor:
        """Return the offsets with 0 where there is no row."""
        return torch.where(self.valid, self.d, torch.zeros_like(self.d))

    @property
    def boxes(self) -> tuple[Tensor, Tensor]:
        """Return the ends of every case's box: (N, *input) each."""
        return self.lower[self.box], self.upper[self.box]

    def groups(self) -> Iterator[tuple[int, Tensor]]:
        """Yield the number of every box that has cases, and these cases (n,)."""
        for number in sorted(set(self.box.tolist())):
            yield number, (self.box == number).nonzero()[:, 0]

    def interval(self, number: int) -> Interval:
        """Return one of the boxes (1, *input), or what it cuts out of the ball."""
        return self.cut(self.lower[number : number + 1], self.upper[number : number + 1])

    def cut(self, lower: Tensor, upper: Tensor) -> Interval:
        """Return the inputs asked about between ends (M, *input), boxes within those of the cases."""
        box = Interval(lower, upper)
        if self.ball is None:
            return box
        return self.ball.within(box, self.ball.origin.expand(len(lower), *lower.shape[1:]))

    def smallest(self, z: Tensor) -> Tensor:
        """Return the smallest row of each case (N,) at outputs z (N, K) or (1, K)."""
        return (torch.einsum("nsk,nk->ns", self.c.to(z), z.expand(len(self), -1)) + self.d.to(z)).amin(1)


#: Run the network at a point (1, *input) moved into the box of that number; the witness (*input) if a case holds there.
Confirm = Callable[[Tensor, int], Tensor | None]


@dataclass(frozen=True, eq=False)
class Question:
    """One example's open cases, as searches read them."""

    cases: Cases
    numbers: Tensor  # (N,) int64: what the cases are called; of a label, the other classes
    margins: Tensor  # (N,) float64: the smallest upper bounds known of the cases' smallest rows
    confirm: Confirm
    mode: Soundness = Soundness.DEPLOYED
    seed: int = 0
    seconds: float = math.inf
    certify: bool = False  # keep what proofs rest on

    def __getitem__(self, index: Tensor) -> Question:
        return dataclasses.replace(
            self, cases=self.cases[index], numbers=self.numbers[index], margins=self.margins[index]
        )


class Asked(Protocol):
    """The interface of a question about a batch: labels, or a formula."""

    def bounds(self, program: Program, region: Region, method: str, mode: Soundness) -> Tensor:
        """Bound the smallest row of every case from above: (B, N) float64; -inf where nothing is asked."""

    def cases(self, i: int, region: Region, mode: Soundness) -> Cases:
        """Return the cases of one example."""

    def confirm(self, i: int, region: Region) -> Confirm:
        """Return the check of points of one example."""

    def read_as(self, i: int, witness: Tensor) -> int | None:
        """Return the class that takes the label's place at the witness of an example; None if no label was asked."""

    def take(self, index: Tensor) -> Asked:
        """Return what is asked about some of the examples."""


@dataclass(frozen=True, eq=False)
class Questions:
    """A batch of questions that no stage has answered yet.

    ``margins``: the smallest upper bounds of every case's smallest row known so far, whatever they rest on; -inf where
    nothing is asked. A stage need not work on cases that are <= 0 already.
    """

    region: Region  # of B examples
    asked: Asked
    margins: Tensor  # (B, N) float64
    indices: Tensor  # (B,) int64: the examples' numbers, for random draws
    mode: Soundness = Soundness.DEPLOYED
    seed: int = 0
    seconds: float = math.inf  # that a stage may spend on each example
    certify: bool = False  # keep what proofs rest on

    def __len__(self) -> int:
        return len(self.margins)

    @property
    def open_cases(self) -> Tensor:
        """Say which cases are not proved yet: (B, N) bool. NaN is not proved."""
        return ~(self.margins <= 0)

    def take(self, index: Tensor) -> Questions:
        """Return some of the examples: index (n,)."""
        return dataclasses.replace(
            self,
            region=self.region[index],
            asked=self.asked.take(index),
            margins=self.margins[index],
            indices=self.indices[index],
        )

    def one(self, i: int) -> Question:
        """Return the question about example i with its open cases."""
        cases = self.asked.cases(i, self.region, self.mode)
        confirm, count = self.asked.confirm(i, self.region), torch.arange(len(cases))
        whole = Question(cases, count, self.margins[i], confirm, self.mode, self.seed, self.seconds, self.certify)
        return whole[self.open_cases[i].nonzero()[:, 0]]

    def spread(self, finding: Finding, question: Question) -> Finding:
        """Return a finding about one question's open cases as one about all N of them."""
        if finding.margins is None:
            return finding
        margins = torch.full(self.margins.shape[1:], math.inf, dtype=torch.float64)
        margins[question.numbers] = finding.margins.double()
        evidence = {int(question.numbers[case]): each for case, each in finding.evidence.items()}
        return dataclasses.replace(finding, margins=margins, evidence=evidence)


@dataclass(frozen=True, eq=False)
class Finding:
    """The result of a stage for one example; none of it is a verdict yet.

    ``margins`` (N,): upper bounds of the cases' smallest rows; ``proof`` says what they hold of. ``witness`` (*input):
    a point believed to make a case hold: it is moved into the region and re-run before it counts. ``evidence``: what
    the bounds rest on, case by case, or ``by`` for all of them alike.
    """

    margins: Tensor | None = None
    proof: Proof = Proof.TOLERANCE
    witness: Tensor | None = None
    timed_out: bool = False
    given_up: bool = False  # more sub-problems than allowed: with more room it might be decided
    detail: str = ""
    by: str = ""  # the bounds that a certificate can name: "interval", "crown-ibp", "crown"
    evidence: Mapping[int, Evidence] = dataclasses.field(default_factory=dict)

    def rests_on(self, case: int, stage: str = "") -> Evidence:
        """Return what the bound of one case rests on, as the stage of that name found it."""
        return self.evidence.get(case, Evidence(self.by, why="" if self.by else f"proved by {stage} alone"))


def nothing(count: int, detail: str = "") -> list[Finding]:
    """Return findings without news, one for each example."""
    return [Finding(detail=detail) for _ in range(count)]


def margins_of(found: Tensor, proof: Proof, by: str = "") -> list[Finding]:
    """Return findings from bounds (B, N); ``by``: how a certificate names them, if it can."""
    if not isinstance(found, Tensor):
        raise BoundError(f"{type(found).__name__} is no bound: a finding needs a tensor of upper bounds")
    return [Finding(margins=row, proof=proof, by=by) for row in torch.unbind(found)]
