"""Every training run of the paper by name, and recipes beside them.

Names: DATASET-NET-METHOD[-RADIUS][-laptop], for example `mnist-small-ibp-0.4` or `cifar10-large-adversarial-8-255`.
Without a radius the paper's largest is meant. `bn-ibp` is the recommended recipe (Shi et al. 2021), `crown-ibp` and
`wong` are the rivals with their authors' schedules.
The numbers are those of the paper's appendix A, "Training parameters".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from surebound.errors import ConfigError, nearest
from surebound.experiment import expressive_presets, quoted_presets
from surebound.experiment.config import Config, DataConfig, ModelConfig, RunConfig
from surebound.experiment.schedules_of_others import crown_ibp, short_warmup, wong
from surebound.train.evaluate import Evaluation
from surebound.train.methods import (
    CCIBP,
    CROWNIBP,
    IBP,
    MTLIBP,
    SABR,
    TAPS,
    Adversarial,
    ExpIBP,
    Method,
    Nominal,
    Wong,
)
from surebound.train.plan import Plan
from surebound.train.regularise import BoundRegulariser


@dataclass(frozen=True)
class Recipe:
    """How the paper trains on one dataset."""

    data: str
    nets: tuple[str, ...]
    radii: tuple[str, ...]  # as written in names, smallest first
    plan: Plan
    train_images: int
    margin: Fraction = Fraction(1)  # eps_train of IBP as a multiple of the radius wanted
    laptop_batch: int = 100
    input_scale: float = 1.0  # mean of 1/std of the normalising layer

    def rivals(self, net: str) -> tuple[str, ...]:
        """Which of the other verified methods have presets for a network."""
        if self.data == "imagenet64":
            return ()
        small = net in ("small", "medium") and self.data != "fashion_mnist"  # the networks it was scaled to
        return ("crown-ibp", "wong") if small else ("crown-ibp",)


TENTH_MORE = Fraction(11, 10)
PAPER = {
    "mnist": Recipe(
        "mnist",
        ("small", "medium", "large"),
        ("0.1", "0.2", "0.3", "0.4"),
        Plan(steps=60_000, batch_size=100, warmup=2_000, ramp=10_000, decay_steps=(15_000, 25_000)),
        60_000,
    ),
    "fashion": Recipe(
        "fashion_mnist",
        ("small", "medium", "large"),
        ("0.1",),
        Plan(steps=60_000, batch_size=100, warmup=2_000, ramp=10_000, decay_steps=(15_000, 25_000)),
        60_000,
    ),
    "cifar10": Recipe(
        "cifar10",
        ("small", "medium", "large"),
        ("2-255", "8-255"),
        Plan(steps=100_000, batch_size=1_600, warmup=5_000, ramp=50_000, decay_steps=(60_000, 90_000)),
        50_000,
        TENTH_MORE,
        input_scale=4.98,
    ),
    "svhn": Recipe(
        "svhn",
        ("small", "medium", "large"),
        ("0.01",),
        # The paper's "batches of 50" do not give its 100K steps in 2200 epochs; 1600 do.
        Plan(steps=100_000, batch_size=1_600, warmup=5_000, ramp=50_000, decay_steps=(60_000, 90_000)),
        73_257,
        TENTH_MORE,
        input_scale=5.03,
    ),
    "imagenet64": Recipe(
        "imagenet64",
        ("wrn-10-10",),
        ("1-255",),
        Plan(steps=200_000, batch_size=1_024, warmup=10_000, ramp=100_000, decay_steps=(120_000, 180_000)),
        1_281_167,
        laptop_batch=32,
        input_scale=3.7,
    ),
}
LAPTOP_EPOCHS = {"small": 20, "medium": 10, "large": 5, "wrn-10-10": 1}


def radius_of(text: str) -> Fraction:
    """The radius a name ends in: `0.4`, or `8-255` for 8/255."""
    return Fraction(text.replace("-", "/"))


def preset(name: str) -> Config:
    """The configuration called `name`.

    >>> preset("mnist-small-ibp-0.4").plan.eps_train
    Fraction(2, 5)
    """
    table = _table()
    if name not in table:
        raise ConfigError(f"no preset is called {name!r}{nearest(name, table)} `surebound presets` lists all of them")
    return table[name]


def preset_names() -> list[str]:
    """Every name `preset` knows."""
    return list(_table())


@lru_cache(maxsize=1)
def _table() -> dict[str, Config]:
    found = (*_digits(), *_paper(), *expressive_presets.presets(), *quoted_presets.presets())
    return {config.name: config for config in found}


def _digits() -> Iterator[Config]:
    plan = Plan(steps=3_000, batch_size=100, warmup=150, ramp=1_200, decay_steps=(2_000, 2_600))
    exp_ibp = ExpIBP(alpha=0.75)  # at 0.5 the attacked loss alone goes to 0, and intervals prove nothing
    for method in (Nominal(), Adversarial(), IBP(), CROWNIBP(), Wong(), MTLIBP(), CCIBP(), exp_ibp, SABR(), TAPS()):
        eps = Fraction("0.1") if method.robust else Fraction(0)
        yield Config(
            name=f"digits-{method.name}",
            data=DataConfig("digits"),
            model=ModelConfig("digits"),
            method=method,
            plan=_constant_radius(plan, method, eps),
            evaluation=Evaluation(radii=(Fraction("0.1"),), every=500, pgd_steps=20),
            run=RunConfig(checkpoint_seconds=15.0),
        )


def _paper() -> Iterator[Config]:
    for prefix, recipe in PAPER.items():
        for net in recipe.nets:
            runs = [(f"{prefix}-{net}-nominal", "nominal", "0")]
            for kind in ("adversarial", "ibp", "bn-ibp", *recipe.rivals(net)):
                base = f"{prefix}-{net}-{kind}"
                runs.append((base, kind, recipe.radii[-1]))
                runs += [(f"{base}-{radius}", kind, radius) for radius in recipe.radii]
            for name, kind, radius in runs:
                config = _build(name, recipe, net, kind, radius_of(radius))
                yield config
                yield laptop(config, recipe, net)


def _build(name: str, recipe: Recipe, net: str, kind: str, eps: Fraction) -> Config:
    recommended = kind == "bn-ibp"
    method, plan = _method_and_plan(recipe, kind, eps)
    return Config(
        name=name,
        data=DataConfig(recipe.data),
        model=ModelConfig(net, batch_norm=recommended, init="ibp_normal" if recommended else "orthogonal"),
        method=method,
        plan=_constant_radius(plan, method, eps * _margin(recipe, method)),
        evaluation=_evaluation(recipe, plan),
    )


def _margin(recipe: Recipe, method: Method) -> Fraction:
    """Intervals train for a larger radius than the one wanted; Wong et al. for the radius itself."""
    return recipe.margin if method.bound_based and not isinstance(method, Wong) else Fraction(1)


def _method_and_plan(recipe: Recipe, kind: str, eps: Fraction) -> tuple[Method, Plan]:
    images, color = recipe.train_images, recipe.margin > 1
    if kind == "bn-ibp":
        return IBP(regulariser=BoundRegulariser(input_scale=recipe.input_scale)), short_warmup(images)
    if kind == "crown-ibp":  # the linear bound to the end at small radii (Zhang et al. 2020, section 4.1)
        final = 1.0 if color and eps < Fraction(8, 255) else 0.0
        return CROWNIBP(beta_final=final), crown_ibp(images, color=color)
    if kind == "wong":
        return Wong(), wong(images, color=color)
    methods: dict[str, Method] = {"nominal": Nominal(), "adversarial": Adversarial(), "ibp": IBP()}
    return methods[kind], recipe.plan


def _evaluation(recipe: Recipe, plan: Plan) -> Evaluation:
    big = recipe.train_images > 100_000
    return Evaluation(
        radii=tuple(radius_of(r) for r in recipe.radii),
        every=max(plan.steps // 20, 1),
        images=1_000,
        pgd_steps=20,
        pgd_images=100 if big else 200,
        batch_size=50 if big else 250,
    )


def _constant_radius(plan: Plan, method: Method, eps: Fraction) -> Plan:
    """Methods without a bound have no curriculum: the full radius from the first step, and only the clean loss."""
    if method.bound_based:
        return replace(plan, eps_train=eps)
    return replace(plan, eps_train=eps, warmup=0, ramp=0, kappa_start=1.0, kappa_final=1.0)


def laptop(config: Config, recipe: Recipe, net: str) -> Config:
    """The same recipe for two cores: smaller batches, fewer epochs, every duration in proportion."""
    batch = min(recipe.laptop_batch, config.plan.batch_size)
    steps = LAPTOP_EPOCHS[net] * recipe.train_images // batch
    plan = replace(config.plan.stretched(steps), batch_size=batch)
    evaluation = replace(config.evaluation, every=max(plan.steps // 20, 1))
    return replace(config, name=f"{config.name}-laptop", plan=plan, evaluation=evaluation)
