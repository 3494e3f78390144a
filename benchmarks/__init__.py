"""Measurements against plain PyTorch: `make bench`, or `python -m benchmarks.run --help`."""

import os

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch is imported: the profiler talks on every start
