"""Every exception surebound raises on purpose, in one tree.

SureboundError
|-- InputError (ValueError)       an argument is wrong: says what was given, what is accepted, what to do
|   |-- RegionError               a box or ball that is empty, NaN or of the wrong shape
|   `-- SpecError                 labels or linear specifications that do not fit the network
|-- GraphError                    the network could not be turned into a Program
|   |-- UnsupportedOperatorError  operators without a rule: all of them at once, with where and what to do
|   |-- DataDependentError        control flow that depends on tensor values
|   `-- TraceMismatchError        the traced program does not compute what the module computes
|-- BoundError                    a bound does not exist, e.g. division by an interval that contains 0
|-- ConfigError (ValueError)      a configuration that is unknown, contradictory or out of range
|-- DataError                     a dataset is missing, corrupt or not what it claims to be
|   |-- MissingDataError
|   |-- CorruptDataError
|   `-- DownloadError
|-- TrainingError
|   |-- DivergedError             loss or weights became NaN or infinite
|   |-- LostProcessError          another process of a run is gone or does not answer
|   `-- RunError                  a run directory that cannot be read, written or resumed
|-- VerificationError
|   |-- SolverError               a solver is missing or broke; never a verdict
|   |-- StoreError                the results store is corrupt, foreign or not writable
|   `-- QueryError                a VNN-LIB or ONNX query that is malformed or not supported
|-- MissingExtraError (ImportError)   an optional dependency is not installed: says which extra brings it
`-- MissingPackageError (ImportError) a package that only the user may want (pandas) is not installed

AutocastWarning (UserWarning)     autocast is on, and what is computed is about the network without it
RadiusWarning (UserWarning)       a radius that reaches across all valid inputs
UntrainedWarning (UserWarning)    a network was built with random weights: most likely its weights were forgotten
"""

from __future__ import annotations

from collections.abc import Iterable


class SureboundError(Exception):
    """Base of every error raised on purpose."""


class InputError(SureboundError, ValueError):
    """An argument is wrong."""


class RegionError(InputError):
    """An input region is empty, not finite where it must be, or of the wrong shape."""


class SpecError(InputError):
    """A specification does not fit the network's output."""


class GraphError(SureboundError):
    """A network could not be turned into a Program."""


class UnsupportedOperatorError(GraphError):
    """The network uses operators that no rule covers."""


class DataDependentError(GraphError):
    """The network's control flow depends on the values of tensors.

    ``places``: the entries of the input, flattened, that decide it as whole numbers; empty if that is not known.
    """

    def __init__(self, message: str, places: frozenset[int] = frozenset()) -> None:
        super().__init__(message)
        self.places = places


class TraceMismatchError(GraphError):
    """The traced program and the module disagree on some input."""


class BoundError(SureboundError):
    """No finite bound exists where one is needed."""


class ConfigError(SureboundError, ValueError):
    """A configuration is unknown, contradictory or out of range."""


class DataError(SureboundError):
    """A dataset cannot be used."""


class MissingDataError(DataError):
    """The files of a dataset were not found."""


class CorruptDataError(DataError):
    """A dataset's files are damaged or hold something else."""


class DownloadError(DataError):
    """A dataset could not be downloaded."""


class TrainingError(SureboundError):
    """Training could not go on."""


class DivergedError(TrainingError):
    """The loss or the weights became NaN or infinite."""


class LostProcessError(TrainingError):
    """Another process of the run is gone, or does not answer."""


class RunError(TrainingError):
    """A run directory cannot be read, written or resumed."""


class VerificationError(SureboundError):
    """Verification could not be carried out; never a verdict."""


class SolverError(VerificationError):
    """A solver is missing or failed."""


class StoreError(VerificationError):
    """A results store is corrupt, belongs to something else, or cannot be written."""


class QueryError(VerificationError):
    """A query is malformed or not supported."""


class MissingExtraError(SureboundError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed. "
            f"Install it with: pip install 'surebound[{extra}]'"
        )


class MissingPackageError(SureboundError, ImportError):
    """A package that we do not bring, and that a user who wants this has anyway, is not installed."""

    def __init__(self, package: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package!r}, which is not installed: pip install {package}")


class AutocastWarning(UserWarning):
    """Autocast is on: what is proved is the network in its own dtype, not what the caller would run."""


class RadiusWarning(UserWarning):
    """A radius is as wide as the range of valid inputs: most likely 8 was given where 8/255 was meant."""


class UntrainedWarning(UserWarning):
    """A network's weights are random draws: most likely those that were meant have been forgotten."""


def first_line(error: object) -> str:
    """Say an exception's type and the first line of what it says, for a message about it.

    >>> first_line(ValueError("odd\\nvery")), first_line(KeyError())
    ('ValueError: odd', 'KeyError')
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ": ".join([type(error).__name__, *lines[:1]])


def nearest(word: str, known: Iterable[str]) -> str:
    """End a sentence about a misspelt word: `; did you mean 'ramp'?`, or a full stop."""
    import difflib

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else "."
