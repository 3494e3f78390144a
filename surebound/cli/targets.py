"""From what was typed to a network and its inputs; shared by every command that takes a MODEL and --data."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from surebound.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

MODEL_HELP = "The network: an import path PACKAGE.MODULE:FACTORY of a function that returns an nn.Module."
DATA_HELP = (
    "A dataset's name, or a .npz or .safetensors file of images (N, C, H, W) in [0, 1] and labels (N,)."
)


def load_model(reference: str, weights: Path | None = None) -> nn.Module:
    """The network that `reference` names, in eval mode, with weights from a safetensors file if given."""
    if ":" not in reference:
        raise InputError(
            f"MODEL={reference!r} names no network; give an import path like 'mypkg.nets:build', "
            "the function being one that takes no argument and returns an nn.Module"
        )
    model = _build(reference)
    if weights is not None:
        load_weights(model, weights)
    return model.eval()


def load_weights(model: nn.Module, path: Path) -> None:
    """Fill a network from a safetensors file; names and shapes must be the network's own."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        state = load_file(path)
    except FileNotFoundError:
        raise InputError(f"--weights {path}: no such file") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"--weights {path} is not a readable safetensors file ({error})") from error
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"--weights {path} does not fit the network: {reason}") from error


def load_images(data: str, data_dir: Path | None = None) -> tuple[Tensor, Tensor]:
    """Test images (N, C, H, W), float32 in [0, 1], and labels (N,) int64."""
    import torch

    from surebound import data as datasets

    path = Path(data)
    if path.suffix in (".npz", ".safetensors"):
        return _load_file(path)
    split = datasets.load(data, data_dir).test
    return split.batch(torch.arange(len(split)))


def choose(count: int, index: list[int], first: int | None) -> list[int]:
    """Which images were asked for: given indices, else the first few, else all."""
    if index and first is not None:
        raise InputError("--index and --first were both given; use one of them")
    if first is not None and first < 1:
        raise InputError(f"--first {first}: give 1 or more")
    wrong = [i for i in index if not 0 <= i < count]
    if wrong:
        raise InputError(
            f"--index {wrong[0]}: there are {count} images, so indices run from 0 to {count - 1}"
        )
    return index or list(range(count if first is None else min(first, count)))


@contextlib.contextmanager
def _importing_from_here() -> Iterator[None]:
    """The working directory on the import path, as `python -m` has it, for as long as it is needed."""
    sys.path.insert(0, "")
    try:
        yield
    finally:
        sys.path.remove("")


def _build(reference: str) -> nn.Module:
    from torch import nn

    module_name, _, factory_name = reference.partition(":")
    with _importing_from_here():
        try:
            module = importlib.import_module(module_name)
        except (ImportError, ValueError) as error:
            raise InputError(f"MODEL={reference!r}: cannot import {module_name!r} ({error})") from error
        made: object = getattr(module, factory_name, None)
        if made is None:
            raise InputError(f"MODEL={reference!r}: the module {module_name!r} has no {factory_name!r}")
        if not isinstance(made, nn.Module):
            made = _call(made, reference)
    if not isinstance(made, nn.Module):
        raise InputError(f"MODEL={reference!r} gives a {type(made).__name__}; it must give a torch.nn.Module")
    return made


def _call(factory: object, reference: str) -> object:
    import inspect

    if not callable(factory):
        raise InputError(
            f"MODEL={reference!r} is a {type(factory).__name__}; name a function or an nn.Module"
        )
    build: Callable[[], object] = factory
    needed = [
        name
        for name, p in inspect.signature(build).parameters.items()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise InputError(
            f"MODEL={reference!r} needs the argument(s) {', '.join(needed)}; "
            "write a function without arguments that fills them in, and name that"
        )
    return build()


def _load_file(path: Path) -> tuple[Tensor, Tensor]:
    """Images and labels from a file of arrays; nothing is ever unpickled."""
    import torch

    try:
        if path.suffix == ".npz":
            import numpy as np

            with np.load(path, allow_pickle=False) as archive:
                arrays = {name: torch.from_numpy(archive[name]) for name in archive.files}
        else:
            from safetensors.torch import load_file

            arrays = load_file(path)
    except FileNotFoundError:
        raise InputError(f"--data {path}: no such file") from None
    except Exception as error:  # zipfile, numpy and safetensors each have errors of their own
        raise InputError(f"--data {path} cannot be read as arrays ({error})") from error
    missing = {"images", "labels"} - arrays.keys()
    if missing:
        raise InputError(
            f"--data {path} holds {sorted(arrays) or 'nothing'}; "
            "it needs the arrays 'images' (N, C, H, W) and 'labels' (N,)"
        )
    images, labels = arrays["images"], arrays["labels"]
    if images.dtype == torch.uint8:
        raise InputError(f"--data {path} holds byte images; store them as float32 in [0, 1] (divided by 255)")
    if len(images) != len(labels):
        raise InputError(
            f"--data {path} holds {len(images)} images but {len(labels)} labels; give one per image"
        )
    return images, labels
