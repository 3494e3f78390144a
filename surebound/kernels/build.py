"""Compiles the C files once per machine with the system's C compiler, if there is one, and loads it.

Nothing here may break a program: whatever goes wrong (no compiler, no place to write, a library that does not load)
means that PyTorch computes the same (see kernel.py), which is said once.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

#: Set to 0 to do without compiled kernels.
SWITCH = "SUREBOUND_NATIVE"
#: No contraction of products and sums: the references' roundings are the same.
FLAGS = (
    "-O3",
    "-march=native",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
)
#: With OpenMP (PyTorch's own copy is already loaded under the same name) or, where there is none, one thread.
THREADING = (("-fopenmp",), ("-fopenmp-simd",), ())
BUILD_SECONDS = 300  # of a busy machine; three or four on an idle one

_log = logging.getLogger("surebound")


#: In this order, as one text: blocks.c includes what all of them need.
FILES = (
    "blocks.c",
    "vectors.c",
    "ends.c",
    "balance.c",
    "rounding.c",
    "rows.c",
    "products.c",
    "scaling.c",
    "sparse.c",
    "medians.c",
    "ascent.c",
)


def _source() -> str:
    """Return the kernels' C text; empty if the library was packed without it."""
    try:
        return "\n".join(Path(__file__).with_name(name).read_text(encoding="utf-8") for name in FILES)
    except OSError:
        return ""


#: Read with this file, so that the two fit together even if the package is replaced while a program runs.
SOURCE = _source()


_TYPES: dict[str, Any] = {"int64_t": ctypes.c_int64, "float": ctypes.c_float, "double": ctypes.c_double}


class Entry:
    """A compiled function: it gets tensors by their addresses, None as NULL, and last the number of threads."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Tensor | float | ctypes.Array[Any] | None) -> int:
        found: int = self.function(
            *[a.data_ptr() if isinstance(a, Tensor) else a for a in args], torch.get_num_threads()
        )
        return found


@lru_cache(maxsize=1)
def library() -> dict[str, Entry] | None:
    """Return the compiled functions, or None: built at the first call, found in the user's cache ever after."""
    if os.environ.get(SWITCH, "1") == "0":
        return None
    try:
        return _entries(ctypes.CDLL(str(_built())))
    except (OSError, AttributeError, subprocess.SubprocessError, StopIteration) as reason:
        _log.warning(
            "going on without compiled kernels, slower (same results, some up to rounding): %s. "
            "Install a C compiler (cc, gcc or clang), or set %s=0 to stop trying",
            reason or type(reason).__name__,
            SWITCH,
        )
        return None


def _built() -> Path:
    """Return the shared library's path for this source, compiler and processor, compiled if it is not there yet."""
    if not SOURCE:
        raise OSError("their source is not where the library is installed")
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise OSError("no C compiler was found")
    import pooch  # here: it is slow to import, and many programs need no kernels

    folder = Path(pooch.os_cache("surebound")) / "native"
    key = hashlib.sha256("\0".join([SOURCE, compiler, *FLAGS, _processor()]).encode()).hexdigest()
    target = folder / f"kernels-{key[:16]}.so"
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / target.name
        for threading in THREADING:
            command = [*compiler.split(), *FLAGS, *threading, "-x", "c", "-", "-o", str(made), "-lm"]
            done = subprocess.run(
                command, input=SOURCE, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
            )
            if done.returncode == 0:
                made.replace(target)  # atomic: two processes may build at the same time
                return target
    raise OSError(f"{compiler} could not compile the kernels: {done.stderr.strip()[:200]}")


def _processor() -> str:
    """Describe what -march=native depends on: a home directory may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        flags = platform.processor()
    return platform.machine() + flags


def prototypes(source: str) -> dict[str, tuple[str, list[str]]]:
    """Read what the exported functions return and take from their C text, by name without the prefix."""
    found = re.finditer(r"^(void|int64_t) surebound_(\w+)\(([^)]*)\)", source, re.MULTILINE)
    return {name: (result, arguments.split(",")) for result, name, arguments in (m.groups() for m in found)}


def _entries(loaded: ctypes.CDLL) -> dict[str, Entry]:
    """Return the exported functions, declared as their C text says."""
    entries = {}
    for name, (result, arguments) in prototypes(SOURCE).items():
        function = getattr(loaded, f"surebound_{name}")
        function.argtypes = [ctypes.c_void_p if "*" in each else _TYPES[each.split()[0]] for each in arguments]
        function.restype = _TYPES.get(result)
        entries[name] = Entry(function)
    return entries
