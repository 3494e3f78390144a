"""VNN-LIB queries on the command line. Standard output: the verdict, then the assignment; nothing else."""

from __future__ import annotations

import ast
import math
import os
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from surebound.cli.loading import loading
from surebound.cli.notes import note
from surebound.cli.output import write_file
from surebound.errors import InputError

if TYPE_CHECKING:
    from surebound.vnnlib.query import Query
    from surebound.vnnlib.solve import Answer

#: Seconds after the time limit until the process is ended although something still computes.
GRACE = 1.0


class Reporter:
    """Prints one verdict, whoever comes first: the answer, or the clock."""

    def __init__(self, timeout: float, late: str, result_file: Path | None = None) -> None:
        self._lock, self._done = threading.Lock(), False
        self._file = result_file
        self._timer: threading.Timer | None = None
        if math.isfinite(timeout):
            self._timer = threading.Timer(timeout + GRACE, self._end, (late,))
            self._timer.daemon = True
            self._timer.start()

    def _end(self, late: str) -> None:
        if self.write([late]):
            os._exit(0)

    def write(self, lines: Iterable[str]) -> bool:
        """Print the verdict and what follows it; False if a verdict has been printed."""
        with self._lock:
            if self._done:
                return False
            self._done = True
            if self._timer is not None:
                self._timer.cancel()
            text = "\n".join(lines) + "\n"
            if self._file is not None:
                write_file(self._file, text, "--result-file")
            sys.stdout.write(text)
            sys.stdout.flush()
            return True


def run_standard(
    query_file: Path,
    networks: list[str],
    timeout: float | None,
    serialise_to: Path | None,
    seed: int,
    certificates: Path | None = None,
    *,
    explain: bool = False,
) -> None:
    """`verify QUERY --network NAME=FILE ...`: the standard's own command."""
    files = _named(networks)
    limit = math.inf if timeout is None else timeout
    reporter = Reporter(limit, "timed-out")
    query, answer = _decided(query_file, files, limit, seed, certificates, explain)
    lines = [answer.word]
    if answer.assignment:
        from surebound.vnnlib.answer import assignment_lines, serialise

        if serialise_to is not None:
            serialise(query, answer.assignment, serialise_to)
        else:
            lines += assignment_lines(query, answer.assignment)
    reporter.write(lines)
    _tell_how(answer)


def run_pair(
    onnx: str,
    vnnlib: Path,
    timeout: float | None,
    result_file: Path | None,
    seed: int,
    certificates: Path | None = None,
    *,
    explain: bool = False,
) -> None:
    """`verify --onnx FILE --vnnlib FILE`: the competitions' habit, their words and their result file."""
    files = _listed(onnx)
    limit = math.inf if timeout is None else timeout
    reporter = Reporter(limit, "timeout", result_file)
    query, answer = _decided(vnnlib, files, limit, seed, certificates, explain, repeated=True)
    lines = [old_word(answer)]
    if answer.assignment:
        from surebound.vnnlib.answer import assignment_lines, flat_lines

        lines += (flat_lines if query.version == "1.0" else assignment_lines)(query, answer.assignment)
    reporter.write(lines)
    _tell_how(answer)


def old_word(answer: Answer) -> str:
    """The competitions say timeout where the standard says timed-out."""
    return "timeout" if answer.word == "timed-out" else answer.word


def _listed(onnx: str) -> dict[str, Path]:
    """Read the competitions' list of networks, [('f', 'a.onnx'), ('g', 'b.onnx')]; one file has no name."""
    if not onnx.lstrip().startswith("["):
        return {"": Path(onnx)}
    try:
        pairs = ast.literal_eval(onnx.strip())
        files = {name: Path(path) for name, path in pairs if isinstance(name, str)}
    except (ValueError, TypeError, SyntaxError):
        pairs, files = None, {}
    if not files or len(files) != len(pairs or ()):
        raise InputError(f"--onnx {onnx[:80]!r}; give a file, or [('NAME', 'FILE'), ...] with each name once")
    return files


def _named(networks: list[str]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for each in networks:
        name, equals, path = each.partition("=")
        if not equals or not name or not path:
            raise InputError(f"--network {each!r}; give NAME=FILE")
        if name in files:
            raise InputError(f"--network {name} is given twice")
        files[name] = Path(path)
    return files


def _once(query: Query, files: dict[str, Path]) -> dict[str, Path]:
    """Leave out the files of networks that equal another one, whose file the competitions name again."""
    from surebound.graph.onnx.file import read_bytes

    kept = dict(files)
    for network in query.networks:
        again, first = files.get(network.name), files.get(network.equal_to or "")
        if network.equal_to is None or again is None or first is None:
            continue
        if again != first and read_bytes(again) != read_bytes(first):
            raise InputError(f"the query says that {network.name} equals {network.equal_to}; {again} is another file")
        del kept[network.name]
    return kept


def _decided(
    query_file: Path,
    files: dict[str, Path],
    limit: float,
    seed: int,
    certificates: Path | None,
    explain: bool,
    *,
    repeated: bool = False,
) -> tuple[Query, Answer]:
    """Read everything and decide; the file of the only network may stand under no name.

    repeated: networks that equal another one may come with its file, too.
    """
    began = time.monotonic()
    with loading():
        from surebound.graph.onnx.file import read_model
        from surebound.kernels import keep_memory
        from surebound.vnnlib.solve import decide
        from surebound.vnnlib.text import read_query

    keep_memory()  # one backward pass after another needs the same arrays
    query = read_query(query_file)
    if explain:
        from surebound.cli.explain import query_question

        typer.echo(query_question(query), err=True)
    if set(files) == {""}:
        needed = [each.name for each in query.networks if each.equal_to is None]
        if len(needed) != 1:
            raise InputError(f"the query has {len(needed)} networks; give --network NAME=FILE for: {', '.join(needed)}")
        files = {needed[0]: files[""]}
    files = _once(query, files) if repeated else files
    models = {name: read_model(path) for name, path in files.items()}
    left, name = limit - (time.monotonic() - began), query_file.name.partition(".vnnlib")[0]
    return query, decide(query, models, left, seed=seed, certificates=certificates, name=name)


def _tell_how(answer: Answer) -> None:
    for each in answer.notes:
        note(each)
    detail = f": {answer.detail}" if answer.detail else ""
    note(f"{answer.stage}, {answer.seconds:.2f} s{detail}")
