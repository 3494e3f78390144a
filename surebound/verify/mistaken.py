"""Certificates that lie under a verdict's name and are about something else: another image, label, radius or answer."""

from __future__ import annotations

from fractions import Fraction

import torch

from surebound.certificates.files import opened
from surebound.errors import InputError
from surebound.search.record import Record
from surebound.verify.identity import example_hash


def of_another_question(certificate: bytes, record: Record) -> bool:
    """Is a certificate valid of something else than a record, perhaps? One that cannot be read is for the checker."""
    try:
        header, arrays = opened(certificate)
        asked = header["label"], Fraction(header["region"]["eps"]), header["claim"]
        if asked != (record.label, record.eps, record.verdict.status.value):
            return True
        return example_hash(torch.from_numpy(arrays["center"].copy()), record.label) != record.example
    except InputError:
        return False
    except (KeyError, TypeError, ValueError):  # of a specification, or of a box
        return True
