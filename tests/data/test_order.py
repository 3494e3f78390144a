"""The batch order: a function of seed and step, and of nothing else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from surebound.data import BatchOrder, stream
from surebound.errors import InputError


@given(n=st.integers(1, 40), data=st.data())
def test_every_epoch_is_a_permutation_and_batches_are_full(n: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, n))
    order = BatchOrder(n, size, seed=3)
    steps = order.steps(size)  # `size` epochs are a whole number of batches
    assert steps == n
    drawn = [order.indices(step) for step in range(steps)]
    assert all(len(batch) == size for batch in drawn)
    for epoch in torch.cat(drawn).reshape(size, n):
        assert sorted(epoch.tolist()) == list(range(n))


def test_a_step_does_not_depend_on_the_steps_before_it() -> None:
    order = BatchOrder(50, 8, seed=1)
    forwards = [order.indices(step) for step in range(30)]
    for step in (29, 3, 17, 0, 29):
        assert torch.equal(BatchOrder(50, 8, seed=1).indices(step), forwards[step])


def test_what_is_drawn_can_be_changed_without_harm() -> None:
    order = BatchOrder(10, 5, seed=0)
    first = order.indices(0)
    kept = first.clone()
    first.fill_(-1)
    assert torch.equal(order.indices(0), kept)


def test_seeds_and_epochs_differ() -> None:
    whole = [BatchOrder(100, 100, seed).indices(epoch).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in whole}) == 4


@pytest.mark.parametrize("world_size", [1, 2, 3, 6])
def test_processes_share_the_same_batch(world_size: int) -> None:
    alone = BatchOrder(20, 6, seed=5)
    for step in range(7):
        blocks = [BatchOrder(20, 6, 5, rank, world_size).indices(step) for rank in range(world_size)]
        assert torch.equal(torch.cat(blocks), alone.indices(step))


def test_the_paper_s_counts() -> None:
    assert BatchOrder(50_000, 1600, 0).steps(3200) == 100_000  # CIFAR-10
    assert BatchOrder(60_000, 100, 0).steps(100) == 60_000  # MNIST
    assert BatchOrder(50_000, 1600, 0).epoch(99_999) == 3199


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 0), "at least 1 example"),
        ((10, 11, 0), "between 1 and the 10 examples there are, got 11"),
        ((10, 0, 0), "got 0"),
        ((10, 4, 0, 2, 2), "rank must be between 0 and world_size - 1 = 1, got 2"),
        ((10, 4, 0, 0, 3), "a batch of 4 cannot be shared equally by 3 processes"),
    ],
)
def test_orders_that_cannot_be_are_refused(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        BatchOrder(*arguments)


def test_negative_steps_are_refused() -> None:
    with pytest.raises(InputError, match="counted from 0, got -1"):
        BatchOrder(10, 2, 0).indices(-1)


def test_streams_of_different_purposes_differ() -> None:
    drawn = {
        torch.randint(1 << 40, (1,), generator=stream(*key)).item()
        for key in ((0,), (1,), (0, "a"), (0, "b"), (0, "a", 1), (0, "a1"), (0, "a", "1"))
    }
    assert len(drawn) == 7
