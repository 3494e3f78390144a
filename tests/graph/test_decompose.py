"""Networks whose operators are written as others: normalisation by own statistics, attention, recurrent layers."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound.errors import GraphError
from surebound.graph import program_of


class Sequence(nn.Module):
    """Something that reads (B, 4, 6), and a linear layer on what ``take`` makes of its result."""

    def __init__(self, inner: nn.Module, take: Callable[[Any], Tensor], features: int) -> None:
        super().__init__()
        self.inner, self.take = inner, take
        self.last = nn.Linear(features, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.take(self.inner(x)))


class Cell(nn.Module):
    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state[0] if isinstance(state, tuple) else state


class Masked(nn.Module):
    """Attention to (B, 3, 4) with a mask (3, 3), True where a query attends to a key, in several spellings."""

    def __init__(self, kind: str, mask: Tensor) -> None:
        super().__init__()
        self.kind, self.heads, self.last = kind, nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(12, 3)
        self.register_buffer("mask", mask)
        self.register_buffer("added", torch.zeros(3, 3).masked_fill(~mask, -math.inf))

    def forward(self, x: Tensor) -> Tensor:
        mask: Any = self.mask
        if self.kind == "padding":
            hidden = ~mask[1].expand(len(x), -1)
            found = self.heads(x, x, x, key_padding_mask=hidden, need_weights=False)[0]
        elif self.kind == "weights":
            found = self.heads(x, x, x, attn_mask=~mask)[0]
        elif self.kind == "by hand":
            found = (x @ x.mT).masked_fill(~mask, -math.inf).softmax(-1) @ x
        else:
            added = self.added if self.kind == "numbers" else mask
            found = nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=added)
        return self.last(found.flatten(1))


class Attention(nn.Module):
    def __init__(
        self, mask: Tensor | None = None, hidden: Tensor | None = None, *, weights: bool = False, **given: Any
    ) -> None:
        super().__init__()
        self.causal = given.pop("causal", False)
        self.heads = nn.MultiheadAttention(6, 2, batch_first=True, **given)
        self.others = [nn.Linear(6, given[name], bias=False) for name in ("kdim", "vdim") if name in given]
        self.weights, self.mask, self.hidden = weights, mask, hidden

    def forward(self, x: Tensor) -> Tensor:
        key, value = (layer.to(x)(x) for layer in self.others) if self.others else (x, x)
        hidden = None if self.hidden is None else self.hidden.expand(len(x), -1)
        mask = self.mask if self.mask is None or self.mask.dtype == torch.bool else self.mask.to(x)
        found, shares = self.heads(
            x,
            key,
            value,
            need_weights=self.weights,
            attn_mask=mask,
            key_padding_mask=hidden,
            is_causal=self.causal,
        )
        return found if shares is None else found + shares[..., :1]


class Causal(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, 2 * x, is_causal=True)


class Grouped(nn.Module):
    """Four heads of queries, two of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(6, 8), nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (-1, 2)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        made = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return made.transpose(1, 2).flatten(2)


class Encoder(nn.Module):
    """Layers of an encoder, given arguments beside the sequence."""

    def __init__(self, layers: int = 1, **given: Any) -> None:
        super().__init__()
        one = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
        self.inner = nn.TransformerEncoder(one, layers, enable_nested_tensor=False)
        self.given = given

    def forward(self, x: Tensor) -> Tensor:
        given = {k: v.expand(len(x), -1) if "key" in k else v.to(x) for k, v in self.given.items()}
        return self.inner(x, **given)


CAUSAL = torch.full((4, 4), -math.inf).triu(1)
PADDED = torch.tensor([[False, False, False, True]])


def last(x: Any) -> Tensor:
    return x[0][:, -1]


def mean(x: Tensor) -> Tensor:
    return x.mean(1)


def hidden(x: Any) -> Tensor:
    return x[1][0][-1]


def flat(x: Tensor) -> Tensor:
    return x.flatten(1)


NETS: dict[str, Callable[[], nn.Module]] = {
    "layer norm of two axes": lambda: Sequence(nn.LayerNorm([4, 6], bias=False), mean, 6),
    "group norm": lambda: Sequence(nn.GroupNorm(2, 4), flat, 24),
    "instance norm": lambda: Sequence(nn.InstanceNorm1d(4, affine=True), flat, 24),
    "rms norm": lambda: Sequence(nn.RMSNorm(6), mean, 6),
    "attention and its weights": lambda: Sequence(Attention(weights=True), mean, 6),
    "attention with a mask": lambda: Sequence(Attention(mask=torch.eye(4) * 0.5), mean, 6),
    "attention with a mask, and its weights": lambda: Sequence(Attention(torch.eye(4) * 9, weights=True), mean, 6),
    "attention that leaves keys out": lambda: Sequence(Attention(CAUSAL < 0, PADDED), mean, 6),
    "attention said to be causal": lambda: Sequence(Attention(CAUSAL, causal=True), mean, 6),
    "attention to other features": lambda: Sequence(Attention(kdim=5, vdim=3), mean, 6),
    "attention of groups of heads": lambda: Sequence(Grouped(), mean, 8),
    "causal attention": lambda: Sequence(Causal(), mean, 6),
    "causal encoder": lambda: Sequence(Encoder(mask=CAUSAL), mean, 6),
    "encoder of padded sequences": lambda: Sequence(Encoder(src_key_padding_mask=PADDED), mean, 6),
    "encoder": lambda: Sequence(nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), mean, 6),
    "lstm of two layers, both ways": lambda: Sequence(nn.LSTM(6, 3, 2, bidirectional=True, batch_first=True), last, 6),
    "lstm's last state": lambda: Sequence(nn.LSTM(6, 5, batch_first=True), hidden, 5),
    "gru": lambda: Sequence(nn.GRU(6, 5, batch_first=True, bias=False), last, 5),
    "rnn": lambda: Sequence(nn.RNN(6, 5, batch_first=True, nonlinearity="relu"), last, 5),
    "lstm cell": lambda: Sequence(Cell(nn.LSTMCell(6, 5)), lambda x: x, 5),
}


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    net = NETS[name]().eval()
    with torch.no_grad():
        for parameter in net.parameters():  # normalisations begin with ones and zeros, which hide mistakes
            parameter.add_(0.2 * torch.randn_like(parameter))
    return net


@pytest.mark.parametrize("name", NETS)
def test_bounds_hold_and_linear_ones_are_tighter(name: str) -> None:
    net = made(name)
    x, eps = torch.rand(2, 4, 6, generator=torch.Generator().manual_seed(1)), "1/50"
    region = sb.LinfBall(x, eps)
    spec = sb.LinearSpec(torch.cat([torch.eye(3), -torch.eye(3)]))
    interval = sb.interval_bounds(net, region)
    linear = sb.linear_bounds(net, region, spec, method="crown").upper
    box = region.interval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for number in range(60):
            t = torch.rand(x.shape, generator=generator)
            point = box.lower + (box.upper - box.lower) * (t.round() if number % 2 else t)
            z = net(point)
            assert bool(((interval.lower <= z) & (z <= interval.upper)).all())
            assert bool((torch.cat([z, -z], 1) <= linear).all())
        check_a_point(net, x)
    widths = linear[:, :3] + linear[:, 3:]
    assert bool((widths <= (interval.upper - interval.lower) * (1 + 2.0**-18)).all())
    assert bool(widths.mean() < 0.97 * (interval.upper - interval.lower).mean())


def check_a_point(net: Any, x: Tensor) -> None:
    """Narrow bounds of one point hold the module's result and the exact one."""
    bounds = sb.interval_bounds(net, sb.LinfBall(x, 0))
    for value in (net(x).double(), copy.deepcopy(net).double()(x.double())):
        assert bool(((bounds.lower.double() <= value) & (value <= bounds.upper.double())).all())
    # Two normalisations in a row divide roundings by the variance twice.
    assert float((bounds.upper - bounds.lower).max()) < (
        5e-2 if isinstance(net.inner, (nn.TransformerEncoderLayer, Encoder)) else 5e-3
    )


def naive(x: Tensor, eps: float) -> Tensor:
    """Layer normalisation by E x^2 - (E x)^2, in x's dtype."""
    m, square = x.mean(-1, True), (x * x).mean(-1, True)
    return (x - m) * torch.rsqrt((square - m * m).clamp(min=0) + eps)


def one_by_one(x: Tensor, eps: float) -> Tensor:
    """Layer normalisation with Welford's recurrence, and x r - m r."""
    m, s = torch.zeros_like(x[:, :1]), torch.zeros_like(x[:, :1])
    for k, value in enumerate(x.split(1, -1), 1):
        before = m
        m = m + (value - m) / k
        s = s + (value - before) * (value - m)
    r = torch.rsqrt(s / x.shape[-1] + eps)
    return x * r - m * r


@pytest.mark.parametrize("offset", [0.0, 3.0, 300.0])
def test_layer_normalisation_is_covered_however_its_statistics_are_computed(offset: float) -> None:
    """Far from 0 the statistics cancel: formulas that are one over the reals are far apart in float32."""
    norm = nn.LayerNorm(16, elementwise_affine=False)
    x = torch.rand(64, 16, generator=torch.Generator().manual_seed(4)) + offset
    bounds = sb.interval_bounds(norm, sb.LinfBall(x, 0))
    for compute in (norm, lambda v: naive(v, norm.eps), lambda v: one_by_one(v, norm.eps)):
        z = compute(x)
        assert bool(((bounds.lower <= z) & (z <= bounds.upper)).all())


def test_exact_statistics_in_fractions() -> None:
    """The bounds of a point hold the result over the reals, computed in fractions but for one root."""
    norm = nn.LayerNorm(5, elementwise_affine=False)
    x = torch.tensor([[0.1, 0.7, -3.0, 2.5, 1e-3]])
    entries = [Fraction(float(v)) for v in x[0]]
    centre = sum(entries) / 5
    variance = sum((v - centre) ** 2 for v in entries) / 5 + Fraction(norm.eps)
    for soundness in ("real", "deployed"):
        bounds = sb.interval_bounds(norm, sb.LinfBall(x, 0), soundness=soundness)
        for low, high, v in zip(bounds.lower[0], bounds.upper[0], entries, strict=True):
            exact = float(v - centre) / math.sqrt(variance)
            assert float(low) <= exact <= float(high)


def test_states_and_moved_axes_leave_no_trace() -> None:
    for name in ("lstm's last state", "encoder"):
        graph = program_of(made(name), torch.rand(1, 4, 6)).graph
        assert not graph.calls(lambda node: node.varies and (node.op == "aten.stack.default" or not node.by_example))


class Converting(nn.Module):
    """A stack of two dtypes converts: its first part is not the value that was stacked."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.stack([x, torch.ones(4, dtype=torch.float64).expand_as(x)])[0]
        return (y * 3.0 + 1e8) - 1e8


def test_a_stack_that_converts_stays() -> None:
    graph = program_of(Converting(), torch.rand(1, 4)).graph
    assert graph.calls(lambda node: node.op == "aten.stack.default")


def test_what_is_not_covered_is_refused_by_name() -> None:
    net = Sequence(nn.LSTM(6, 5, proj_size=2, batch_first=True), last, 2).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch's, about how it runs them
        with pytest.raises(sb.errors.UnsupportedOperatorError, match=r"aten.lstm.input[\s\S]*proj_size=0"):
            sb.interval_bounds(net, sb.LinfBall(torch.rand(1, 4, 6), 0))


def test_verification_and_training_go_through() -> None:
    net = made("encoder")
    x = torch.rand(2, 4, 6, generator=torch.Generator().manual_seed(5))
    labels = net(x).argmax(1)
    results = sb.verify(net, sb.LinfBall(x, "1/100000"), labels, cascade="fast")
    assert [record.verdict.status for record in results] == [sb.Status.ROBUST] * 2
    loss = sb.worst_margins(net, sb.LinfBall(x, "1/1000"), labels, soundness="none").sum()
    loss.backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in net.parameters())


@pytest.mark.parametrize("kind", ["padding", "weights", "by hand", "numbers", "booleans"])
def test_a_query_without_a_key_is_refused_by_its_mask(kind: str) -> None:
    """It was said to be a random forward(), an overflow, or infinite weights: the mask is what is wrong."""
    x = torch.rand(1, 3, 4)
    mask = torch.ones(3, 3, dtype=torch.bool)
    mask[1] = False
    with pytest.raises(GraphError, match=r"nothing to choose from \(.*a mask hides every key.*a key to attend to"):
        program_of(Masked(kind, mask).eval(), x)
    mask[1, 2] = True
    net = Masked(kind, mask).eval()
    assert torch.allclose(program_of(net, x)(x), net(x), atol=1e-5), "one key is enough"


def test_infinite_weights_are_not_taken_for_a_mask() -> None:
    net = Masked("by hand", torch.ones(3, 3, dtype=torch.bool)).eval()
    broken = nn.Sequential(nn.Linear(4, 4), net).eval()
    broken[0].weight.data.fill_(-math.inf)
    with pytest.raises(GraphError, match=r"^0.weight of the network hold"):
        program_of(broken, torch.rand(1, 3, 4))
