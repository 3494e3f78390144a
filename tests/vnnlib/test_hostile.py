"""Malformed, truncated and hostile files: a clear error, never a verdict, no unbounded memory or time."""

from __future__ import annotations

import gzip
import itertools
import random
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from surebound.errors import GraphError, QueryError, SureboundError
from surebound.graph.onnx.file import Model, parse_model, read_bytes, read_model
from surebound.graph.onnx.importer import network_of
from surebound.spec.formula import atoms
from surebound.verdict import Status
from surebound.vnnlib.instances import read_instances
from surebound.vnnlib.query import Query, number
from surebound.vnnlib.runtime import Session
from surebound.vnnlib.solve import Answer, decide
from surebound.vnnlib.text import parse_query, read_query
from tests.vnnlib.nets import SUM, VERSION, between, declare, model, random_dense

OLD = (
    "(declare-const X_0 Real)(declare-const X_1 Real)(declare-const Y_0 Real)"
    "(assert (>= X_0 0.0))(assert (<= X_0 1.0))(assert (>= X_1 0.0))(assert (<= X_1 1.0))(assert (>= Y_0 1.5))"
)
NEW = VERSION + declare(2, 1) + between([0, 0], [1, 1]) + "(assert (or (>= Y[0,0] 1.5) (<= (+ Y[0,0] X[0,1]) -1.0)))"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "holds no command"),
        ("; only a comment", "holds no command"),
        ("hello", "holds no command"),
        ("(assert (<= X_0 1.0))", "must be declared"),
        ("(declare-const X_0 Real)(declare-const Y_0 Real)", "asserts nothing"),
        ("(declare-const X_0 Int)(declare-const Y_0 Real)(assert (<= X_0 1))", "type Real"),
        ("(declare-const Z_0 Real)", "declares X_i and Y_j"),
        ("(declare-const X_0 Real)(declare-const X_0 Real)", "declared twice"),
        (f"(declare-const X_{'1' * 5000} Real)", "numbered too high"),  # Python reads no number of so many digits
        (f"(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= X_{'1' * 5000} 1))", "used but not declared"),
        ("(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= (or (<= X_0 1)) 2))", r"query: \(...\) is no"),
        ("(declare-const X_1 Real)(declare-const Y_0 Real)(assert (<= X_1 1))", "without gaps"),
        ("(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= X_5 1))", "used but not declared"),
        (
            "(declare-const X_0 Real)(declare-const Y_0 Real); Y_77\n(assert (<= X_0 1))\n(assert (<= Y_0 Y_77))",
            "line 3: Y_77 is used but not declared",
        ),
        ("(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= X_0", "in the middle of a command"),
        ("(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= X_0 1.0)))", "outside of any command"),
        ("(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= X_0 one))", "no linear expression"),
        ("(declare-const X_0 Real)(declare-const Y_0 Real)(assert (=> X_0 1.0))", "is no constraint"),
        ("(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= (* X_0 Y_0) 1.0))", "product of two variables"),
        ("(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= X_0 1e999999999))", "is no number"),
        ("(check-sat)", "declare-const and assert"),
        ("(vnnlib-version <2.0>)", "syntax error"),
        ("(vnnlib-version <3.0>)" + declare(1, 1) + "(assert (<= X[0,0] 1.0))", "Incompatible VNNLib version"),
        (VERSION + declare(1, 1) + "(assert (<= X[0,7] 1.0))", "out of bounds"),
        (VERSION + declare(1, 1) + "(assert (<= Q[0,0] 1.0))", "Q"),
        (VERSION + declare(1, 1) + "(assert (<= X[0,0] 1e-5))", "syntax error"),
        (VERSION + declare(100_000, 100_000) + "(assert (<= X[0,0] 1.0))", None),
        (VERSION + declare(10_000_000, 10_000_000) + "(assert (<= X[0,0] 1.0))", "more than 10000000 numbers"),
    ],
)  # fmt: skip
def test_malformed_queries(text: str, match: str | None) -> None:
    if match is None:
        parse_query(text)
        return
    with pytest.raises(QueryError, match=match):
        parse_query(text)


@pytest.mark.parametrize("start", ["(declare-const X_0 Real)(declare-const Y_0 Real)(assert ", VERSION + declare(1, 1)])
def test_endless_nesting_does_not_end_the_process(start: str) -> None:
    deep = start + ("(assert " if "network" in start else "") + "(and " * 200_000
    with pytest.raises(QueryError, match="nested more than 200 deep"):
        parse_query(deep)


def test_numbers() -> None:
    assert number("1e-3") == number("0.001") == number("1E-3") == number("+.001")
    with pytest.raises(QueryError, match="is no number"):
        number("9" * 10_000)


def test_a_packed_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.vnnlib.gz"
    path.write_bytes(gzip.compress(b" " * 50_000_000, 9))
    with pytest.raises(GraphError, match="more than 1000000 bytes"):
        read_bytes(path, limit=1_000_000)


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b", b"\x1f\x8b\x08\x00 broken", b"\xff\xfe\x00", b"\x00" * 100])
def test_files_that_are_nothing(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(QueryError):
        read_query(path)
    with pytest.raises(GraphError):
        read_model(path)
    with pytest.raises(QueryError, match="cannot be read"):
        read_query(tmp_path / "missing")


def test_fuzzed_queries_give_an_error_or_a_query() -> None:
    """A fixed budget of damaged texts: nothing but our own errors comes out."""
    chance, deadline, outcomes = random.Random(0), time.monotonic() + 8, Counter[str]()
    for _ in range(1500):
        text = list(chance.choice((OLD, NEW)))
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(len(text))
            action = chance.randrange(4)
            if action == 0:
                del text[at : at + chance.randint(1, 20)]
            elif action == 1:
                text[at] = chance.choice('()[]<>=+-*.0123456789eXY_ ;"\n\x00é')
            elif action == 2:
                text[at:at] = text[chance.randrange(len(text)) :][: chance.randint(1, 30)]
            else:
                del text[at:]
            if not text:
                break
        query = _parsed("".join(text))
        outcomes["error" if query is None else "query"] += 1
        if query is not None:
            count = sum(variable.size for variable in query.variables)
            for atom in atoms(query.formula):  # it speaks of what it declares, in exact numbers
                assert all(0 <= element < count and coefficient for element, coefficient in atom.terms)
                assert isinstance(atom.constant, Fraction)
        if time.monotonic() > deadline:
            break
    assert outcomes["error"] and outcomes["query"], outcomes


def _parsed(text: str) -> Query | None:
    try:
        return parse_query(text)
    except SureboundError:
        return None


def test_fuzzed_models_are_refused_or_checked() -> None:
    """Damaged ONNX bytes: refused, or imported as what onnxruntime says they are; never another exception."""
    chance, deadline, outcomes = random.Random(1), time.monotonic() + 10, Counter[str]()
    content = random_dense([2, 3, 1], 0)
    query = parse_query(VERSION + declare(2, 1) + between([0, 0], [1, 1]) + "(assert (>= Y[0,0] 100000.0))")
    for _ in range(300):
        broken = bytearray(content)
        for _ in range(chance.randint(1, 4)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        if chance.random() < 0.2:
            del broken[chance.randrange(len(broken)) :]
        try:
            parsed = parse_model(bytes(broken))
            network_of(parsed)
            answer = decide(query, {"N": parsed}, 1.0)
        except SureboundError:
            outcomes["error"] += 1
        else:
            outcomes[answer.word] += 1
            _check_answer(parsed, answer)
        if time.monotonic() > deadline:
            break
    assert outcomes["error"] and outcomes["unsat"], outcomes


def _check_answer(parsed: Model, answer: Answer) -> None:
    """Is there an output of at least 100,000 over the unit box? By onnxruntime, on a grid and at the answer's point."""
    session, name = Session(parsed), parsed.inputs[0].name
    points = (
        [answer.assignment["X"]]
        if answer.status is Status.FALSIFIED
        else itertools.product((0, 0.25, 0.5, 1), repeat=2)
    )
    for point in points:
        (found,) = session.run({name: np.array(point, dtype=np.float32).reshape(1, 2)}).values()
        if answer.status is Status.FALSIFIED:
            assert found.item() >= 100_000
        if answer.status is Status.ROBUST:
            assert not found.item() >= 100_000


def test_instances_that_are_no_list(tmp_path: Path) -> None:
    path = tmp_path / "instances.csv"
    for content, match in (
        (b"", "lists no instances"),
        (b"a,b\n", "line 1"),
        (b"a,b,soon\n", "NETWORK,QUERY,SECONDS"),
    ):
        path.write_bytes(content)
        with pytest.raises(QueryError, match=match):
            read_instances(path)
    with pytest.raises(QueryError, match="cannot be read"):
        read_instances(tmp_path / "missing.csv")


def test_both_versions_of_a_query_agree() -> None:
    old = parse_query(OLD)
    new = parse_query(VERSION + declare(2, 1) + between([0, 0], [1, 1]) + "(assert (>= Y[0,0] 1.5))")
    assert old.formula == new.formula
    assert decide(old, {"N": model(SUM)}, 10).status is decide(new, {"N": model(SUM)}, 10).status


def test_long_files_are_read_quickly() -> None:
    count = 10_000
    text = "".join(f"(declare-const X_{i} Real)\n" for i in range(count)) + "(declare-const Y_0 Real)\n"
    text += "".join(f"(assert (<= X_{i} 0.12345678{i}))\n(assert (>= X_{i} -1.5e-3))\n" for i in range(count))
    start = time.process_time()
    query = parse_query(text)
    assert len(query.formula.parts) == 2 * count
    assert time.process_time() - start < 3  # about a second per two megabytes on an idle machine
