"""Units of convolutions by windows: the bounds of whole images, at every border, and only where windows apply."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import surebound as sb
from surebound.bounds.linear import intermediate
from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.linear.entries import entries
from surebound.bounds.linear.intermediate import relax
from surebound.bounds.linear.places import Window
from surebound.bounds.linear.windows import WindowPlan, entries_by_windows
from surebound.graph import program_of
from surebound.models.layers import Normalize, SamePad
from surebound.numerics import Soundness
from surebound.rules.facts import Local

SHAPE = (2, 11, 9)


def _tail() -> list[nn.Module]:
    return [nn.Flatten(), nn.LazyLinear(4), nn.ReLU(), nn.Linear(4, 3)]


NETS = {
    "strides": lambda: [nn.Conv2d(2, 4, 3, stride=2), nn.ReLU(), nn.Conv2d(4, 5, 2), nn.ReLU()],
    "padding": lambda: [
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, (3, 2), (2, 1), (1, 1)), nn.ReLU(),
        nn.Conv2d(4, 3, 2), nn.ReLU(),
    ],
    "same": lambda: [
        SamePad(3, 1, (11, 9)), nn.Conv2d(2, 4, 3), nn.ReLU(), SamePad(3, 2, (11, 9)), nn.Conv2d(4, 4, 3, 2), nn.ReLU(),
    ],
    "norms": lambda: [
        Normalize([0.1, 0.2], [0.5, 0.4]), nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 4, 2), nn.BatchNorm2d(4), nn.ReLU(),
    ],
    "two in a row": lambda: [
        nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 4, 3, padding=2), nn.ReLU(), nn.Conv2d(4, 3, 2), nn.ReLU()
    ],
    "groups": lambda: [
        nn.Conv2d(2, 4, 3, dilation=2, groups=2), nn.Sigmoid(), nn.Conv2d(4, 4, 2, groups=4), nn.LeakyReLU(0.1)
    ],
    "pooling": lambda: [
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2, 1, 1), nn.Conv2d(3, 3, 2), nn.ReLU(),
        nn.ZeroPad2d((1, 0, 0, 1)), nn.AvgPool2d((2, 3), (2, 1)), nn.ReLU(),
    ],
    "residual": lambda: [
        nn.Conv2d(2, 3, 1), Sum(nn.Conv2d(3, 3, 3, padding=1), nn.Identity()), nn.ReLU(),
        Sum(nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1)), nn.Conv2d(3, 4, 1, 2)),
        nn.ReLU(),
    ],
    "paths of different reach": lambda: [
        Sum(nn.Conv2d(2, 3, (3, 1)), nn.Conv2d(2, 3, (1, 2), padding=(0, 1)), crop=True), nn.ReLU(),
        Sum(nn.Conv2d(3, 2, 2), nn.Sequential(nn.ReLU(), nn.Conv2d(3, 2, 1)), crop=True), nn.ReLU(),
    ],
    "transposed": lambda: [
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(),
        nn.ConvTranspose2d(3, 4, 3, padding=(1, 0), dilation=(1, 2)), nn.ReLU(),
        nn.Conv2d(4, 3, 3, 2), nn.ReLU(), nn.ConvTranspose2d(3, 2, (3, 2), (2, 3), (1, 0), (1, 0)), nn.ReLU(),
    ],
    "padded by a stride": lambda: [
        nn.Conv2d(2, 3, 3, 2), nn.ReLU(), nn.ConvTranspose2d(3, 2, 2, output_padding=1, dilation=2), nn.ReLU(),
    ],
    "down and up": lambda: [
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(),
        Beside(nn.Identity(), nn.Sequential(
            nn.ZeroPad2d((0, 1, 0, 1)), nn.AvgPool2d(2), nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(),
            nn.ConvTranspose2d(4, 4, 2, 2, groups=2), nn.ZeroPad2d((0, -1, 0, -1)),
        )),
        nn.Conv2d(7, 3, 3, padding=1), nn.ReLU(),
    ],
    "up twice": lambda: [
        nn.Conv2d(2, 3, 3, 2), nn.ReLU(), nn.Conv2d(3, 3, 2, 2), nn.ReLU(), nn.ConvTranspose2d(3, 3, 2, 2),
        nn.ReLU(), nn.ConvTranspose2d(3, 2, 3, 2, bias=False), nn.ReLU(),
    ],
}  # fmt: skip


class Sum(nn.Module):
    """The sum of two paths, cropped to what both have."""

    def __init__(self, one: nn.Module, other: nn.Module, crop: bool = False) -> None:
        super().__init__()
        self.one, self.other, self.crop = one, other, crop

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.one(x), self.other(x)
        if self.crop:
            h, w = min(a.shape[2], b.shape[2]), min(a.shape[3], b.shape[3])
            a, b = (F.pad(v, (0, w - v.shape[3], 0, h - v.shape[2])) for v in (a, b))
        return a + b


class Beside(nn.Module):
    """The channels of two paths, beside each other."""

    def __init__(self, one: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.one, self.other = one, other

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.other(x)], 1)


def make(kind: str) -> nn.Sequential:
    torch.manual_seed(3)
    net = nn.Sequential(*NETS[kind](), *_tail()).eval()
    net(torch.zeros(1, *SHAPE))
    for name, value in (*net.named_parameters(), *net.named_buffers()):
        if name.endswith("running_var"):
            nn.init.uniform_(value, 0.5, 2.0)
        elif name.endswith(("bias", "running_mean")):
            nn.init.uniform_(value, -0.3, 0.3)
    return net.requires_grad_(False)


def relaxation(net: nn.Module, mode: Soundness) -> Relaxed:
    x = torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(0))
    box = sb.LinfBall(x, "1/8", clip=(0, 1)).interval(mode)
    return relax(program_of(net, x), box, mode, own=False)


@torch.no_grad()
@pytest.mark.parametrize("mode", [Soundness.NONE, Soundness.DEPLOYED])
@pytest.mark.parametrize("name", NETS)
def test_windows_give_the_bounds_of_whole_images(name: str, mode: Soundness) -> None:
    relaxed = relaxation(make(name), mode)
    used = 0
    for activation in relaxed.activations or list(relaxed.steps):
        source = relaxed.constants.sources(relaxed.program.graph.by_name[activation])[0]
        box = relaxed.bounds[source]
        where = torch.rand(box.shape, generator=torch.Generator().manual_seed(1)) < 0.6
        for memory in (1 << 20, 10_000):  # a low ceiling changes nothing
            found = entries_by_windows(relaxed, source, where, memory)
            if found is None:
                continue
            plain = entries(relaxed, source, where, 50)
            used += source != relaxed.program.graph.input
            for mine, theirs in ((found.lower, plain.lower), (found.upper, plain.upper)):
                torch.testing.assert_close(mine[where], theirs[where], rtol=1e-5, atol=2e-6)
                assert bool(mine[where].isfinite().all())
                assert bool(mine[~where].isinf().all())
    assert used, "no window was used"


@torch.no_grad()
def test_an_input_that_is_read_as_images() -> None:
    torch.manual_seed(3)
    paths = [nn.Sequential(nn.Unflatten(1, SHAPE), nn.Conv2d(2, 3, n, padding=n // 2)) for n in (1, 3)]
    net = nn.Sequential(Sum(paths[0], paths[1]), nn.ReLU(), nn.Conv2d(3, 3, 2), nn.ReLU(), *_tail()).eval()
    x = torch.rand(2, 198, generator=torch.Generator().manual_seed(0))
    net(x)
    box = sb.LinfBall(x, "1/8", clip=(0, 1)).interval()
    relaxed = relax(program_of(net, x), box, Soundness.DEPLOYED, own=False)
    source = relaxed.source(relaxed.activations[1])
    where = torch.ones(relaxed.bounds[source].shape, dtype=torch.bool)
    found, plain = entries_by_windows(relaxed, source, where, 1 << 20), entries(relaxed, source, where, 50)
    assert found is not None
    torch.testing.assert_close(found.lower, plain.lower, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(found.upper, plain.upper, rtol=1e-5, atol=2e-6)


@torch.no_grad()
def test_full_crown_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = make("padding"), torch.rand(2, *SHAPE)
    region, spec = sb.LinfBall(x, "1/8", clip=(0, 1)), sb.LinearSpec(torch.eye(3))
    quick = sb.worst_margins(net, region, spec=spec, method="crown")
    calls = []
    monkeypatch.setattr(intermediate, "entries_by_windows", lambda *args: calls.append(args))
    plain = sb.worst_margins(net, region, spec=spec, method="crown")
    assert calls
    torch.testing.assert_close(quick, plain, rtol=1e-5, atol=2e-6)
    assert float(quick.sum()) < float(sb.worst_margins(net, region, spec=spec, method="crown-ibp").sum())


def test_bounds_of_windows_hold_of_executions() -> None:
    net, x = make("padding"), torch.rand(2, *SHAPE)
    region = sb.LinfBall(x, "1/8", clip=(0, 1))
    relaxed = relax(program_of(net, x), region.interval(), Soundness.DEPLOYED, own=True)
    graph = relaxed.program.graph
    for _ in range(50):
        h = (x + (torch.rand_like(x) * 2 - 1).sign() / 8).clamp(0, 1)
        values = {node.name: None for node in graph.nodes if node.varies}
        for name, layer in zip(values, net, strict=True):
            h = layer(h)
            assert bool(relaxed.bounds[name].contains(h).all()), name


def _strides_apart() -> nn.Module:
    """Two paths that move on over the input at different strides."""
    wide = nn.Sequential(nn.Conv2d(2, 2, 3, 2, 1), nn.ReLU())
    return nn.Sequential(Sum(wide, nn.Conv2d(2, 2, 3, padding=1), crop=True), nn.ReLU(), *_tail())


@torch.no_grad()
def test_where_windows_do_not_apply() -> None:
    x = torch.rand(1, *SHAPE)
    for net in (
        _strides_apart().eval(),
        nn.Sequential(nn.Conv2d(2, 3, 9), nn.ReLU(), nn.Conv2d(3, 2, 1), *_tail()),
    ):
        net(x)
        box = sb.LinfBall(x, "1/8").interval()
        relaxed = relax(program_of(net, x), box, Soundness.DEPLOYED, own=False)
        sources = [relaxed.source(name) for name in relaxed.activations]
        assert WindowPlan.of(relaxed, sources[-1]) is None


def test_the_window_of_a_window() -> None:
    window = Window().before(Local((3, 4), (2, 1), (1, 0), (1, 2)))
    assert window == Window((-1, 0), (2, 1), (3, 7))
    assert window.before(Local((2, 2), (1, 3), (0, 1), (1, 1))) == Window((-1, -1), (2, 3), (4, 20))
