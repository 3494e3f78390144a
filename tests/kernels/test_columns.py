"""Columns through lines, convolutions, matrices and medians: compiled against PyTorch's own operators and gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from surebound import models
from surebound.bounds.training.dual import values_to_keep
from surebound.bounds.training.engine import training_pass
from surebound.bounds.training.projections.cauchy import middle
from surebound.bounds.training.projections.estimate import Projections
from surebound.bounds.training.projections.sketch import estimated_margins
from surebound.graph import program_of
from surebound.interval import Interval
from surebound.kernels import build, columns
from surebound.kernels.columns import Lines, Windows

B, K = 3, 13
SHAPES = [Windows(7, 6, 8, 4, 4, 16, 4, 3, 1, 1), Windows(9, 9, 16, 4, 3, 24, 3, 4, 2, 2)]


@pytest.fixture(autouse=True)
def compiled() -> None:
    if build.library() is None:
        pytest.skip("no C compiler here")


def drawn(windows: Windows, live: float) -> tuple[Lines, Tensor]:
    """Lines with entries that are 0 in all columns, and a weight."""
    generator = torch.Generator().manual_seed(3)
    n = windows.h * windows.w * windows.c

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    on = (torch.rand(B, n, generator=generator) < live).float()
    lines = Lines(draw(B, K, n), draw(B, n) * on, draw(B, n) * on, draw(K, n))
    return lines, draw(windows.o, windows.c, windows.kh, windows.kw)


def reference(lines: Lines, windows: Windows, weight: Tensor) -> Tensor:
    assert lines.u is not None and lines.slope is not None
    v = lines.slope.unsqueeze(1) * lines.u + lines.gap.unsqueeze(1) * lines.noise
    images = v.view(B * K, windows.h, windows.w, windows.c).movedim(-1, 1)
    found = F.conv2d(images, weight, stride=(windows.sy, windows.sx))
    return found.movedim(1, -1).reshape(B, K, -1)


@pytest.mark.parametrize("windows", SHAPES)
@pytest.mark.parametrize(("live", "further"), [(1.0, 1.0), (0.3, 0.0), (0.3, 0.4)])
def test_convolution_and_its_gradients(windows: Windows, live: float, further: float) -> None:
    """``further``: the share of columns that get a gradient from later layers, too."""
    lines, weight = drawn(windows, live)
    found = windows.apply(lines, weight)
    assert found is not None
    torch.testing.assert_close(found, reference(lines, windows, weight), rtol=1e-4, atol=1e-4)
    _, places = middle(found)
    g = torch.randn(B, found.shape[2]) * (torch.rand(B, found.shape[2]) < 0.5)
    g_u = torch.randn_like(found) * (torch.rand(B, K, 1) < further) if further else None
    leaves = [t.clone().requires_grad_() for t in (lines.u, lines.slope, lines.gap, weight)]
    out = reference(Lines(*leaves[:3], lines.noise), windows, leaves[3])
    loss = (out.gather(1, places.long()).abs().sum(1) * g).sum() + (0 if g_u is None else (out * g_u).sum())
    expected = torch.autograd.grad(loss, leaves)
    mine = windows.backward(lines, weight, found, g_u, g, places)
    assert mine is not None
    for a, b in zip(mine, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("threads", [1, 2])
def test_estimated_margins_are_those_of_the_plain_operators(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    torch.manual_seed(0)
    net = models.small((1, 14, 14))
    x, labels = torch.rand(5, 1, 14, 14), torch.randint(0, 10, (5,))
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    found = []
    for library in (build.library, lambda: None):
        monkeypatch.setattr(columns, "library", library)
        program = program_of(net, x)
        done = training_pass(program, x, labels, 0.02, clean=False, keep=values_to_keep(program))
        box = Interval((x - 0.02).clamp(0, 1), (x + 0.02).clamp(0, 1))
        chosen = Projections(20, torch.Generator().manual_seed(1))
        margins = estimated_margins(program, done, box, labels, chosen).for_training
        gradients = torch.autograd.grad(F.cross_entropy(margins, labels), list(net.parameters()))
        found.append([margins.detach(), *gradients])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3 * b.abs().max().item())
