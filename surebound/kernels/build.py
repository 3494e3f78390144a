"""Compiles kernels.c once per machine with the system's C compiler, if there is one, and loads it.

Nothing here may break a program: whatever goes wrong (no compiler, no place to write, a library that does not load)
means that fallback.py computes the same numbers, which is said once.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

#: Set to 0 to do without compiled kernels.
SWITCH = "SUREBOUND_NATIVE"
#: No contraction of products and sums: the fallback's roundings are the reference.
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


#: In this order, as one text: kernels.c includes what all of them need.
FILES = (
    "kernels.c",
    "ends.c",
    "balance.c",
    "rows.c",
    "wide.c",
    "products.c",
    "scaling.c",
    "sparse.c",
    "columns.c",
)


def _source() -> str:
    """The kernels' text, or nothing if somebody packed the library without it."""
    try:
        return "\n".join(Path(__file__).with_name(name).read_text(encoding="utf-8") for name in FILES)
    except OSError:
        return ""


#: Read with this file, so that the two fit together even if the package is replaced while a program runs.
SOURCE = _source()


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The compiled kernels, or None: built at the first call, found in the user's cache ever after."""
    if os.environ.get(SWITCH, "1") == "0":
        return None
    try:
        return _declare(ctypes.CDLL(str(_built())))
    except (OSError, AttributeError, subprocess.SubprocessError, StopIteration) as reason:
        _log.warning(
            "going on without compiled kernels, slower (same results, some up to rounding): %s. "
            "Install a C compiler (cc, gcc or clang), or set %s=0 to stop trying",
            reason or type(reason).__name__,
            SWITCH,
        )
        return None


def _built() -> Path:
    """The shared library for this source, compiler and processor, compiled if it is not there yet."""
    if not SOURCE:
        raise OSError("kernels.c is not where the library is installed")
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
    """What -march=native depends on: a home directory may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        flags = platform.processor()
    return platform.machine() + flags


def _declare(kernels: ctypes.CDLL) -> ctypes.CDLL:
    p, n = ctypes.c_void_p, ctypes.c_int64
    kernels.surebound_scan.argtypes = [p, p, p, p, p, n, n, n, p, n]
    kernels.surebound_scan.restype = n
    kernels.surebound_relu.argtypes = [p, p, p, p, p, p, n, n, n, p, p, p, p, n]
    kernels.surebound_relu.restype = None
    kernels.surebound_relu_backward.argtypes = [p, p, p, p, p, n, n, n, p, p, p, n]
    kernels.surebound_relu_backward.restype = None
    kernels.surebound_relu_of_bounds.argtypes = [p, p, n, n]
    kernels.surebound_relu_of_bounds.restype = None
    kernels.surebound_channels_outermost.argtypes = [p, n, n, n, p, n]
    kernels.surebound_channels_outermost.restype = None
    kernels.surebound_add_signed.argtypes = [p, p, p, n, n]
    kernels.surebound_add_signed.restype = None
    kernels.surebound_fold.argtypes = [p, *[n] * 12, p, n]
    kernels.surebound_fold.restype = None
    kernels.surebound_pull.argtypes = [p, p, p, p, n, n, n, n, p, p, n]
    kernels.surebound_pull.restype = n
    kernels.surebound_pull_backward.argtypes = [*[p] * 6, n, n, n, n, p, p, p, p, n]
    kernels.surebound_pull_backward.restype = n
    kernels.surebound_largest.argtypes = [p, p, p, n, n, n, p, n]
    kernels.surebound_largest.restype = None
    kernels.surebound_largest_backward.argtypes = [p, p, p, p, n, n, n, p, n]
    kernels.surebound_largest_backward.restype = None
    kernels.surebound_unfold.argtypes = [p, *[n] * 10, p, n]
    kernels.surebound_unfold.restype = None
    kernels.surebound_chord.argtypes = [p, p, n, p, p, p, p, n]
    kernels.surebound_chord.restype = None
    kernels.surebound_chord_backward.argtypes = [p, p, p, p, n, p, p, n]
    kernels.surebound_chord_backward.restype = None
    kernels.surebound_within.argtypes = [p, p, p, p, n, p, p, n]
    kernels.surebound_within.restype = None
    kernels.surebound_within_backward.argtypes = [*[p] * 6, n, p, p, p, p, n]
    kernels.surebound_within_backward.restype = n
    kernels.surebound_wide_pull.argtypes = [p, p, n, *[p] * 6, n, n, n, n, p, p, p, n]
    kernels.surebound_wide_pull.restype = n
    kernels.surebound_wide_dot.argtypes = [p, p, p, p, n, n, n, p, n]
    kernels.surebound_wide_dot.restype = None
    f, d = ctypes.c_float, ctypes.c_double
    kernels.surebound_wide_upper.argtypes = [p, p, p, p, n, n, n, d, p, n]
    kernels.surebound_wide_upper.restype = None
    kernels.surebound_sum_up.argtypes = [p, n, n, d, d, p, n]
    kernels.surebound_sum_up.restype = None
    kernels.surebound_relu_lines.argtypes = [p, p, n, n, n, f, f, f, d, p, p, p, p, p, n]
    kernels.surebound_relu_lines.restype = n
    kernels.surebound_grow.argtypes = [p, p, p, n, n, f, d, f, p, n]
    kernels.surebound_grow.restype = None
    kernels.surebound_ball.argtypes = [p, n, f, f, f, p, p, n]
    kernels.surebound_ball.restype = None
    kernels.surebound_sizes.argtypes = [p, n, f, p, p, n]
    kernels.surebound_sizes.restype = n
    kernels.surebound_paid.argtypes = [p, p, n, f, p, n]
    kernels.surebound_paid.restype = None
    kernels.surebound_entry.argtypes = [p, p, n, n, f, *[p] * 4, n]
    kernels.surebound_entry.restype = n
    kernels.surebound_balance.argtypes = [p, p, p, p, n, n, p, n]
    kernels.surebound_balance.restype = n
    kernels.surebound_balance_backward.argtypes = [p, p, p, p, n, n, p, p, p, n]
    kernels.surebound_balance_backward.restype = None
    kernels.surebound_column_moments.argtypes = [p, n, n, p, p, n]
    kernels.surebound_column_moments.restype = n
    kernels.surebound_column_sums.argtypes = [p, p, p, p, n, n, n, p, n]
    kernels.surebound_column_sums.restype = n
    kernels.surebound_scaled_gradient.argtypes = [*[p] * 5, n, n, n, n, p, n]
    kernels.surebound_scaled_gradient.restype = None
    kernels.surebound_lines.argtypes = [p, p, p, p, n, n, n, p, n]
    kernels.surebound_lines.restype = None
    kernels.surebound_lines_backward.argtypes = [p, p, p, p, n, n, n, p, p, p, n]
    kernels.surebound_lines_backward.restype = None
    kernels.surebound_convolve.argtypes = [p, p, p, p, p, *[n] * 12, p, n]
    kernels.surebound_convolve.restype = n
    kernels.surebound_medians.argtypes = [p, p, n, n, n, p, n, p, n, p, p, n]
    kernels.surebound_medians.restype = n
    kernels.surebound_convolve_backward.argtypes = [p, p, n, *[p] * 7, *[n] * 12, p, p, p, p, n]
    kernels.surebound_convolve_backward.restype = n
    kernels.surebound_matrix_backward.argtypes = [p, p, n, *[p] * 6, n, n, n, n, p, p, p, p, n]
    kernels.surebound_matrix_backward.restype = n
    kernels.surebound_live.argtypes = [p, n, n, n, p, p, n]
    kernels.surebound_live.restype = n
    for product in (
        kernels.surebound_rows_product,
        kernels.surebound_rows_adjoint,
        kernels.surebound_rows_weight,
    ):
        product.argtypes, product.restype = [p, p, p, *[n] * 12, p, n], n
    kernels.surebound_products_pay.argtypes = []
    kernels.surebound_products_pay.restype = n
    kernels.surebound_product.argtypes = [p, p, p, *[n] * 13, p, n]
    kernels.surebound_product.restype = n
    for gradient in (kernels.surebound_product_input, kernels.surebound_product_weight):
        gradient.argtypes, gradient.restype = [p, p, *[n] * 13, p, n], n
    return kernels
