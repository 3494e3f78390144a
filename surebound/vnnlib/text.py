"""VNN-LIB files of either version, plain or gzip."""

from __future__ import annotations

import re
from pathlib import Path

from surebound.errors import GraphError, QueryError
from surebound.flags import uncollected
from surebound.graph.onnx.file import read_bytes
from surebound.vnnlib import text1, text2
from surebound.vnnlib.query import Query

#: Most bytes that a query may unpack to.
LARGEST_QUERY = 1 << 29

_FIRST_COMMAND = re.compile(r"(?:\s|;[^\n]*(?:\n|\Z))*\(\s*([^\s()]+)")


def read_query(path: str | Path) -> Query:
    """Read a query file; the version is recognised by its first command."""
    try:
        content = read_bytes(path, LARGEST_QUERY)
    except GraphError as error:
        raise QueryError(str(error)) from error
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise QueryError(f"{path} is no text: {error}") from None
    return parse_query(text, str(path))


def parse_query(text: str, source: str = "the query") -> Query:
    """Read a query text of either version."""
    first = _FIRST_COMMAND.match(text)
    if first is None:
        raise QueryError(f"{source}: it holds no command; is this VNN-LIB?")
    with uncollected():
        if first[1] in ("vnnlib-version", "declare-network"):
            return text2.parse(text, source)
        return text1.parse(text, source)
