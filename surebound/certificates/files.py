"""The file format of certificates and of the networks they are about: a JSON header and raw arrays, deflated."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surebound.checker.checker import unpack
from surebound.errors import InputError
from surebound.graph.flat import Flat

MAGIC = b"surebound-certificate 1\n"

#: Bytes below which a certificate is deflated in a hurry: 4 % longer, and a third of the time of writing one less.
SMALL = 16_384


def pack(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the bytes of a file; arrays are float32, float64, int32, int8 or uint8."""
    little = {name: np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<")) for name, value in arrays.items()}
    listed = [[name, value.dtype.str, list(value.shape)] for name, value in little.items()]
    text = json.dumps({**header, "arrays": listed}, separators=(",", ":")).encode()
    body = struct.pack("<I", len(text)) + text + b"".join(value.tobytes() for value in little.values())
    return MAGIC + zlib.compress(body, 3 if len(body) < SMALL else 6)


def opened(certificate: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the header and the arrays of a certificate that may be damaged; InputError then."""
    try:
        return unpack(certificate)
    except Exception as error:  # zlib, JSON, numpy and the checker each have their own
        raise InputError(f"the certificate cannot be read: {error}") from None


def network_digest(network: bytes) -> str:
    """Return the SHA-256 of a network's file as it is before it is deflated: the name that certificates have for it."""
    return hashlib.sha256(zlib.decompress(network[len(MAGIC) :])).hexdigest()


def pack_network(flat: Flat) -> bytes:
    """Return the file of a network."""
    return pack({"input": list(flat.input), "steps": flat.steps}, flat.arrays)
