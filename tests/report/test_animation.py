"""An animation shows the bounds as they were, and ends with those of the trained network."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

import surebound as sb
from surebound.errors import InputError
from surebound.report.animation import MOST_FRAMES, BoundsAnimation
from surebound.train.observe import Progress


def test_the_bounds_of_a_training(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.rand(64, 2)
    labels = (x[:, 0] > x[:, 1]).long()
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    ball = sb.LinfBall(x[:3], "1/100", clip=(0, 1))
    movie = BoundsAnimation(net, ball, labels[:3])
    sb.train(net, (x, labels), sb.training.IBP(), sb.Plan(steps=12, batch_size=32, eps_train="1/100"), observer=movie)
    first, last = movie.frames[0], movie.frames[-1]
    assert (first.step, last.step) == (0, 12)
    with torch.no_grad():
        box, margins = sb.interval_bounds(net.eval(), ball), sb.worst_margins(net, ball, labels[:3])
        assert torch.equal(last.lower, box.lower) and torch.equal(last.upper, box.upper)
    assert not torch.equal(first.lower, last.lower)
    assert torch.equal(last.margins, margins.gather(1, 1 - labels[:3, None])[:, 0])
    with Image.open(movie.write(tmp_path / "new" / "bounds.gif")) as picture:
        assert picture.format == "GIF" and picture.n_frames == len(movie.frames)  # type: ignore[attr-defined]


def test_long_trainings_have_few_frames() -> None:
    net = nn.Linear(2, 2)
    movie = BoundsAnimation(net, sb.LinfBall(torch.rand(1, 2), "1/10"), torch.tensor([0]))
    for step in range(1, 601):
        movie.progressed(Progress(step, 600, {}, 0.0, 0.0, 0.0, 1.0, 0.0))
    assert MOST_FRAMES / 2 < len(movie.frames) <= 2 * MOST_FRAMES and movie.frames[-1].step == 600
    steps = [frame.step for frame in movie.frames]
    assert steps == sorted(steps)


def test_what_cannot_be_shown(tmp_path: Path) -> None:
    net, ball = nn.Linear(2, 2), sb.LinfBall(torch.rand(2, 2), "1/10")
    with pytest.raises(InputError, match="a label for each"):
        BoundsAnimation(net, ball, torch.tensor([0]))
    with pytest.raises(InputError, match="nothing was seen"):
        BoundsAnimation(net, ball, torch.tensor([0, 1])).write(tmp_path / "a.gif")
