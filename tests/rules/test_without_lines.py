"""Which operators have neither affine facts nor lines: the list of docs/linear-bounds.md, kept true."""

from __future__ import annotations

from pathlib import Path

from surebound.rules import all_rules

#: What the page says in words, as beginnings of operators' names.
LISTED = {
    "log_softmax": ("log_softmax", "_log_softmax"),
    "logsumexp": ("logsumexp",),
    "glu": ("glu",),
    "vector norms": ("linalg_vector_norm",),
    "sort and topk": ("sort", "topk"),
    "comparisons": ("ge", "gt", "le", "lt", "eq", "ne"),
    "truth values": ("logical_", "bitwise_"),
    "choices by a condition": ("where.Scalar",),
    "over all entries": ("sum.default", "mean.default", "max.default", "min.default"),
}
#: Parts of a tensor taken apart are moved, by the call that picks one.
APART = ("split.", "split_with_sizes.", "chunk.", "unbind.")


def test_the_page_names_every_operator_without_lines() -> None:
    page = Path("docs/linear-bounds.md").read_text()
    section = page[page.index("## Operators without lines") : page.index("## Tightness and cost")]
    names = tuple(name for words, names in LISTED.items() if words in section for name in names)
    assert len(names) == sum(len(names) for names in LISTED.values())
    found = [
        rule.op.removeprefix("aten.")
        for rule in all_rules()
        if rule.affine is None and rule.relax is None and rule.family != "constant"
    ]
    assert [op for op in found if not op.startswith((*names, *APART))] == []
    for name in names:  # and what it names has none
        assert any(op.startswith(name) for op in found), name
