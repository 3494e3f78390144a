"""Specifications: what must hold of the outputs over a region.

``LinearSpec`` is rows c.z + d <= 0, for bounds and attacks; ``Spec`` is any combination of such rows, also across two
networks or two points, for ``surebound.decide``.
"""

from __future__ import annotations

from surebound.spec.linear import LinearSpec, check_labels, classification, other_classes
from surebound.spec.scope import Run, Scope
from surebound.spec.tree import Spec

__all__ = ["LinearSpec", "Run", "Scope", "Spec", "check_labels", "classification", "other_classes"]
