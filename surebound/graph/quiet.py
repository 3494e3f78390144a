"""torch.export reports its failures at length before it raises them; here they are told once, by who catches them."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import warnings
from collections.abc import Iterator

#: The loggers that report a failed trace; named because they may not have been imported yet.
_LOGGERS = (
    "torch.export._trace",
    "torch.fx.experimental.symbolic_shapes",
    "torch._subclasses.fake_tensor",
    "torch._dynamo",
)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence PyTorch's warnings, logs and printed graphs; what was printed is passed on if nothing fails."""
    known = [name for name in logging.root.manager.loggerDict if name.startswith("torch.")]
    loggers = [logging.getLogger(name) for name in {*_LOGGERS, *known}]
    before = [logger.disabled for logger in loggers]
    printed = io.StringIO()
    for logger in loggers:
        logger.disabled = True
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(printed):
            warnings.simplefilter("ignore")  # the exporter's own, about its internals
            yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled
    sys.stderr.write(printed.getvalue())
