"""A sample of certificates of each packaged network, packaged with it: made by one command, checked by another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from surebound import zoo
from surebound.certificates.archive import StoredCertificate, entries, pack_archive
from surebound.certificates.explain import kinds
from surebound.certificates.files import network_digest
from surebound.certificates.write import Claims
from surebound.errors import InputError
from surebound.graph import program_of

#: Bytes of certificates in a sample, at most.
SAMPLE_BYTES = 300_000


def packaged_network(name: str) -> bytes:
    """Return the network of certificates about a packaged network, made from the weights in the package."""
    entry = zoo.entry(name)
    model = zoo.load(name).requires_grad_(False)
    return Claims.about(program_of(model, torch.zeros(1, *entry.architecture.in_shape))).network


def sample_of(name: str) -> Path:
    """Return the packaged sample of a network's certificates; InputError if it has none, or another than is noted."""
    path, noted = _path(name), zoo.entry(name).certificates
    if noted is None or not path.is_file():
        raise InputError(f"no certificates of {name} are packaged; `surebound zoo --certified DIR --as {name}` does it")
    if hashlib.sha256(path.read_bytes()).hexdigest() != noted["sha256"]:
        raise InputError(f"{path} is not the sample that the network's record names; install the package again")
    return path


def publish_sample(directory: Path, name: str) -> Path:
    """Package certificates of a network: kinds of proof in turn, as far as they fit; note the sample's digest."""
    entry, found = zoo.entry(name), entries(directory)
    if not found:
        raise InputError(f"{directory} holds no certificates; `surebound verify {name} --certificates` writes them")
    if network_digest(found[0].read()[1]) != network_digest(packaged_network(name)):
        raise InputError(f"{directory} holds certificates of another network than the packaged {name}")
    path = _path(name)
    count = pack_archive(directory, path, [each.name for each in sorted(_chosen(found), key=lambda e: e.name)],
                         networks=False)  # fmt: skip
    record_file = zoo.NETS_DIRECTORY / f"{entry.name}.json"
    record: dict[str, Any] = json.loads(record_file.read_text(encoding="utf-8"))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    record["certificates"] = {"sha256": digest, "count": count, "of": len(found)}
    record_file.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return path


def _path(name: str) -> Path:
    return zoo.NETS_DIRECTORY / f"{name}.proofs.zip"


def _chosen(found: list[StoredCertificate]) -> Iterator[StoredCertificate]:
    """Yield certificates whose sizes add up to the limit: one of each kind of proof after the other."""
    by_kind: dict[str, list[StoredCertificate]] = {}
    for each in found:
        by_kind.setdefault(kinds(each.read()[0]), []).append(each)
    left, queues = SAMPLE_BYTES, [iter(each) for _, each in sorted(by_kind.items())]
    while queues:
        for queue in list(queues):
            following = next(queue, None)
            if following is None:
                queues.remove(queue)
                continue
            size = len(following.read()[0])
            if size <= left:
                left -= size
                yield following
            elif left < SAMPLE_BYTES // 50:
                return
