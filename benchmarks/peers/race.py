"""Ask every tool every question, in turns; one line of JSON per answer, so that a run goes on where it stopped."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from benchmarks.peers.check import checked
from benchmarks.peers.environments import Question, Tool, tools
from benchmarks.peers.instances import Instance, read_list
from surebound.vnnlib.files import write_network, write_questions

#: On a busy machine the wall clock runs ahead of a process's own: tools are told this many times their seconds.
_SLACK = 15.0
_GRACE = 5.0
_STARTS = 5
TRIVIAL = "trivial"
_WORDS = ("sat", "unsat", "timeout", "unknown")


@dataclass(frozen=True)
class Line:
    """One answer. ``seconds`` is by the clock of the run and includes ``startup``, the time of a trivial question."""

    tool: str
    version: str
    net: str
    eps: str
    index: int
    verdict: str
    check: str
    seconds: float
    startup: float
    wall: float
    cpu: float
    clock: str


def run(folder: Path, results: Path, timeout: float, clock: str, part: str = "0/1") -> None:
    """All that is not in the results yet."""
    results.parent.mkdir(parents=True, exist_ok=True)
    race = Race(folder, results, timeout, clock)
    first, step = (int(word) for word in part.split("/"))
    everybody = tools(_commit())
    for number, instance in list(enumerate(_mixed(read_list())))[first::step]:
        turn = number % len(everybody)
        for tool in everybody[turn:] + everybody[:turn]:
            race.ask(tool, instance)


@dataclass(frozen=True)
class Race:
    folder: Path
    results: Path
    timeout: float
    clock: str

    def ask(self, tool: Tool, instance: Instance) -> None:
        """Ask, check and write down, unless it is written already."""
        if self._known(tool, instance):
            return
        files = self.folder / "instances"
        onnx, vnnlib, startup = instance.onnx(files), instance.vnnlib(files), self._startup(tool)
        verdict, text, times, seconds = _ask(tool, self.folder, onnx, vnnlib, self.timeout + startup, self.clock)
        if seconds - startup > self.timeout:
            verdict = "timeout"
        self._write(tool, instance, verdict, checked(verdict, text, onnx, vnnlib, instance.label), times, startup)

    def _startup(self, tool: Tool) -> float:
        """The faster of two trivial questions; they are answers like others, so that a later run knows them."""
        onnx, vnnlib = _trivial(self.folder / "instances" / TRIVIAL)
        found = []
        for turn in range(_STARTS):
            instance = Instance(TRIVIAL, "0.1", turn, 0)
            known = self._known(tool, instance)
            if known is None:
                verdict, _, times, seconds = _ask(tool, self.folder, onnx, vnnlib, self.timeout, self.clock)
                self._write(tool, instance, verdict, "", times, 0.0)
                found.append(seconds)
            else:
                found.append(known.seconds)
        return min(found)

    def _known(self, tool: Tool, instance: Instance) -> Line | None:
        key = (tool.name, instance.net, instance.eps, instance.index)
        return next((x for x in read(self.results) if (x.tool, x.net, x.eps, x.index) == key), None)

    def _write(
        self,
        tool: Tool,
        instance: Instance,
        verdict: str,
        check: str,
        times: tuple[float, float],
        startup: float,
    ) -> None:
        wall, cpu = (round(each, 3) for each in times)
        seconds = cpu if self.clock == "cpu" else wall
        line = Line(
            tool.name, tool.version, instance.net, instance.eps, instance.index, verdict, check, seconds,
            startup, wall, cpu, self.clock,
        )  # fmt: skip
        with self.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(line)) + "\n")
        print(f"{instance.name} {tool.name}: {verdict} {seconds - startup:.1f} s {check}", flush=True)


def read(results: Path) -> list[Line]:
    """The answers so far."""
    if not results.is_file():
        return []
    return [Line(**json.loads(line)) for line in results.read_text(encoding="utf-8").splitlines()]


def _mixed(instances: list[Instance]) -> list[Instance]:
    """Networks and radii in turns, so that a run that is cut short has some of each."""
    groups: dict[tuple[str, str], int] = {}
    order = []
    for each in instances:
        place = groups[each.net, each.eps] = groups.get((each.net, each.eps), -1) + 1
        order.append((place, each))
    return [each for _, each in sorted(order, key=lambda pair: pair[0])]


def _ask(
    tool: Tool, folder: Path, onnx: Path, vnnlib: Path, seconds: float, clock: str
) -> tuple[str, str, tuple[float, float], float]:
    """Verdict, what was written, (wall, CPU) seconds of the process and its children, and those of the clock."""
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch) / "answer.txt"
        told = seconds * (_SLACK if clock == "cpu" else 1.0)
        command = tool.command(folder.resolve(), Question(onnx.resolve(), vnnlib.resolve(), told, answer))
        began = time.perf_counter()
        process = subprocess.Popen(
            command, env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}, cwd=Path.cwd(),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            preexec_fn=(lambda: _limit(seconds + _GRACE)) if clock == "cpu" else None,
        )  # fmt: skip
        usage = _wait(process, told + _GRACE)
        wall, cpu = time.perf_counter() - began, usage.ru_utime + usage.ru_stime
        text = answer.read_text(encoding="utf-8", errors="replace") if answer.is_file() else ""
        verdict = text.split(None, 1)[0].split(",")[0].strip() if text.strip() else "none"
        spent = cpu if clock == "cpu" else wall
        if verdict not in _WORDS:
            verdict = "timeout" if spent >= seconds - 1 else f"error: {verdict}"
        return verdict, text, (wall, cpu), spent


def _limit(seconds: float) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 1))


def _wait(process: subprocess.Popen[bytes], seconds: float) -> resource.struct_rusage:
    """Wait for the end, which comes at the latest after the seconds; what it and its children used."""
    deadline = time.perf_counter() + seconds
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return usage
        if time.perf_counter() > deadline:
            os.killpg(process.pid, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(0.02)


def _trivial(folder: Path) -> tuple[Path, Path]:
    """A question that every method answers at once: its time is the start-up."""
    first, last = nn.Linear(4, 3), nn.Linear(3, 2)
    net = nn.Sequential(nn.Flatten(), first, nn.ReLU(), last).requires_grad_(False).eval()
    for parameter in net.parameters():
        parameter.fill_(0.125)
    last.bias.copy_(torch.tensor([8.0, 0.0]))
    image = torch.full((1, 1, 2, 2), 0.5)
    write_network(net, image, folder / "net.onnx")
    write_questions(image, torch.tensor([0]), 2, "0.1", folder, "1.0")
    return folder / "net.onnx", folder / "0_0.1.vnnlib"


def _commit() -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"
