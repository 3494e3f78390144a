"""onnxruntime in a process of its own: what breaks it is refused, and everything else goes on."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

from surebound.errors import GraphError
from surebound.graph.onnx.file import parse_model
from surebound.vnnlib import runtime
from surebound.vnnlib.check import checked_network
from surebound.vnnlib.runtime import Session
from tests.vnnlib.nets import SUM, dense
from tests.vnnlib.onnx_cases import one

X = np.array([[0.25, 0.5]], dtype=np.float32)


def test_a_session_answers_and_survives_the_death_of_its_process() -> None:
    session = Session(parse_model(SUM))
    name = session.names[0]
    assert session.run({"x": X})[name].tolist() == [[0.75]]
    process = runtime._runtime._process
    assert process is not None and process.pid != os.getpid()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert session.run({"x": X})[name].tolist() == [[0.75]]  # opened again in a new process


def test_a_file_that_kills_onnxruntime_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(parse_model(SUM))
    process = runtime._runtime._process
    assert process is not None
    ask = runtime._Runtime.ask

    def killed(self: runtime._Runtime, head: dict[str, object], *blobs: bytes) -> list[bytes]:
        if head["do"] == "run":
            os.kill(process.pid, signal.SIGSEGV)
            process.wait()
            monkeypatch.setattr(runtime._Runtime, "_running", lambda self: process)
        return ask(self, head, *blobs)

    monkeypatch.setattr(runtime._Runtime, "ask", killed)
    with pytest.raises(GraphError, match=r"onnxruntime fails on it: onnxruntime died of it \(exit code -11\)"):
        session.run({"x": X})
    monkeypatch.undo()
    checked_network(parse_model(SUM))


def test_errors_of_onnxruntime_are_said_and_leave_it_alive() -> None:
    session = Session(parse_model(SUM))
    with pytest.raises(GraphError, match="onnxruntime fails on it: .*"):
        session.run({"x": np.zeros((3, 3), dtype=np.float32)})
    assert session.run({"x": X})[session.names[0]].tolist() == [[0.75]]


def test_threads_get_their_own_answers() -> None:
    nets = {k: dense([[[float(k)], [0.0]]], [[0.0]]) for k in range(4)}
    sessions = {k: Session(parse_model(content)) for k, content in nets.items()}
    found: dict[int, list[float]] = {k: [] for k in nets}

    def ask(k: int) -> None:
        for _ in range(20):
            found[k].append(float(sessions[k].run({"x": X})[sessions[k].names[0]].item()))

    threads = [threading.Thread(target=ask, args=(k,)) for k in nets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {k: [0.25 * k] * 20 for k in nets}


def test_a_session_that_nobody_holds_is_closed() -> None:
    session = Session(parse_model(one("Relu", (1, 2)).model()))
    number = session._number
    del session
    with pytest.raises(GraphError):
        runtime._runtime.ask({"do": "run", "number": number, "inputs": [], "outputs": []})
