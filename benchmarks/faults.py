"""Faults and load: kill -9 at random moments, two processes on one store, flipped bytes.

    python -m benchmarks.faults --moments 100 --bytes 300

A training that is killed and resumed ends with the same bits; a verification that is killed and started again has the
same verdicts, none lost and none twice; a damaged file gives an error or the same result.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import random
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from unittest import mock

from safetensors import SafetensorError

from surebound.errors import SureboundError

TRAINING = ("digits-ibp", "--steps", "40", "--batch-size", "20", "--threads", "1", "--checkpoint-seconds", "0")
VERIFYING = ("--eps", "1/20", "--first", "60", "--cascade", "fast")

#: A transaction is on the disk within so many seconds.
WRITTEN = 0.01


def command(arguments: Sequence[str], said: Path, workers: bool, told: Connection | None = None, at: int = 0) -> None:
    """Run a command of surebound in a process of its own, and write what it says to a file.

    Without ``workers`` a verification is made by that process alone: workers would load torch anew.
    ``told`` gets a word when a store is about to run its statement number ``at``, and in the end their number.
    """
    with said.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["surebound", *arguments]
    from surebound.cli import main as run
    from surebound.verify import run as verification
    from surebound.verify.pool import Inline

    if not workers:
        verification.executor_for = lambda work, jobs, cluster: Inline(work)
    seen = list[str]()
    if told is not None:
        _trace_statements(seen, told, at)
    try:
        run()
    finally:
        if told is not None:
            told.send(len(seen))


def _trace_statements(seen: list[str], told: Connection, at: int) -> None:
    """Note the statements of every store that this process opens."""
    from surebound.verify import sqlite_file, store

    def statement(text: str) -> None:
        seen.append(text)
        if len(seen) == at:
            told.send(at)

    def connect(path: Path) -> sqlite3.Connection:
        connection = sqlite_file.connect(path)
        connection.set_trace_callback(statement)
        return connection

    mock.patch.object(store, "connect", connect).start()


class Commands:
    """Starts commands as forks of a process that has loaded what they import, but nothing of surebound.

    Otherwise half of the moments would fall into the loading of torch.
    """

    def __init__(self, folder: Path) -> None:
        self._said = folder / "said.txt"
        self._forks = multiprocessing.get_context("forkserver")
        self._forks.set_forkserver_preload(["torch", "torch.export", "torch._dynamo", "scipy.optimize", "safetensors"])

    def start(self, *arguments: str, workers: bool = False) -> ForkServerProcess:
        """Start a command."""
        process = self._forks.Process(target=command, args=(arguments, self._said, workers))
        process.start()
        return process

    def finish(self, *arguments: str) -> float:
        """Run a command to its end; return how long it took."""
        began = time.monotonic()
        process = self.start(*arguments)
        process.join()
        if process.exitcode:
            said = self._said.read_text(errors="replace")[-800:]
            raise RuntimeError(f"{' '.join(arguments)} ended with {process.exitcode}: {said}")
        return time.monotonic() - began

    def kill_at(self, moment: float, *arguments: str) -> float | None:
        """Start a command and kill it (SIGKILL) after so many seconds; if it had ended, return how long it took."""
        began, process = time.monotonic(), self.start(*arguments)
        process.join(moment)
        took = None if process.exitcode is None else time.monotonic() - began
        process.kill()
        process.join()
        return took

    def statements(self, *arguments: str) -> int:
        """Run a command to its end; return how many statements its stores ran."""
        hear, told = self._forks.Pipe(False)
        process = self._forks.Process(target=command, args=(arguments, self._said, False, told))
        process.start()
        told.close()
        count = int(hear.recv())
        process.join()
        return count

    def kill_in_store(self, at: int, later: float, *arguments: str) -> bool:
        """Start a command and kill it so many seconds after its store's statement ``at``; say whether it was alive."""
        hear, told = self._forks.Pipe(False)
        process = self._forks.Process(target=command, args=(arguments, self._said, False, told, at))
        process.start()
        told.close()
        hear.recv()
        time.sleep(later)
        alive = process.exitcode is None
        process.kill()
        process.join()
        return alive


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


def killed_trainings(commands: Commands, folder: Path, moments: Sequence[float], seconds: float) -> Iterator[str]:
    """Kill a training at shares of its time and resume it; yield what went wrong."""
    expected, alive = digest(folder / "straight" / "final.safetensors"), 0
    for i, share in enumerate(moments):
        path = folder / f"killed{i}"
        took = commands.kill_at(share * seconds, "train", *TRAINING, "--out", str(path))
        alive, seconds = alive + (took is None), took or seconds  # other work on the machine comes and goes
        if not (path / "final.safetensors").exists():
            begun = (path / "config.toml").exists()
            commands.finish(*(("resume", str(path)) if begun else ("train", *TRAINING, "--out", str(path))))
        if digest(path / "final.safetensors") != expected:
            yield f"a training that was killed after {share * seconds:.2f} s ends with other bits"
        shutil.rmtree(path)
    print(f"{alive} of {len(moments)} trainings were killed at work", flush=True)


def killed_verifications(commands: Commands, folder: Path, moments: Sequence[float], seconds: float) -> Iterator[str]:
    """Kill a verification at shares of its time and start it again; yield what went wrong."""
    expected, alive, begun = verdicts(folder / "verified"), 0, 0
    for i, share in enumerate(moments):
        arguments = ("verify", str(folder / "straight"), *VERIFYING, "--out", str(folder / f"again{i}"))
        took = commands.kill_at(share * seconds, *arguments)
        alive, seconds = alive + (took is None), took or seconds
        begun += any((folder / f"again{i}").rglob("results.db"))
        commands.finish(*arguments)
        if verdicts(folder / f"again{i}") != expected:
            yield f"a verification that was killed after {share * seconds:.2f} s has other verdicts"
        shutil.rmtree(folder / f"again{i}")
    print(f"{alive} of {len(moments)} verifications were killed at work, {begun} had a store by then", flush=True)


def killed_writers(commands: Commands, folder: Path, draw: random.Random, count: int) -> Iterator[str]:
    """Kill a verification while it writes its store and start it again; yield what went wrong.

    A quarter of the kills falls in the statements that make the store, the others anywhere from the first to the last.
    """
    verifying = ("verify", str(folder / "straight"), *VERIFYING, "--out")
    total = commands.statements(*verifying, str(folder / "counted"))
    expected, alive, rows = verdicts(folder / "verified"), 0, list[int]()
    for i in range(count):
        path = folder / f"written{i}"
        at = draw.randrange(1, 25) if i % 4 == 0 else draw.randrange(1, total + 1)
        later = 0.0 if draw.random() < 0.5 else draw.random() * WRITTEN
        alive += commands.kill_in_store(at, later, *verifying, str(path))
        where = f"killed {1000 * later:.2f} ms after statement {at} of {total}"
        try:
            found = verdicts(path) if any(path.rglob("results.db")) else []
        except SureboundError as error:
            found = []
            if "not a results store" not in str(error):  # nothing was in it yet
                yield f"{where}: {error}"
        rows.append(len(found))
        if not set(found) <= set(expected):
            yield f"{where}: the store holds a verdict that no verification gave"
        commands.finish(*verifying, str(path))
        if verdicts(path) != expected:
            yield f"{where}: other verdicts after another start"
        shutil.rmtree(path)
    begun = sum(0 < each < len(expected) for each in rows)
    print(f"{alive} of {count} writers were killed at work, {begun} with some of their rows written", flush=True)


def two_processes(commands: Commands, folder: Path) -> Iterator[str]:
    """Verify into one store by two processes at once; yield what went wrong."""
    arguments = ("verify", str(folder / "straight"), *VERIFYING, "--out", str(folder / "shared"))
    started = [commands.start(*arguments, workers=True) for _ in range(2)]
    for process in started:
        process.join()
    codes = [process.exitcode for process in started]
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


def prepare(commands: Commands, folder: Path) -> tuple[float, float]:
    """Train and verify once without disturbance; return how long each took."""
    commands.finish("--version")  # starts what the others are forks of
    trained = commands.finish("train", *TRAINING, "--out", str(folder / "straight"))
    return trained, commands.finish("verify", str(folder / "straight"), *VERIFYING, "--out", str(folder / "verified"))


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
    parser.add_argument("--writers", type=int, default=60, help="how often to kill one that writes its store")
    parser.add_argument("--bytes", type=int, default=300, help="how many bits of each kind of file to flip")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    draw, wrong = random.Random(given.seed), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands = Commands(folder)
        training, verification = prepare(commands, folder)
        print(f"undisturbed: training {training:.1f} s, verification {verification:.1f} s", flush=True)
        moments = [draw.random() for _ in range(given.moments)]
        parts: dict[str, Iterator[str]] = {
            "two processes": two_processes(commands, folder),
            "flipped bits": damaged(folder, draw, given.bytes),
            "killed writers": killed_writers(commands, folder, draw, given.writers),
            "killed verifications": killed_verifications(commands, folder, moments, verification),
            "killed trainings": killed_trainings(commands, folder, moments, training),
        }
        for part, found in parts.items():
            lines = list(found)
            wrong += len(lines)
            print("\n".join([f"{part}: {len(lines)} wrong", *lines]), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
