"""Datasets: images in [0, 1] as tensors, checked by content, drawn in a reproducible order."""

from __future__ import annotations

from surebound.data.augment import Augment, centre_crop
from surebound.data.files import data_directory
from surebound.data.folder import load_folder
from surebound.data.order import BatchOrder, stream
from surebound.data.own import from_tensors
from surebound.data.registry import UnverifiedDataWarning, load, names
from surebound.data.types import Dataset, Provenance, Split, Status, to_unit

__all__ = [
    "Augment",
    "BatchOrder",
    "Dataset",
    "Provenance",
    "Split",
    "Status",
    "UnverifiedDataWarning",
    "centre_crop",
    "data_directory",
    "from_tensors",
    "load",
    "load_folder",
    "names",
    "stream",
    "to_unit",
]
