"""A proof belongs to the code that made it: client and workers must run the same."""

from __future__ import annotations

import dataclasses
import platform

import torch

from surebound.verify.identity import code_version


@dataclasses.dataclass(frozen=True)
class Versions:
    """What a verdict depends on. ``surebound`` holds a hash of the sources that can say "robust"."""

    surebound: str
    torch: str  # without the build: +cpu and +cu130 of one version may work together
    python: str

    @classmethod
    def here(cls) -> Versions:
        """Return those of this process."""
        python = ".".join(platform.python_version_tuple()[:2])
        return cls(code_version(), str(torch.__version__).partition("+")[0], python)

    def differences(self, other: Versions) -> str:
        """Name what differs in a line, empty if nothing does.

        >>> Versions("0.1.0+ab", "2.13.0", "3.11").differences(Versions("0.1.0+ab", "2.12.1", "3.11"))
        'torch 2.12.1 there, 2.13.0 here'
        """
        return "; ".join(
            f"{field.name} {getattr(other, field.name)} there, {getattr(self, field.name)} here"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != getattr(other, field.name)
        )
