"""A list of instances (network, query, time limit), decided one after the other into a results store; resumable."""

from __future__ import annotations

import csv
import glob
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch

from surebound.certificates.directory import missing, note_missing
from surebound.errors import GraphError, QueryError, StoreError, SureboundError
from surebound.graph.onnx.file import Model, read_bytes, read_model
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
    certificates: str | Path | None = None,
    report: Callable[[Record], None] | None = None,
) -> list[Record]:
    """Decide what the store in the directory ``out`` has not settled yet; every record of the list, in order.

    ``certificates``: a directory for the certificates of unsat lines, in a folder for each network; a line that has
    none is named in its missing.txt, with the reason.
    What is settled counts only for the files as they are now: a line whose files cannot be read or imported any more
    is an error, whatever was known of them before.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    names = [(each.onnx.name, each.vnnlib.name) for each in instances]
    listed = hashlib.sha256(repr(names).encode()).hexdigest()[:16]
    identity = Identity("several networks", f"VNN-LIB instances {listed}: no assignment exists", code_version())
    with Store.open(out / STORE_NAME, identity, mix=mix) as store:
        for record in _missing(instances, store, None if certificates is None else Path(certificates)):
            store.add([record], _CASCADE)
            if report is not None:
                report(record)
        wanted = {each.index for each in instances}
        return [record for record in store.records(eps=Fraction(0)) if record.index in wanted]


def _missing(instances: list[Instance], store: Store, certificates: Path | None) -> Iterator[Record]:
    done = store.done(Fraction(0), _CASCADE)
    robust = {r.index for r in store.records(eps=Fraction(0)) if r.verdict.status is Status.ROBUST}
    for each in instances:
        try:
            digest = _digest(each)
        except SureboundError as error:
            yield _record(each, Verdict(Status.ERROR, "read", detail=str(error)), "")
            continue
        if done.get(each.index) != digest or (each.index in robust and not _certified(each, certificates)):
            yield _record(each, _verdict(each, certificates), digest)


def _digest(instance: Instance) -> str:
    """Tells that a line still means the same files and the same time."""
    found = hashlib.sha256(f"{instance.seconds}".encode())
    for path in (instance.onnx, instance.vnnlib):
        found.update(hashlib.sha256(read_bytes(path)).digest())
    return found.hexdigest()[:16]


def _record(instance: Instance, verdict: Verdict, digest: str) -> Record:
    return Record(instance.index, -1, -1, Fraction(0), verdict, digest, ((verdict.stage, verdict.seconds),))


def _verdict(instance: Instance, certificates: Path | None) -> Verdict:
    try:
        query = read_query(instance.vnnlib)
        needed = [each.name for each in query.networks if each.equal_to is None]
        if len(needed) != 1:
            raise QueryError(f"{instance.vnnlib} has {len(needed)} networks; a list of instances names one each")
        answer = _answer(instance, query, {needed[0]: read_model(instance.onnx)}, certificates)
    except SureboundError as error:
        return Verdict(Status.ERROR, "read", detail=str(error))
    return _stored(query, answer)


def _place(instance: Instance, certificates: Path) -> tuple[Path, str]:
    """Return the folder and the name of a line's certificate: a folder holds those of one network."""
    content = hashlib.sha256(read_bytes(instance.onnx)).hexdigest()[:12]
    folder = certificates / f"{instance.onnx.name.split('.onnx')[0]}-{content}"
    return folder, f"{instance.index:05d}-{instance.vnnlib.name.split('.vnnlib')[0]}"


def _certified(instance: Instance, certificates: Path | None) -> bool:
    """Has a line its certificates, or a note why not, or are none wanted?"""
    if certificates is None:
        return True
    folder, name = _place(instance, certificates)
    return name in missing(folder) or any(folder.glob(f"{glob.escape(name)}*.cert"))


def _answer(instance: Instance, query: Query, models: dict[str, Model], certificates: Path | None) -> Answer:
    """Decide a line, with a certificate if its network can have one."""
    if certificates is None:
        return decide(query, models, instance.seconds)
    folder, name = _place(instance, certificates)
    try:
        return decide(query, models, instance.seconds, certificates=folder, name=name)
    except (GraphError, StoreError) as error:  # of an operator that the checker does not know, or merged otherwise
        answer = decide(query, models, instance.seconds)
        if answer.status is Status.ROBUST:
            note_missing(folder, name, str(error))
        return answer


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
