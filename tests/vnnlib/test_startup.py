"""A small query waits for torch and hardly anything else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from surebound.vnnlib import robustness_query, write_network, write_query

#: Loaded by nothing that a query which bounds settle needs: tracing, solvers, tables, pictures.
HEAVY = ("sympy", "torch._dynamo", "torch._inductor", "scipy.sparse", "scipy.optimize", "highspy", "sqlite3",
         "matplotlib", "rich.console", "surebound.verify", "surebound.train")  # fmt: skip

SCRIPT = f"""
import sys
from surebound.cli import main
try:
    main()
finally:
    print(*sorted(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr)
"""


def test_a_query_loads_no_more_than_it_needs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    x = torch.rand(1, 1, 2, 2)
    write_network(net, x, tmp_path / "net.onnx")
    query = robustness_query(x[0], int(net(x).argmax()), classes=3, eps="1/1000000")
    (tmp_path / "q.vnnlib").write_text(write_query(query))
    name = query.networks[0].name
    given = ["verify", str(tmp_path / "q.vnnlib"), "--network", f"{name}={tmp_path / 'net.onnx'}"]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *given], capture_output=True, text=True, check=True)
    assert done.stdout == "unsat\n"
    assert done.stderr.splitlines()[-1] == "", done.stderr
