"""Freed memory kept for the next step: returning it to the system and getting it back costs a fault per page."""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's numbers for mallopt
KEEP_BYTES = 1 << 30


@lru_cache(maxsize=1)
def keep_memory() -> bool:
    """Tell the C library, once and for the whole process, to keep freed memory (glibc only); whether it listened.

    The steps of a run allocate the same large tensors over and over; by default part of them goes back to the
    system after every step.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    return bool(mallopt(_TRIM_THRESHOLD, KEEP_BYTES)) and bool(mallopt(_MMAP_THRESHOLD, KEEP_BYTES))
