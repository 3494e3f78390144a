"""Attacks: inputs inside a region that break the network, each re-run through it before it is reported."""

from __future__ import annotations

from surebound.attack import methods
from surebound.attack.base import Attack
from surebound.attack.result import AttackProgress, AttackResult
from surebound.attack.search import attack

__all__ = ["Attack", "AttackProgress", "AttackResult", "attack", "methods"]
