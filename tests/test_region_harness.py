"""Every region through one harness: nothing inside leaves the bounds, none at size 0, larger is never tighter.

A case knows how its region grows, how to draw points of it, and which points are its own, in fractions and without the
code that is tested. A region or a threat without a case fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound.attack.methods import PGD
from surebound.norm_ball import NormBall
from surebound.threats import substitutions
from surebound.threats.threat import BALLS, PATCHES, TRANSFORMS

CLIP = (0.0, 1.0)
QUARTERS = Fraction(0), Fraction(1, 4), Fraction(1, 2), Fraction(1)
METHODS = ("interval", "crown", "zonotope", "crown-ibp", "alpha-crown")  # the first two behind changes, too

Draw = Callable[[Any, torch.Generator], Tensor]  # region -> points (B, ...), about inside
Holds = Callable[[Any, Tensor], list[bool]]  # region, points (B, ...) -> is each inside, exactly?


@dataclass(frozen=True)
class Case:
    """A region at several sizes, ascending; at the first one nothing changes (``least``: one pixel does)."""

    name: str
    sizes: tuple[Any, ...]
    at: Callable[[Any], tuple[nn.Module, Any]]
    draw: Draw
    holds: Holds
    least: bool = False
    words: bool = False  # sentences, not images
    methods: tuple[str, ...] = METHODS

    def __str__(self) -> str:
        return self.name

    @property
    def plain(self) -> tuple[nn.Module, Tensor]:
        """The network and the inputs without a threat."""
        return (reader(), TABLE[TOKENS]) if self.words else (net(), images())

    def labels(self) -> Tensor:
        """What the network makes of the inputs themselves."""
        network, inputs = self.plain
        found: Tensor = network(inputs).argmax(1)
        return found

    def bounds(self, size: Any, methods: Sequence[str]) -> list[Tensor]:
        """Worst margins of the inputs by each method, of all places together where an input has several."""
        network, region = self.at(size)
        labels = self.labels()
        places = len(region) // len(labels)
        found = []
        for method in methods:
            upper = sb.worst_margins(network, region, labels.repeat_interleave(places), method=method)
            found.append(upper.reshape(len(labels), places, -1).amax(1))
        return found


def images() -> Tensor:
    x = torch.rand(2, 3, 6, 5, generator=torch.Generator().manual_seed(1))
    x[0, 0, 0], x[1, 1, 1] = 0, 1  # the ends of the valid range
    return x


def net() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(60, 8), nn.ReLU(), nn.Linear(8, 3)
    return nn.Sequential(*layers).requires_grad_(False)


def moves(region: Any, points: Tensor) -> list[list[Fraction]]:
    """Return how far each entry moved, exactly; None of points that leave the clip range (where they moved)."""
    found = []
    low, high = region.clip or (-float("inf"), float("inf"))
    for x, point in zip(region.x.flatten(1).tolist(), points.flatten(1).tolist(), strict=True):
        valid = all(low <= p <= high for p, at in zip(point, x, strict=True) if p != at)
        found.append([abs(Fraction(p) - Fraction(at)) for p, at in zip(point, x, strict=True)] if valid else [])
    return found


def within_radii(region: sb.LinfBall, points: Tensor) -> list[bool]:
    wide = torch.ones(points.shape).double() if region.scale is None else region.scale.expand(points.shape)
    radii = [[region.eps * Fraction(each) for each in row] for row in wide.flatten(1).tolist()]
    return [
        bool(moved) and all(m <= r for m, r in zip(moved, row, strict=True))
        for moved, row in zip(moves(region, points), radii, strict=True)
    ]


def within_norm(region: NormBall, points: Tensor) -> list[bool]:
    norm, eps = region.norm, region.eps
    return [bool(m) and sum((e**norm for e in m), Fraction(0)) <= eps**norm for m in moves(region, points)]


def few_pixels(region: Any, points: Tensor) -> list[bool]:
    found = []
    for moved in moves(region, points):
        pixels = {(i // 5 % 6, i % 5) for i, each in enumerate(moved) if each}
        spans = [max(line) - min(line) < region.eps for line in zip(*pixels, strict=True)]
        fits = all(spans) if isinstance(region, sb.Patch) else len(pixels) <= region.eps
        found.append(bool(moved) and fits)
    return found


def in_box(region: sb.Box, points: Tensor) -> list[bool]:
    return [bool(inside) for inside in ((region.lower <= points) & (points <= region.upper)).flatten(1).all(1)]


def any_radii(region: sb.LinfBall, draw: torch.Generator) -> Tensor:
    """Draw within radii, or an end of every entry; one float further in where rounding left the ball."""
    share = torch.rand(region.x.shape, generator=draw, dtype=torch.float64) * 2 - 1
    share = share.sign() if float(torch.rand((), generator=draw)) < 0.4 else share
    radii = float(region.eps) * (torch.ones(1).double() if region.scale is None else region.scale)
    low, high = region.clip or (-torch.inf, torch.inf)
    point = (region.x.double() + share * radii).float().clamp(low, high)
    inwards = torch.nextafter(torch.nextafter(point, region.x), region.x)
    return torch.where((point.double() - region.x.double()).abs() <= radii * (1 - 1e-12), point, inwards)


def any_direction(region: NormBall, draw: torch.Generator) -> Tensor:
    """Draw a direction of many entries or of few, and go to the border of the ball or less far."""
    way = torch.randn(region.x.shape, generator=draw)
    few = float(torch.rand((), generator=draw)) < 0.5
    way = torch.where(torch.rand(way.shape, generator=draw) < 0.05, way, 0.0) if few else way
    length = way.flatten(1).norm(p=region.norm, dim=1).clamp(min=1e-9).reshape(-1, 1, 1, 1)
    share = 1 - 1e-5 if float(torch.rand((), generator=draw)) < 0.5 else float(torch.rand((), generator=draw))
    point = region.x + way / length * (float(region.eps) * share)
    return point if region.clip is None else point.clamp(*region.clip)


def any_pixels(region: Any, draw: torch.Generator) -> Tensor:
    """Draw what pixels hold, and which ones: any, or those of a square."""
    content = torch.rand(region.x.shape, generator=draw)
    content = content.round() if float(torch.rand((), generator=draw)) < 0.5 else content
    mask, count = torch.zeros(6, 5), int(region.eps)
    if isinstance(region, sb.Patch):
        row, column = (int(torch.randint(size - count + 1, (), generator=draw)) for size in (6, 5))
        mask[row : row + count, column : column + count] = 1
    else:
        mask.view(-1)[torch.randperm(30, generator=draw)[:count]] = 1
    return torch.where(mask.bool(), content, region.x)


def in_a_box(region: sb.Box, draw: torch.Generator) -> Tensor:
    share = torch.rand(region.lower.shape, generator=draw)
    share = share.round() if float(torch.rand((), generator=draw)) < 0.5 else share
    return torch.clamp(region.lower + share * (region.upper - region.lower), region.lower, region.upper)


SIZES = {
    "linf": "1/20", "l2": "1/4", "l1": "1/2", "brightness": "1/5", "contrast": "1/2", "blur": "1",
    "rotation": "20deg", "translation": "3/2px", "scaling": "1/5", "gamma": "1/2", "hue": "60deg",
    "brightness:1/7+scaling": "1/5", "linf:1/40+gamma:1/3+hue": "20deg",
}  # fmt: skip


def named(name: str) -> Case:
    """A threat by its name: one network for all sizes, since more whole-pixel shifts would be other sums."""
    whole = sb.threat(f"{name}:{SIZES[name]}")

    def at(share: Fraction) -> tuple[nn.Module, Any]:
        network, region = whole.against(net(), images(), CLIP)
        return network, region.around(region.x, share * whole.size)

    if name in ("l2", "l1"):
        return Case(name, QUARTERS, at, any_direction, within_norm)
    return Case(name, QUARTERS, at, any_radii, within_radii, methods=METHODS if name == "linf" else METHODS[:2])


def patched(name: str, sizes: tuple[int, ...]) -> Case:
    """A patch place by place: an example for each place, and one pixel at least."""

    def at(size: int) -> tuple[nn.Module, Any]:
        return sb.threat(f"{name}:{size}").against(net(), images(), CLIP)

    return Case(f"{name}, by place", sizes, at, any_radii, within_radii, least=True, methods=METHODS[:2])


def per_pixel() -> Tensor:
    radii = torch.rand(3, 6, 5, generator=torch.Generator().manual_seed(3)) / 8
    radii[0, 0] = 0
    return radii


def per_example() -> Tensor:
    return torch.rand(2, 3, 6, 5, generator=torch.Generator().manual_seed(4)).double() / 8


def reader() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3)).requires_grad_(False)


TABLE = torch.randn(9, 4, generator=torch.Generator().manual_seed(4))
TOKENS = torch.tensor([[1, 5, 0], [4, 1, 1]])
OTHERS = {1: [2, 3, 7], 5: [6, 8, 0], 4: [3, 2]}


def words(count: int) -> dict[int, list[int]]:
    return {word: others[:count] for word, others in OTHERS.items()}


def any_words(region: sb.Box, draw: torch.Generator) -> Tensor:
    """Draw a word for each place, of the largest choice; those of other sizes lie outside of smaller boxes."""
    drawn = [[[w, *OTHERS.get(w, [])] for w in row] for row in TOKENS.tolist()]
    chosen = [[row[int(torch.randint(len(row), (), generator=draw))] for row in rows] for rows in drawn]
    return TABLE[torch.tensor(chosen)]


def ball(name: str, make: Callable[[Any], Any], sizes: tuple[Any, ...], draw: Draw, holds: Holds) -> Case:
    return Case(name, sizes, lambda size: (net(), make(size)), draw, holds)


X = images()
CASES = [
    *(named(name) for name in SIZES),
    patched("patch", (1, 2, 4)),
    patched("l0", (1,)),
    ball("LinfBall without clip", lambda s: sb.LinfBall(X, s / 20), QUARTERS, any_radii, within_radii),
    ball("LinfBall per pixel", lambda s: sb.LinfBall(X, s, CLIP, per_pixel()), QUARTERS, any_radii, within_radii),
    ball("LinfBall, eps a tensor", lambda s: sb.LinfBall(X, per_pixel() * float(s), CLIP), QUARTERS, any_radii,
         within_radii),
    ball("LinfBall per channel", lambda s: sb.LinfBall(X, s, CLIP, torch.tensor([0.1, 0.0, 0.05]).view(3, 1, 1)),
         QUARTERS, any_radii, within_radii),
    ball("LinfBall per example", lambda s: sb.LinfBall(X, s, CLIP, per_example()), QUARTERS, any_radii, within_radii),
    ball("L2Ball without clip", lambda s: sb.L2Ball(X, s / 3), QUARTERS, any_direction, within_norm),
    ball("L1Ball without clip", lambda s: sb.L1Ball(X, s), QUARTERS, any_direction, within_norm),
    ball("L0Ball", lambda k: sb.L0Ball(X, k, CLIP), (0, 1, 2, 30), any_pixels, few_pixels),
    ball("Patch", lambda k: sb.Patch(X, k, CLIP), (0, 1, 2, 5), any_pixels, few_pixels),
    ball("Box", lambda s: sb.Box(X - per_pixel() * float(s), X + float(s / 10) * X), QUARTERS, in_a_box, in_box),
    Case("substitutions", (0, 1, 3), lambda n: (reader(), substitutions(TABLE, TOKENS, words(n))), any_words, in_box,
         words=True),
]  # fmt: skip


def margins(network: nn.Module, points: Tensor, labels: Tensor) -> Tensor:
    z: Tensor = network(points)
    return z - z.gather(1, labels[:, None])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_inside_leaves_the_bounds(case: Case) -> None:
    network, region = case.at(case.sizes[-1])
    places = len(region) // len(case.labels())
    labels = case.labels().repeat_interleave(places)
    found = [sb.worst_margins(network, region, labels, method=method) for method in case.methods]
    assert bool((found[1] <= found[0] + 1e-5).all()), "crown is never looser than intervals"
    lowest = torch.stack(found).amin(0)
    draw, inside = torch.Generator().manual_seed(2), 0
    for _ in range(60):
        point = case.draw(region, draw)
        held = torch.tensor(case.holds(region, point))
        inside += int(held.sum())
        assert bool((margins(network, point, labels)[held] <= lowest[held]).all())
    assert inside >= 0.9 * 60 * len(labels), "the points that are drawn are the region's"
    broken = sb.attack(network, region, labels, PGD(steps=20, restarts=2))
    assert all(case.holds(region, broken.adversarial)), "what an attack finds lies in the region, exactly"
    assert bool((margins(network, broken.adversarial, labels) <= lowest).all())


@pytest.mark.parametrize("case", [case for case in CASES if len(case.sizes) > 1], ids=str)
def test_larger_is_never_tighter(case: Case) -> None:
    found = [case.bounds(size, ["interval"])[0] for size in case.sizes]
    for small, large in pairwise(found):
        assert bool((small <= large + 1e-6).all())
    assert bool((found[-1] > found[0] + 1e-3).any())


@pytest.mark.parametrize("case", [case for case in CASES if not case.least], ids=str)
def test_size_0_is_the_input_itself(case: Case) -> None:
    network, region = case.at(case.sizes[0])
    (plain, inputs), box = case.plain, region.interval()
    assert torch.equal(box.lower, box.upper) and torch.equal(network(box.lower), plain(inputs))
    exact = margins(plain, inputs, case.labels())
    for upper in case.bounds(case.sizes[0], case.methods):
        assert torch.allclose(upper, exact, atol=1e-4)


def test_every_region_has_a_case() -> None:
    names = {part.split(":")[0] for case in CASES for part in case.name.replace(", by place", "").split("+")}
    assert {*BALLS, *TRANSFORMS, *PATCHES} <= names
    made = {type(case.at(case.sizes[-1])[1]) for case in CASES}

    def concrete(kind: type) -> set[type]:
        below = kind.__subclasses__()
        return {kind} if not below else set().union(*map(concrete, below))

    assert made == {sb.Box, sb.LinfBall} | concrete(NormBall)
