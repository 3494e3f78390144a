"""One resolver for Python and the command line: an ONNX file is a network wherever one is asked for."""

from __future__ import annotations

import gzip
import json
import pickle
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner, Result

import surebound as sb
from surebound.cli import build_app
from surebound.errors import ConfigError, GraphError, InputError, UntrainedWarning
from surebound.experiment import quickstart
from surebound.experiment.config import Config
from surebound.experiment.run import device_of
from surebound.experiment.target import Target, load_target
from surebound.report.explore.subject import open_subject


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """net.onnx, net.onnx.gz and images.npz of a random network, in the working directory."""
    monkeypatch.chdir(tmp_path)
    net = network()
    x = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    sb.vnnlib.write_network(net, x[:1], "net.onnx")
    Path("net.onnx.gz").write_bytes(gzip.compress(Path("net.onnx").read_bytes()))
    np.savez("images.npz", images=x.numpy(), labels=net(x).argmax(1).numpy())
    return tmp_path


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)).requires_grad_(False).eval()


def test_what_a_user_has(folder: Path) -> None:
    x = torch.rand(3, 1, 4, 4)
    for what in ("net.onnx", folder / "net.onnx", "net.onnx.gz"):
        assert torch.allclose(sb.load(what)(x), network()(x), atol=1e-6)
    assert not sb.load("mnist-small-ibp-0.4").training
    Path("nets_of_test_load.py").write_text(
        "from torch import nn\ndef build(): return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))\n"
    )
    save_file({"1.weight": torch.ones(3, 16), "1.bias": torch.zeros(3)}, "w.safetensors")
    assert sb.load("nets_of_test_load:build", "w.safetensors")(torch.ones(1, 16)).tolist() == [[16.0] * 3]


def classifier(path: str, channels_last: bool = False) -> None:
    """Write a file as converters of scikit-learn do: a label by operators of another domain, beside scores by names."""
    matrix = torch.randn(16, 3, generator=torch.Generator().manual_seed(2)).numpy()
    text = """
        <ir_version: 9, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
        g (float[N, %s] x) => (int64[N] label, float[N, 3] probabilities)
        <int64[3] names = {7, 8, 9}, int64[1] flat = {-1}, int64[2] rows = {-1, 16}> {
            row = Reshape(x, rows)
            scores = MatMul(row, w)
            probabilities = Softmax<axis = 1>(scores)
            best = ArgMax<axis = 1>(probabilities)
            name = ai.onnx.ml.ArrayFeatureExtractor(names, best)
            label = Reshape(name, flat)
        }"""
    model = onnx.parser.parse_model(text % ("4, 4, 1" if channels_last else "16"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(matrix, "w"))
    onnx.save(model, path)


def test_one_of_several_outputs_of_a_file(folder: Path) -> None:
    classifier("scores.onnx")
    x = torch.rand(2, 16)
    probabilities, scores = sb.load("scores.onnx")(x), sb.load("scores.onnx", output="scores")(x)
    assert torch.allclose(probabilities, scores.softmax(1), atol=1e-6)
    assert torch.equal(sb.load("scores.onnx#scores")(x), scores)
    with pytest.raises(GraphError, match=r"no output 'score'; did you mean 'scores'.*It has label, probabilities"):
        sb.load("scores.onnx#score")
    with pytest.raises(GraphError, match=r"uses ArrayFeatureExtractor of ai.onnx.ml; .*and its scores"):
        sb.load("scores.onnx", output="label")


def test_images_in_the_order_of_a_file(folder: Path) -> None:
    """Files for (H, W, C), and of one channel for a row of pixels, take data sets' images (C, H, W)."""
    for path, last in (("row.onnx", False), ("last.onnx", True)):
        classifier(path, last)
        target = load_target(path, data="images.npz")
        x = target.first(2)[0]
        own = x.permute(0, 2, 3, 1) if last else x.flatten(1)
        assert torch.equal(target.model(x), sb.load(path)(own))
        assert bool((sb.worst_margins(target.model, sb.LinfBall(x, 0), target.model(x).argmax(1)) <= 0).all())


def test_forgotten_weights_are_said(folder: Path) -> None:
    Path("forgetful_nets.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def build(): return nn.Linear(4, 3)\n"
        "def same():\n    net = nn.Linear(4, 3)\n    nn.init.ones_(net.weight)\n    nn.init.ones_(net.bias)\n"
        "    return net\n"
        "def both(): return Both()\n"
        "class Both(nn.Module):\n    def forward(self, x): return {'logits': x, 'other': -x}\n"
    )
    with pytest.warns(UntrainedWarning, match=r"forgetful_nets:build draws its weights.*weight differs.*--weights"):
        sb.load("forgetful_nets:build")
    assert sb.load("forgetful_nets:same") is not None
    assert sb.load("forgetful_nets:both#other")(torch.ones(1)).tolist() == [-1]


def test_what_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match=r"net.onnx has weights of its own; leave the other ones out"):
        sb.load("net.onnx", "w.safetensors")
    with pytest.raises(GraphError, match=r"nowhere.onnx cannot be read"):
        sb.load("nowhere.onnx")
    with pytest.raises(InputError, match=r"Linear is nothing to load; give a run directory"):
        sb.load(nn.Linear(1, 1))  # type: ignore[arg-type]
    (folder / "runs" / "mine").mkdir(parents=True)
    (folder / "runs" / "mine" / "config.toml").touch()
    with pytest.raises(InputError, match="'runs/mnie' is nothing to load; did you mean 'runs/mine'"):
        sb.load("runs/mnie")


@pytest.mark.parametrize("command", ["bounds", "attack", "evaluate", "verify"])
def test_every_command_takes_an_onnx_file(command: str, folder: Path) -> None:
    words = [command, "net.onnx", "--data", "images.npz", "--eps", "1/100", "--format", "json"]
    result = CliRunner().invoke(build_app(), [*words, *(["--jobs", "1"] if command == "verify" else [])])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)
    missing = CliRunner().invoke(build_app(), [command, "net.onnx", "--eps", "1/100"])
    assert missing.exit_code != 0


def test_the_explorer_knows_such_a_file_again(folder: Path) -> None:
    """It compared the file as it is with what was verified: the file behind a change of axes."""
    classifier("last.onnx", True)
    target = load_target("last.onnx", data="images.npz")
    images, labels = target.first(2)
    sb.verify(target.model, sb.LinfBall(images, "1/100", (0, 1)), labels, "fast", out="o")
    subject = open_subject(Path("o"), network="last.onnx", data="images.npz")
    assert subject.model is not None and not subject.notes
    assert torch.equal(subject.model(images), sb.load("last.onnx")(images.permute(0, 2, 3, 1)))


def test_valid_inputs_are_those_that_are_given(folder: Path) -> None:
    """Queries were cut to [0, 1], and `evaluate` refused such images, whatever the valid inputs are."""
    x = torch.rand(4, 1, 4, 4, generator=torch.Generator().manual_seed(2)) * 2 - 1
    save_file({"images": x, "labels": network()(x).argmax(1)}, "signed.safetensors")
    given = ["net.onnx", "--data", "signed.safetensors", "--clip", "-1", "1", "--first", "1"]
    for words in (
        ["evaluate", *given, "--eps", "1/100", "--pgd-steps", "1"],
        ["attack", *given, "--eps", "1/100", "--steps", "1", "--restarts", "1"],
        ["export", *given, "--eps", "1/4", "--vnnlib-dir", "queries"],
    ):
        result = CliRunner().invoke(build_app(), words)
        assert result.exit_code == 0, result.output
    (query,) = Path("queries").glob("*.vnnlib")
    text = query.read_text()
    found = [re.findall(rf"{sign} X\[[\d,]*\] (-?[\d.e-]+)\)", text) for sign in (">=", "<=")]
    low, high = (torch.tensor([float(value) for value in ends]) for ends in found)
    assert torch.allclose(low, (x[0].flatten() - 0.25).clamp(-1, 1))
    assert torch.allclose(high, (x[0].flatten() + 0.25).clamp(-1, 1))


def test_an_imported_network_goes_to_another_process(folder: Path) -> None:
    net = sb.load("net.onnx")
    again = pickle.loads(pickle.dumps(net))
    x = torch.rand(2, 1, 4, 4)
    assert torch.equal(again(x), net(x))
    region = sb.LinfBall(x, "1/50", clip=(0, 1))
    assert torch.equal(sb.interval_bounds(again, region).upper, sb.interval_bounds(net, region).upper)
    assert [node.target for node in net.graph.nodes] == [node.target for node in again.graph.nodes]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mynet.py:build", "without .py: mynet:build"),
        ("./nets/mynet.py:build", "without .py: nets.mynet:build"),
        ("w.safetensors", "weights alone. Name the function that builds the network, mypkg.nets:build, with --weights"),
        ("model.pt", "is a pickle, .* never read.*safetensors.torch.save_file"),
        ("program.pt2", "torch.export.load"),
        ("net.keras", "export it as ONNX"),
        ("mynet.py", "name the function in it that builds the network, without .py: mynet:FUNCTION"),
    ],
)
def test_a_file_where_a_module_belongs(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sb.load(spec)


@pytest.mark.parametrize(
    ("given", "meant"), [("gpu", "cuda"), ("CUDA", "cuda"), ("cuda1", "cuda:1"), ("GPU 0", "cuda:0")]
)
def test_devices_as_people_spell_them(given: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"is spelt '{meant}'"):
        device_of(given)


@pytest.mark.parametrize("name", ["meta", "privateuseone"])
def test_devices_that_hold_no_numbers_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"the device '{name}' cannot be used"):
        device_of(name)


def test_misspelt_methods_and_cascades_are_guessed() -> None:
    net, region = torch.nn.Linear(2, 2), sb.LinfBall(torch.zeros(1, 2), "1/10")
    with pytest.raises(InputError, match=r"'crwon' is not known; did you mean 'crown'\?"):
        sb.worst_margins(net, region, torch.tensor([0]), method="crwon")
    with pytest.raises(ConfigError, match=r"'fats' is not known; .*; did you mean 'fast'\?"):
        sb.verify(net, region, torch.tensor([0]), "fats")


def told(result: Result) -> str:
    return f"{result.output} {result.exception}"


COMMANDS = ("bounds", "attack", "verify", "radius", "evaluate", "doctor", "picture")


@pytest.mark.parametrize("command", COMMANDS)
def test_devices_of_commands(folder: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command puts network and images on the device that it is given, or says why not."""
    asked: list[str | None] = []

    def stopped(*args: object, device: str | None = None, **others: object) -> Target:
        asked.append(device)
        found = load_target("net.onnx", data="images.npz", device="cpu")
        assert found.device == torch.device("cpu") and found.first(2)[0].device == found.device
        raise InputError("far enough")

    eps = {
        "bounds": ("--eps", "0.1"),
        "attack": ("--eps", "0.1"),
        "verify": ("--eps", "0.1"),
        "picture": ("--eps", "0.1"),
    }.get(command, ())
    given = [command, "net.onnx", "--data", "images.npz", *eps]
    wrong = CliRunner().invoke(build_app(), [*given, "--device", "gpu"])
    assert wrong.exit_code == 2 and "the device 'gpu' is spelt 'cuda'" in told(wrong)
    monkeypatch.setattr("surebound.experiment.target.load_target", stopped)
    CliRunner().invoke(build_app(), [*given, "--device", "cuda:1"])
    assert asked == ["cuda:1"]


def test_images_follow_the_network(folder: Path) -> None:
    target = replace(load_target("net.onnx", data="images.npz"), device=torch.device("meta"))
    images, labels = target.first(3)
    assert images.device.type == labels.device.type == target.test().labels.device.type == "meta"
    assert images.shape == (3, 1, 4, 4) and len(target.test()) == 6
    assert target.processes(None) == target.processes(1) == 1
    with pytest.raises(InputError, match="--jobs 2 are processes of the CPU"):
        target.processes(2)
    assert load_target("net.onnx").processes(3) == 3


def test_devices_without_float64_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow(*size: object, dtype: torch.dtype = torch.float32, **others: object) -> torch.Tensor:
        if dtype is torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return torch.empty(())

    monkeypatch.setattr(torch, "zeros", narrow)
    with pytest.raises(InputError, match="no numbers of 64 bits"):
        load_target("mnist-small-ibp-0.4", device="cpu")


def test_what_runs_on_cpus_only_says_so() -> None:
    for given in (["q.vnnlib"], ["net.onnx", "--eps", "1/10", "--cluster", "local:2"]):
        found = CliRunner().invoke(build_app(), ["verify", *given, "--device", "cuda"])
        assert found.exit_code == 2 and "run on CPUs" in told(found)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (("export", "net.onnx", "--onnx", "again.onnx"), "files are written, and compared with onnxruntime, on the"),
        (("explore", "."), "the page asks about one image at a time, on the CPU"),
        (("report", "."), "pages are made of stored results"),
    ],
)
def test_what_works_on_the_cpu_refuses_other_devices(
    folder: Path, given: tuple[str, ...], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = CliRunner().invoke(build_app(), [*given, "--device", "gpu"])
    assert wrong.exit_code == 2 and "the device 'gpu' is spelt 'cuda'" in told(wrong)
    monkeypatch.setattr("surebound.experiment.run.device_of", lambda name: torch.device("meta"))
    wrong = CliRunner().invoke(build_app(), [*given, "--device", "cuda:1"])
    assert wrong.exit_code == 2 and f"--device cuda:1: {why}" in told(wrong)


def test_devices_of_trainings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`quickstart` and `reproduce` train and verify where they are told to."""
    asked: list[object] = []

    def start(config: Config, *rest: object) -> None:
        asked.append(config.run.device)
        raise InputError("far enough")

    monkeypatch.setattr("surebound.experiment.run.device_of", lambda name: asked.append(name) or torch.device("cpu"))
    monkeypatch.setattr("surebound.experiment.run.start", start)
    CliRunner().invoke(build_app(), ["quickstart", "--out", str(tmp_path / "q"), "--device", "cuda:1"])
    assert asked == ["cuda:1"]
    asked.clear()
    out = str(tmp_path / "r")
    CliRunner().invoke(build_app(), ["reproduce", "table-4", "--out", out, "--device", "cuda:2"])
    assert asked == ["cuda:2", "cuda:2"]


def test_the_quickstart_compares_where_the_networks_are(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(quickstart.run, "device_of", lambda name: asked.append(name) or torch.device("cpu"))
    found = quickstart.compare({}, device="cuda:3")
    assert asked == ["cuda:3"] and found.curves == ()
