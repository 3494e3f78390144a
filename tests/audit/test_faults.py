"""The audit bites: each fault that once gave a wrong verdict is put back, and the audit finds it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from surebound import flags, graph
from surebound.audit import Find, audit
from surebound.bounds import by_example
from surebound.errors import SureboundError
from surebound.graph.fingerprint import Fingerprint
from surebound.graph.onnx import export
from surebound.graph.onnx.call import TRANSLATIONS
from surebound.verify import run
from surebound.vnnlib import check, files, instances

Patch = pytest.MonkeyPatch


def _autocast(patch: Patch) -> None:
    """Bounds are computed under the caller's autocast."""
    patch.setattr(flags, "_DEVICES", ())


def _batch_sizes(patch: Patch) -> None:
    """A trace is compared with the module at no batch size."""
    patch.setattr(sys.modules["surebound.graph.trace"], "check_trace", lambda *_: None)
    patch.setattr(graph, "check_trace", lambda *_: None)


def _stale(patch: Patch) -> None:
    """A network is never traced again."""
    patch.setattr(Fingerprint, "__eq__", lambda self, other: True)


def _resize(patch: Patch) -> None:
    """The scales of a Resize are cut to whole numbers, and nothing is compared with onnxruntime."""

    def careless(call: Any) -> Any:
        x, scales = call.image(call.x), call.constant(2).flatten().tolist()
        wanted = [int(n * scale) for n, scale in zip(call.x.shape[-len(scales) :], scales, strict=True)]
        return call.from_image(call.emit("upsample_nearest2d.default", x, wanted[-2:]))

    patch.setitem(TRANSLATIONS, "Resize", careless)
    patch.setattr(check, "check_operators", lambda env: None)
    patch.setattr(check, "check_import", lambda *_: None)


def _examples(patch: Patch) -> None:
    """Only the first and the last example are replaced where it is tried whether examples meet."""

    def seen(program: Any, parameters: Any, batch: int) -> set[str]:
        known, found = by_example._values(program, parameters, batch, None), set()
        for changed in (0, batch - 1):
            other = by_example._values(program, parameters, batch, changed)
            rest = [i for i in (0, batch - 1) if i != changed]
            for name, value in other.items():
                pairs = zip(by_example._parts(known[name]), by_example._parts(value), strict=True)
                if not all(by_example._same(a, b, batch, rest) for a, b in pairs):
                    found.add(name)
        return found

    patch.setattr(by_example, "_seen", seen)
    patch.setattr(by_example, "_by_size", lambda *_: set())  # which came later, and sees it by another sign
    patch.setattr(by_example, "_by_place", lambda *_: set())


def _store(patch: Patch) -> None:
    """Results belong to what a network prints."""
    patch.setattr(run, "network_digest", lambda model, x: repr(model))


def _instances(patch: Patch) -> None:
    """A file that cannot be read keeps the result that is known of it."""

    def missing(listed: list[Any], store: Any, certificates: Any) -> Iterator[Any]:
        done = store.done(0, "query")
        for each in listed:
            try:
                digest = instances._digest(each)
            except SureboundError:
                continue
            if done.get(each.index) != digest:
                yield instances._record(each, instances._verdict(each, certificates), digest)

    patch.setattr(instances, "_missing", missing)


def _softplus(patch: Patch) -> None:
    """An exported softplus loses its beta, and the file is not compared with the network."""

    def careless(call: Any) -> Any:
        call.args.get("beta"), call.args.get("threshold")
        return call.emit("Softplus", call.args["self"])

    patch.setitem(export.EXPORTS, "aten.softplus.default", careless)
    patch.setattr(files, "_check_export", lambda *_: None)


FAULTS: dict[str, tuple[Callable[[Patch], None], str, str]] = {
    "autocast": (_autocast, "changes", "do not hold an execution"),
    "batch sizes": (_batch_sizes, "batches", "do not hold an execution"),
    "stale traces": (_stale, "changes", "do not hold an execution"),
    "resizing": (_resize, "files", "onnxruntime is outside"),
    "examples that meet": (_examples, "batches", "do not hold an execution"),
    "stores": (_store, "stores", "a store answers for another network"),
    "instances": (_instances, "instances", "after a change"),
    "exports": (_softplus, "exports", "onnxruntime is outside"),
}

#: Trials that the audit has to find a fault in.
MOST = 150

#: Seeds that meet a fault early, where the first one takes long.
SEEDS = {"batch sizes": 2, "exports": 3}


def _hunt(generator: str, what: str, seed: int) -> Find | None:
    for number in range(MOST):
        finds = audit(seed=seed, only=(generator,), trials=1, first=number).finds
        found = next((find for find in finds if what in find.what), None)
        if found is not None:
            return found
    return None


@pytest.mark.parametrize("name", FAULTS)
def test_the_audit_finds_a_fault_that_was_put_back(name: str, monkeypatch: Patch) -> None:
    fault, generator, what = FAULTS[name]
    fault(monkeypatch)
    seed = SEEDS.get(name, 1)
    found = _hunt(generator, what, seed)
    assert found is not None, f"{MOST} trials of {generator} did not find it"
    print(found)
    monkeypatch.undo()
    assert not audit(seed=seed, only=(generator,), trials=1, first=found.seed[1]).finds
