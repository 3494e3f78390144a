"""Configurations: equal to their TOML text, and strict about what is written in it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from surebound.errors import ConfigError
from surebound.experiment.config import Config, DataConfig, ModelConfig, RunConfig
from surebound.experiment.overrides import Overrides
from surebound.experiment.presets import preset, preset_names
from surebound.train.average import Averaging
from surebound.train.methods import CCIBP, CROWNIBP, IBP, MTLIBP, SABR, TAPS, Adversarial, InnerAttack, Nominal
from surebound.train.plan import Plan
from surebound.train.regularise import BoundRegulariser

BASE = preset("mnist-small-ibp-0.4")


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_equals_its_toml(name: str) -> None:
    config = preset(name)
    assert config.name == name
    assert Config.from_toml(config.to_toml()) == config


def test_averaging_and_attacks_are_tables_of_their_own() -> None:
    averaging = Averaging(start=100, decay=0.999)
    config = replace(preset("digits-mtl-ibp"), method=MTLIBP(attack=InnerAttack(steps=3, step_size=0.5)))
    config = config.with_plan(averaging=averaging, l1=1e-6, optimiser="radam")
    text = config.to_toml()
    assert Config.from_toml(text) == config
    assert "[plan.averaging]" in text
    assert "[method.attack]" in text
    with pytest.raises(ConfigError, match="method.attack: an inner attack needs steps >= 1"):
        Config.from_toml(text.replace("steps = 3\n", "steps = 0\n"))


def test_radii_stay_exact() -> None:
    text = preset("cifar10-small-ibp-8-255").to_toml()
    assert 'eps_train = "44/1275"' in text  # 1.1 * 8/255
    assert 'radii = [\n    "2/255",\n    "8/255",\n]' in text


def change(old: str, new: str) -> str:
    text = BASE.to_toml()
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("warmup =", "warm_up =", "unknown key 'plan.warm_up'; did you mean 'warmup'?"),
        ("[evaluation]", "[evalution]", "unknown key 'evalution'; did you mean 'evaluation'?"),
        ('name = "ibp"', 'name = "ipb"', "method.name = 'ipb' is no training method; did you mean 'ibp'?"),
        ("elide = true", "elyde = true", "unknown key 'method.elyde'; did you mean 'elide'?"),
        ("elide = true", 'elide = "yes"', "method.elide must be of type bool, got 'yes'"),
        ("steps = 60000", "steps = 60000.5", "plan.steps must be of type int, got 60000.5"),
        ("steps = 60000", "steps = 6000", "plan: warmup"),
        ("steps = 60000\n", "", "the key 'plan.steps' is missing"),
        ('eps_train = "2/5"', 'eps_train = "two"', "plan.eps_train='two' is not a finite number"),
        ('eps_train = "2/5"', "eps_train = 0", "plan.eps_train is 0, but the method 'ibp' trains against"),
        ('init = "orthogonal"', 'init = "zeros"', "model: init must be one of orthogonal, ibp_normal, keep"),
        (
            "decay_steps = [",
            "decay_steps = [\n  true,",
            r"plan.decay_steps\[0\] must be of type int, got True",
        ),
        ('objective = "cross_entropy"', 'objective = "mse"', "method: unknown objective 'mse'"),
        ("[data]", "colour = 1\n[data]", r"unknown key 'colour'\. Known keys here: name, data, model"),
        ("log_every = 100", "log_every = 0", "run: log_every must be at least 1"),
        ("[run]", "[run", "not a TOML text"),
    ],
)
def test_mistakes_are_named(old: str, new: str, message: str) -> None:
    text = change(old, new)
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        Config.from_toml(text)


def test_a_table_where_a_value_belongs_and_the_reverse() -> None:
    with pytest.raises(ConfigError, match="plan must be a table, got 3"):
        Config.from_toml('name = "x"\nplan = 3\n[data]\n[model]\n[method]\nname = "ibp"\n')
    with pytest.raises(ConfigError, match="plan.decay_steps must be a list, got 3"):
        Config.from_toml('name = "x"\n[plan]\nsteps = 5\ndecay_steps = 3\n[data]\n[model]\n[method]\nname = "ibp"\n')


def test_contradictions_between_tables() -> None:
    with pytest.raises(ConfigError, match="'nominal' has no use for a radius"):
        replace(BASE, method=Nominal())


def test_reading_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        Config.read(tmp_path / "none.toml")
    path = tmp_path / "mine.toml"
    path.write_text("nam = 3\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"mine.toml: unknown key 'nam'; did you mean 'name'\?"):
        Config.read(path)


def test_optional_parts_round_trip() -> None:
    config = Config(
        name="own",
        data=DataConfig("mnist", augment=False),
        model=ModelConfig("medium", batch_norm=True, init="keep"),
        method=IBP(regulariser=BoundRegulariser(weight=0.25), objective="hinge", elide=False),
        plan=Plan(steps=7, eps_train=Fraction(1, 3), clip_norm=2.0, decay_steps=(2, 5)),
        run=RunConfig(threads=2),
    )
    assert Config.from_toml(config.to_toml()) == config
    assert Config.from_toml(replace(config, method=Adversarial(steps=3)).to_toml()).method == Adversarial(steps=3)


class TestPresets:
    def test_the_papers_numbers(self) -> None:
        plans = {
            name: preset(name).plan
            for name in (
                "mnist-small-ibp",
                "cifar10-large-ibp-8-255",
                "svhn-small-ibp",
                "imagenet64-wrn-10-10-ibp",
            )
        }
        facts = {
            name: (p.steps, p.batch_size, p.warmup, p.ramp, p.decay_steps, str(p.eps_train))
            for name, p in plans.items()
        }
        assert facts == {
            "mnist-small-ibp": (60_000, 100, 2_000, 10_000, (15_000, 25_000), "2/5"),
            "cifar10-large-ibp-8-255": (100_000, 1_600, 5_000, 50_000, (60_000, 90_000), "44/1275"),
            "svhn-small-ibp": (100_000, 1_600, 5_000, 50_000, (60_000, 90_000), "11/1000"),
            "imagenet64-wrn-10-10-ibp": (200_000, 1_024, 10_000, 100_000, (120_000, 180_000), "1/255"),
        }
        for plan in plans.values():
            assert (plan.learning_rate, plan.decay_factor, plan.clip_norm, plan.shape) == (
                1e-3,
                0.1,
                None,
                "linear",
            )
            assert (plan.kappa_start, plan.kappa_final) == (1.0, 0.5)

    def test_the_recommended_recipe(self) -> None:
        config = preset("mnist-small-bn-ibp-0.4")
        plan = config.plan
        epoch = 60_000 / 256
        assert config.model == ModelConfig("small", batch_norm=True, init="ibp_normal")
        assert isinstance(config.method, IBP)
        assert config.method.regulariser == BoundRegulariser(0.5, 0.5)
        assert [round(n / epoch) for n in (plan.steps, plan.warmup, plan.ramp, *plan.decay_steps)] == [
            70,
            1,
            20,
            50,
            60,
        ]
        assert (plan.learning_rate, plan.decay_factor, plan.clip_norm, plan.shape) == (
            5e-4,
            0.2,
            10.0,
            "smooth",
        )
        assert (plan.kappa_start, plan.kappa_final) == (0.0, 0.0)

    def test_crown_ibp_has_its_authors_schedule(self) -> None:
        config = preset("mnist-small-crown-ibp-0.3")
        plan, epoch = config.plan, 60_000 / 256
        assert config.method == CROWNIBP(beta_start=1.0, beta_final=0.0)
        lengths = [round(n / epoch) for n in (plan.steps, plan.warmup, plan.ramp, *plan.decay_steps)]
        assert lengths == [200, 10, 50, 130, 190]
        assert (plan.learning_rate, plan.kappa_start, plan.kappa_final) == (5e-4, 1.0, 0.0)
        assert preset("cifar10-small-crown-ibp-2-255").method == CROWNIBP(beta_final=1.0)
        assert preset("cifar10-small-crown-ibp-8-255").method == CROWNIBP(beta_final=0.0)
        assert "imagenet64-wrn-10-10-crown-ibp" not in preset_names()

    def test_baselines_have_no_curriculum(self) -> None:
        adversarial = preset("cifar10-medium-adversarial-2-255")
        assert adversarial.method == Adversarial(steps=7, step_size=0.1, random_start=True)
        assert (adversarial.plan.epsilon.at(0), adversarial.plan.warmup) == (2 / 255, 0)
        assert preset("svhn-large-nominal").plan.eps_train == 0

    def test_every_combination_is_there(self) -> None:
        names = set(preset_names())
        for net in ("small", "medium", "large"):
            for method in (
                "nominal",
                "adversarial-0.1",
                "ibp-0.1",
                "ibp-0.3",
                "bn-ibp-0.2",
                "ibp-0.4-laptop",
            ):
                assert f"mnist-{net}-{method}" in names
        assert {"digits-ibp", "digits-nominal", "digits-adversarial", "imagenet64-wrn-10-10-nominal"} <= names

    def test_laptop_variants_keep_the_shape(self) -> None:
        full, laptop = preset("cifar10-small-ibp-8-255").plan, preset("cifar10-small-ibp-8-255-laptop").plan
        assert laptop.steps * laptop.batch_size == 20 * 50_000
        assert laptop.ramp / laptop.steps == pytest.approx(full.ramp / full.steps)
        assert laptop.eps_train == full.eps_train

    def test_a_misspelt_name(self) -> None:
        with pytest.raises(
            ConfigError, match=r"no preset is called 'mnist-smal-ibp'; did you mean 'mnist-small-ibp'\?"
        ):
            preset("mnist-smal-ibp")


class TestOverrides:
    def test_another_method_keeps_what_means_the_same(self) -> None:
        before = preset("cifar10-cnn5-mtl-ibp-2-255")
        assert isinstance(before.method, MTLIBP)
        after = Overrides(method="cc-ibp").apply(before)
        settings = {"alpha": 0.01, "attack": InnerAttack(scale=2.0), "regulariser": before.method.regulariser}
        assert after.method == CCIBP(**settings)
        assert after == replace(before, method=after.method)
        sabr = Overrides(method="sabr").apply(after).method
        assert sabr == SABR(attack=InnerAttack(scale=2.0), regulariser=before.method.regulariser)
        assert Overrides(method="taps").apply(preset("digits-adversarial")).method == TAPS()
        assert Overrides(method="mtl-ibp").apply(before) == before
        nominal = Overrides(method="nominal").apply(before)
        assert (nominal.method, nominal.plan.eps_train) == (Nominal(), 0)

    def test_length_stretches_the_schedule(self) -> None:
        config = Overrides(epochs=350, batch_size=50).apply(preset("cifar10-small-ibp-8-255"))
        plan = config.plan
        assert (plan.steps, plan.batch_size) == (350_000, 50)
        assert (plan.warmup, plan.ramp, plan.decay_steps) == (17_500, 175_000, (210_000, 315_000))
        assert config.evaluation.every == 17_500

    def test_a_new_batch_size_alone_keeps_the_epochs(self) -> None:
        plan = Overrides(batch_size=200).apply(BASE).plan
        assert (plan.steps, plan.warmup) == (30_000, 1_000)

    def test_explicit_durations_are_not_stretched(self) -> None:
        plan = Overrides(steps=100, warmup=7, ramp=9).apply(BASE).plan
        assert (plan.steps, plan.warmup, plan.ramp) == (100, 7, 9)

    def test_single_values(self) -> None:
        config = Overrides(
            eps_train=Fraction(1, 5), eps_test=(Fraction(1, 10),), kappa_final=0.0, learning_rate=0.01, seed=9,
            device="cpu", threads=1, checkpoint_seconds=5.0,
        ).apply(BASE)  # fmt: skip
        assert (config.plan.eps_train, config.plan.kappa_start, config.plan.kappa_final) == (
            Fraction(1, 5),
            1.0,
            0.0,
        )
        assert (config.plan.learning_rate, config.plan.seed) == (0.01, 9)
        assert config.evaluation.radii == (Fraction(1, 10),)
        assert (config.run.threads, config.run.checkpoint_seconds) == (1, 5.0)
        assert Overrides().apply(BASE) == BASE

    def test_one_kappa_throughout_stays_one(self) -> None:
        plan = Overrides(kappa_final=0.5).apply(preset("mnist-small-bn-ibp-0.2")).plan
        assert (plan.kappa_start, plan.kappa_final) == (0.5, 0.5)

    def test_contradictions(self) -> None:
        with pytest.raises(ConfigError, match="--steps and --epochs were both given"):
            Overrides(steps=1, epochs=1).apply(BASE)
        with pytest.raises(ConfigError, match="give --steps instead of --epochs"):
            Overrides(epochs=1).apply(replace(BASE, data=DataConfig("folder")))
