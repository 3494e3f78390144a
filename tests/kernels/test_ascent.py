"""Compiled steps of the ascent in multipliers: what PyTorch computes from the same numbers, and nothing beside them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from surebound.kernels.ascent import AscentState, StepSizes, UnitLines, ascend, lines_along, lines_back
from surebound.kernels.kernel import Kernel

pytestmark = pytest.mark.usefixtures("always")

ROWS, COLUMNS = 7, 83


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def given(sides: tuple[float, float]) -> tuple[Tensor, Tensor, Tensor, Tensor, UnitLines]:
    """Coefficients in the columns of a wider array, signs of all rows alike, slopes and multipliers, lines."""
    own = numbers(0, ROWS, 2 * COLUMNS)[:, 5 : 5 + COLUMNS]
    signs = torch.randint(-1, 2, (COLUMNS,), generator=torch.Generator().manual_seed(1)).to(torch.int8)
    wide = numbers(2, 2, ROWS, COLUMNS + 3)
    chord, top, bottom, middle = numbers(3, 4, COLUMNS)
    lines = UnitLines(chord, top.abs(), -bottom.abs(), middle, *sides)
    return own, signs.expand(ROWS, -1), wide[0, :, 3:], wide[1, :, :COLUMNS], lines


def alike(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("sides", [(0.0, 1.0), (0.25, 1.0), (-1.0, 1.0)])
def test_back_and_along_are_what_pytorch_computes(sides: tuple[float, float]) -> None:
    own, signs, alphas, betas, lines = given(sides)
    found = []
    for run in (lines_back, lines_back.reference):
        p, offset = torch.full((ROWS, 2 * COLUMNS), torch.nan), numbers(4, ROWS)
        run(own, signs, alphas, betas, lines, p[:, 1 : 1 + COLUMNS], offset)
        assert bool(p[:, :1].isnan().all() & p[:, 1 + COLUMNS :].isnan().all()), "nothing beside is written"
        found.append((p[:, 1 : 1 + COLUMNS], offset))
    for one, other in zip(*found, strict=True):
        alike(one, other)
    z, found = numbers(5, ROWS, COLUMNS), []
    for along in (lines_along, lines_along.reference):
        inside, y = torch.full((2, ROWS, COLUMNS + 2), torch.nan)
        along(z, own, signs, alphas, lines, inside[:, :COLUMNS], y[:, 2:])
        assert bool(inside[:, COLUMNS:].isnan().all() & y[:, :2].isnan().all())
        found.append((inside[:, :COLUMNS], y[:, 2:]))
    for one, other in zip(*found, strict=True):
        alike(one, other)


def test_lines_are_those_of_the_unit_by_hand() -> None:
    """A free unit under its chord and above its slope, split ones on their sides, with their multipliers."""
    lines = UnitLines(*(torch.tensor([v] * 3) for v in (0.5, 2.0, -0.125, 0.25)), 0.0, 1.0)
    signs = torch.tensor([[0, 1, -1]], dtype=torch.int8)
    alphas, betas = torch.tensor([[0.75, 9.0, 9.0]]), torch.tensor([[9.0, 3.0, 4.0]])
    for own, p, offset in (
        (2.0, [1.0, 5.0, -4.0], 2 * (2.0 + 0.125 + 0.125) + 0.25 * 2.0),
        (-2.0, [-1.5, 1.0, -4.0], -2 * 3 * -0.125 + 0.25 * -4.5),
    ):
        for run in (lines_back, lines_back.reference):
            through, total = torch.zeros(1, 3), torch.zeros(1)
            run(torch.full((1, 3), own), signs, alphas, betas, lines, through, total)
            assert through[0].tolist() == p and float(total) == pytest.approx(offset)


def test_a_step_is_adam_s() -> None:
    """Free units move by their slopes, within the range; split ones by their multipliers, not below 0."""
    own, signs, alphas, betas, _ = given((0.0, 1.0))
    signs, unit = signs.contiguous(), numbers(6, ROWS, COLUMNS).abs()
    inside, outside = numbers(7, ROWS, COLUMNS), numbers(8, ROWS, 2 * COLUMNS)[:, COLUMNS:]
    ends, moved = (torch.zeros(COLUMNS), torch.ones(COLUMNS)), []
    run: Kernel[..., None]
    for run in (ascend, ascend.reference):
        state = (alphas.clamp(0, 1), betas.clamp(min=0), torch.zeros_like(inside), torch.zeros_like(inside))
        averages = numbers(9, 2, ROWS, COLUMNS)
        now = AscentState(*(v.clone().contiguous() for v in (*state, *averages)))
        for step in range(3):
            run(now, own, inside * (step + 1), outside, signs, unit, ends, StepSizes(0.5, 0.1, 0.2))
        moved.append(now)
        assert bool((now.alphas >= 0).all() & (now.alphas <= 1).all() & (now.betas >= 0).all())
        free = signs == 0
        assert torch.equal(now.alphas[~free], alphas.clamp(0, 1)[~free])
        assert torch.equal(now.betas[free], betas.clamp(min=0)[free])
    for name in ("alphas", "betas", "mean", "square", "inputs", "outputs"):
        alike(getattr(moved[0], name), getattr(moved[1], name))
    by_adam = torch.nn.Parameter(alphas.clamp(0, 1).clone())
    optimiser = torch.optim.Adam([by_adam], lr=1.0, eps=1e-12)
    by_adam.grad = torch.where(signs == 0, own.clamp(max=0) * inside, 0.0)
    optimiser.step()
    first = AscentState(*(v.clone().contiguous() for v in (*state, *averages)))
    scale = (1 - 0.999) ** 0.5 / (1 - 0.9)
    ascend(first, own, inside, outside, signs, unit, (ends[0] - 10, ends[1] + 10), StepSizes(0.5, scale, scale))
    alike(first.alphas[signs == 0], by_adam.detach()[signs == 0])
