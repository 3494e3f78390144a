"""Networks and questions that others wrote, and ours for them: ONNX files and VNN-LIB queries."""

from __future__ import annotations

from surebound.vnnlib.files import load_onnx, write_network, write_questions
from surebound.vnnlib.query import Query
from surebound.vnnlib.solve import Answer, decide
from surebound.vnnlib.text import parse_query, read_query
from surebound.vnnlib.write import robustness_query, write_query

__all__ = [
    "Answer",
    "Query",
    "decide",
    "load_onnx",
    "parse_query",
    "read_query",
    "robustness_query",
    "write_network",
    "write_query",
    "write_questions",
]
