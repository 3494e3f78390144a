"""Loading modules faster: without garbage collection, which finds nothing in them, then or later."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Import inside of this: modules make many objects, all of them to stay.

    A query takes 2.2 instead of 2.5 s to its verdict and 2.5 instead of 3.2 s to the end of its process, of which
    `import torch` alone is 1.8 and 2.3 s.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # neither later collections nor the end of the process look at them again
        if collects:
            gc.enable()
