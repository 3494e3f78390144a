"""The file that marks a folder of generated data, and says how many images it holds.

Only this marker lifts the check of the published counts, and what it marks is only ever called generated.
"""

from __future__ import annotations

import json
from pathlib import Path

from surebound.data.files import is_file, reading, refuse

MARKER = "surebound-generated.json"


def mark_generated(folder: Path, train: int, test: int) -> None:
    """Mark `folder` as holding generated data."""
    folder.joinpath(MARKER).write_text(json.dumps({"train": train, "test": test}) + "\n", encoding="utf-8")


def generated_counts(folder: Path) -> tuple[int, int] | None:
    """(train, test) counts of a folder of generated data; None for any other folder."""
    path = folder / MARKER
    if not is_file(path):
        return None
    with reading(path):
        content = json.loads(path.read_text(encoding="utf-8"))
    train, test = (content.get("train"), content.get("test")) if isinstance(content, dict) else (None, None)
    if not (type(train) is int and type(test) is int and min(train, test) > 0):
        raise refuse(path, f"says {content!r}", 'a record such as {"train": 100, "test": 20}')
    return train, test
