"""The outside of the house: every public name exists, is documented in the reference, and stays short when printed."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import surebound as sb

PAGE = (Path(__file__).parents[1] / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
DIRECTIVE = re.compile(r"^::: (\S+)\n(?:    options:\n((?:      .*\n)+))?", re.MULTILINE)
NAMES = [name for name in sb.__all__ if name != "__version__"]


def found(path: str) -> Any:
    """What a dotted path leads to: its longest part that is a module, and attributes from there."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for name in parts[end:]:
            value = getattr(value, name)
        return value
    raise AssertionError(path)


def documented() -> set[int]:
    """Identities of everything that the page describes; of a module without a list of members, all it defines."""
    seen: set[int] = set()
    for path, options in DIRECTIVE.findall(PAGE):
        value = found(path)
        members = re.search(r"members: \[(.*)\]", options)
        if members:
            seen |= {id(getattr(value, name)) for name in members[1].split(", ")}
        elif "members: false" not in options:
            seen |= {id(value)} | {id(each) for each in vars(value).values() if inspect.isclass(each)}
    return seen


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_documented(name: str) -> None:
    value, seen = getattr(sb, name), documented()
    assert f"`sb.{name}`" in PAGE
    if isinstance(value, ModuleType):
        listed = getattr(value, "__all__", [n for n, each in vars(value).items() if inspect.isclass(each)])
        missing = [inside for inside in listed if id(getattr(value, inside)) not in seen]
        assert missing == []
    else:
        assert id(value) in seen


def test_the_page_names_nothing_else() -> None:
    for name in re.findall(r"`sb\.(\w+)", PAGE):
        assert name in (*NAMES, "f"), name


def test_public_names_are_those_with_a_home() -> None:
    assert sb.__all__ == sorted(sb.__all__)
    assert set(NAMES) == set(vars(sb)["_HOMES"])
    assert set(NAMES) <= set(dir(sb))
    with pytest.raises(AttributeError, match="'surebound' has no attribute 'methods'"):
        _ = sb.methods  # type: ignore[attr-defined]


def test_importing_the_package_imports_nothing_heavy() -> None:
    script = "import sys, surebound; print([n for n in ('torch', 'numpy', 'surebound.bounds') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("first", ["training", "attacks", "train", "attack", "verify"])
def test_functions_and_namespaces_do_not_hide_each_other(first: str) -> None:
    script = (
        f"import surebound as sb; sb.{first}; import surebound.train, surebound.attack, surebound.verify; "
        "print(sb.training.IBP.__name__, sb.attacks.PGD.__name__, sb.bounds.Crown.__name__, "
        "sb.train.__name__, sb.attack.__name__, sb.verify.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "IBP PGD Crown train attack verify\n"


@pytest.mark.parametrize(
    "name", ["attack", "compact", "decide", "interval_bounds", "linear_bounds", "verify", "worst_margins"]
)
def test_one_shape_of_call(name: str) -> None:
    """A network, then the region that is asked about; its radius and its valid inputs are the region's own."""
    given = list(inspect.signature(getattr(sb, name)).parameters)
    assert given[:2] == ["model", "region"]
    assert not {"eps", "clip", "domain", "images", "x"} & set(given)


def test_what_is_returned_prints_in_one_line() -> None:
    net = nn.Linear(2, 2, bias=False).requires_grad_(False)
    net.weight.copy_(torch.eye(2))
    region = sb.LinfBall(torch.tensor([[0.6, 0.4], [0.9, 0.1], [0.1, 0.9]]), "1/5", clip=(0, 1))
    labels = torch.zeros(3, dtype=torch.int64)
    results = sb.verify(net, region, labels, "fast")
    assert repr(region) == "LinfBall((3, 2) torch.float32, eps=1/5, clip=(0.0, 1.0))"
    assert repr(sb.Box(region.x, region.x)) == "Box((3, 2) torch.float32)"
    assert repr(results) == "Results(2 falsified, 1 robust; eps 1/5)"
    assert repr(results.records[1].verdict) == "Verdict(robust by interval, bound -0.4, float-sound)"
    assert repr(results.records[2].verdict) == "Verdict(falsified by clean, float-sound)"
    found = sb.attack(net, region, labels, sb.attacks.PGD(steps=20, restarts=2))
    assert repr(found) == "AttackResult(3 examples: 1 wrong from the start, 2 attacked, 2 broken)"


@pytest.fixture
def decided() -> sb.Results:
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 2))
    x = torch.rand(50, 1, 28, 28)
    region = [sb.LinfBall(x, eps, clip=(0, 1)) for eps in ("1/1000", "1/10")]
    return sb.verify(net, region, torch.zeros(50, dtype=torch.int64), "fast")


def test_nothing_prints_its_numbers(decided: sb.Results) -> None:
    """28x28 pixels times 50 examples were 35,033 characters once."""
    net, x = nn.Sequential(nn.Flatten(), nn.Linear(784, 3)), torch.rand(50, 1, 28, 28)
    region, rows = sb.LinfBall(x, "1/10", clip=(0, 1)), sb.LinearSpec(torch.eye(3))
    bounds = sb.linear_bounds(net, region, rows)
    printed = [
        decided, decided.records[0].verdict, decided.summary("1/10"), region, sb.Box(x, x), rows, bounds,
        sb.interval_bounds(net, region),
    ]  # fmt: skip
    for value in printed:
        assert len(repr(value)) < 200 and "\n" not in repr(value), repr(value)
    held = int((bounds.upper <= 0).sum())
    assert repr(bounds) == f"LinearBounds(3 rows of 50 examples, inputs (1, 28, 28); {held} are <= 0)"


def test_notebooks_show_tables(decided: sb.Results) -> None:
    net, x = nn.Sequential(nn.Flatten(), nn.Linear(784, 3)), torch.rand(2, 1, 28, 28)
    region = sb.LinfBall(x, "1/10", clip=(0, 1))
    bounds = sb.interval_bounds(net, region), sb.linear_bounds(net, region, sb.LinearSpec(torch.eye(3)))
    verdicts = [decided.records[0].verdict, decided.records[-1].verdict]
    for value in (decided, decided.summary("1/10"), *verdicts, region, sb.Box(x, x), *bounds):
        shown = value._repr_html_()
        assert shown.startswith("<table>") and shown.count("<tr>") == shown.count("</tr>") >= 2 and len(shown) < 2000
    assert "1/1000" in decided._repr_html_() and "1/10" in decided._repr_html_()
    assert "1/10 (0.1)" in region._repr_html_()


def test_results_become_a_frame_and_a_figure(decided: sb.Results, tmp_path: Path) -> None:
    pandas = ModuleType("pandas")
    pandas.DataFrame = lambda rows, columns: (rows, columns)  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pandas", pandas)
        rows, columns = decided.to_frame()
        assert len(rows) == 100 and columns[:4] == ["index", "label", "prediction", "eps"] and list(rows[0]) == columns
        patch.setitem(sys.modules, "pandas", None)
        with pytest.raises(ImportError, match="A data frame needs the package 'pandas'.* pip install pandas"):
            decided.to_frame()
    for some in (decided, decided.at("1/10")):
        figure = some.plot()
        figure.savefig(tmp_path / "figure.svg")
        assert figure._repr_png_().startswith(b"\x89PNG") and (tmp_path / "figure.svg").stat().st_size > 1000
    with pytest.raises(sb.errors.InputError, match="no results to draw"):
        decided.at("1/3").plot()
