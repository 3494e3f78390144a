"""Compiled passes and their references: the same bits; and whatever goes wrong with a compiler breaks nothing."""

from __future__ import annotations

import copy
import logging
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from surebound import models
from surebound.bounds import training_pass
from surebound.graph import program_of
from surebound.kernels import blocks, build, ends, matrices, products


@pytest.fixture(autouse=True)
def fresh() -> object:
    """Nothing found by one test is remembered by the next."""
    build.library.cache_clear()
    yield
    build.library.cache_clear()


def compiled() -> None:
    if build.library() is None:
        pytest.skip("no C compiler here")


def values(rows: int, columns: int, parts: int) -> tuple[Tensor, Tensor]:
    """Stacked values and radii with zeros, columns that are off, infinities and NaN among them."""
    draws = torch.Generator().manual_seed(rows + columns)
    both = torch.randn(parts * rows, columns, generator=draws)
    radius = torch.rand(rows, columns, generator=draws)
    both[:, ::3] = -both[:, ::3].abs() - 2.0
    both[:, 1::7] = 0.0
    radius[0, 1::7] = 0.0
    both[-1, -1], radius[-1, 0] = float("nan"), float("inf")
    return both, radius


def same_bits(a: Tensor | None, b: Tensor | None) -> bool:
    return torch.equal(a.nan_to_num(7.0, 8.0, -8.0), b.nan_to_num(7.0, 8.0, -8.0))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_relu_of_bounds_has_the_bits_of_its_reference(always, monkeypatch, rows, layout):
    compiled()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    both, radius = (v.reshape(rows, 4, 15, 15).to(memory_format=layout) for v in values(rows, 900, 1))
    monkeypatch.setattr(ends.relu_of_bounds, "reference", None)  # the compiled pass is taken
    mine = ends.relu_of_bounds(both.clone(), radius.clone())
    monkeypatch.undo()
    reference = ends.relu_of_bounds.reference(both.clone(), radius.clone())
    for got, wanted in zip(mine, reference, strict=True):
        assert same_bits(got, wanted) and got.stride() == wanted.stride()


@pytest.mark.parametrize("shape", [(1, 2, 1, 3), (3, 5, 9, 11), (7, 3, 20, 30)])
def test_channels_are_put_outermost_only_where_they_are_not(always, shape):
    x = torch.randn(shape)
    assert blocks.channels_outermost(x) is x
    assert blocks.channels_outermost(x.mT) is not None and torch.equal(blocks.channels_outermost(x.mT), x.mT)
    moved = blocks.channels_outermost(x.to(memory_format=torch.channels_last))
    assert moved.is_contiguous() and torch.equal(moved, x)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 13), (300, 32), (900, 101), (20, 3200)])
def test_compiled_and_reference_give_the_same_bits(monkeypatch, rows, columns, parts, scaled):
    compiled()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    both, radius = values(rows, columns, parts)
    scale, shift = (torch.randn(columns), torch.randn(columns)) if scaled else (None, None)
    for limit in (columns, columns // 2):
        mine = blocks.columns_on(both, radius, scale, shift, limit)
        reference = blocks.columns_on.reference(both, radius, scale, shift, limit)
        assert (mine is None) == (reference is None)
        assert mine is None or torch.equal(mine, reference)
    on = torch.arange(0, columns, 2)
    for chosen in (None, on):
        mine = blocks.relu(both, radius, scale, shift, chosen)
        reference = blocks.relu.reference(both, radius, scale, shift, chosen)
        assert all(map(same_bits, mine, reference))
        g, gr = torch.randn_like(mine[0]), torch.randn_like(mine[1])
        back = blocks.relu_backward(g, gr, mine[2])
        assert all(map(same_bits, back, blocks.relu_backward.reference(g, gr, mine[2])))
        to = torch.arange(g.shape[1]) * 3 + 1
        back = blocks.relu_backward(g, gr, mine[2], to, 3 * g.shape[1])
        assert all(map(same_bits, back, blocks.relu_backward.reference(g, gr, mine[2], to, 3 * g.shape[1])))
    kept = blocks.relu(both.clone(), radius.clone(), scale, shift, None)
    assert all(map(same_bits, blocks.relu(both, radius, scale, shift, None, owned=True), kept))


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pad"), [(13, 4, 1, 0), (12, 3, 2, 1), (9, 3, 1, 2), (8, 1, 3, 0)]
)
def test_folding_windows_is_the_gradient_of_a_convolution(monkeypatch, size, kernel, stride, pad):
    compiled()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    x, w = torch.randn(20, 5, size, size, requires_grad=True), torch.randn(7, 5, kernel, kernel)
    y = F.conv2d(x, w, stride=stride, padding=pad)
    g = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, x, g)
    matrix = w.permute(0, 2, 3, 1).reshape(7, -1)
    windows = (g.movedim(1, -1).reshape(-1, 7) @ matrix).view(20, *y.shape[2:], kernel, kernel, 5)
    args = windows, (size, size), (stride, stride), (pad, pad)
    torch.testing.assert_close(blocks.fold(*args).movedim(-1, 1), expected, atol=1e-4, rtol=1e-4)
    assert torch.equal(blocks.fold(*args), blocks.fold.reference(*args))


def test_relu_of_a_box_is_the_box_of_the_relus():
    both, radius = torch.randn(20, 6), torch.rand(10, 6)
    out, out_radius, mask = blocks.relu(both.clone(), radius.clone())
    center = both[10:]
    lower, upper = (center - radius).relu(), (center + radius).relu()
    torch.testing.assert_close(out[:10], both[:10].relu())
    torch.testing.assert_close(out[10:] - out_radius, lower)
    torch.testing.assert_close(out[10:] + out_radius, upper)
    assert torch.equal(mask & 1 > 0, both[:10] > 0) and torch.equal(mask & 4 > 0, upper > 0)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_training_step_has_the_same_bits_without_compiled_kernels(monkeypatch, switch, batch_norm):
    compiled()
    for module in (matrices, products):  # whose sums are taken in another order
        monkeypatch.setattr(module, "_pay", lambda: False)
    torch.manual_seed(0)
    net = models.small((1, 12, 12), batch_norm=batch_norm)
    with torch.no_grad():
        for name, p in net.named_parameters():
            if name.endswith("bias") and p.shape[0] > 10:
                p[::2] -= 8.0
    x, labels = torch.rand(6, 1, 12, 12), torch.randint(0, 10, (6,))
    results = []
    for on in (True, False):
        switch(on)
        mine = copy.deepcopy(net)
        done = training_pass(program_of(mine, x), x, labels, 0.05, batch_statistics=batch_norm)
        loss = F.cross_entropy(done.logits, labels) + F.cross_entropy(done.margins, labels)
        loss.backward()
        results.append([loss.detach(), *(p.grad for p in mine.parameters()), *mine.buffers()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_where_there_is_a_compiler_the_kernels_compile(caplog):
    """Other tests skip without them: a mistake in their source must not look like a machine without a compiler."""
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("no C compiler here")
    assert build.library() is not None, caplog.text


def test_without_a_compiler_references_are_used_and_said_once(monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(build.shutil, "which", lambda _name: None)
    with caplog.at_level(logging.WARNING, logger="surebound"):
        assert build.library() is None and build.library() is None
        blocks.relu(torch.randn(4, 3), torch.rand(2, 3))
    assert [r.getMessage() for r in caplog.records].count(caplog.records[0].getMessage()) == len(caplog.records) == 1
    assert "no C compiler was found" in caplog.text and "SUREBOUND_NATIVE=0" in caplog.text


def test_a_library_without_its_source_breaks_nothing(monkeypatch, caplog):
    monkeypatch.setattr(build, "SOURCE", "")
    with caplog.at_level(logging.WARNING, logger="surebound"):
        assert build.library() is None
    assert "their source is not where the library is installed" in caplog.text


@pytest.mark.parametrize("compiler", ["false", "/nonexistent/cc"])
def test_a_compiler_that_fails_breaks_nothing(monkeypatch, caplog, tmp_path, compiler):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", compiler)
    with caplog.at_level(logging.WARNING, logger="surebound"):
        assert build.library() is None
    assert len(caplog.records) == 1 and "same results" in caplog.text
    assert not list(Path(tmp_path).rglob("*.so"))  # nothing half-made is kept


def test_the_switch_turns_it_off_in_silence(monkeypatch, caplog):
    monkeypatch.setenv("SUREBOUND_NATIVE", "0")
    with caplog.at_level(logging.DEBUG, logger="surebound"):
        assert build.library() is None
    assert not caplog.records


def test_built_once_and_found_in_the_cache(monkeypatch, tmp_path):
    compiled()
    build.library.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build.library() is not None
    (made,) = Path(tmp_path).rglob("*.so")
    build.library.cache_clear()
    monkeypatch.setattr(build.subprocess, "run", lambda *_a, **_k: pytest.fail("compiled again"))
    assert build.library() is not None
    assert list(Path(tmp_path).rglob("*.so")) == [made]


def test_a_signed_sum_has_the_bits_of_the_reference(monkeypatch):
    compiled()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    draws = torch.Generator().manual_seed(1)
    a, b, w = (torch.randn(9, 16, 16, 16, generator=draws) for _ in range(3))
    w[0] = 0.0
    for layout in (torch.contiguous_format, torch.channels_last):
        parts = [v.to(memory_format=layout) for v in (a, b, w)]
        expected = blocks.add_signed.reference(parts[0].clone(), *parts[1:])
        assert torch.equal(blocks.add_signed(parts[0].clone(), *parts[1:]), expected)
    mixed = blocks.add_signed(a.clone(), b.to(memory_format=torch.channels_last), w)
    assert torch.equal(mixed, blocks.add_signed.reference(a.clone(), b, w))
