"""Seconds per epoch of each training method on one network, as ratios to ordinary training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from surebound.experiment.config import Config
from surebound.experiment.overrides import train_images
from surebound.reproduction.rate import trial


def epochs(configs: Mapping[str, Config], *, rounds: int = 3, seconds: float = 2.0) -> dict[str, Any]:
    """The methods in turns, so that a busy machine is unfair to none; the best round of each counts."""
    rates: dict[str, list[float]] = {name: [] for name in configs}
    for _ in range(rounds):
        for name, config in configs.items():
            rates[name].append(trial(config, seconds))
    best = {name: max(found) for name, found in rates.items()}
    return {
        "threads": torch.get_num_threads(),
        "images": {name: train_images(config) for name, config in configs.items()},
        "images_per_second": best,
        "rounds": rates,
    }
