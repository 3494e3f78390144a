"""Pickles are read as data: whatever would run code is refused before it is looked up."""

from __future__ import annotations

import io
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surebound.data import fake, load
from surebound.data.unpickle import RefusedPickleError, load_arrays
from surebound.errors import CorruptDataError


def read(data: bytes) -> dict[str, Any]:
    return load_arrays(io.BytesIO(data))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_of_every_protocol_are_read(protocol: int) -> None:
    rows = np.arange(12, dtype=np.uint8).reshape(3, 4)
    given = read(pickle.dumps({"data": rows, b"labels": [1, 2, 3], "mean": rows.mean(0)}, protocol=protocol))
    assert np.array_equal(given["data"], rows)
    assert given["data"].dtype == np.uint8
    assert given["labels"] == [1, 2, 3]
    assert np.array_equal(given["mean"], rows.mean(0))


def test_the_spelling_of_python_2_is_read() -> None:
    """As the published CIFAR-10 has it: protocol 2, byte strings, numpy's old module names."""
    raw = bytes(range(6))

    def string(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text

    dtype = b"cnumpy\ndtype\n" + string(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + string(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + string(b"b") + b"\x87R"
    array += b"(K\x01K\x02K\x03\x86" + dtype + b"\x89T" + struct.pack("<i", 6) + raw + b"tb"
    pickled = b"\x80\x02}(" + string(b"data") + array + string(b"labels") + b"](K\x04K\x05e" + b"u."
    given = read(pickled)
    assert given["labels"] == [4, 5]
    assert np.array_equal(given["data"], np.arange(6, dtype=np.uint8).reshape(2, 3))


class Malicious:
    def __init__(self, call: Any, *arguments: Any) -> None:
        self.made = (call, arguments)

    def __reduce__(self) -> Any:
        return self.made


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        (os.system, ("touch {}",)),
        (eval, ("open('{}', 'w')",)),
        (exec, ("open('{}', 'w')",)),
        (open, ("{}", "w")),
        (getattr, ("", "format")),
        (np.load, ("{}",)),
        (np.fromfile, ("{}",)),
        (bytearray, (8,)),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_code_in_a_pickle_is_refused(tmp_path: Path, call: Any, arguments: tuple[Any, ...], protocol: int) -> None:
    trap = tmp_path / "trap"
    filled = tuple(a.format(trap) if isinstance(a, str) else a for a in arguments)
    data = pickle.dumps({"data": Malicious(call, *filled)}, protocol=protocol)
    with pytest.raises(RefusedPickleError, match=r"asks for .*only numpy arrays and builtin containers"):
        read(data)
    assert not trap.exists()


def test_the_stand_ins_do_no_more_than_arrays_need() -> None:
    other_codec = pickle.dumps({"data": b"\xff"}, protocol=2).replace(b"latin1", b"rot_13")
    with pytest.raises(RefusedPickleError, match="only latin1"):
        read(other_codec)
    huge = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nJ\xff\xff\xff\x7f\x85U\x01b\x87R."
    with pytest.raises(RefusedPickleError, match="not a plain array"):
        read(huge)


def test_something_else_than_a_dictionary_is_refused() -> None:
    with pytest.raises(CorruptDataError, match="holds a list, not a dictionary of arrays"):
        read(pickle.dumps([1, 2]))


@pytest.mark.parametrize("archive", [False, True])
def test_a_malicious_batch_of_cifar10_is_refused(
    tmp_path: Path, archive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "trap"
    monkeypatch.setattr(
        fake, "_cifar10_python", lambda images, labels: pickle.dumps(Malicious(os.system, f"touch {trap}"))
    )
    fake.write_cifar10(tmp_path, version="python", archive=archive)
    with pytest.raises(RefusedPickleError, match=r"asks for posix\.system"):
        load("cifar10", tmp_path)
    assert not trap.exists()
