"""From a finished run to a packaged network: its weights, and its facts as JSON beside them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from pathlib import Path

from surebound import zoo
from surebound.errors import InputError, RunError, StoreError
from surebound.experiment.codec import encode
from surebound.experiment.rundir import RunDirectory
from surebound.verify import Results, Store
from surebound.verify.identity import weights_hash

#: With fewer images an error of half of them is uncertain by more than three points of a hundred.
FIRST = 1_000


def portable(command: str) -> str:
    """A run's command without what belongs to the machine it ran on: its script, directories, threads, workers."""
    words, kept = shlex.split(command)[1:], ["surebound"]
    skip = False
    for word in words:
        own = word.split("=")[0] in ("--out", "--data-dir", "--threads", "--reuse", "--jobs")
        if not (skip or own):
            kept.append(word)
        skip = own and "=" not in word
    return shlex.join(kept)


def publish(run_path: Path, name: str, directory: Path | None = None) -> Path:
    """Copy a finished run's final weights and results into the package (or `directory`) under `name`."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name):
        raise InputError(f"a network's name has small letters, digits, dots and dashes, got {name!r}")
    run, target = RunDirectory.open(run_path), directory or zoo.NETS_DIRECTORY
    results, environment = run.read_json("results.json"), run.read_json("environment.json")
    if not run.final.is_file() or not results:
        raise RunError(f"the run {run_path} is not finished: it has no final weights or no results yet")
    config = run.config
    if config.plan.norm != "linf":
        raise RunError(
            f"the run {run_path} was trained against balls of {config.plan.norm}; packaged ones are about l-infinity"
        )
    if config.data.hold_out:
        raise RunError(
            f"the run {run_path} was measured on {config.data.hold_out} training images that it held out; a packaged "
            "network's errors are of test images: train it without --hold-out"
        )
    record = {
        "architecture": environment["architecture"],
        "data": config.data.name,
        "preset": config.name,
        "eps_train": str(config.plan.eps_train),
        "seed": config.plan.seed,
        "command": portable(environment.get("command", "")),
        "commit": environment.get("commit"),
        "core_hours": core_hours(run),
        "processor": environment.get("processor"),
        "versions": environment.get("packages", {}),
        "config": {key: encode(getattr(config, key)) for key in ("data", "model", "method", "plan")},
        "results": results,
    }
    try:
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(run.final, target / f".{name}.partial")
        os.replace(target / f".{name}.partial", target / f"{name}.safetensors")
        (target / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write the network into {target}: {error}") from error
    return target / f"{name}.safetensors"


def core_hours(run: RunDirectory) -> float | None:
    """Add up what the steps of a run took, times its threads and processes; None without a record of its speed."""
    environment, batch, seconds, before = run.read_json("environment.json"), run.config.plan.batch_size, 0.0, 0
    rows = run.metrics.read_text(encoding="utf-8").splitlines() if run.metrics.is_file() else []
    for row in map(json.loads, rows):
        if row["kind"] == "training" and row["step"] > before and row.get("samples_per_second", 0) > 0:
            seconds += (row["step"] - before) * batch / row["samples_per_second"]
            before = row["step"]
    workers = int(environment.get("threads", 1)) * int(environment.get("processes", 1))
    return round(seconds * workers / 3600, 2) if before else None


def publish_verification(directory: Path, name: str) -> Path:
    """Note beside the packaged network `name` what `surebound verify` found about it, radius by radius.

    requirement: the results are of this network's weights, and of all test images or of the first `FIRST` or more;
        of how many is noted with them
    """
    entry = zoo.entry(name)
    path, facts = directory / "results.db", zoo.NETS_DIRECTORY / f"{name}.json"
    with Store.read(path) as store:
        if store.weights() != weights_hash(zoo.load(name).state_dict()):
            raise StoreError(f"{path} holds results of other weights than those of {name}; verify {name} itself")
        if regions := store.regions():
            raise StoreError(f"{path} holds results of {regions}; the errors of {name} are of l-infinity balls")
        codes, results = store.codes(), Results(tuple(store.records()), directory)
    record = json.loads(facts.read_text(encoding="utf-8"))
    noted = record.setdefault("verification", {})
    for radius in results.radii:
        found = results.at(radius)
        summary = found.summary()
        if summary.total < min(FIRST, entry.results["images"]) or {r.index for r in found} != set(range(summary.total)):
            raise StoreError(
                f"{path} has {summary.total:,} images at {radius}, the errors of {name} are of "
                f"{entry.results['images']:,}; let `surebound verify` decide all of them, or the first {FIRST:,}"
            )
        noted[str(radius)] = {
            "images": summary.total,
            "clean_error": summary.clean_error,
            "pgd_error": summary.pgd_error,
            "falsified_error": summary.falsified_error,
            "verified_error": summary.verified_error,
            "float_sound_verified_error": summary.float_sound_error,
            "code": codes,
        }
    facts.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return facts
