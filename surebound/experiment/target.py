"""Load what a user has: a packaged network, a run, an ONNX file or a factory; for commands with its data."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from surebound import zoo
from surebound.errors import InputError, UntrainedWarning, nearest
from surebound.graph import ImportedNetwork, choose

if TYPE_CHECKING:  # a packaged network or a file is loaded without waiting for data and training
    from surebound.data.types import Dataset
    from surebound.train.examples import Examples


@dataclass(frozen=True, eq=False)
class Target:
    """A network in evaluation mode and the data it is meant for."""

    name: str
    model: nn.Module
    data: str | None  # a dataset's name or a file of arrays; None: nothing is known of it
    radii: tuple[Fraction, ...] = ()  # radii it was measured at
    data_dir: Path | None = None
    clip: tuple[float, float] | None = (0.0, 1.0)  # valid inputs
    device: torch.device = torch.device("cpu")  # where the network is, and its images are put

    def dataset(self) -> Dataset:
        """The whole dataset, when `data` is one's name."""
        if self.data is None:
            raise InputError(f"no data are known for {self.name!r}; give --data, a dataset's name or a file of arrays")
        from surebound import data as datasets

        return datasets.load(self.data, self.data_dir)

    def test(self) -> Examples:
        """The test images and labels, where the network is; a file's images must be valid inputs."""
        from surebound.experiment.arrays import read_arrays

        if self.data is not None and Path(self.data).suffix in (".npz", ".safetensors"):
            found: Examples = read_arrays(Path(self.data), self.clip)
        else:
            found = self.dataset().test
        return found if found.device == self.device else Moved(found, self.device)

    def processes(self, jobs: int | None) -> int:
        """Return how many worker processes to start: ``jobs``, else one per core, and one beside another device."""
        if self.device.type == "cpu":
            return jobs or os.cpu_count() or 1
        if jobs not in (None, 1):
            raise InputError(f"--jobs {jobs} are processes of the CPU; leave it out with --device {self.device}")
        return 1

    def first(self, count: int | None) -> tuple[Tensor, Tensor]:
        """The first ``count`` test images (B, ...) and their labels (B,); None: all of them."""
        test = self.test()
        return test.batch(torch.arange(len(test) if count is None else min(count, len(test))))


@dataclass(frozen=True, eq=False)
class Moved:
    """Examples that are put on another device as they are asked for."""

    held: Examples
    device: torch.device

    @property
    def labels(self) -> Tensor:
        """All labels (N,)."""
        return self.held.labels.to(self.device)

    def __len__(self) -> int:
        return len(self.held)

    def pixels(self, indices: Tensor) -> Tensor:
        """Return inputs (B, ...) as stored."""
        return self.held.pixels(indices.cpu()).to(self.device)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs (B, ...) as the network takes them, and labels (B,)."""
        images, labels = self.held.batch(indices.cpu())
        return images.to(self.device), labels.to(self.device)


def load(what: str | Path, weights: str | Path | None = None, output: str | int | None = None) -> nn.Module:
    """Load a network, in evaluation mode: a packaged one by name, a run directory, an ONNX file, or a factory.

    An ONNX file (.onnx, .onnx.gz) is checked against onnxruntime. A factory is ``package.module:function``, whose
    ``weights`` come from a safetensors file. ``output`` chooses one of several: a tensor of the file, an entry of a
    dict, a place in a tuple; ``NAME#OUTPUT`` says the same. Nothing is ever unpickled.

    >>> load("mnist-small-ibp-0.4")(torch.zeros(1, 1, 28, 28)).shape
    torch.Size([1, 10])
    """
    return load_target(what, weights=weights, output=output).model


def load_target(
    spec: str | Path,
    *,
    weights: str | Path | None = None,
    data: str | None = None,
    data_dir: str | Path | None = None,
    clip: tuple[float, float] | None = None,
    output: str | int | None = None,
    device: str | None = None,
) -> Target:
    """Resolve `spec`: a run directory, an ONNX file, `package.module:factory`, or the name of a packaged network.

    A factory is a function without arguments that returns an nn.Module, or a module itself; `weights` fills it
    from a safetensors file. `clip` is the range of valid inputs (None: the run's own, else [0, 1]). `output`, or what
    stands behind a # in `spec`, is the one of several outputs to ask about. `device`: where to put network and images.
    """
    if not isinstance(spec, (str, Path)):
        raise InputError(f"{type(spec).__name__} is nothing to load; give {_KINDS}")
    spec = str(spec)
    if output is None and "#" in spec and not Path(spec).exists():
        spec, _, output = spec.rpartition("#")
    where = Path(data_dir) if data_dir is not None else None
    if (Path(spec) / "config.toml").is_file():
        target = _of_run(Path(spec), weights, where)
    elif spec.endswith((".onnx", ".onnx.gz")):
        target = _of_onnx(Path(spec), weights, where, output)
    elif ":" in spec:
        target = Target(spec, build_factory(spec), None, (), where)
        if weights is not None:
            load_weights(target.model, Path(weights))
        else:
            _warn_if_drawn(spec, target.model)
    elif spec in {e.name for e in zoo.entries()}:
        target = _of_zoo(spec, weights, where)
    elif Path(spec).suffix in _FILES:
        raise InputError(f"{spec!r} is no network: {_FILES[Path(spec).suffix]}")
    elif spec.endswith(".py"):
        dotted = spec.removesuffix(".py").strip("./").replace("/", ".")
        raise InputError(f"{spec!r}: name the function in it that builds the network, without .py: {dotted}:FUNCTION")
    else:
        names = [e.name for e in zoo.entries()]
        hint = nearest(spec, [*names, *_runs_beside(Path(spec))])
        raise InputError(f"{spec!r} is nothing to load{hint} Give {_KINDS}. Packaged: {', '.join(names) or 'none yet'}")
    if output is not None and not spec.endswith((".onnx", ".onnx.gz")):
        target = replace(target, model=choose(target.model, output))
    target.model.eval()
    if device is not None:
        where_to = _usable(device)
        target = replace(target, model=target.model.to(where_to), device=where_to)
    target = replace(target, data=target.data if data is None else data, clip=target.clip if clip is None else clip)
    return _arranged(target) if isinstance(target.model, ImportedNetwork) and target.data is not None else target


def _usable(name: str) -> torch.device:
    """Return the device of that name, if sound bounds can be computed there."""
    from surebound.experiment.run import device_of

    device = device_of(name)
    try:
        torch.zeros((), dtype=torch.float64, device=device)
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"the device {name!r} has no numbers of 64 bits, which sound bounds are computed with; leave --device out "
            "to use the CPU"
        ) from error
    return device


_KINDS = (
    "a run directory (with config.toml), an ONNX file (.onnx or .onnx.gz), the name of a packaged network, "
    "a factory like 'mypkg.nets:build', or a factory with weights from a safetensors file; NAME#OUTPUT for one of "
    "several outputs"
)


_PICKLE = (
    "it is a pickle, which may run anything and is never read. Where it came from, write its weights: "
    "safetensors.torch.save_file(model.state_dict(), 'w.safetensors'); then name the function that builds the network, "
    "mypkg.nets:build, with --weights w.safetensors (weights= in Python)"
)
_OTHERS = "export it as ONNX (tf2onnx, keras' model.export(..., format='onnx'), ...) and name that file"
#: What to do about files that hold a network, or part of one, in a form that is not read.
_FILES = {
    ".safetensors": "it holds weights alone. Name the function that builds the network, mypkg.nets:build, with "
    "--weights FILE (weights= in Python)",
    **dict.fromkeys((".pt", ".pth", ".ckpt", ".pkl", ".bin"), _PICKLE),
    ".pt2": "it is an exported program; load it yourself in a function, mypkg.nets:build, that returns "
    "torch.export.load(FILE).module(), or export the module as ONNX",
    **dict.fromkeys((".h5", ".keras", ".pb", ".tflite"), _OTHERS),
}


def _runs_beside(path: Path) -> list[str]:
    """Run directories in the same folder: what a misspelt name may have meant."""
    return [str(config.parent) for config in sorted(path.parent.glob("*/config.toml"))]


class Arranged(nn.Module):
    """A network for images (B, H, W, C), or for images of one channel laid out in a row, given images (B, C, H, W)."""

    def __init__(self, net: nn.Module, channels_last: bool) -> None:
        super().__init__()
        self.net, self.channels_last = net, channels_last

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.net(x.permute(0, 2, 3, 1) if self.channels_last else x.flatten(1))
        return found


def _arranged(target: Target) -> Target:
    """Put the axes of the data's images (C, H, W) in the order that an imported network takes them in."""
    if not isinstance(target.model, ImportedNetwork):
        return target
    wanted, given = target.model.graph.input_shape[1:], tuple(target.first(1)[0].shape[1:])
    if wanted == given or len(given) != 3:
        return target
    last = wanted == (*given[1:], given[0])
    if last or (given[0] == 1 and wanted == (given[1] * given[2],)):
        return replace(target, model=Arranged(target.model, last).eval())
    return target


def _warn_if_drawn(spec: str, model: nn.Module) -> None:
    """Say that weights were forgotten: a factory that loads none draws others each time."""
    again = build_factory(spec, seed=1)
    if again is model:
        return
    state = again.state_dict()
    drawn = [name for name, value in model.state_dict().items() if name in state and not _equal(value, state[name])]
    if drawn:
        warnings.warn(
            f"{spec} draws its weights at random ({drawn[0]} differs when it is built again); "
            "give --weights FILE.safetensors (weights= in Python) for trained ones",
            UntrainedWarning,
            stacklevel=4,
        )


def _equal(one: object, other: object) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return True  # no weights: nothing is said of it
    return one.shape == other.shape and bool(((one == other) | (one != one)).all())


def _of_onnx(path: Path, weights: str | Path | None, data_dir: Path | None, output: str | int | None = None) -> Target:
    from surebound.vnnlib.files import load_onnx

    if weights is not None:
        raise InputError(f"{path} has weights of its own; leave the other ones out")
    return Target(path.name, load_onnx(path, None if output is None else str(output)), None, (), data_dir)


def _of_run(path: Path, weights: str | Path | None, data_dir: Path | None) -> Target:
    from surebound import data as datasets
    from surebound.experiment.config import OWN
    from surebound.experiment.nets import architecture_of, recorded_net
    from surebound.experiment.own import held_out_file
    from surebound.experiment.rundir import RunDirectory

    run = RunDirectory.open(path)
    config, record = run.config, run.read_json("environment.json").get("architecture")
    if record is not None:
        model = recorded_net(record, path)
    else:
        model = architecture_of(config.model, datasets.load(config.data.name, data_dir)).build()
    load_weights(model, Path(weights) if weights is not None else run.weights())
    kept = held_out_file(path)
    data = config.data.name if config.data.name != OWN else None if kept is None else str(kept)
    radii = config.evaluation.radii if config.evaluation.norm == "linf" else ()  # nobody takes those of l2 for others
    return Target(config.name, model, data, radii, data_dir, config.data.clip_range)


def _of_zoo(name: str, weights: str | Path | None, data_dir: Path | None) -> Target:
    if weights is not None:
        raise InputError(f"{name!r} is a packaged network with weights of its own; leave the other ones out")
    found = zoo.entry(name)
    radii = tuple(Fraction(r) for r in found.results.get("verified_error", {}))
    return Target(name, zoo.load(name), found.data, radii, data_dir)


def load_weights(model: nn.Module, path: Path) -> None:
    """Fill a network from a safetensors file; names and shapes must be the network's own."""
    from surebound.train.checkpoint import read_tensors

    try:
        state = read_tensors(path)
    except FileNotFoundError:
        raise InputError(f"the weights {path} do not exist") from None
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"the weights {path} are no readable safetensors file; to convert a network's weights: "
            "safetensors.torch.save_file(model.state_dict(), 'w.safetensors')"
        ) from error
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise InputError(f"the weights {path} do not fit the network: {' '.join(str(error).split())}") from error


def build_factory(spec: str, seed: int | None = None) -> nn.Module:
    """The network that `package.module:factory` gives; modules of the working directory are found.

    `seed`: what random weights are drawn with; None: as the process stands.
    """
    module_name, _, name = spec.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise InputError(f"{spec!r}: a factory is named as Python imports it, without .py: {dotted}:{name}")
    with _importing_from_here(), torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        try:
            module = importlib.import_module(module_name)
        except Exception as error:  # the module's own code runs: anything may be raised
            raise InputError(f"{spec!r}: cannot import {module_name!r} ({_said(error)})") from error
        made: object = getattr(module, name, None)
        if made is None:
            raise InputError(f"{spec!r}: the module {module_name!r} has no {name!r}")
        if not isinstance(made, nn.Module) and callable(made):
            needed = _required(made)
            if needed:
                raise InputError(
                    f"{spec!r} needs the argument(s) {', '.join(needed)}; "
                    "write a function without arguments that fills them in, and name that"
                )
            try:
                made = made()
            except Exception as error:
                raise InputError(f"{spec!r} raised {_said(error)}; 'surebound --debug ...' shows where") from error
    if not isinstance(made, nn.Module):
        raise InputError(f"{spec!r} gives a {type(made).__name__}; it must give a torch.nn.Module")
    return made


def _said(error: Exception) -> str:
    """An exception in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def _required(factory: Callable[..., object]) -> list[str]:
    """The arguments a factory cannot do without."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:  # some builtin types have none that can be read
        return []
    return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


@contextmanager
def _importing_from_here() -> Iterator[None]:
    """The working directory on the import path, as `python -m` has it, for as long as it is needed."""
    sys.path.insert(0, "")
    try:
        yield
    finally:
        sys.path.remove("")
