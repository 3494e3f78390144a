"""The explorer: one page to look at every image of a verification, served here or written as a file."""

from __future__ import annotations

from surebound.report.explore.page import write_explorer
from surebound.report.explore.subject import Subject, open_subject

__all__ = ["Subject", "open_subject", "write_explorer"]
