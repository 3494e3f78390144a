"""A checker of certificates that shares no code with the rest: one file, numpy and the standard library."""

from surebound.checker.checker import Rejected, check

__all__ = ["Rejected", "check"]
