"""Parts of ranges inside a network: remade lines, multipliers of any sign, against executions that lie in the parts."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound.bounds.linear.alpha import Adam, NamedMultipliers, optimise
from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.linear.intermediate import relax
from surebound.bounds.linear.narrowing import narrowed, with_fans
from surebound.bounds.linear.steps import step_of
from surebound.graph import program_of
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.rules.relax.lines import Lines
from surebound.search.ranges.blame import blame, executed
from tests.bounds.oracles import exact_outputs, layers_of
from tests.bounds.test_linear import tiny_net


class Sin(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x)


class Attention(nn.Module):
    """A softmax, a product of two varying matrices and one of two varying vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a(x).reshape(-1, 2, 2), self.b(x).reshape(-1, 2, 2)
        mixed = (torch.softmax(a, -1) @ b).flatten(1)
        return self.c(mixed * self.b(x))  # type: ignore[no-any-return]


class Gated(nn.Module):
    """A value that two calls read."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.c = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        return self.c(a * torch.sigmoid(a) + torch.relu(a))  # type: ignore[no-any-return]


def dense(act: type[nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), act(), nn.Linear(5, 4), act(), nn.Linear(4, 2))


NETS = {
    **{act.__name__: lambda act=act: dense(act) for act in (
        nn.ReLU, nn.Sigmoid, nn.Tanh, nn.GELU, nn.SiLU, nn.Softplus, nn.ELU, nn.Hardsigmoid, nn.Hardtanh, nn.Mish, Sin,
        nn.LeakyReLU,
    )},
    "attention": Attention,
    "gated": Gated,
}  # fmt: skip


def network(name: str) -> nn.Module:
    torch.manual_seed(3)
    net = NETS[name]().requires_grad_(False)
    for p in net.parameters():
        p.mul_(3 if p.dim() > 1 else 1)
    return net


def root_of(net: nn.Module, mode: Soundness, eps: str = "1/2") -> tuple[Relaxed, Tensor]:
    x = torch.tensor([[0.3, -0.2, 0.1]])
    root = with_fans(relax(program_of(net, x), sb.LinfBall(x, eps).interval(mode), mode, own=True))
    return root, x


def some_parts(root: Relaxed, around: dict[str, Tensor], g: torch.Generator) -> dict[str, Interval]:
    """Parts of random entries of all values that loose calls read, each with the value of one execution (1, ...)."""
    parts = {}
    for node in root.constants.calls():
        for name in root.constants.sources(node):
            if name == root.program.graph.input or name not in root.bounds:
                continue
            box, value = root.bounds[name], around[name]
            low = value + (box.lower - value) * torch.rand(value.shape, generator=g)
            high = value + (box.upper - value) * torch.rand(value.shape, generator=g)
            some = torch.rand(value.shape, generator=g) < 0.5
            parts[name] = Interval(
                torch.where(some, torch.minimum(low, value), box.lower),
                torch.where(some, torch.maximum(high, value), box.upper),
            )
    return parts


@pytest.mark.parametrize("mode", ["real", "deployed"])
@pytest.mark.parametrize("name", NETS)
def test_bounds_of_parts_hold_of_executions_in_them(name: str, mode: str) -> None:
    """Whatever the slopes, shares and multipliers."""
    net, soundness, g = network(name), Soundness(mode), torch.Generator().manual_seed(1)
    root, x = root_of(net, soundness)
    c, d = torch.tensor([[[1.0, -1.0], [0.5, 2.0]]]), torch.zeros(1, 2)
    points = x + torch.rand(1000, 3, generator=g) - 0.5
    every = executed(root, points)
    held = 0
    for _ in range(3):
        one = int(torch.randint(1000, (), generator=g))
        parts = some_parts(root, {name: value[one, None] for name, value in every.items()}, g)
        node = narrowed(root, parts)
        assert node.cut == tuple(parts)
        m = NamedMultipliers.start(node, 2)
        alphas = {k: torch.rand(v.shape, generator=g) for k, v in m.alphas.items()}
        betas = {k: torch.randn(v.shape, generator=g) * 3 for k, v in m.betas.items()}
        inside = torch.ones(1000, dtype=torch.bool)
        for k, part in parts.items():
            inside &= ((every[k] >= part.lower) & (every[k] <= part.upper)).flatten(1).all(1)
        rows = points[inside].double()
        z = every[root.program.graph.output][inside].double()
        for a, b in (({}, {}), (alphas, {}), ({}, betas), (alphas, betas)):
            found = node.evaluate(c, d, alphas=a, betas=b)
            bound = rows @ found.form.coefficients[:, 0].double().t() + found.form.offset[:, 0]
            right = torch.einsum("sk,nk->ns", c[0].double(), z)
            slack = 1e-5 if mode == "real" else 0.0  # executed in float32
            assert bool((right <= bound + slack).all())
            assert bool((right.amax(0) <= found.upper[0] + slack).all())
            held += len(rows)
    assert held >= 12


@pytest.mark.parametrize("name", ["ReLU", "Sigmoid", "GELU"])
def test_multipliers_cost_nothing_where_there_is_one_execution(name: str) -> None:
    """Over a point every value is known, whatever part of its coefficients meets its range."""
    net, g = network(name), torch.Generator().manual_seed(4)
    root, x = root_of(net, Soundness.DEPLOYED, "0")
    node = narrowed(root, {call.name: root.bounds[call.name] for call in root.constants.calls()[:-1]})
    z, c = net(x)[0], torch.randn(1, 9, 2, generator=g)
    right = torch.einsum("sk,k->s", c[0], z)
    for _ in range(4):
        betas = {k: 3 * torch.randn(v.shape, generator=g) for k, v in NamedMultipliers.start(node, 9).betas.items()}
        upper = node.evaluate(c, torch.zeros(1, 9), betas=betas).upper[0]
        assert bool((upper >= right).all())
        assert bool((upper <= right + 1e-3).all())


def test_multipliers_of_any_sign_hold_in_fractions() -> None:
    net, g = tiny_net(5, (4, 6, 6, 2)), torch.Generator().manual_seed(0)
    x, layers = torch.randn(1, 4, generator=g), layers_of(net)
    root = relax(program_of(net, x), sb.LinfBall(x, "1/5").interval(Soundness.REAL), Soundness.REAL, own=True)
    name = root.source(root.activations[0])
    c, d = torch.eye(2).unsqueeze(0), torch.zeros(1, 2)
    w, bias = layers[0]
    for _ in range(8):
        point = x[0] + (torch.rand(4, generator=g) - 0.5) * 0.4
        ends = torch.from_numpy(w) @ point.double() + torch.from_numpy(bias)  # off by less than the 1e-6 below
        low, high = ends - 1e-6, ends + 1e-6 + torch.rand(6, generator=g)
        node = narrowed(root, {name: Interval(low.float().unsqueeze(0) - 1e-6, high.float().unsqueeze(0) + 1e-6)})
        betas = {name: torch.randn(2, 1, 6, generator=g) * 10}
        form = node.evaluate(c, d, betas=betas).form
        for s, exact in enumerate(exact_outputs(layers, point)):
            row = form.coefficients[s, 0].tolist()
            products = (Fraction(a) * Fraction(v) for a, v in zip(row, point.tolist(), strict=True))
            assert sum(products, Fraction(float(form.offset[s, 0]))) >= exact


@pytest.mark.parametrize("name", [name for name in NETS if name not in ("attention", "gated")])
def test_lines_of_changed_entries_are_those_of_whole_calls(name: str) -> None:
    g = torch.Generator().manual_seed(2)
    root, _ = root_of(network(name), Soundness.DEPLOYED)
    several = root.select(torch.zeros(3, dtype=torch.int64))
    node = root.constants.calls()[1]
    source = root.constants.sources(node)[0]
    box = several.bounds[source]
    middle = box.lower + (box.upper - box.lower) * torch.rand(box.shape, generator=g)
    cut = torch.rand(box.shape, generator=g) < 0.4
    part = Interval(torch.where(cut, middle, box.lower), box.upper)
    found = narrowed(several, {source: part}).steps[node.name]
    whole = step_of(root.constants, node, {**several.bounds, source: part}, root.mode)
    assert isinstance(found, Lines)
    assert isinstance(whole, Lines)
    assert bool(cut.any())
    for one, other in ((found.lower, whole.lower), (found.upper, whole.upper), (found.intercepts, whole.intercepts)):
        for mine, its in zip(one, other, strict=True):
            torch.testing.assert_close(mine, its, rtol=0, atol=0)
    assert bool((found.absolute >= several.steps[node.name].absolute).all())  # type: ignore[attr-defined]


def test_empty_parts_prove_anything_and_no_other_example() -> None:
    root, _ = root_of(network("Sigmoid"), Soundness.DEPLOYED)
    two, name = root.select(torch.zeros(2, dtype=torch.int64)), "input"
    name = root.source(root.constants.calls()[1].name)
    box = two.bounds[name]
    low, high = box.lower.clone(), box.upper.clone()
    low[0, 0] = box.upper[0, 0] + 1
    high[0, 0] = low[0, 0] + 1
    node = narrowed(two, {name: Interval(low, high)})
    assert node.infeasible is not None
    assert node.infeasible.tolist() == [True, False]
    found = node.evaluate(torch.ones(2, 1, 2), torch.zeros(2, 1)).upper
    assert found[0, 0] == -torch.inf
    assert found[1] == root.evaluate(torch.ones(1, 1, 2), torch.zeros(1, 1)).upper


def test_optimised_parts_are_tighter_than_the_whole() -> None:
    for name in ("Sigmoid", "GELU", "ReLU", "gated"):
        root, _ = root_of(network(name), Soundness.DEPLOYED)
        source = root.source(root.constants.calls()[1].name)
        box, c, d = root.bounds[source], torch.tensor([[[1.0, -1.0]]]), torch.full((1, 1), 9.0)
        upper = Interval(torch.minimum(box.upper, box.lower.clamp(min=0.0)), box.upper)
        node = narrowed(root, {source: upper})
        plain, (best, m) = node.evaluate(c, d).upper, optimise(node, c, d, Adam(steps=40, beta_rate=0.1))
        assert bool((best <= plain).all()) and bool((best < root.evaluate(c, d).upper).all())
        assert any(bool(beta.any()) for beta in m.betas.values()), name


@pytest.mark.parametrize("name", [name for name in NETS if name != "Hardsigmoid"])  # there all lie on one piece
def test_what_calls_lose_adds_up_to_what_the_bound_loses(name: str) -> None:
    """At any execution: its bound there minus its row, where no multipliers share in it."""
    root, x = root_of(network(name), Soundness.REAL)
    c, d = torch.tensor([[[1.0, -1.0]]]), torch.zeros(1, 1)
    readers = [node.name for node in root.constants.calls()]
    form = root.evaluate(c, d, record=readers).form
    values = executed(root, x)
    lost = 0.0
    for node in root.constants.calls():
        if node.name in form.recorded and bool(torch.as_tensor(root.steps[node.name].loose).any()):
            for _, each in blame(root, node, form.recorded[node.name][0], values, None):
                assert bool((each >= 0).all())
                lost += float(each.sum()) / (2 if len(root.constants.sources(node)) == 2 and name == "gated" else 1)
    row = float((c[0, 0] * values[root.program.graph.output]).sum())
    gap = float((form.coefficients[0] * x).sum() + form.offset) - row
    assert gap > 0.01
    assert lost >= 0.99 * gap  # operands of sums of lines are each to blame for all of it
