"""An animation of bounds while a network trains: what every output can be over the ball of one image, step by step."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from surebound.bounds import interval_bounds, worst_margins
from surebound.errors import InputError
from surebound.graph import forward
from surebound.graph.fit import evaluating
from surebound.region import LinfBall
from surebound.report.figure import BROKEN, INK, MUTED, PROVED, Figure
from surebound.report.verdicts import radius_text
from surebound.train.observe import Observer, Progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

#: Frames of an animation; a longer training keeps every second, fourth, ... of what it saw.
MOST_FRAMES = 60
MILLISECONDS = 120  # between two frames; the last one stays for LAST
LAST = 2500


@dataclass(frozen=True, eq=False)
class Frame:
    """What is known after some steps."""

    step: int
    values: Tensor  # (B, K) outputs at the images
    lower: Tensor  # (B, K)
    upper: Tensor  # (B, K)
    margins: Tensor  # (B,) upper bounds of the largest lead of another class


class BoundsAnimation(Observer):
    """Watches the interval bounds of images during a training; ``write`` makes a GIF of the one that ends best.

    >>> net = nn.Sequential(nn.Linear(2, 3))
    >>> movie = BoundsAnimation(net, LinfBall(torch.rand(1, 2), "1/10", clip=(0, 1)), torch.tensor([2]))
    >>> movie.started(0, 100)  # give it to sb.train as observer=
    >>> len(movie.frames)
    1
    """

    def __init__(self, model: nn.Module, ball: LinfBall, labels: Tensor) -> None:
        if not len(ball.x) or labels.shape != ball.x.shape[:1]:
            raise InputError(
                f"{len(ball.x)} images and labels {tuple(labels.shape)}; give some images, a label for each"
            )
        self.model, self.ball, self.labels = model, ball, labels.long()
        self.frames: list[Frame] = []
        self._every, self._heard = 1, 0

    def started(self, step: int, steps: int) -> None:
        """Take the first frame."""
        self._take(step)

    def progressed(self, progress: Progress) -> None:
        """Take a frame, unless there would be too many."""
        self._heard += 1
        if self._heard % self._every == 0 or progress.step == progress.steps:
            self._take(progress.step)
        if len(self.frames) > 2 * MOST_FRAMES:
            self.frames, self._every = self.frames[::2], 2 * self._every

    def write(self, path: str | Path) -> Path:
        """Write what was seen as an animated GIF, one frame after the other, the last one for longer."""
        from PIL import Image

        if not self.frames:
            raise InputError("nothing was seen: give the animation to sb.train(..., observer=animation) first")
        some = self.frames[:: -(-len(self.frames) // MOST_FRAMES)]
        shown = some if some[-1] is self.frames[-1] else [*some, self.frames[-1]]
        pictures = []
        for frame in shown:
            whole = Image.open(io.BytesIO(self.figure(frame).render("png"))).convert("RGB")
            half = whole.resize((whole.width // 2, whole.height // 2), Image.Resampling.LANCZOS)
            pictures.append(half.quantize(32))
        times = [MILLISECONDS] * (len(pictures) - 1) + [LAST]
        target = Path(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            pictures[0].save(target, "GIF", save_all=True, append_images=pictures[1:], duration=times, loop=0)
        except OSError as error:
            raise InputError(f"the animation cannot be written to {target}: {error}") from error
        return target

    def figure(self, frame: Frame) -> Figure:
        """Return one frame as a figure: the ranges now, and the worst margin up to now."""
        best = int(self.frames[-1].margins.argmin())
        label, lower, upper = int(self.labels[best]), frame.lower[best], frame.upper[best]
        steps, margins = zip(*((each.step, float(each.margins[best])) for each in self.frames), strict=True)
        now = steps.index(frame.step)
        # Bounds explode for a while when the radius begins to grow: they leave the picture.
        most = _height([float(max(each.upper[best].max(), -each.lower[best].min())) for each in self.frames])
        limit = _height([abs(margin) for margin in margins])

        def draw(canvas: Canvas) -> None:
            left, right = canvas.subplots(1, 2, width_ratios=(3, 2))
            floor, places = float(lower[label]), range(len(lower))
            colours = [PROVED if k == label else BROKEN if float(upper[k]) > floor else MUTED for k in places]
            left.bar(places, (upper - lower).tolist(), bottom=lower.tolist(), color=colours, width=0.7, alpha=0.75)
            left.scatter(places, frame.values[best].tolist(), s=9, color=INK, zorder=3)
            left.axhline(floor, color=PROVED, linewidth=0.8, linestyle=(0, (3, 3)))
            left.set(ylim=(-most, most), xticks=places if len(places) <= 20 else [], xlabel="class", ylabel="output")
            left.set_title(f"step {frame.step:,}: every pixel ± {radius_text(self.ball.eps)}", loc="left")
            right.plot(steps[: now + 1], margins[: now + 1], color=MUTED)
            place, tone = max(-limit, min(limit, margins[now])), PROVED if margins[now] <= 0 else BROKEN
            right.plot(frame.step, place, "o", color=tone, markersize=6, clip_on=False)
            right.axhline(0, color=INK, linewidth=0.8)
            right.set(xlim=(0, max(1, steps[-1])), ylim=(-limit, limit), xlabel="training step")
            right.set_title("proved" if margins[now] <= 0 else "not proved", loc="left")
            right.set_ylabel("lead of another class, at most")

        return Figure("bounds", f"Ranges of the outputs after {frame.step} training steps", draw, (6.8, 3.0))

    def _take(self, step: int) -> None:
        with evaluating(self.model), torch.no_grad():
            values = forward(self.model, self.ball.x)
            box = interval_bounds(self.model, self.ball)
            margins = worst_margins(self.model, self.ball, self.labels.to(values.device))
        own = torch.nn.functional.one_hot(self.labels, values.shape[1]).bool().to(values.device)
        worst = margins.masked_fill(own, -torch.inf).amax(1)
        self.frames.append(Frame(step, values.cpu(), box.lower.cpu(), box.upper.cpu(), worst.cpu()))


def _height(values: Sequence[float]) -> float:
    """Return how far an axis reaches: what half of the frames need, and a bit."""
    return 1.3 * max(sorted(values)[len(values) // 2], 1e-6)
