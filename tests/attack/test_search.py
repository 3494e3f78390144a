"""The search that all attacks share: what is dropped, what is remembered, what may not change the answer."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from surebound.attack import attack
from surebound.attack.memory import rows_within
from surebound.attack.methods import FGSM, PGD, SPSA, Adam, MultiTargeted
from surebound.attack.result import Ledger
from surebound.attack.rows import AttackRows
from surebound.region import LinfBall


class Watched(nn.Module):
    """Counts the rows it is given, and remembers them."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.sizes: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        return self.inner(x)


METHODS = [
    PGD(steps=8, restarts=4),
    MultiTargeted(steps=6, restarts=2),
    SPSA(steps=4, restarts=2, samples=3),
    FGSM(restarts=3, start="uniform"),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_the_memory_given_changes_nothing_but_the_batches(mlp, images, labels, method):
    # float64: batches of other sizes are summed in another order, which must not tip a comparison here.
    net, x = Watched(mlp.double()), images.double()
    results = [
        attack(net, LinfBall(x, "0.06", clip=(0, 1)), labels, method, memory=memory, seed=5)
        for memory in (1, 10_000, 2**28)
    ]
    for other in results[1:]:
        assert torch.equal(results[0].success, other.success)
        assert torch.equal(results[0].steps, other.steps)
        assert torch.equal(results[0].queries, other.queries)
        torch.testing.assert_close(results[0].adversarial, other.adversarial, atol=1e-9, rtol=0)
    assert 0 < int((results[0].success & ~results[0].clean_success).sum()) < 21  # a mixed bag, or nothing is tested


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_deterministic_given_a_seed(mlp, images, labels, method):
    first, again, other = (
        attack(mlp, LinfBall(images, 0.1, clip=(0, 1)), labels, method, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(first.adversarial, again.adversarial)
    assert not torch.equal(first.adversarial, other.adversarial)


def test_the_global_random_state_is_neither_used_nor_moved(mlp, images, labels):
    state = torch.get_rng_state()
    first = attack(mlp, LinfBall(images, 0.1, clip=(0, 1)), labels, METHODS[0])
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(123)
    assert torch.equal(
        attack(mlp, LinfBall(images, 0.1, clip=(0, 1)), labels, METHODS[0]).adversarial, first.adversarial
    )


def test_memory_bounds_the_rows_in_flight(mlp, images, labels):
    net = Watched(mlp)
    for rows in (1, 3, 7):
        memory = next(m for m in itertools.count(500, 250) if rows_within(mlp, images[:1], m) >= rows)
        net.sizes.clear()
        attack(
            net,
            LinfBall(images, 0.1, clip=(0, 1)),
            labels,
            SPSA(steps=1, restarts=3, samples=6),
            memory=memory,
        )
        assert max(net.sizes) == rows


def test_rows_follow_from_what_the_backward_pass_keeps():
    wide = nn.Sequential(nn.Linear(4, 1000), nn.ReLU(), nn.Linear(1000, 2))
    narrow = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 2))
    x = torch.zeros(1, 4)
    assert 10 * rows_within(wide, x, 10**5) < rows_within(narrow, x, 10**5)
    # 1000 float32 activations are kept once, and their gradients live twice: 12 kB and a little per row.
    assert 60 < rows_within(wide, x, 10**6) < 84
    assert rows_within(wide, x, 1) == 1


def test_examples_that_fall_drop_out_of_the_batch(mlp, images, labels):
    net = Watched(mlp)
    result = attack(net, LinfBall(images, 1, clip=(0, 1)), labels, PGD(steps=50, restarts=10))
    assert bool(result.success.all())
    searched = int(result.attacked.sum())
    assert searched == 21
    # Everything falls within a few steps: far from 50 steps of 10 restarts for all.
    assert sum(net.sizes) < 24 * 3 + searched * 12


def test_later_restarts_of_a_broken_example_are_not_run(images):
    def model(x: Tensor) -> Tensor:
        calls.append(len(x))
        s = x.flatten(1).sum(1)
        return torch.stack([torch.zeros_like(s), torch.where(x.flatten(1)[:, 0] != first, 1.0, -1.0) + 0 * s], 1)

    calls: list[int] = []
    first = images[0].flatten()[0]
    result = attack(model, LinfBall(images[:1], 0.1, clip=(0, 1)), torch.tensor([0]), PGD(steps=10, restarts=10))
    assert bool(result.success.all())
    # One to size the batch, one clean, the first restart's start, which already breaks it, and the judge's.
    assert calls == [1, 1, 1, 1]
    assert result.queries.tolist() == [1]
    assert result.steps.tolist() == [0]


def test_what_is_broken_from_the_start_is_not_searched(mlp, images, labels):
    result = attack(mlp, LinfBall(images, 0.01, clip=(0, 1)), labels, METHODS[0])
    assert result.clean_success.nonzero().squeeze(1).tolist() == [0, 8, 16]
    assert torch.equal(result.attacked, ~result.clean_success)
    assert torch.equal(result.adversarial[::8], images[::8])
    assert bool(result.success[::8].all())
    assert result.clean_error == pytest.approx(3 / 24)
    assert result.error >= result.clean_error


def test_what_is_proved_is_not_searched(mlp, images, labels):
    proved = torch.zeros(24, dtype=torch.bool)
    proved[3:20] = True
    everything = attack(mlp, LinfBall(images, 0.2, clip=(0, 1)), labels, METHODS[0])
    rest = attack(mlp, LinfBall(images, 0.2, clip=(0, 1)), labels, METHODS[0], proved=proved)
    assert not bool(rest.attacked[proved].any())
    assert torch.equal(rest.adversarial[3:20], images[3:20])
    # The others are attacked exactly as before: noise belongs to the example, not to its place in a batch.
    torch.testing.assert_close(rest.adversarial[~proved], everything.adversarial[~proved])
    # A claim that the clean pass already contradicts does not hide the violation.
    assert bool(rest.success[8] and rest.success[16])


def test_state_of_dropped_rows_is_dropped_with_them(mlp, images, labels):
    """Every live row must go on exactly as if the fallen ones had never been beside it."""
    method = PGD(steps=25, restarts=1, rule=Adam(0.01))
    together = attack(mlp.double(), LinfBall(images.double(), "0.06", clip=(0, 1)), labels, method)
    held = ~together.success
    assert 0 < int(held.sum()) < 20
    alone = attack(mlp, LinfBall(images.double(), "0.06", clip=(0, 1)), labels, method, proved=~held)
    torch.testing.assert_close(alone.adversarial[held], together.adversarial[held], atol=1e-12, rtol=0)
    torch.testing.assert_close(alone.margins[held], together.margins[held], atol=1e-12, rtol=0)


def test_progress_ends_at_its_total_and_never_goes_back(mlp, images, labels):
    seen = []
    result = attack(mlp, LinfBall(images, "0.06", clip=(0, 1)), labels, METHODS[0], memory=5000, progress=seen.append)
    done = [p.done for p in seen]
    assert done == sorted(done)
    assert seen[-1].done == seen[-1].total == 21 * 4 * 8
    assert {p.examples for p in seen} == {21}
    assert seen[-1].broken == int((result.success & result.attacked).sum())


def test_an_empty_batch_is_an_empty_result(mlp):
    result = attack(mlp, LinfBall(torch.rand(0, 3, 2, 2), 0.1, clip=(0, 1)), torch.zeros(0, dtype=torch.int64))
    assert len(result) == 0
    assert result.adversarial.shape == (0, 3, 2, 2)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_the_ledger_does_not_depend_on_the_order_of_arrival(order):
    # One example; trials 1 and 3 break it, 2 has the largest value: trial 1 decides.
    values, breaks = [-0.5, 0.3, -0.1, 0.9], {1, 3}
    ledger = Ledger(torch.zeros(1, 1), torch.tensor([-1.0]), torch.tensor([False]), trials=4)
    for trial in order:
        number = torch.tensor([trial])
        if trial in breaks:
            ledger.broke(torch.tensor([0]), number)
        x, value = torch.full((1, 1), float(trial)), torch.tensor([values[trial]])
        ledger.enter(torch.tensor([0]), number, x, value, torch.tensor([10]), torch.tensor([11]))
    assert (ledger.x.item(), round(ledger.value.item(), 3)) == (1.0, 0.3)
    assert ledger.spent(ledger.steps).tolist() == [20]
    assert ledger.spent(ledger.queries).tolist() == [22]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_without_a_violation_the_largest_value_decides_and_the_lowest_trial_among_equals(order):
    ledger = Ledger(torch.zeros(1, 1), torch.tensor([-1.0]), torch.tensor([False]), trials=3)
    for trial in order:
        x, value = torch.full((1, 1), float(trial)), torch.tensor([[-0.5, -0.2, -0.2][trial]])
        ledger.enter(torch.tensor([0]), torch.tensor([trial]), x, value, torch.tensor([1]), torch.tensor([1]))
    assert ledger.x.item() == 1.0


@pytest.mark.parametrize("method", METHODS[:3], ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("memory", [10_000, 2**28])
def test_a_stopped_search_says_what_it_finished(mlp, images, labels, method, memory):
    whole = attack(mlp, LinfBall(images, "0.06", clip=(0, 1)), labels, method, memory=memory)
    assert bool(whole.finished.all())
    for steps in (1, 3, 7, 10**6):
        asked = itertools.count(1)
        found = attack(
            mlp,
            LinfBall(images, "0.06", clip=(0, 1)),
            labels,
            method,
            memory=memory,
            stop=lambda a=asked, n=steps: next(a) >= n,
        )
        # What is reported holds at the inputs that are given, and what was finished is what the whole search says.
        assert torch.equal(found.success, mlp(found.adversarial).argmax(1) != labels)
        assert torch.equal(found.success[found.finished], whole.success[found.finished])
        assert bool((found.success <= whole.success).all())
        assert bool(found.finished[~found.attacked].all() and found.finished[found.success].all())
        assert bool(found.finished.all()) == (steps == 10**6)


def test_a_search_stopped_at_once_has_the_examples_that_were_broken_before(mlp, images, labels):
    found = attack(mlp, LinfBall(images, "1/1000", clip=(0, 1)), labels, METHODS[0], stop=lambda: True)
    assert torch.equal(found.success, found.clean_success)
    assert torch.equal(found.finished, ~found.attacked)


class InThrees(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.view(3, 12))


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_a_network_that_fixes_its_batch_size_is_attacked_in_such_batches(mlp, images, labels, method):
    fixed, x, y = InThrees(mlp.double()), images[4:7].double(), labels[4:7]
    found, expected = (attack(net, LinfBall(x, "0.3", clip=(0, 1)), y, method) for net in (fixed, mlp))
    assert torch.equal(found.success, expected.success)
    torch.testing.assert_close(found.adversarial, expected.adversarial)


class Liar(PGD):
    """Says of every example that it fell, whatever the network answers."""

    def step(self, rows: AttackRows, t: int) -> Tensor:
        rows._ledger.broke(rows.example, rows.trial)
        return rows.x


def test_a_search_that_is_wrong_about_itself_is_not_believed() -> None:
    net, x = nn.Linear(2, 2, bias=False).requires_grad_(False), torch.tensor([[0.9, 0.1]])
    net.weight.copy_(torch.eye(2))
    found = attack(net, LinfBall(x, "1/10", clip=(0, 1)), torch.tensor([0]), Liar(steps=2, restarts=1))
    assert not bool(found.success.any()) and found.error == 0
