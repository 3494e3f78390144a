"""Reads run directories and results stores; writes tables, figures and pages. It trains and decides nothing."""

from __future__ import annotations
