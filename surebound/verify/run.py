"""``verify``: decide examples by a cascade, resume where an earlier run stopped, use the cores there are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from surebound.certificates.asked import AskedLabel
from surebound.certificates.directory import CertificateDirectory, certificate_name, missing, open_directory
from surebound.errors import InputError, RegionError, StoreError
from surebound.graph import forward, program_of
from surebound.graph.fit import evaluating
from surebound.norm_ball import L1Ball, L2Ball, NormBall
from surebound.numerics import TRACE_TOLERANCE
from surebound.region import LinfBall, check_region, warn_if_wide
from surebound.rules import check_supported
from surebound.search.cascade import Cascade
from surebound.search.cascade import cascade as find_cascade
from surebound.search.record import Record
from surebound.search.verdicts import Example, Setting, SizedRegion, example_of
from surebound.spec import check_labels
from surebound.verdict import Status
from surebound.verify.cluster import check_cluster, cluster_pool
from surebound.verify.identity import Identity, code_version, example_hash, network_digest, weights_hash
from surebound.verify.pool import Executor, Inline, ProcessPool, defined_in_script
from surebound.verify.results import Results
from surebound.verify.schedule import UnitSchedule
from surebound.verify.store import Store
from surebound.verify.work import Work

if TYPE_CHECKING:
    from distributed import Client

STORE_NAME = "results.db"

#: Examples that are run together and one by one before anything else.
COMPANY = 9


@dataclasses.dataclass(frozen=True)
class Progress:
    """One step forward: the records just settled, and how many of a radius's examples are settled in all."""

    eps: Fraction
    records: tuple[Record, ...]
    done: int
    total: int


def verify(
    model: nn.Module,
    region: SizedRegion | Sequence[SizedRegion],  # around images (N, C, H, W) float32
    labels: Tensor,  # (N,) integers
    cascade: str | Cascade = "default",
    *,
    indices: Sequence[int] | None = None,
    timeout: float = float("inf"),
    jobs: int | None = None,
    cluster: str | Client | None = None,
    out: str | Path | None = None,
    mix: bool = False,
    certificates: str | Path | None = None,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> Results:
    """Decide for each image whether the label stays the prediction everywhere in the ball around it.

    requirement: outputs (N, K); bounds for every operator (``surebound ops``); LP and MIP piecewise linear
    return:      Results: one record per example and radius, errors and counts by ``summary``
    property:    ROBUST is a proof (``float_sound`` says of what), FALSIFIED has a witness that was re-run
    reference:   Gowal et al. 2018, section 4

    ``region``: a ball around every image, or a list of balls around the same images, one per radius. Radii per
    coordinate are those of all images. Balls of the norms l2 and l1 go through bounds, attacks and branch and bound,
    regions of few pixels through bounds and attacks alone.
    ``indices`` chooses examples; ``timeout`` is seconds per example and stage. ``jobs`` starts that many worker
    processes; None works in this one. (More than one, for a network whose class is defined in the script itself, need
    the script's entry under ``if __name__ == "__main__":``.)
    ``cluster`` uses Dask workers instead: a scheduler's address, ``local:4``, or a connected client.
    With ``out`` every decision is written to ``out``/results.db at once, and a second call goes on where the
    first one stopped, whatever stopped it. With ``certificates`` a file for every proof and every counterexample goes
    to that directory, for ``surebound check`` and anybody's own checker (docs/certificates.md).

    >>> net = nn.Linear(2, 2, bias=False).requires_grad_(False)
    >>> _ = net.weight.copy_(torch.eye(2))
    >>> region = LinfBall(torch.tensor([[0.6, 0.4], [0.9, 0.1]]), "1/5", clip=(0, 1))
    >>> verify(net, region, torch.tensor([0, 0]), "fast")
    Results(1 falsified, 1 robust; eps 1/5)
    """
    balls = _balls(region)
    images, clip, radii = balls[0].x, balls[0].clip, sorted({ball.eps for ball in balls})
    warn_if_wide([ball.widest for ball in balls], clip)
    kind = kind_of(balls[0])
    if certificates is not None and kind is not None:
        raise InputError(
            f"certificates speak of l-infinity balls of one radius, not of {balls[0]}: leave certificates out; for "
            "radii per coordinate sb.decide(model, ball, labels, certificates=...) writes them"
        )
    steps = stages_for(balls[0], cascade)
    steps.check()
    chosen = checked(model, steps, images, labels, indices, timeout, jobs)
    if cluster is not None:
        if jobs is not None:
            raise InputError(f"jobs={jobs} and a cluster; give one of them: a cluster has its own workers")
        check_cluster(cluster)
    kept = None if certificates is None else _certificates(model, images, Path(certificates))
    setting = Setting(clip, seed, timeout, certify=kept is not None, kind=kind)
    work = Work(model, steps, setting, tuple(images.shape[1:]))
    run = _Verification(work, images, labels.long(), chosen, progress, lambda: executor_for(work, jobs, cluster), kept)
    if out is None:
        return run.without_store(radii)
    with Store.open(Path(out) / STORE_NAME, identity_of(model, images, clip, kind), mix=mix) as store:
        return run.with_store(store, radii)


@dataclasses.dataclass(frozen=True, eq=False)
class _Verification:
    work: Work
    images: Tensor
    labels: Tensor
    chosen: Sequence[int]
    progress: Callable[[Progress], None] | None
    start: Callable[[], Executor]
    certificates: CertificateDirectory | None = None

    def without_store(self, radii: Sequence[Fraction]) -> Results:
        found: list[Record] = []
        with self.start() as executor:
            for radius in radii:
                for records in self._settle(executor, radius, set(), lambda index: False):
                    found.extend(records)
        return Results(tuple(sorted(found, key=lambda record: (record.eps, record.index))))

    def with_store(self, store: Store, radii: Sequence[Fraction]) -> Results:
        key = f"{self.work.cascade.key}; timeout {self.work.setting.timeout}"
        settled = {radius: self._done(store, radius, key) for radius in radii}
        if any(len(settled[radius]) < len(self.chosen) for radius in radii):
            with self.start() as executor:
                for radius in radii:
                    # Asked again before each example: another process may be at work on the same store.
                    others = _Cached(store, radius, key, self._uncertified(store, radius))
                    for records in self._settle(executor, radius, settled[radius], others.has):
                        store.add(records, key)
        wanted, asked = set(self.chosen), set(radii)
        return Results(
            tuple(record for record in store.records() if record.index in wanted and record.eps in asked),
            store.path,
        )

    def _done(self, store: Store, radius: Fraction, key: str) -> set[int]:
        done = store.done(radius, key)
        for index in self.chosen:
            if index in done and done[index] != self._digest(index):
                raise StoreError(
                    f"{store.path} holds a result for another example {index}: the data or their order changed. "
                    "Verify into another directory."
                )
        missing = self._uncertified(store, radius)
        return {index for index in self.chosen if index in done and index not in missing}

    def _uncertified(self, store: Store, radius: Fraction) -> set[int]:
        """Return the examples that are decided but lack a certificate that is wanted."""
        kept = self.certificates
        if kept is None:
            return set()
        wanted, tried, found = set(self.chosen), missing(kept.path), set[int]()
        for each in store.records(eps=radius):
            name, status = certificate_name(each.index, each.eps), each.verdict.status
            if each.index not in wanted or not status.decided or name in tried:
                continue
            # A file of that name may be another image's, or of another clip range.
            if not kept.certifies(name, self._asked(each), status.value):
                found.add(each.index)
        return found

    def _asked(self, record: Record) -> AskedLabel:
        """Return the question of a record, where certificates are wanted."""
        image: NDArray[np.float32] = self.images[record.index].detach().cpu().numpy()
        return AskedLabel(image, record.label, record.eps, self.work.setting.clip)

    def _settle(
        self, executor: Executor, radius: Fraction, done: set[int], elsewhere: Callable[[int], bool]
    ) -> Iterator[list[Record]]:
        count = len(done)
        self._report(radius, [], count)
        for records in UnitSchedule(self.work.cascade, executor, elsewhere).run(self._examples(radius, done)):
            count += len(records)
            if self.certificates is not None:
                self._certify(records, self.certificates)
            yield records
            self._report(radius, records, count)

    def _examples(self, radius: Fraction, done: set[int]) -> Iterable[Example]:
        for index in self.chosen:
            if index not in done:
                image, label = self.images[index], int(self.labels[index])
                yield example_of(index, image, label, radius, self._digest(index))

    def _digest(self, index: int) -> str:
        return example_hash(self.images[index], int(self.labels[index]))

    def _certify(self, records: Sequence[Record], kept: CertificateDirectory) -> None:
        """Write the certificates of verdicts that have one, before anybody is told of them."""
        with kept.together():
            refuted = list[tuple[str, AskedLabel, Tensor]]()
            for record in records:
                verdict, name, asked = record.verdict, certificate_name(record.index, record.eps), self._asked(record)
                if verdict.witness is not None:
                    refuted.append((name, asked, verdict.witness))
                elif verdict.status is Status.ROBUST and record.proof is None:
                    kept.label_open(name, asked, "proved within a solver's tolerance only")
                elif verdict.status is Status.ROBUST and record.proof is not None:
                    mode, evidence = record.proof
                    kept.label_proved(name, asked, mode.mode, evidence)
            kept.labels_refuted(refuted)

    def _report(self, radius: Fraction, records: list[Record], done: int) -> None:
        if self.progress is not None:
            self.progress(Progress(radius, tuple(records), done, len(self.chosen)))


def executor_for(work: Work, jobs: int | None, cluster: str | Client | None) -> Executor:
    """Make who runs the units: a cluster, worker processes, or this process."""
    if cluster is not None:
        return cluster_pool(work, cluster)
    # A worker would have to run a script again to find the classes in it: one is no help with that.
    alone = jobs is None or (jobs == 1 and defined_in_script(work))
    return Inline(work) if alone or jobs is None else ProcessPool(work, jobs)


def _certificates(model: nn.Module, images: Tensor, directory: Path) -> CertificateDirectory:
    with evaluating(model):
        return open_directory(directory, program_of(model, images[:1]))


def kind_of(ball: SizedRegion) -> SizedRegion | None:
    """Return what balls of one run have in common, without images; None of l-infinity balls of one radius."""
    if isinstance(ball, LinfBall) and ball.scale is None:
        return None
    if isinstance(ball, LinfBall) and ball.scale is not None and len(ball.scale) != 1:
        raise RegionError(
            "verify takes radii per coordinate that all images share, (C, H, W) or (C, 1, 1); for radii per image ask "
            "sb.decide(model, ball, labels)"
        )
    return ball[:0]


def stages_for(ball: SizedRegion, cascade: str | Cascade) -> Cascade:
    """Return the stages of a cascade that know balls of this kind."""
    steps = find_cascade(cascade)
    if isinstance(ball, NormBall):
        steps = steps.for_norms(searched=isinstance(ball, L1Ball | L2Ball))
    return steps


def _balls(region: SizedRegion | Sequence[SizedRegion]) -> list[SizedRegion]:
    """Return the balls, which must have their images, clip range and kind in common."""
    balls = list(region) if isinstance(region, Sequence) else [region]
    for ball in balls:
        check_region(ball, empty=True)
        if not isinstance(ball, SizedRegion):
            raise RegionError(
                f"the region is a {type(ball).__name__}; verify takes balls and patches: for a box ask "
                "sb.decide(model, box, labels)"
            )
    if not balls:
        raise InputError("no region was given; give sb.LinfBall(images, '8/255', clip=(0, 1)), or a list")
    first = balls[0]
    for ball in balls[1:]:
        same = type(ball) is type(first) and ball.clip == first.clip and _same(ball.x, first.x)
        if not same or not _same(getattr(ball, "scale", None), getattr(first, "scale", None)):
            raise RegionError(f"{ball} and {first}: balls of one call have the same images and clip; only eps differs")
    return balls


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and torch.equal(a, b))


def checked(
    model: nn.Module, steps: Cascade, images: Tensor, labels: Tensor, indices: Sequence[int] | None,
    timeout: float, jobs: int | None,
) -> list[int]:  # fmt: skip
    """Refuse what cannot be meant, before any time is spent; the indices to work on."""
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs={jobs}; give 1 or more worker processes, or None for this process")
    if not timeout > 0:
        raise InputError(f"timeout={timeout}; give seconds per example, more than 0")
    if images.dtype != torch.float32:
        raise InputError(f"images are {images.dtype}; verification is about float32 networks: give torch.float32")
    chosen = list(range(len(images))) if indices is None else [int(index) for index in indices]
    wrong = [index for index in chosen if not 0 <= index < len(images)]
    if wrong:
        raise InputError(f"index {wrong[0]}: there are {len(images)} images, 0 to {len(images) - 1}")
    with evaluating(model), torch.no_grad():
        outputs = forward(model, images[:1]) if len(images) else torch.zeros(1, 1)
    if outputs.dim() != 2:
        raise InputError(f"the network returns {tuple(outputs.shape)} for one image; it must return (1, K)")
    check_labels(labels, len(images), outputs.shape[1])
    # An operator without a rule is said now. NaN differs from itself, which is no fault of the tracing.
    if chosen and any(stage.bounds for stage in steps.stages) and not bool(outputs.isnan().any()):
        with evaluating(model):
            program = program_of(model, images[:1])
            check_supported(program.graph)
            if program.graph.input_shape[0] is None:
                _check_alone(model, images[:COMPANY])
    return list(dict.fromkeys(chosen))


def _check_alone(model: nn.Module, x: Tensor) -> None:
    """Refuse a network that answers for one of the inputs x (B, ...) otherwise when it is alone.

    What is kept is a verdict of each example by itself, whoever is in its batch.
    """
    with torch.no_grad():
        together = forward(model, x.clone())
        alone = torch.cat([forward(model, each.clone()) for each in torch.split(x, 1)])
    apart = (together - alone).abs().nan_to_num(0.0)
    if bool((apart > TRACE_TOLERANCE * (1 + alone.abs())).any()):
        raise InputError(
            f"the network's answer for an example depends on its batch, by {float(apart.max()):.3g}: nothing can be "
            "proved of the example alone. Bound a batch as a whole with sb.interval_bounds, or ask sb.decide, which "
            "takes one example at a time"
        )


def identity_of(
    model: nn.Module, images: Tensor, clip: tuple[float, float] | None, kind: SizedRegion | None = None
) -> Identity:
    """Return what results belong to: the weights, the network as traced, the question, the code that answers it."""
    shape = "x".join(str(size) for size in images.shape[1:])
    network = network_digest(model, images[:1])
    spec = f"label stays the largest output; inputs {shape} in {clip}; {network}"
    if kind is not None:
        spec += f"; {type(kind).__name__}"
        scale = kind.scale if isinstance(kind, LinfBall) else None
        spec += "" if scale is None else f" of scale {weights_hash({'scale': scale})[:16]}"
    return Identity(weights_hash(model.state_dict()), spec, code_version())


class _Cached:
    """Is an index settled by another process? Asks the store again at most when its file has changed."""

    def __init__(self, store: Store, radius: Fraction, key: str, again: set[int]) -> None:
        self._store, self._radius, self._key, self._again = store, radius, key, again
        self._version = -1
        self._found: set[int] = set()

    def has(self, index: int) -> bool:
        version = self._store.version()
        if version != self._version:
            self._version, self._found = version, set(self._store.done(self._radius, self._key))
        return index in self._found and index not in self._again
