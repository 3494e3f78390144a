"""Splitting inputs against splitting ReLUs: how many questions each decides, in what time, by the number of inputs.

    python -m benchmarks.splitting [--seconds 5] [--questions 6] [--inputs 3 --inputs 8]

Networks of ReLUs, with random weights or trained on a smooth function; boxes around random points; the question is
whether the first output stays below the largest value that many samples and an attack find, plus a tenth of its range
over the box. All of them are true; time is of the process, not of the clock.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import surebound as sb
from surebound.verdict import Status

SPLITS = ("input-splitting", "relu-splitting")


@dataclass(frozen=True)
class Setting:
    """A kind of network and the width of the boxes that are asked about."""

    inputs: int
    hidden: tuple[int, ...]
    trained: bool
    radius: float

    @property
    def name(self) -> str:
        layers = f"{len(self.hidden)}x{self.hidden[0]}"
        return f"{self.inputs} inputs, {layers}, {'trained' if self.trained else 'random'}, radius {self.radius}"


DEEP, WIDE = (50,) * 6, (100, 100)
RADII = (
    (2, 0.5),
    (3, 0.3),
    (5, 0.2),
    (8, 0.08),
    (10, 0.05),
    (20, 0.03),
    (50, 0.02),
)  # by the number of inputs
SETTINGS = [
    Setting(5, DEEP, True, 0.05),
    Setting(5, DEEP, False, 0.05),
    *(Setting(n, WIDE, False, r) for n, r in RADII),
    *(Setting(n, WIDE, True, r) for n, r in RADII),
]


def network(setting: Setting, seed: int) -> nn.Sequential:
    """Gaussian weights of scale sqrt(2 / fan-in); trained ones learn sums of sines of random directions."""
    generator = torch.Generator().manual_seed(seed)
    sizes = (setting.inputs, *setting.hidden, 5)
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layer = nn.Linear(a, b)
        layer.weight.data.copy_(torch.randn(b, a, generator=generator) * math.sqrt(2 / a))
        layer.bias.data.copy_(torch.randn(b, generator=generator) * 0.1)
        layers += [layer, nn.ReLU()]
    net = nn.Sequential(*layers[:-1])
    if setting.trained:
        learn(net, setting.inputs, generator)
    return net.requires_grad_(False)


def learn(net: nn.Sequential, inputs: int, generator: torch.Generator) -> None:
    """200 steps of Adam on five smooth functions of the unit cube."""
    directions = torch.randn(5, inputs, generator=generator) * 3 / math.sqrt(inputs)
    adam = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(200):
        x = 2 * torch.rand(256, inputs, generator=generator) - 1
        loss = (net(x) - torch.sin(x @ directions.T)).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()


def question(net: nn.Sequential, setting: Setting, seed: int) -> tuple[sb.Box, sb.Spec]:
    """A box inside the unit cube, and a level that the first output does not reach there."""
    generator = torch.Generator().manual_seed(1000 + seed)
    centre = (1 - setting.radius) * (2 * torch.rand(1, setting.inputs, generator=generator) - 1)
    lower, upper = centre - setting.radius, centre + setting.radius
    x = lower + torch.rand(4000, setting.inputs, generator=generator) * (upper - lower)
    first = net(x)[:, 0]
    best = max(float(first.max()), float(climbed(net, x[first.argsort()[-64:]], lower, upper).max()))
    level = best + 0.1 * (best - float(first.min()))
    return sb.Box(lower, upper), sb.Spec.linear(torch.eye(5)[:1], torch.tensor([-level]))


def climbed(net: nn.Sequential, x: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """The first output after ascent from x (N, n) inside the box."""
    for rate in (0.2, 0.1, 0.05, 0.02, 0.01) * 4:
        x = x.detach().requires_grad_(True)
        (slope,) = torch.autograd.grad(net(x)[:, 0].sum(), x)
        x = torch.minimum(torch.maximum(x + rate * (upper - lower) * slope.sign(), lower), upper)
    first: Tensor = net(x)[:, 0].detach()
    return first


def measure(setting: Setting, questions: int, seconds: float) -> dict[str, tuple[int, float]]:
    """By kind of splitting: questions decided, and the median seconds of a question (the limit if undecided)."""
    decided, times = dict.fromkeys(SPLITS, 0), {split: list[float]() for split in SPLITS}
    for seed in range(questions):
        net = network(setting, seed)
        box, spec = question(net, setting, seed)
        for split in SPLITS:
            start = time.process_time()
            (verdict,) = sb.decide(net, box, spec, stages=("bounds", split), timeout=seconds)
            taken = time.process_time() - start
            if verdict.status is Status.FALSIFIED:
                raise RuntimeError(f"{setting.name}, question {seed}: falsified, the level was too low")
            decided[split] += verdict.status is Status.ROBUST
            times[split].append(taken if verdict.status is Status.ROBUST else seconds)
    return {split: (decided[split], statistics.median(times[split])) for split in SPLITS}


def main() -> None:
    """Print the table, line by line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--questions", type=int, default=6)
    parser.add_argument("--inputs", type=int, action="append", help="only networks of so many inputs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    sb.decide(nn.Linear(2, 1), sb.Box(torch.zeros(1, 2), torch.ones(1, 2)), sb.Spec.within(-9, 9))  # imports
    print("| network | inputs: decided | s | ReLUs: decided | s |\n| --- | --- | --- | --- | --- |")
    for setting in SETTINGS:
        if given.inputs and setting.inputs not in given.inputs:
            continue
        found = measure(setting, given.questions, given.seconds)
        cells = " | ".join(f"{found[split][0]}/{given.questions} | {found[split][1]:.2f}" for split in SPLITS)
        print(f"| {setting.name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
