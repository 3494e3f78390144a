"""What every test relies on: one thread, fixed seeds, no window system, reproducible hypothesis runs."""

from __future__ import annotations

import os

# Before torch is imported: its thread pools are sized once, and threads sharing a core hold each other up.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ["MPLBACKEND"] = "Agg"

import hypothesis
import pytest
import torch

torch.set_num_threads(1)

# `HYPOTHESIS_PROFILE=thorough make test` searches longer and with fresh seeds.
hypothesis.settings.register_profile("default", deadline=None, derandomize=True, max_examples=30)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=500)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
