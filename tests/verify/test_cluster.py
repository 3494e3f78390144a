"""A real scheduler with real workers: the local run's answers, also when a worker is killed in the middle."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from surebound.certificates.directory import missing
from surebound.checker import check
from surebound.errors import InputError, MissingExtraError, VerificationError
from surebound.region import LinfBall
from surebound.search.cascade import cascade
from surebound.search.stages import Clean, IntervalBounds, PgdAttack
from surebound.search.verdicts import Setting
from surebound.verdict import Status
from surebound.verify import Cascade, Progress, Results, verify
from surebound.verify.work import Work
from tests.verify.nets import Slow, steep

distributed = pytest.importorskip("distributed", reason="needs the extra: pip install 'surebound[cluster]'")
from surebound.verify.cluster import connect, pool  # noqa: E402
from surebound.verify.cluster.parcel import Parcel, Refusal, pack, unpack  # noqa: E402
from surebound.verify.cluster.versions import Versions  # noqa: E402

ROOT = str(Path(__file__).parents[2])
# No stage that traces the network: that takes each process seconds, and these tests are about the way there and back.
STAGES = Cascade("t", (Clean(), PgdAttack(20, 2), Slow(0.1)))
QUICK = Cascade("q", (Clean(), PgdAttack(20, 2), Slow(0.0)))  # the same verdicts


def examples() -> tuple[Tensor, Tensor]:
    images = torch.rand(14, 2, generator=torch.Generator().manual_seed(0))
    return images, steep()(images).argmax(1)


def balls(images: Tensor, *radii: str) -> list[LinfBall]:
    return [LinfBall(images, eps, clip=(0, 1)) for eps in radii]


def around(eps: str) -> tuple[LinfBall, Tensor]:
    images, labels = examples()
    return LinfBall(images, eps, clip=(0, 1)), labels


class Processes:
    """A scheduler and workers on loopback, as a user starts them by `dask scheduler` and `dask worker`."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{port}"
        self.started = [self._dask("scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard")]
        self._port = port

    def wait(self) -> None:
        """Until the scheduler listens: a client that comes too early waits longer and longer between its tries."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1):
                return
            time.sleep(0.05)

    def worker(self) -> subprocess.Popen[bytes]:
        options = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1")
        self.started.append(self._dask("worker", self.address, *options))
        return self.started[-1]

    def _dask(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "dask", *words], env={**os.environ, "PYTHONPATH": ROOT},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    made = Processes()
    made.wait()
    made.worker()
    made.worker()
    yield made
    made.end()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "CONNECT_SECONDS", 60.0)  # the scheduler may be starting still
    monkeypatch.setattr(connect, "FIRST_WORKER_SECONDS", 60.0)


def test_certificates_of_what_workers_proved(processes: Processes, tmp_path: Path) -> None:
    """Evidence comes back with the verdicts; the files are written where the question was asked."""
    region, labels = around("1/50")
    stages = Cascade("c", (Clean(), IntervalBounds(), PgdAttack(20, 2)))
    results = verify(steep(), region, labels, stages, cluster=processes.address, certificates=tmp_path)
    decided = sum(record.verdict.status.decided for record in results)
    network = (tmp_path / "network.net").read_bytes()
    claims = [check(file.read_bytes(), network)[0] for file in tmp_path.glob("*.cert")]
    assert decided == len(claims) + len(missing(tmp_path)) and "robust" in claims


def assert_same(found: Results, expected: Results) -> None:
    for record, other in zip(found, expected, strict=True):
        assert (record.index, record.eps, record.example) == (other.index, other.eps, other.example)
        a, b = record.verdict, other.verdict
        assert (a.status, a.stage, a.bound, a.float_sound) == (b.status, b.stage, b.bound, b.float_sound)
        assert (a.witness is None) == (b.witness is None)
        assert a.witness is None or torch.equal(a.witness, b.witness)


def test_versions_of_workers_are_checked(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Versions.here()
    with monkeypatch.context() as patch:
        patch.setattr(connect, "_ours", lambda: Versions(ours.surebound, "2.12.1", ours.python))
        with pytest.raises(VerificationError, match=r"tcp://.*: torch .* there, 2.12.1 here.*pip install"):
            verify(steep(), *around("1/20"), STAGES, cluster=processes.address)
    # A worker that comes later is not asked first: it refuses by itself.
    parcel = Parcel(*pack(work_of(steep())), "", Versions("0.0.1", ours.torch, ours.python))
    monkeypatch.setattr(Parcel, "of", lambda work: parcel)
    client = distributed.Client(processes.address, set_as_default=False)
    with client:  # of the user's own, e.g. one with TLS; it stays open
        with pytest.raises(VerificationError, match="a worker refused the work: surebound .* there, 0.0.1 here"):
            verify(steep(), *around("1/20"), STAGES, cluster=client)
        assert client.status == "running"


def test_a_killed_worker_costs_nothing(processes: Processes, tmp_path: Path) -> None:
    images, labels = examples()
    expected = verify(
        steep(),
        balls(images, "1/20", "1/5"),
        labels,
        QUICK,
    )
    victim = processes.started[1]
    seen: list[int] = []

    def watch(now: Progress) -> None:
        seen.extend(record.index for record in now.records)
        if victim.poll() is None and any(record.verdict.stage == "slow" for record in now.records):
            victim.send_signal(signal.SIGKILL)
            victim.wait()

    found = verify(
        steep(),
        balls(images, "1/20", "1/5"),
        labels,
        STAGES,
        cluster=processes.address,
        out=tmp_path,
        progress=watch,
    )
    assert victim.returncode == -signal.SIGKILL
    assert not any(record.verdict.status is Status.ERROR for record in found)
    assert len({record.verdict.status for record in found}) == 2  # unknown and falsified: there was work to do
    assert_same(found, expected)
    # It goes on where it was, and the store is the one of any run.
    before = len(seen)
    assert_same(
        verify(
            steep(),
            balls(images, "1/20", "1/5"),
            labels,
            STAGES,
            out=tmp_path,
            progress=watch,
        ),
        expected,
    )
    assert len(seen) == before == 28


def test_without_workers_it_gives_up_and_goes_on_later(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = examples()
    monkeypatch.setattr(pool, "PATIENCE_SECONDS", 1.0)
    count: list[int] = []

    def watch(now: Progress) -> None:
        count.append(now.done)
        for process in processes.started[1:] if now.records else ():
            process.kill()
            process.wait()

    with pytest.raises(VerificationError, match="no workers any more.*goes on where it was"):
        verify(
            steep(),
            LinfBall(images, "1/5", clip=(0, 1)),
            labels,
            STAGES,
            cluster=processes.address,
            out=tmp_path,
            progress=watch,
        )
    settled = count[-1]
    assert 0 < settled < len(images)
    count.clear()
    found = verify(
        steep(),
        LinfBall(images, "1/5", clip=(0, 1)),
        labels,
        STAGES,
        out=tmp_path,
        progress=lambda now: count.append(now.done),
    )
    assert count[0] == settled
    assert_same(found, verify(steep(), LinfBall(images, "1/5", clip=(0, 1)), labels, QUICK))


# -- what is refused -------------------------------------------------------------------------------------------
def test_a_scheduler_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "CONNECT_SECONDS", 0.5)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
        start = time.monotonic()
        with pytest.raises(VerificationError, match=f"no scheduler answers at {address} within 0.5 s"):
            verify(steep(), *around("1/20"), STAGES, cluster=address)
    assert time.monotonic() - start < 10


def test_mistakes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = examples()
    for cluster in ("local", "local:0", "local:x", "scheduler:8786", "tcp://", ""):
        with pytest.raises(InputError, match="tcp://scheduler:8786, or local:4"):
            verify(steep(), LinfBall(images, "1/20", clip=(0, 1)), labels, cluster=cluster)
    with pytest.raises(InputError, match="jobs=2 and a cluster; give one"):
        verify(steep(), LinfBall(images, "1/20", clip=(0, 1)), labels, cluster="local:2", jobs=2)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'surebound\[cluster\]'"):
        verify(steep(), LinfBall(images, "1/20", clip=(0, 1)), labels, cluster="local:2")


# -- the parcel ------------------------------------------------------------------------------------------------
class Odd(nn.Module):
    """Tied weights, a buffer outside the state dictionary, a plain tensor: everything must arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("shift", torch.rand(3), persistent=False)
        self.scale = torch.rand(3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.second(self.first(x))) * self.scale + self.shift
        return y


def work_of(model: nn.Module) -> Work:
    return Work(model, cascade("fast"), Setting(), (3,))


def test_a_network_arrives_whole_and_its_weights_as_safetensors() -> None:
    torch.manual_seed(0)
    sent, x = Odd().eval(), torch.rand(5, 3)
    code, weights = pack(work_of(sent))
    model = unpack(code, weights).model
    assert torch.equal(model(x), sent(x))
    assert model.second.weight is model.first.weight
    assert isinstance(model.first.weight, nn.Parameter) and not model.training
    assert sent.first.weight.detach().numpy().tobytes() not in code
    assert sent.first.weight.detach().numpy().tobytes() in weights


SLOPE = {"k": 1.0}


class ReadsItsMachine(nn.Module):
    """A network whose code reads something that another machine may have otherwise; its weights are the same."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.leaky_relu(x - 1, SLOPE["k"])


def test_a_network_that_computes_something_else_where_it_arrives_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    parcel = Parcel.of(work_of(ReadsItsMachine()))
    assert parcel._open()[0].cascade.name == "fast"
    monkeypatch.setitem(SLOPE, "k", -5.0)
    with pytest.raises(Refusal, match="computes something else than the one that was sent"):
        parcel._open()
