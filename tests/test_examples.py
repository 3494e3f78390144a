"""Every example runs, and the two that claim something are right."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


#: Shorter forms of what takes longer than a few seconds.
QUICK: dict[str, dict[str, int]] = {
    "attention_and_recurrence": {"steps": 80, "images": 8},
    "quantised_digits": {"steps": 150, "images": 8},
    "typos": {"steps": 400},
}


def run(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main(**QUICK.get(path.stem, {}))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(path)
    if path.stem == "without_training":
        linear, features = result["pixels"], result["ReLU features"]
        assert features[0] > linear[0] > 0.9, "the features classify better"
        assert linear[1] > 0.8 and features[1] < 0.05, "and less can be proved of them"
    if path.stem == "bound_your_network":
        assert result.shape == (4, 10)
        assert (result.min(1).values <= 0).all() and torch.isfinite(result).all()
    if path.stem == "quantised_digits":
        (right, proved), (right_whole, proved_whole) = result["float32"], result["8 bits"]
        assert right >= proved >= 0.5 and right_whole >= proved_whole >= 0.5
    if path.stem == "typos":
        # "mat" is a slip of "mar" and of "may": not both can be proved, whatever was learned
        assert result["words"] == 19 and 40 <= result["robust"] <= 56 and sum(result.values()) == 19 + 57
    if path.stem == "attention_and_recurrence":
        assert set(result) == {"RowReader", "Transformer", "VisionTransformer"}
        assert all(0.25 <= proved <= right <= 1 for right, proved in result.values())
