"""onnxruntime as the second opinion: imports are checked against it, witnesses are re-run in it.

It runs in a process of its own (runtime_child.py), which all sessions of this process share: a file that breaks
onnxruntime is refused, and the next one gets a new process.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import itertools
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surebound.errors import GraphError, MissingExtraError
from surebound.graph.onnx.file import Model
from surebound.vnnlib.runtime_child import packed, read, unpacked, write

Array = NDArray[np.float32]

#: Seconds for one answer: a network that takes longer at one point is none that could be verified.
PATIENCE = 600.0


class _Runtime:
    """The process that onnxruntime runs in, started when it is needed and again when it has died."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self.generation = 0  # of processes: sessions of an earlier one are gone

    def ask(self, head: dict[str, Any], *blobs: bytes) -> list[bytes]:
        """Send a request and return the arrays of its answer; GraphError if there is none."""
        with self._lock:
            process = self._running()
            watch = threading.Timer(PATIENCE, process.kill)
            watch.start()
            try:
                if process.stdin is None or process.stdout is None:
                    raise EOFError
                write(process.stdin, head, *blobs)  # type: ignore[arg-type]
                answer, found = read(process.stdout)  # type: ignore[arg-type]
            except (EOFError, OSError, ValueError) as error:
                self.stop()
                raise GraphError(f"onnxruntime died of it (exit code {process.returncode})") from error
            finally:
                watch.cancel()
        if answer["error"] is not None:
            if answer.get("missing"):
                raise MissingExtraError("onnxruntime", "onnx", "checking an imported network")
            raise GraphError(str(answer["error"]).strip().splitlines()[0])
        return found

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and (self._owner != os.getpid() or self._process.poll() is not None):
            self.stop()  # of the process that we were forked from, or dead
        if self._process is None:
            child = Path(__file__).with_name("runtime_child.py")
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(child)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            self._owner, self.generation = os.getpid(), self.generation + 1
        return self._process

    @property
    def current(self) -> int:
        """The generation of the process that answers next."""
        with self._lock:
            self._running()
            return self.generation

    def stop(self) -> None:
        """End the process."""
        with self._lock:
            process, self._process = self._process, None
            if process is None:
                return
            if self._owner == os.getpid():
                process.kill()
                process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()


_runtime = _Runtime()
_numbers = itertools.count()
atexit.register(_runtime.stop)


class Session:
    """A model in onnxruntime; ``also`` names inner tensors that shall be returned beside the outputs."""

    def __init__(self, model: Model, also: Sequence[str] = ()) -> None:
        if importlib.util.find_spec("onnxruntime") is None:
            raise MissingExtraError("onnxruntime", "onnx", "checking an imported network")
        self.names = [*(name for name, _ in model.outputs), *also]
        self._content, self._source = _with_outputs(model, also), model.source
        self._number, self._generation = next(_numbers), -1
        self._open()

    def _open(self) -> None:
        if self._generation == _runtime.current:
            return
        try:
            _runtime.ask({"do": "open", "number": self._number}, self._content)
        except GraphError as error:
            raise GraphError(f"{self._source}: onnxruntime refuses it: {error}") from error
        self._generation = _runtime.generation
        weakref.finalize(self, _close, self._number, self._generation)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs and the inner tensors, by name, for inputs in the shapes that the file declares."""
        self._open()
        head = {"do": "run", "number": self._number, "inputs": list(inputs), "outputs": self.names}
        try:
            found = _runtime.ask(head, *(packed(value) for value in inputs.values()))
        except GraphError as error:
            raise GraphError(f"{self._source}: onnxruntime fails on it: {error}") from error
        return {name: unpacked(blob) for name, blob in zip(self.names, found, strict=True)}


def _close(number: int, generation: int) -> None:
    """Let the process forget a session, if it is still the one that holds it."""
    if generation == _runtime.generation and _runtime._process is not None and _runtime._owner == os.getpid():
        with contextlib.suppress(GraphError):
            _runtime.ask({"do": "close", "number": number})


def _with_outputs(model: Model, also: Sequence[str]) -> bytes:
    if not also:
        return model.content
    helper: Any = importlib.import_module("onnx.helper")
    proto = type(model.proto)()
    proto.CopyFrom(model.proto)
    declared = {each.name for each in proto.graph.output}
    for name in also:
        if name not in declared:
            proto.graph.output.append(helper.make_empty_tensor_value_info(name))
    content: bytes = proto.SerializeToString()
    return content
