"""Which network, question and code a verdict belongs to, so that results are never mixed by accident."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import nn

from surebound.errors import SureboundError
from surebound.graph import digest, program_of
from surebound.graph.fit import evaluating

#: Packages that cannot turn a bound into a proof: a change in, say, a report does not outdate any verdict.
_BESIDE = ("audit", "cli", "data", "experiment", "models", "report", "reproduction", "train", "zoo")


@dataclasses.dataclass(frozen=True)
class Identity:
    """What a results store belongs to.

    ``weights`` is the hash of the network's state, ``spec`` a line that names the question (property, input
    range, the network as traced), ``code`` the version of everything that can say "robust".
    """

    weights: str
    spec: str
    code: str

    def differences(self, other: Identity) -> list[str]:
        """Names of the fields in which two identities differ."""
        return [f.name for f in dataclasses.fields(self) if getattr(self, f.name) != getattr(other, f.name)]


#: How the specification of results ends that are about other regions than l-infinity balls of one radius (run.py).
_REGIONS = re.compile(r"; (L0Ball|L1Ball|L2Ball|Patch|LinfBall of scale \w+)")


def other_regions(spec: str) -> str:
    """Name the regions that a specification is about if they are not l-infinity balls of one radius; else "".

    >>> other_regions("label stays the largest output; inputs 2 in None; program 0123; L2Ball")
    'l2 balls'
    """
    found = _REGIONS.search(spec)
    if found is None:
        return ""
    names = {"L0Ball": "l0 balls", "L1Ball": "l1 balls", "L2Ball": "l2 balls", "Patch": "patches"}
    return names.get(found[1], "radii per coordinate")


def weights_hash(state: Mapping[str, torch.Tensor]) -> str:
    """Hash a state dictionary in its safetensors serialisation by SHA-256, whatever the order of its keys.

    >>> a, b = torch.zeros(2), torch.ones(1)
    >>> weights_hash({"a": a, "b": b}) == weights_hash({"b": b, "a": a})
    True
    """
    tensors = {key: state[key].detach().cpu().contiguous().clone() for key in sorted(state)}
    return hashlib.sha256(save(tensors)).hexdigest()


def network_digest(model: nn.Module, x: torch.Tensor) -> str:
    """Tell networks apart that compute something else on inputs like x (B, ...): by the program as traced.

    A network that cannot be traced has no proofs; its attacks are told apart by its tensors, its plain attributes
    and what it prints.
    """
    try:
        with evaluating(model):
            return f"program {digest(program_of(model, x))[:16]}"
    except SureboundError:
        plain = [
            (name, key, value)
            for name, module in model.named_modules()
            for key, value in sorted(vars(module).items())
            if key != "training" and isinstance(value, (bool, int, float, str, tuple))
        ]
        tensors = weights_hash({**dict(model.named_parameters()), **dict(model.named_buffers())})
        return f"module {hashlib.sha256(f'{tensors} {plain} {model!r}'.encode()).hexdigest()[:16]}"


def example_hash(image: torch.Tensor, label: int) -> str:
    """Short hash of one example, image (C, H, W): tells that an index still means the same picture."""
    digest = hashlib.sha256(f"{tuple(image.shape)} {image.dtype} {label}".encode())
    digest.update(image.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


@functools.cache
def code_version() -> str:
    """Return the package's version and a hash of the sources that can say "robust"."""
    found = hashlib.sha256()
    for name, content in sources(Path(__file__).resolve().parent.parent):
        found.update(name.as_posix().encode() + b"\0" + content + b"\0")
    try:
        version = importlib.metadata.version("surebound")
    except importlib.metadata.PackageNotFoundError:
        version = "source"
    return f"{version}+{found.hexdigest()[:12]}"


def sources(package: Path) -> Iterator[tuple[Path, bytes]]:
    """Read every source file of a package that can say "robust", by its path there."""
    for file in sorted(each for suffix in ("py", "c", "h") for each in package.rglob(f"*.{suffix}")):
        name = file.relative_to(package)
        if name.parts[0] not in _BESIDE:
            yield name, file.read_bytes()
