"""Inputs and weights in another order in memory: a network that computes something else for them is never proved."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound.errors import TraceMismatchError
from surebound.graph import program_of
from surebound.graph.layout import laid_as, order_of


class Writing(nn.Module):
    """Write into a view of a convolution's result, which is a copy where that lies in memory channels last."""

    def __init__(self, *, write: bool = True, hidden: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4 * 36, 2)
        self.act = nn.Identity()
        self.write, self.hidden = write, hidden

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if self.write:
            y.flatten(1)[:, :30] -= 5.0
        y = self.act(y)
        if self.hidden:  # nothing of it shows at the end
            y = torch.relu(y - 100.0)
        found: Tensor = self.last(y.flatten(1))
        return found


def _images() -> Tensor:
    return torch.rand(2, 3, 6, 6, generator=torch.Generator().manual_seed(1))


ASKED: dict[str, Any] = {
    "bounds": lambda net, ball, label: sb.worst_margins(net, ball, label, method="crown"),
    "interval bounds": lambda net, ball, label: sb.interval_bounds(net, ball),
    "decide": lambda net, ball, label: sb.decide(net, ball, label, timeout=5),
    "verify": lambda net, ball, label: sb.verify(net, ball, label, "fast"),
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("order", ["images", "weights", "both"])
@pytest.mark.parametrize("before", [False, True])
def test_what_depends_on_the_order_in_memory_is_refused(asked: str, order: str, before: bool) -> None:
    net, x = Writing().requires_grad_(False), _images()
    label = net(x).argmax(1)
    if before:  # a program of contiguous inputs is known already
        ASKED[asked](net, sb.LinfBall(x, "1/1000"), label)
    if order != "images":
        net = net.to(memory_format=torch.channels_last)
    given = x.to(memory_format=torch.channels_last) if order != "weights" else x
    said = net(given)
    if torch.allclose(said, net(x), atol=1e-5):  # both orders are one network: the bounds are about it
        found = sb.interval_bounds(net, sb.LinfBall(given, 0))
        assert bool(((found.lower <= said) & (said <= found.upper)).all())
        return
    with pytest.raises(TraceMismatchError, match=r"lie in memory as those given do \(axes \(0, 2, 3, 1\)"):
        ASKED[asked](net, sb.LinfBall(given, "1/1000"), label)
    ASKED[asked](net, sb.LinfBall(given.contiguous(), "1/1000"), net(x).argmax(1))


def test_a_difference_that_nothing_shows_at_the_end_is_seen_inside() -> None:
    net = Writing(hidden=True)
    program_of(net, _images())
    with pytest.raises(TraceMismatchError, match="lie in memory"):
        program_of(net, _images().to(memory_format=torch.channels_last))


def test_ordinary_networks_take_images_in_any_order() -> None:
    net, x = Writing(write=False).requires_grad_(False), _images()
    last = x.to(memory_format=torch.channels_last)
    label = net(x).argmax(1)
    one, other = (sb.worst_margins(net, sb.LinfBall(each, "1/1000"), label) for each in (x, last))
    torch.testing.assert_close(one, other)


def test_a_network_that_does_not_take_such_inputs_is_bounded_as_before() -> None:
    class Viewing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.view(len(x), -1).sum(1, keepdim=True)

    last = _images().to(memory_format=torch.channels_last)
    found = sb.interval_bounds(Viewing(), sb.LinfBall(last, 0))
    assert bool((found.lower <= last.sum((1, 2, 3)).unsqueeze(1)).all())


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 3, 4, 5), (2, 3, 4), (2, 1, 1, 1)])
def test_orders_are_what_strides_say(shape: tuple[int, ...]) -> None:
    x = torch.rand(shape)
    assert order_of(x) is None and laid_as(x, None).is_contiguous()
    turned = x.movedim(1, -1).contiguous().movedim(-1, 1)
    order = order_of(turned)
    assert (order is None) == turned.is_contiguous()
    laid = laid_as(x, order)
    assert torch.equal(laid, x) and laid.stride() == (x if order is None else turned).stride()
