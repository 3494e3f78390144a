"""What was checked, kept beside the certificates: a report says "checked" of files that have not changed since."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from surebound.checker import checker
from surebound.disk import write_whole

CHECKED = "checked.json"


def digest_of(content: bytes) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(content).hexdigest()


def checker_digest() -> str:
    """Return the SHA-256 of the checker's own text."""
    return digest_of(Path(checker.__file__).read_bytes())


def note_checked(directory: Path, valid: Mapping[str, str]) -> None:
    """Write which files, by name and digest, this checker has found to be valid."""
    text = json.dumps({"checker": checker_digest(), "valid": dict(valid)}, indent=0)
    write_whole(directory / CHECKED, text.encode())


def checked_files(directory: Path) -> dict[str, str]:
    """Return the files that this very checker has found to be valid, by name, and their digests then."""
    try:
        noted = json.loads((directory / CHECKED).read_text(encoding="utf-8"))
        return dict(noted["valid"]) if noted["checker"] == checker_digest() else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def is_checked(name: str, content: bytes, noted: Mapping[str, str]) -> bool:
    """Is a certificate still what was checked under its name?"""
    return name in noted and noted[name] == digest_of(content)
