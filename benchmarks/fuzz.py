"""Feed damaged and invented input to everything that reads a stranger's file: only our own errors may come out.

    python -m benchmarks.fuzz --inputs 100000
    python -m benchmarks.fuzz --only vnnlib2 --engine atheris

Inputs are made from valid ones by flipping, cutting, repeating, joining and replacing bytes and words; a seed repeats
them. With atheris (pip install 'surebound[fuzz]') the search is led by coverage instead. What is found is written to
--out.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import random
import sqlite3
import struct
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from surebound.errors import SureboundError

Target = Callable[[bytes], object]

QUERY1 = """(declare-const X_0 Real) (declare-const X_1 Real) (declare-const Y_0 Real) (declare-const Y_1 Real)
(assert (>= X_0 -0.5)) (assert (<= X_0 1e-1)) (assert (or (and (<= X_1 1) (>= X_1 0)) (and (= X_1 2.5))))
(assert (>= (+ (* 2.0 Y_0) (- Y_1)) 0.25)) ; a comment
"""
QUERY2 = """(vnnlib-version <2.0>)
(declare-network N (declare-input X float32 [1,2]) (declare-hidden H real [3] "h0") (declare-output Y float32 [1,2]))
(declare-network M (equal-to N) (declare-input Z float32 [1,2]) (declare-output W float32 [1,2]))
(assert (and (>= X[0,0] -0.5) (<= X[0,0] 0.5) (== X[0,1] Z[0,1]) (or (< Y[0,0] W[0,1]) (!= Y[0,1] 0.0015))))
"""
WORDS = [
    b"(",
    b")",
    b"1e999999",
    b"-0",
    b"nan",
    b"X_99999999",
    b"[0,99999999999]",
    b"<=",
    b"or",
    b"and",
    b'"',
    b"\0",
    b"\xff\xfe",
    b"1/0",
    b"\x7f\xff\xff\xff",
    b"((((((((((",
    b"=",
    b"[",
    b"]",
    b"\n",
    b"0.1",
    b"declare-const",
]


def _vnnlib(content: bytes) -> object:
    from surebound.errors import QueryError
    from surebound.vnnlib.text import parse_query

    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:  # as a file it would be refused so
        raise QueryError("no text") from error
    return parse_query(text)


def _onnx(content: bytes) -> object:
    from surebound.graph.onnx.file import parse_model
    from surebound.graph.onnx.importer import network_of

    return network_of(parse_model(content))


def _idx(content: bytes) -> object:
    from surebound.data.files import reading
    from surebound.data.idx import array_of

    path = Path("images-idx3-ubyte")
    with reading(path):
        array = array_of(io.BytesIO(content), 3, path)
    if array.numpy().tobytes() != content[16:]:
        raise RuntimeError("other bytes than the file's")
    return array


def _toml(content: bytes) -> object:
    from surebound.errors import ConfigError
    from surebound.experiment.config import Config

    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:  # as a file it would be refused so
        raise ConfigError("no text") from error
    config = Config.from_toml(text)
    if Config.from_toml(config.to_toml()) != config:
        raise RuntimeError("what is written of a configuration is another one")
    return config


def _store(content: bytes) -> object:
    return _stored(content, ())


def _rows(content: bytes) -> object:
    """Write a row of which one value is drawn, sealed or not, into a store that is in order, and read all of it."""
    from surebound.verify.store_rows import COLUMNS, sealed

    names = [*COLUMNS.split(", "), "read_as"]
    place, kind, seal, rest = *(content + bytes(3))[:3], content[3:]
    text = rest.decode("utf-8", "replace")
    kinds = (None, int.from_bytes(rest[:8], "little", signed=True), struct.unpack("<d", (rest + bytes(8))[:8])[0], text)
    owner, row = _kept_row(seal // 2)
    times, place = names.index("stage_seconds"), place % len(names)
    row[place] = (*kinds, rest, zlib.compress(rest))[kind % 6]
    if place == times:
        try:
            made = json.loads(text)
        except (ValueError, RecursionError):
            made = text
        row[times] = made if seal % 2 else text
    elif seal % 2 == 0:
        row[times] = json.dumps(row[times])
    return _stored(store_file(), sealed(owner, row) if seal % 2 else row)


def _kept_row(number: int) -> tuple[tuple[str, str], list[object]]:
    """Return what the small store is about, and one of its rows as it was before it was sealed."""
    from surebound.verify.store_rows import COLUMNS

    if not _rows_made:
        connection = sqlite3.connect(":memory:")
        connection.deserialize(store_file())
        (owner,) = connection.execute("SELECT weights, spec FROM subject")
        for found in connection.execute(f"SELECT {COLUMNS}, read_as FROM result"):
            row = list(found)
            row[9] = json.loads(row[9])["times"]
            _rows_made.append((owner, row))
        connection.close()
    owner, row = _rows_made[number % len(_rows_made)]
    return owner, list(row)


def _stored(content: bytes, row: Sequence[object]) -> object:
    """Read a store's bytes in memory, as ``Store.read`` does a file; a row given replaces all that it holds."""
    from surebound.verify.sqlite_file import check, translated
    from surebound.verify.store import Store
    from surebound.verify.store_rows import COLUMNS

    path, connection = Path("results.db"), sqlite3.connect(":memory:", isolation_level=None)
    with translated(path):
        if content:  # of no bytes sqlite3 makes a MemoryError; an empty file is an empty database
            connection.deserialize(content)
    if row:
        try:
            connection.execute("DELETE FROM result")
            places = ", ".join("?" * len(row))
            connection.execute(f"INSERT INTO result (subject, {COLUMNS}, read_as) VALUES (1, {places})", row)
        except (sqlite3.Error, OverflowError):  # SQLite itself refuses the row
            connection.close()
            return None
    with Store(path, connection, None) as store:
        with translated(path):
            check(connection, path)
        return store.radii(), list(store.records())


_made: dict[str, bytes] = {}
_rows_made: list[tuple[tuple[str, str], list[object]]] = []


def store_file() -> bytes:
    """Return the bytes of a small results store."""
    from fractions import Fraction

    import torch

    from surebound.search.record import Record
    from surebound.verdict import Status, Verdict
    from surebound.verify.identity import Identity
    from surebound.verify.store import Store

    if "store" not in _made:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "results.db"
            verdicts = [
                Verdict(Status.ROBUST, "mip", -0.5),
                Verdict(Status.FALSIFIED, "pgd", witness=torch.ones(2)),
                Verdict(Status.UNKNOWN, "crown"),
            ]
            with Store.open(path, Identity("w", "s", "c")) as store:
                store.add([Record(i, 0, 0, Fraction(1, 10), v, "e") for i, v in enumerate(verdicts)], "fast")
            connection = sqlite3.connect(path)
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.close()
            _made["store"] = path.read_bytes()
    return _made["store"]


def toml_files() -> list[bytes]:
    """Return the configurations of two presets."""
    from surebound.experiment.presets import preset

    return [preset(name).to_toml().encode() for name in ("digits-ibp", "digits-adversarial")]


def onnx_files() -> list[bytes]:
    """Return small ONNX files."""
    from surebound.audit.draw import Draw
    from surebound.audit.files import drawn_file
    from surebound.audit.text import loaded

    found = []
    for number in range(12):
        with loaded(str(drawn_file(Draw("fuzz", number)))) as script:
            found.append(script.content)
    return found


TARGETS: dict[str, tuple[Target, Callable[[], list[bytes]]]] = {
    "vnnlib1": (_vnnlib, lambda: [QUERY1.encode()]),
    "vnnlib2": (_vnnlib, lambda: [QUERY2.encode()]),
    "onnx": (_onnx, onnx_files),
    "idx": (_idx, lambda: [b"\0\0\x08\x03" + b"\0\0\0\x02\0\0\0\x02\0\0\0\x01" + bytes(range(4))]),
    "toml": (_toml, toml_files),
    "store": (_store, lambda: [store_file()]),
    "rows": (_rows, lambda: [bytes((place, place % 6, place % 2)) + b"1/10" for place in range(17)]),
}


def mutated(content: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """Change an input in one to four ways."""
    made = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(made) + 1)
        to = min(len(made), at + draw.choice((1, 1, 2, 4, 16, 64)))
        kind = draw.randrange(7)
        if kind == 0 and at < len(made):
            made[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            made[at:to] = b""
        elif kind == 2:
            made[at:at] = made[at:to] * draw.choice((1, 2, 8))
        elif kind == 3:
            made[at:at] = draw.choice(WORDS)
        elif kind == 4:
            made[at:to] = draw.choice(WORDS)
        elif kind == 5:
            other = draw.choice(others)
            begin = draw.randrange(len(other) + 1)
            made[at:to] = other[begin : begin + 32]
        else:
            made[at:to] = draw.randbytes(to - at)
    return bytes(made[: 1 << 16])


def tried(target: Target, content: bytes) -> str:
    """Return what is wrong with how an input was taken; nothing if it was read or refused by an error of ours."""
    try:
        target(content)
    except SureboundError:
        return ""
    except Exception as error:
        ours = [each for each in traceback.extract_tb(error.__traceback__) if "surebound" in each.filename]
        place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "elsewhere"
        return f"{type(error).__name__} at {place}: {str(error)[:100]}"
    return ""


def own_engine(name: str, count: int, seed: int, out: Path | None, seconds: float) -> dict[str, bytes]:
    """Try mutated inputs; return one input for every place that breaks."""
    target, corpus = TARGETS[name]
    known, draw, found = corpus(), random.Random(f"{name} {seed}"), dict[str, bytes]()
    began, done = time.monotonic(), 0
    while done < count:
        done += 1
        content = mutated(draw.choice(known), known, draw)
        what = tried(target, content)
        if what and what.split(":")[0] not in {key.split(":")[0] for key in found}:
            found[what] = content
            print(f"{name}: {what}", flush=True)
            if out is not None:
                out.mkdir(parents=True, exist_ok=True)
                (out / f"{name}-{len(found)}").write_bytes(content)
        if len(known) < 200 and draw.random() < 0.002:
            known.append(content)  # changes upon changes
        if time.monotonic() - began > seconds:
            break
    spent = time.monotonic() - began
    print(f"{name}: {done} inputs, {done / max(spent, 1e-9):.0f}/s, {len(found)} places that break", flush=True)
    return found


def led_by_coverage(name: str, count: int, seed: int, out: Path | None, seconds: float) -> None:
    """Hand a target over to atheris, which ends the process: with an error at the first input that breaks something."""
    atheris = importlib.import_module("atheris")
    target, corpus = TARGETS[name]
    with atheris.instrument_imports(include=["surebound", "tomllib"]):
        seeds = corpus()
        tried(target, seeds[0])  # imports what it needs

    def one(content: bytes) -> None:
        what = tried(target, content)
        if what:
            raise RuntimeError(what)

    folder = Path(tempfile.mkdtemp(prefix=f"surebound-fuzz-{name}-"))  # atheris ends without cleaning up
    for number, content in enumerate(seeds):
        (folder / str(number)).write_bytes(content)
    options = [f"-runs={count}", f"-seed={seed + 1}", "-print_final_stats=1", "-timeout=300", "-len_control=0"]
    if seconds < float("inf"):
        options.append(f"-max_total_time={int(seconds)}")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        options.append(f"-artifact_prefix={out}/{name}-")
    atheris.Setup([sys.argv[0], str(folder), *options], one)
    atheris.Fuzz()


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=TARGETS, action="append", help="only this format; may be given several times")
    parser.add_argument("--inputs", type=int, default=100_000, help="for each format")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for each format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=("own", "atheris"), default="own")
    parser.add_argument("--out", type=Path, help="a directory for inputs that break something")
    given = parser.parse_args()
    chosen = given.only or list(TARGETS)
    if given.engine == "atheris":
        if len(chosen) != 1:
            parser.error("atheris takes one format at a time: name it with --only")
        led_by_coverage(chosen[0], given.inputs, given.seed, given.out, given.seconds)
    broken = [own_engine(name, given.inputs, given.seed, given.out, given.seconds) for name in chosen]
    return 1 if any(broken) else 0


if __name__ == "__main__":
    sys.exit(main())
