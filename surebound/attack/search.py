"""``attack``: run an attack on a batch of examples, and judge what it found by a clean forward pass."""

from __future__ import annotations

import torch
from torch import Tensor

from surebound.attack.base import Attack, Progress, Stop
from surebound.attack.box import InnerBox
from surebound.attack.memory import DEFAULT_MEMORY, rows_within
from surebound.attack.methods.pgd import PGD
from surebound.attack.network import AttackedNetwork, Model, any_batch
from surebound.attack.objective import Objective, objective_of, worst
from surebound.attack.result import AttackResult, Ledger
from surebound.attack.rows import AttackProblem
from surebound.attack.tree import TreeObjective
from surebound.errors import InputError, SpecError
from surebound.graph.fit import evaluating
from surebound.region import Region, check_region
from surebound.spec import LinearSpec, Spec


def attack(
    model: Model,
    region: Region,
    labels: Tensor | None = None,  # (B,) integers; None with a spec
    method: Attack | None = None,
    *,
    spec: LinearSpec | Spec | None = None,
    proved: Tensor | None = None,  # (B,) bool
    seed: int = 0,
    names: Tensor | None = None,  # (B,) int64
    memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> AttackResult:
    """Look for inputs of a region that break the network: a ball around every image, or any box.

    Every input that is returned lies in the region exactly, in rational arithmetic,
    and was run through the network once more. Examples that are broken from the start, or that ``proved``
    marks as settled by a bound, are not attacked. The same seed gives the same search, however much
    memory it is given. ``names`` are numbers that examples are called by in random draws (default: their places in
    the batch), so that an example is searched the same way whatever batch it comes in. The network is evaluated in
    evaluation mode and left as it was; its weights' ``.grad`` is not touched. ``stop`` is asked after every step
    whether to end the search there; the result then says by ``finished`` whose search was complete.

    Requires: any network from (B, ...) to (B, K) whose examples do not influence each other.
    Property: sound for violations, not for robustness: what is found is a counterexample, what is not found
    is nothing.

    >>> from surebound.region import LinfBall
    >>> net = torch.nn.Linear(2, 2, bias=False)
    >>> _ = net.weight.data.copy_(torch.eye(2))
    >>> region = LinfBall(torch.tensor([[0.6, 0.4], [0.9, 0.1]]), "0.2", clip=(0, 1))
    >>> attack(net, region, torch.tensor([0, 0]), PGD(steps=20, restarts=2)).success.tolist()
    [True, False]
    """
    method = PGD() if method is None else method
    check_region(region, empty=True)
    _check(method, proved, seed, len(region))
    with evaluating(model), torch.no_grad():
        box = InnerBox.of(region)
        model = any_batch(model, box.reference)
        network = AttackedNetwork(model)
        rows = rows_within(model, box.reference[:1], memory) if len(box) else 1
        logits = network.logits(box.reference, rows)  # (B, K)
        objective = _objective(labels, spec, len(box), logits.shape[1])
        if not len(box):
            return _nothing(box.reference)
        clean = objective.violated(logits)  # (B,)
        attacked = ~clean if proved is None else ~(clean | proved.to(clean.device))
        values = objective.values(logits)  # (B, S)
        choices = max(1, int((values > -torch.inf).sum(1).max()))
        ledger = Ledger(box.reference, worst(values).nan_to_num(torch.inf), clean, method.trials(choices))
        targets = values.argsort(dim=1, descending=True, stable=True)
        called = torch.arange(len(box)) if names is None else names.long()
        problem = AttackProblem(network, box, objective, targets, choices, seed, rows, called)
        method(problem, ledger, attacked.nonzero().squeeze(1), progress, stop)
        return _judge(problem, ledger, clean, attacked)


def _objective(labels: Tensor | None, spec: LinearSpec | Spec | None, batch: int, outputs: int) -> Objective:
    if isinstance(spec, Spec) and labels is None:
        return TreeObjective.of(spec, outputs) if batch else objective_of(torch.zeros(0).long(), None, 0, outputs)
    if isinstance(spec, Spec):
        raise SpecError("give labels or a spec: one of them, and not both, says what must hold")
    return objective_of(labels, spec, batch, outputs)


def _judge(problem: AttackProblem, ledger: Ledger, clean: Tensor, attacked: Tensor) -> AttackResult:
    """Judge by a clean forward pass: the search's own opinion does not count."""
    adversarial = problem.box.settled(ledger.x)
    logits = problem.network.logits(adversarial, problem.chunk)
    objective: Objective = problem.objective
    return AttackResult(
        adversarial=adversarial,
        success=objective.violated(logits),
        margins=worst(objective.values(logits)),
        predictions=logits.argmax(1),
        clean_success=clean,
        attacked=attacked,
        finished=~attacked | ledger.fallen | ledger.finished.all(1),
        steps=ledger.spent(ledger.steps),
        queries=ledger.spent(ledger.queries),
    )


def _nothing(images: Tensor) -> AttackResult:
    """Return the result of an empty batch."""
    flags = torch.zeros(0, dtype=torch.bool, device=images.device)
    return AttackResult(
        images, flags, images.new_zeros(0), flags.long(), flags, flags, flags, flags.long(), flags.long()
    )


def _check(method: Attack, proved: Tensor | None, seed: int, batch: int) -> None:
    if not isinstance(method, Attack):
        raise InputError(
            f"method={method!r} is not an attack; give one of sb.attacks, e.g. sb.attacks.PGD(steps=200, restarts=10)"
        )
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError(f"seed={seed!r} is a {type(seed).__name__}; give an integer")
    if proved is None:
        return
    if not isinstance(proved, Tensor) or proved.dtype != torch.bool or proved.shape != (batch,):
        given = f"{proved.dtype} {tuple(proved.shape)}" if isinstance(proved, Tensor) else type(proved).__name__
        raise InputError(f"proved is {given}; give a bool tensor of shape ({batch},), e.g. (margins <= 0).all(1)")
