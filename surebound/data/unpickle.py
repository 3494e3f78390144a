"""Reading pickled archives of arrays without running what they ask for.

A pickle can call any function it names. Here it can name only what an array is made of; everything else,
however harmless it looks, is refused before it is looked up.
"""

from __future__ import annotations

import pickle
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from surebound.errors import CorruptDataError


class RefusedPickleError(CorruptDataError):
    """A pickle asked for something other than arrays and builtin containers."""


def _empty(subtype: type, shape: tuple[int, ...], typecode: str | bytes) -> NDArray[Any]:
    """Stands in for numpy's `_reconstruct`: an empty array that the pickle then fills."""
    if subtype is not np.ndarray or tuple(shape) != (0,):
        raise RefusedPickleError(f"the pickle builds a {subtype!r} of shape {shape!r}, not a plain array")
    return np.ndarray((0,), dtype=typecode.decode() if isinstance(typecode, bytes) else typecode)


def _from_buffer(buffer: Any, dtype: np.dtype[Any], shape: tuple[int, ...], order: str) -> NDArray[Any]:
    """Stands in for numpy's `_frombuffer`, which protocol 5 uses."""
    return np.frombuffer(buffer, dtype=dtype).reshape(shape, order="F" if order == "F" else "C")


def _latin1(text: str, encoding: str) -> bytes:
    """Stands in for `codecs.encode`, with which old protocols spell bytes."""
    if encoding != "latin1":
        raise RefusedPickleError(f"the pickle encodes text as {encoding!r}; only latin1 is accepted")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _empty,
    ("numpy._core.multiarray", "_reconstruct"): _empty,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy._core.numeric", "_frombuffer"): _from_buffer,
    ("_codecs", "encode"): _latin1,
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise RefusedPickleError(
                f"the pickle asks for {module}.{name}; only numpy arrays and builtin containers are read, "
                "because a pickle can run any code. Do not use this file"
            ) from None


def load_arrays(stream: BinaryIO) -> dict[str, Any]:
    """The dictionary of arrays and builtins in a pickle, its keys as text."""
    content = _ArrayUnpickler(stream, encoding="bytes").load()
    if not isinstance(content, dict):
        raise CorruptDataError(f"the pickle holds a {type(content).__name__}, not a dictionary of arrays")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}
