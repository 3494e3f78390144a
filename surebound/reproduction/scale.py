"""Three scales: `smoke` shows that everything runs, `laptop` says something, `paper` is the paper's."""

from __future__ import annotations

import enum
from dataclasses import replace
from fractions import Fraction

from surebound.experiment.config import Config
from surebound.experiment.overrides import Overrides
from surebound.experiment.presets import PAPER, preset, preset_names
from surebound.reproduction.work import Training
from surebound.search.branch_and_bound import Options
from surebound.search.cascade import cascade
from surebound.search.stages import BranchAndBound, Clean, CrownBounds, IntervalBounds, PgdAttack
from surebound.train.evaluate import Evaluation
from surebound.verify import Cascade

# The paper tries final kappas 0 and 0.5 and takes the better network; on the small net and the full schedule that is
# 0.5 at 0.2 and 0 at 0.4 (results/training). Runs at other schedules keep the preset's.
BETTER_KAPPA = {("mnist", "small", "ibp", "0.3"): 0.0, ("mnist", "small", "ibp", "0.4"): 0.0}

# Steps of IBP's schedule on MNIST, which adversarial training gets at laptop scale too.
ADVERSARIAL_WARMUP, ADVERSARIAL_RAMP = 2_000, 10_000


class Scale(enum.StrEnum):
    """How much is spent."""

    SMOKE = "smoke"  # seconds: the embedded digits and generated images; the numbers mean nothing
    LAPTOP = "laptop"  # hours on two cores: small networks, schedules as long as stated
    PAPER = "paper"  # the paper's networks, schedules, test sets and time limits: days on GPUs

    @property
    def images(self) -> int | None:
        """Test images to be decided; None: all."""
        return {Scale.SMOKE: 12, Scale.LAPTOP: 1000, Scale.PAPER: None}[self]

    @property
    def nets(self) -> tuple[str, ...]:
        """Which of the paper's networks are trained."""
        return ("small", "medium", "large") if self is Scale.PAPER else ("small",)

    def seeds(self, smoke: int, laptop: int, paper: int) -> range:
        """Seeds 0, 1, ... of repeated runs."""
        return range({Scale.SMOKE: smoke, Scale.LAPTOP: laptop, Scale.PAPER: paper}[self])

    @property
    def complete(self) -> Cascade:
        """For networks that can be verified: the paper's MIP and LP, or branch and bound with less time."""
        if self is Scale.PAPER:
            return cascade("paper")
        if self is Scale.SMOKE:
            search = BranchAndBound(Options(seconds=1.0))
            return Cascade("smoke", (Clean(), IntervalBounds(), PgdAttack(steps=1, restarts=1), search))
        bounds, search = (IntervalBounds(), CrownBounds("crown-ibp")), BranchAndBound(Options(seconds=30.0))
        return Cascade("laptop", (Clean(), *bounds, PgdAttack(), search))

    def complete_for(self, method: str) -> Cascade:
        """The same; networks of Wong et al. are bounded as they were trained, intervals prove nothing of them."""
        if self is not Scale.LAPTOP or method != "wong":
            return self.complete
        search = BranchAndBound(Options(seconds=30.0))
        return Cascade("laptop-wong", (Clean(), CrownBounds("crown"), PgdAttack(), search))

    @property
    def attacked(self) -> Cascade:
        """For networks that cannot: interval bounds, then 200 x 10 PGD."""
        attack = PgdAttack(steps=5, restarts=1) if self is Scale.SMOKE else PgdAttack()
        return Cascade("attacked", (Clean(), IntervalBounds(), attack))

    @property
    def bounded(self) -> Cascade:
        """Interval bounds only."""
        return Cascade("bounded", (Clean(), IntervalBounds()))


def known(data: str, net: str, method: str, radius: str = "") -> bool:
    """Whether this version has a preset for such a run."""
    return preset_name(data, net, method, radius) in preset_names()


def training(
    scale: Scale,
    data: str,  # as presets call it: mnist, cifar10, svhn, imagenet64
    net: str,
    method: str,
    radius: str = "",  # as presets call it: 0.4, 8-255; empty for nominal training
    *,
    laptop_steps: int | None = None,  # None: the paper's
    laptop_batch: int | None = None,
    seed: int = 0,
    evaluations: int = 20,
) -> Training:
    """The run of a preset at a scale."""
    paper = preset(preset_name(data, net, method, radius))
    images = paper.plan.steps * paper.plan.batch_size
    if scale is Scale.SMOKE:
        return Training(_smoke(data, method, paper, seed), images)
    config = Overrides(seed=seed).apply(paper)
    if scale is Scale.LAPTOP and (laptop_steps or laptop_batch):
        batch = laptop_batch or config.plan.batch_size
        steps = laptop_steps or config.plan.steps
        config = Overrides(steps=steps, batch_size=batch).apply(config)
    elif scale is Scale.LAPTOP:
        config = Overrides(kappa_final=BETTER_KAPPA.get((data, net, method, radius))).apply(config)
    if scale is Scale.LAPTOP and method == "adversarial":
        # From the full radius a network may never leave the constant prediction: the radius grows as it does for IBP.
        steps = config.plan.steps
        config = config.with_plan(warmup=min(ADVERSARIAL_WARMUP, steps // 30), ramp=min(ADVERSARIAL_RAMP, steps // 2))
    every = max(1, config.plan.steps // evaluations)
    return Training(replace(config, evaluation=replace(config.evaluation, every=every)), images)


def preset_name(data: str, net: str, method: str, radius: str) -> str:
    """`mnist-small-ibp-0.4`; nominal training has no radius."""
    return "-".join(part for part in (data, net, method, radius) if part)


def _smoke(data: str, method: str, paper: Config, seed: int) -> Config:
    """A few steps: on the digits instead of MNIST, else on generated images in the published format."""
    quick = Evaluation(radii=paper.evaluation.radii, every=10, images=20, pgd_steps=3, pgd_images=20, batch_size=20)
    if data == "mnist":
        digits = preset(f"digits-{'ibp' if method == 'bn-ibp' else method}")
        config = Overrides(steps=30, batch_size=50, seed=seed, threads=1).apply(digits)
        eps = Fraction(paper.plan.eps_train)
        return replace(config.with_plan(eps_train=eps), evaluation=quick)
    tiny = Overrides(steps=2, batch_size=2, seed=seed, threads=1).apply(paper)
    if paper.model.name != "small":  # drawing the weights of a WideResNet alone takes a minute
        tiny = replace(tiny, model=replace(tiny.model, name="small"))
    few = replace(quick, every=0, images=4, pgd_images=4, pgd_steps=1)
    return replace(tiny, evaluation=few)


def fakes(scale: Scale, *data: str) -> tuple[str, ...]:
    """Datasets to generate at a scale."""
    return tuple(PAPER[d].data for d in data if d != "mnist") if scale is Scale.SMOKE else ()
