"""A process of its own for onnxruntime: a stranger's file that breaks it breaks nothing else.

Runs as a script that imports nothing of this package. Requests and answers are a line of JSON, then the bytes that it
announces: a model, or arrays as .npy; nothing that is read can name code.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from typing import Any, BinaryIO

import numpy as np


def write(stream: BinaryIO, head: dict[str, Any], *blobs: bytes) -> None:
    """Send a message."""
    stream.write(json.dumps({**head, "blobs": [len(each) for each in blobs]}).encode() + b"\n")
    for each in blobs:
        stream.write(each)
    stream.flush()


def read(stream: BinaryIO) -> tuple[dict[str, Any], list[bytes]]:
    """Receive a message; EOFError if the other side is gone."""
    line = stream.readline()
    if not line:
        raise EOFError
    head: dict[str, Any] = json.loads(line)
    blobs = [stream.read(size) for size in head["blobs"]]
    if any(len(each) < size for each, size in zip(blobs, head["blobs"], strict=True)):
        raise EOFError
    return head, blobs


def packed(array: Any) -> bytes:
    """Return an array as .npy."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def unpacked(blob: bytes) -> Any:
    """Return an array from .npy."""
    return np.load(io.BytesIO(blob), allow_pickle=False)


def _session(content: bytes) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    # What runs is the file's own calls, in float32.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    sessions: dict[int, Any] = {}
    while True:
        head, blobs = read(requests)
        try:
            found: list[bytes] = []
            if head["do"] == "open":
                sessions[head["number"]] = _session(blobs[0])
            elif head["do"] == "run":
                inputs = {name: unpacked(blob) for name, blob in zip(head["inputs"], blobs, strict=True)}
                found = [packed(np.asarray(each)) for each in sessions[head["number"]].run(head["outputs"], inputs)]
            else:
                sessions.pop(head["number"], None)
            write(answers, {"error": None}, *found)
        except Exception as error:  # onnxruntime raises a dozen classes of its own
            write(answers, {"error": str(error) or type(error).__name__, "missing": isinstance(error, ImportError)})


if __name__ == "__main__":
    # Whatever a library prints must not get between the answers.
    own = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        _serve(sys.stdin.buffer, own)
