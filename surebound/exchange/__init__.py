"""Networks and questions that others wrote, and ours for them: ONNX files and VNN-LIB queries."""

from __future__ import annotations

from surebound.exchange.files import load_onnx, write_network, write_questions
from surebound.exchange.query import Query
from surebound.exchange.solve import Answer, Verdict, decide
from surebound.exchange.text import parse_query, read_query
from surebound.exchange.write import robustness_query, write_query

__all__ = [
    "Answer",
    "Query",
    "Verdict",
    "decide",
    "load_onnx",
    "parse_query",
    "read_query",
    "robustness_query",
    "write_network",
    "write_query",
    "write_questions",
]
