"""Trained networks that come with the package, by name: weights as safetensors, facts as JSON beside them."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import nn

from surebound.errors import InputError, nearest
from surebound.zoo.architecture import NETS, Architecture

__all__ = ["NETS", "Architecture", "ZooEntry", "entries", "entry", "load"]

NETS_DIRECTORY = Path(__file__).parent / "nets"


@dataclass(frozen=True)
class ZooEntry:
    """A packaged network and what was measured of it."""

    name: str
    architecture: Architecture
    data: str  # the dataset it was trained on
    preset: str
    eps_train: str  # exact, as a string
    results: dict[str, Any]  # as in a run's results.json
    command: str
    seed: int = 0
    core_hours: float | None = None  # what the training's steps took, times threads and processes
    commit: str | None = None
    verification: dict[str, Any] | None = None  # radius -> what deciding the test set, or its first images, came to
    certificates: dict[str, Any] | None = None  # the packaged sample: its digest, how many of how many
    config: dict[str, Any] | None = None  # data, model, method and plan of the run, as plain values

    def decided(self, radius: str) -> dict[str, Any]:
        """Return what deciding image by image came to at a radius, with the number of images; empty if nobody did.

        >>> entry("mnist-medium-bn-ibp-0.3").decided("3/10")["images"]
        10000
        """
        found = (self.verification or {}).get(radius, {})
        return {"images": self.results["images"], **found} if found else {}

    @property
    def method(self) -> str:
        """The name of the training method."""
        return str((self.config or {}).get("method", {}).get("name", "ibp"))

    @property
    def parameters(self) -> int:
        """How many numbers were trained."""
        return sum(p.numel() for p in self.architecture.build().parameters())

    @property
    def weights(self) -> Path:
        """The safetensors file."""
        return NETS_DIRECTORY / f"{self.name}.safetensors"


def load(name: str) -> nn.Module:
    """Return the packaged network called `name`, in evaluation mode; `surebound zoo` lists them."""
    found = entry(name)
    model = found.architecture.build()
    model.load_state_dict(load_file(found.weights))
    return model.eval()


def entry(name: str) -> ZooEntry:
    """Return what is known of the packaged network called `name`."""
    known = {e.name: e for e in entries()}
    if name not in known:
        there = ", ".join(known) or "none"
        raise InputError(f"no packaged network is called {name!r}{nearest(name, known)} There are: {there}")
    return known[name]


def entries() -> list[ZooEntry]:
    """List every packaged network, by name."""
    return [_read(path) for path in sorted(NETS_DIRECTORY.glob("*.json"))]


def _read(path: Path) -> ZooEntry:
    record = json.loads(path.read_text(encoding="utf-8"))
    noted = {option.name: record[option.name] for option in fields(ZooEntry) if option.name in record}
    noted["architecture"] = Architecture.of_record(record["architecture"])
    return ZooEntry(**{**noted, "name": path.stem})
