"""Queries about ONNX networks: from the start of a process to the verdict, and long files of constraints."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

import surebound as sb
from benchmarks.common import Benchmark, Measure
from surebound.vnnlib import parse_query, robustness_query, write_network, write_query


def benchmarks() -> Iterator[Benchmark]:
    """CPU time, which other processes on the machine disturb less than they do the clock."""
    yield Measure("a small ONNX network: process start to verdict, CPU time", "s", start_to_verdict, limit=3.0)
    yield Measure("VNN-LIB 1.0: a megabyte of bounds, CPU time", "s", megabyte, limit=1.0)


def start_to_verdict() -> float:
    """`surebound verify` on the paper's small network and a ball that bounds prove."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torch.manual_seed(0)
        model, image = sb.models.small().eval(), torch.rand(1, 28, 28)
        label = int(model(image.unsqueeze(0)).argmax())
        write_network(model, image.unsqueeze(0), folder / "net.onnx")
        query = robustness_query(image, label, 10, "1/100000")
        (folder / "query.vnnlib").write_text(write_query(query), encoding="utf-8")
        command = [sys.executable, "-m", "surebound", "verify", "query.vnnlib", "--network", "N=net.onnx"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.stdout != "unsat\n":
        raise RuntimeError(f"the verdict was {done.stdout!r}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def megabyte() -> float:
    """Seconds per megabyte of text."""
    count = 20_000
    lines = [f"(declare-const X_{i} Real)" for i in range(count)] + ["(declare-const Y_0 Real)"]
    for i in range(count):
        lines += [f"(assert (<= X_{i} 0.1234567{i}))", f"(assert (>= X_{i} -1.5e-3))"]
    text = "\n".join(lines)
    start = time.process_time()
    parse_query(text)
    return (time.process_time() - start) / (len(text) / 1e6)
