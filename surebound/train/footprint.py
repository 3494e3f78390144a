"""How much memory a process has needed so far."""

from __future__ import annotations

import sys

import torch


def peak_memory(device: torch.device | None = None) -> int | None:
    """Return the most bytes that this process has held: of a CUDA device, or of main memory; None if nobody knows."""
    if device is not None and device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        import resource  # not on every system
    except ImportError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(most) if sys.platform == "darwin" else 1024 * int(most)


def gigabytes(size: int | None) -> str:
    """Write bytes for people."""
    return "unknown" if size is None else f"{size / 1e9:.2f} GB"
