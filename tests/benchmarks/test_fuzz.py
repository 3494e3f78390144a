"""The fuzzer, the quick form: valid inputs are read, some hundred damaged ones break nothing, and a fault is found."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from benchmarks import fuzz
from surebound.errors import ConfigError, QueryError, StoreError, SureboundError
from surebound.experiment.config import Config
from surebound.verify.store import Store
from surebound.vnnlib.text import parse_query


@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_damaged_inputs_are_read_or_refused(name: str) -> None:
    target, corpus = fuzz.TARGETS[name]
    if name != "rows":  # which changes every row
        read = 0
        for content in corpus():
            try:
                target(content)
                read += 1
            except SureboundError:
                continue
        assert read
    assert fuzz.own_engine(name, 300, 1, None, 4.0) == {}


def test_a_reader_that_breaks_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def careless(content: bytes) -> object:
        return content.index(b"declare-const X_1")

    monkeypatch.setitem(fuzz.TARGETS, "vnnlib1", (careless, fuzz.TARGETS["vnnlib1"][1]))
    found = fuzz.own_engine("vnnlib1", 200, 0, tmp_path, 20.0)
    assert [key.split(":")[0] for key in found] == ["ValueError at elsewhere"]
    assert len(list(tmp_path.iterdir())) == 1


def test_what_the_fuzzer_found(tmp_path: Path) -> None:
    with pytest.raises(QueryError, match="is no constraint"):
        parse_query("(declare-const X_0 Real)(declare-const Y_0 Real)(assert ((<= X_0 1) X_0 1))")
    text = '(vnnlib-version <2.0>)(declare-network N (declare-input X real [1]) (declare-hidden H real [1] "a\tb")'
    with pytest.raises(QueryError, match="which is no text"):
        parse_query(text + "(declare-output Y real [1]))(assert (<= X[0] 0.5))")
    (tmp_path / "run.toml").write_bytes(b'name = "\xff"')
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        Config.read(tmp_path / "run.toml")
    content = fuzz.store_file()
    (tmp_path / "results.db").write_bytes(content.replace(b"CREATE TABLE subject", b"CREATE TABLE \xd1\xd1bject"))
    with pytest.raises(StoreError, match="corrupt"):
        Store.read(tmp_path / "results.db")


#: An ONNX file whose Resize has whole numbers as scales, as atheris found it.
WHOLE_SCALES = (
    "CAg6/AEKdwoBeAoACgJjMBICdjAiBlJlc2l6ZSoyCh5jb29yZGluYXRlX3RyYW5zZm9ybWF0aW9uX21vZGUiDWFsaWduX2Nvcm5l"
    "cnOgAQMqEgoEbW9kZSIHbmVhcmVzdKABAyoYCgxuZWFyZXN0X21vZGUiBWZsb29yoAEDChEKAnYwEgJ2MSIHRmxhdHRlbhIBZyoa"
    "CAQQBkICYzBKEAAAgD8AAIA/AAAAQAAAAD9aGwoBeBIWChQIARIQCgIIAQoCCAQKAggECgIIBWIUCgJ2MRIOCgwIARIICgIIAQoC"
    "CEBqHAoCdjASFgoUCAESEAoCCAEKAggECgIICAoCCAJCBAoAEA0="
)


def test_scales_that_are_whole_numbers() -> None:
    assert fuzz.tried(fuzz.TARGETS["onnx"][0], base64.b64decode(WHOLE_SCALES)) == ""


def test_a_store_whose_subject_has_no_number() -> None:
    """As atheris found it: a damaged page that SQLite's own check passes."""

    class Rows:
        def fetchall(self) -> list[tuple[object, ...]]:
            return [(None, "w", "s")]

    class Connection:
        def execute(self, *_: object) -> Rows:
            return Rows()

    with pytest.raises(StoreError, match="a subject without a number"):
        Store(Path("results.db"), Connection(), None).radii()  # type: ignore[arg-type]
