"""A list of instances (network, query, time limit), decided one after the other into a results store; resumable."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch

from surebound.errors import QueryError, SureboundError
from surebound.graph.onnx.file import read_bytes, read_model
from surebound.search.record import Record
from surebound.verdict import Status, Verdict
from surebound.verify.identity import Identity, code_version
from surebound.verify.store import Store
from surebound.vnnlib.query import Query
from surebound.vnnlib.solve import Answer, decide
from surebound.vnnlib.text import read_query

STORE_NAME = "instances.db"
_CASCADE = "query"


@dataclass(frozen=True)
class Instance:
    """One line of an instance list."""

    index: int
    onnx: Path
    vnnlib: Path
    seconds: float


def read_instances(path: str | Path, folder: str | Path | None = None) -> list[Instance]:
    """Read lines NETWORK,QUERY,SECONDS; files are looked for in ``folder`` (default: beside the list), also as .gz."""
    path = Path(path)
    root = path.parent if folder is None else Path(folder)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = [line for line in csv.reader(file) if any(cell.strip() for cell in line)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise QueryError(f"{path} cannot be read as a list of instances: {error}") from error
    found = []
    for index, line in enumerate(lines):
        try:
            network, query, seconds = (cell.strip() for cell in line[:3])
            found.append(Instance(index, _file(root, network), _file(root, query), float(seconds)))
        except ValueError:
            raise QueryError(
                f"{path}, line {index + 1}: {','.join(line)[:80]!r}; each line is NETWORK,QUERY,SECONDS"
            ) from None
    if not found:
        raise QueryError(f"{path} lists no instances")
    return found


def _file(root: Path, name: str) -> Path:
    plain = root / name
    packed = plain.with_name(plain.name + ".gz")
    return packed if not plain.exists() and packed.exists() else plain


def run_instances(
    instances: list[Instance],
    out: str | Path,
    *,
    mix: bool = False,
    report: Callable[[Record], None] | None = None,
) -> list[Record]:
    """Decide what the store in the directory ``out`` has not settled yet; every record of the list, in order.

    What is settled counts only for the files as they are now: a line whose files cannot be read or imported any more
    is an error, whatever was known of them before.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    names = [(each.onnx.name, each.vnnlib.name) for each in instances]
    listed = hashlib.sha256(repr(names).encode()).hexdigest()[:16]
    identity = Identity("several networks", f"VNN-LIB instances {listed}: no assignment exists", code_version())
    with Store.open(out / STORE_NAME, identity, mix=mix) as store:
        for record in _missing(instances, store):
            store.add([record], _CASCADE)
            if report is not None:
                report(record)
        wanted = {each.index for each in instances}
        return [record for record in store.records(eps=Fraction(0)) if record.index in wanted]


def _missing(instances: list[Instance], store: Store) -> Iterator[Record]:
    done = store.done(Fraction(0), _CASCADE)
    for each in instances:
        try:
            digest = _digest(each)
        except SureboundError as error:
            yield _record(each, Verdict(Status.ERROR, "read", detail=str(error)), "")
            continue
        if done.get(each.index) != digest:
            yield _record(each, _verdict(each), digest)


def _digest(instance: Instance) -> str:
    """Tells that a line still means the same files and the same time."""
    found = hashlib.sha256(f"{instance.seconds}".encode())
    for path in (instance.onnx, instance.vnnlib):
        found.update(hashlib.sha256(read_bytes(path)).digest())
    return found.hexdigest()[:16]


def _record(instance: Instance, verdict: Verdict, digest: str) -> Record:
    return Record(instance.index, -1, -1, Fraction(0), verdict, digest, ((verdict.stage, verdict.seconds),))


def _verdict(instance: Instance) -> Verdict:
    try:
        query = read_query(instance.vnnlib)
        needed = [each.name for each in query.networks if each.equal_to is None]
        if len(needed) != 1:
            raise QueryError(f"{instance.vnnlib} has {len(needed)} networks; a list of instances names one each")
        answer = decide(query, {needed[0]: read_model(instance.onnx)}, instance.seconds)
    except SureboundError as error:
        return Verdict(Status.ERROR, "read", detail=str(error))
    return _stored(query, answer)


def _stored(query: Query, answer: Answer) -> Verdict:
    witness = None
    if answer.status is Status.FALSIFIED:
        inputs = [answer.assignment[v.name].reshape(-1) for n in query.networks for v in n.inputs]
        witness = torch.from_numpy(np.concatenate(inputs))
    return Verdict(
        answer.status,
        answer.stage,
        bound=0.0 if answer.status is Status.ROBUST else float("inf"),
        witness=witness,
        seconds=answer.seconds,
        float_sound=answer.float_sound,
        detail=answer.detail,
    )
