"""verification.jsonl beside a results store: what was asked of `verify`, by which command, with which code."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from surebound.errors import StoreError
from surebound.experiment.environment import describe_environment
from surebound.experiment.metrics import read_metrics
from surebound.search.cascade import Cascade
from surebound.verify import Results

NAME = "verification.jsonl"


def note_verification(
    directory: Path,
    *,
    network: str,
    data: str | None,
    images: int,
    radii: Sequence[Fraction],
    cascade: Cascade,
    timeout: float,
    seed: int,
    certificates: Path | None = None,
    threat: str | None = None,
    clip: tuple[float, float] | None = None,
    places: int = 1,
    predictions: Sequence[int] = (),
) -> None:
    """Append a request to the store's directory, once; a report tells from it what the results are about."""
    record: dict[str, Any] = {
        "network": network,
        "data": data,
        "images": images,
        "eps": [str(radius) for radius in radii],
        "cascade": cascade.name,
        "stages": [repr(stage) for stage in cascade.stages],
        "timeout": None if timeout == float("inf") else timeout,
        "seed": seed,
        **({} if certificates is None else {"certificates": str(certificates.absolute())}),
        **({} if threat is None else {"threat": threat, "clip": None if clip is None else list(clip)}),
        # records for each image, and what the network makes of the images themselves
        **({} if places == 1 else {"places": places, "predictions": list(predictions)}),
        "environment": None,
    }
    if record in [{**old, "environment": None} for old in read_verifications(directory)]:
        return  # asked again: the first time is the one whose results are kept
    record["environment"] = describe_environment()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with open(directory / NAME, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
    except OSError as error:
        raise StoreError(f"could not write {directory / NAME}: {error}") from error


def by_image(found: Results, directory: Path) -> Results:
    """Join the records of a patch's places as records of images, if the store holds such.

    An image is robust if all of its places are, broken if one is, and left out while places are missing.
    """
    asked = [request for request in read_verifications(directory) if int(request.get("places", 1)) > 1]
    if not asked:
        return found
    places = int(asked[-1]["places"])
    counts = Counter((record.eps, record.index // places) for record in found)
    broken = {(r.eps, r.index // places) for r in found if r.verdict.witness is not None}
    whole = {key for key, count in counts.items() if count == places} | broken
    kept = tuple(record for record in found if (record.eps, record.index // places) in whole)
    predictions: list[int] = max((request.get("predictions", []) for request in asked), key=len)
    known = len(predictions) > max((index for _, index in whole), default=-1)
    return Results(kept, found.path).by_image(places, predictions if known else None)


def read_verifications(directory: Path) -> list[dict[str, Any]]:
    """The requests noted there, in order; a line cut short by a crash is left out."""
    try:
        return read_metrics(directory / NAME)
    except OSError:
        return []
