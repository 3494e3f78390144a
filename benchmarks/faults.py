"""Faults and load: kill -9 at random moments, two processes on one store, flipped bytes.

    python -m benchmarks.faults --moments 100 --bytes 300

A training that is killed and resumed ends with the same bits; a verification that is killed and started again has the
same verdicts, none lost and none twice; a damaged file gives an error or the same result.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from safetensors import SafetensorError

from surebound.errors import SureboundError

TRAINING = ("digits-ibp", "--steps", "40", "--batch-size", "20", "--threads", "1", "--checkpoint-seconds", "0")
VERIFYING = ("--eps", "1/20", "--first", "60", "--cascade", "fast")


def command(*arguments: str) -> list[str]:
    """Return the command line of surebound with these arguments, in this Python."""
    return [sys.executable, "-m", "surebound", *arguments]


def finish(*arguments: str) -> float:
    """Run a command to its end; return how long it took."""
    began = time.monotonic()
    done = subprocess.run(command(*arguments), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr[-800:]}")
    return time.monotonic() - began


def kill_at(moment: float, *arguments: str) -> None:
    """Start a command and kill it after so many seconds."""
    with subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=moment)
        process.kill()


def digest(path: Path) -> str:
    """Return a hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def verdicts(folder: Path) -> list[tuple[object, ...]]:
    """Return what a store holds, without times."""
    from surebound.verify.store import Store

    (path,) = folder.rglob("results.db")
    with Store.read(path) as store:
        return [
            (each.index, each.eps, each.example, each.verdict.status, each.verdict.stage, each.verdict.bound)
            for each in store.records()
        ]


def killed_trainings(folder: Path, moments: Sequence[float], seconds: float) -> Iterator[str]:
    """Kill a training at shares of its time and resume it; yield what went wrong."""
    expected = digest(folder / "straight" / "final.safetensors")
    for i, share in enumerate(moments):
        path = folder / f"killed{i}"
        kill_at(share * seconds, "train", *TRAINING, "--out", str(path))
        if not (path / "final.safetensors").exists():
            begun = (path / "config.toml").exists()
            finish(*(("resume", str(path)) if begun else ("train", *TRAINING, "--out", str(path))))
        if digest(path / "final.safetensors") != expected:
            yield f"a training that was killed after {share * seconds:.2f} s ends with other bits"
        shutil.rmtree(path)


def killed_verifications(folder: Path, moments: Sequence[float], seconds: float) -> Iterator[str]:
    """Kill a verification at shares of its time and start it again; yield what went wrong."""
    expected = verdicts(folder / "verified")
    for i, share in enumerate(moments):
        arguments = ("verify", str(folder / "straight"), *VERIFYING, "--out", str(folder / f"again{i}"))
        kill_at(share * seconds, *arguments)
        finish(*arguments)
        if verdicts(folder / f"again{i}") != expected:
            yield f"a verification that was killed after {share * seconds:.2f} s has other verdicts"
        shutil.rmtree(folder / f"again{i}")


def two_processes(folder: Path) -> Iterator[str]:
    """Verify into one store by two processes at once; yield what went wrong."""
    arguments = command("verify", str(folder / "straight"), *VERIFYING, "--out", str(folder / "shared"))
    started = [subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2)]
    codes = [process.wait() for process in started]
    if any(codes) or verdicts(folder / "shared") != verdicts(folder / "verified"):
        yield f"two processes on one store ended with {codes}, or with other verdicts"


def flipped(path: Path, read: Callable[[], object], draw: random.Random, count: int) -> Iterator[str]:
    """Flip random bits of a file, one at a time; yield where reading it gave another result instead of an error."""
    content, expected = path.read_bytes(), read()
    try:
        for _ in range(count):
            place, bit = draw.randrange(len(content)), 1 << draw.randrange(8)
            path.write_bytes(content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :])
            try:
                if read() != expected:
                    yield f"{path.name}: byte {place} flipped by {bit} gives another result without an error"
            except (SureboundError, SafetensorError):
                continue
    finally:
        path.write_bytes(content)


def prepare(folder: Path) -> tuple[float, float]:
    """Train and verify once without disturbance; return how long each took."""
    trained = finish("train", *TRAINING, "--out", str(folder / "straight"))
    return trained, finish("verify", str(folder / "straight"), *VERIFYING, "--out", str(folder / "verified"))


def damaged(folder: Path, draw: random.Random, count: int) -> Iterator[str]:
    """Flip bits of a store, of the weights of a run and of a checkpoint."""
    from surebound.train.checkpoint import CheckpointStore, read_tensors

    def weights(path: Path) -> object:
        return {name: value.numpy().tobytes() for name, value in read_tensors(path).items()}

    def checkpoint() -> object:
        found = CheckpointStore(folder / "straight" / "checkpoints").read(newest)
        return found.step, sorted((name, value.numpy().tobytes()) for name, value in found.weights.items())

    (store,) = (folder / "verified").rglob("results.db")
    final = folder / "straight" / "final.safetensors"
    newest = sorted((folder / "straight" / "checkpoints").glob("step-*"))[-1]
    yield from flipped(store, lambda: verdicts(folder / "verified"), draw, count)
    yield from flipped(final, lambda: weights(final), draw, count)
    for name in ("weights.safetensors", "optimiser.safetensors", "state.json"):
        yield from flipped(newest / name, checkpoint, draw, count)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=100, help="how often to kill a training, and a verification")
    parser.add_argument("--bytes", type=int, default=300, help="how many bits of each kind of file to flip")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    draw, wrong = random.Random(given.seed), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        training, verification = prepare(folder)
        print(f"undisturbed: training {training:.1f} s, verification {verification:.1f} s", flush=True)
        moments = [draw.random() for _ in range(given.moments)]
        parts: dict[str, Iterator[str]] = {
            "two processes": two_processes(folder),
            "flipped bits": damaged(folder, draw, given.bytes),
            "killed verifications": killed_verifications(folder, moments, verification),
            "killed trainings": killed_trainings(folder, moments, training),
        }
        for part, found in parts.items():
            lines = list(found)
            wrong += len(lines)
            print("\n".join([f"{part}: {len(lines)} wrong", *lines]), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
