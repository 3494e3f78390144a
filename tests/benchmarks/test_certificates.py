"""The benchmark of certificates counts what it wrote and finds what is damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import surebound as sb
from benchmarks import certificates


@pytest.fixture
def digits_by_means(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digit whose mean is closest: one linear layer, right on nine of ten, in place of a packaged network."""
    digits = sb.data.load("digits")
    images, labels = sb.data.to_unit(digits.train.images[torch.arange(500)]).flatten(1), digits.train.labels[:500]
    means = torch.stack([images[labels == k].mean(0) for k in range(10)])
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    net[1].weight.data, net[1].bias.data = means, -(means**2).sum(1) / 2
    monkeypatch.setattr(sb, "load", lambda name: net)
    monkeypatch.setattr(sb.data, "load", lambda name: digits)


@pytest.mark.usefixtures("digits_by_means")
def test_a_row_counts_what_was_written_and_checked(tmp_path: Path) -> None:
    row = certificates.measure("digits-linear", "1/100", 20, 5.0, tmp_path / "proofs", compare=True)
    assert row["certificates"] == row["decided"] == 20
    assert row["rejected"] == row["without"] == 0
    assert sum(row["kinds"].values()) == 20
    assert row["kinds"].get("interval", 0) >= 10
    assert row["largest_bytes"] >= row["median_bytes"] > 0
    assert 0 < row["archive_bytes"] < row["bytes"] + 10_000
    assert row["without_certificates_s"] >= 0

    (tmp_path / "out").mkdir()
    fast = {**row, "verifying_s": 2.0, "writing_s": 0.1}
    (tmp_path / "out" / "a.json").write_text(json.dumps(fast))
    assert "| digits-linear | 1/100 | 20 | 20 | 0 | 0 |" in certificates.table(tmp_path / "out")
    assert "| 2.0 s | 5.0 % |" in certificates.table(tmp_path / "out")


@pytest.mark.usefixtures("digits_by_means")
def test_a_rejected_certificate_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(certificate: bytes, network: bytes) -> None:
        raise certificates.Rejected("damaged")

    monkeypatch.setattr(certificates, "check", refuse)
    row = certificates.measure("digits-linear", "1/100", 5, 5.0, tmp_path / "proofs", compare=False)
    assert row["rejected"] == row["certificates"] > 0
