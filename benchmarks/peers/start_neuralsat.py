"""Starts neuralsat inside its own environment: it has no console script, only `src/main.py` in site-packages.

Run by that environment's Python. A torchvision that was built for CUDA cannot load its operators beside a CPU build of
PyTorch, and then does not import at all; no network of ours needs them, so the two it insists on are declared.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys

import torch


def main() -> None:
    found = importlib.util.find_spec("src")
    if found is None or not found.submodule_search_locations:
        sys.exit("neuralsat is not installed in this environment")
    source = next(iter(found.submodule_search_locations))
    if torch.version.cuda is None:
        for name in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", schema)
    sys.path.insert(0, source)
    runpy.run_path(os.path.join(source, "main.py"), run_name="__main__")


if __name__ == "__main__":
    main()
