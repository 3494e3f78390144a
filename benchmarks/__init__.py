"""Measurements against plain PyTorch: `make bench`, or `python -m benchmarks.run --help`."""
