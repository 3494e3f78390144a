from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from surebound.attack import noise

WORD = 2**64


def mixed(z: int) -> int:
    """SplitMix64's finaliser on Python's integers."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
    return z ^ (z >> 31)


@given(st.integers(-(2**63), 2**63 - 1))
def test_uniform_is_splitmix_of_key_and_counter(key):
    drawn = noise.uniform(torch.tensor([key]), 5)[0].tolist()
    expected = [mixed((key + (j + 1) * 0x9E3779B97F4A7C15) % WORD) >> 40 for j in range(5)]
    assert drawn == [word / 2**24 for word in expected]


def test_known_answer_of_splitmix64_from_seed_zero():
    # The first outputs of the published generator started from 0.
    words = noise._words(torch.tensor([0]), 3)[0].tolist()
    assert [w % WORD for w in words] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_a_row_draws_the_same_whatever_rows_are_beside_it():
    keys = noise.row_keys(3, torch.arange(9), torch.tensor(4), 1)
    assert torch.equal(noise.uniform(keys, 7)[5], noise.uniform(keys[5:6], 7)[0])
    assert torch.equal(noise.signs(keys, 77)[5], noise.signs(keys[5:6], 77)[0])


def test_keys_tell_seed_example_trial_and_purpose_apart():
    parts = torch.cartesian_prod(*[torch.arange(6)] * 3)
    keys = [noise.row_keys(seed, *parts.unbind(1)) for seed in (-1, 0, 1, 2**63 + 5)]
    keys += [noise.row_keys(0, *parts.unbind(1)[:2])[::6], noise.row_keys(0, *parts.unbind(1), 0)]
    everything = torch.cat(keys)
    assert everything.unique().numel() == everything.numel()


def test_draws_are_fair_and_uncorrelated():
    keys = noise.row_keys(0, torch.arange(400), 0)
    draw, side = noise.uniform(keys, 500), noise.signs(keys, 500)
    assert set(side.unique().tolist()) == {-1.0, 1.0}
    assert abs(side.mean()) < 0.01  # standard error 0.0022
    assert abs(draw.mean() - 0.5) < 0.003
    assert abs(draw.var() - 1 / 12) < 0.002
    for table in (draw - draw.mean(), side):
        for shifted in (table[1:, :] * table[:-1, :], table[:, 1:] * table[:, :-1]):
            assert abs(shifted.mean() / table.var()) < 0.01
