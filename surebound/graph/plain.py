"""Traces that torch.export need not run a second time: nothing in them is a mutation, and little is to be decomposed.

Running the decompositions takes two thirds of a trace. A trace of calls that they leave as they are, and of the few
layers below, is written here as they would write it; tests compare both, call by call.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx

aten = torch.ops.aten

#: Composite operators that the decompositions keep. Other composite ones are left to them.
_KEPT = (
    aten.linear.default,
    aten.conv1d.default,
    aten.conv2d.default,
    aten.conv3d.default,
    aten.matmul.default,
    aten.max_pool2d.default,
    aten.avg_pool1d.default,
    aten.softmax.int,
    aten.log_softmax.int,
)
#: Views that they keep: nothing is written into a view where nothing is mutated.
_VIEWS = (
    aten.view.default,
    aten.slice.Tensor,
    aten.select.int,
    aten.transpose.int,
    aten.permute.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.expand.default,
    aten.t.default,
)
#: Operators that they replace, without being composite.
_REPLACED = (aten.lift_fresh_copy.default, aten.detach.default, aten.alias.default)
_NORM = aten._native_batch_norm_legit_no_training.default


def written_out(trace: Sequence[fx.Node], decomposed: Container[Any]) -> bool:
    """Write a trace as its decompositions would; False, with the trace as it was, if it has to be left to them."""
    nodes = [node for node in trace if node.op not in ("placeholder", "output")]
    (last,) = (node for node in trace if node.op == "output")
    if any(node.op != "call_function" or not _plain(node, decomposed) for node in nodes):
        return False
    rewritten = [node for node in nodes if node.target in _WRITERS]
    if any(node in last.all_input_nodes for node in rewritten) or not all(_WRITERS[n.target][0](n) for n in rewritten):
        return False  # outputs keep their names
    for node in rewritten:
        _WRITERS[node.target][1](node)
    return True


def _plain(node: fx.Node, decomposed: Container[Any]) -> bool:
    return node.target in _WRITERS or (node.target not in decomposed and _left_as_it_is(node.target))


@cache
def _left_as_it_is(op: Any) -> bool:
    """Is a call of this operator kept: no mutation, and not composite, or one of those that are kept all the same?"""
    if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten" or op in _REPLACED:
        return False
    if op in _VIEWS:
        return True
    schema = op._schema
    if schema.is_mutable or any(each.alias_info is not None for each in (*schema.arguments, *schema.returns)):
        return False
    name = f"{schema.name}.{schema.overload_name}".removesuffix(".")
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
    return op in _KEPT or not (composite or torch._C.DispatchKey.CompositeImplicitAutograd in op.py_kernels)


def _sizes(node: fx.Node) -> list[Any] | None:
    """Return the sizes of a call's value, None for the batch's; None if others depend on the batch's."""
    first, *others = node.meta["val"].shape
    if not all(isinstance(size, int) for size in others):
        return None
    if isinstance(first, int):
        return [first, *others]
    return [None, *others] if len(_inputs_of(node, first)) == 1 else None


def _inputs_of(node: fx.Node, size: torch.SymInt) -> list[fx.Node]:
    """List the inputs whose batch size a size is."""
    return [each for each in node.graph.find_nodes(op="placeholder") if _is_batch(each, size)]


def _is_batch(node: fx.Node, size: torch.SymInt) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or value.dim() == 0 or isinstance(value.shape[0], int):
        return False
    return bool(size.node.expr.is_Symbol) and size.node.expr == value.shape[0].node.expr


def _flattens(node: fx.Node) -> bool:
    """May a call of flatten be written? Not if it is none, which is left out, or if numbers have to be moved."""
    before = node.all_input_nodes[0].meta["val"]
    return 0 < before.dim() != node.meta["val"].dim() and _in_a_row(before) and _sizes(node) is not None


def _in_a_row(value: Tensor) -> bool:
    """Do the numbers of each example follow one another? Others are copied: they were turned, or channels are last."""
    sizes, steps = value.shape[1:], value.stride()[1:]
    if not all(isinstance(each, int) for each in (*sizes, *steps)):
        return False
    return all(step == after * size for step, after, size in zip(steps, steps[1:], sizes[1:], strict=False))


def _flatten(node: fx.Node) -> None:
    """Write flatten as a view of the sizes, the batch's read from the input before everything else."""
    graph, sizes = node.graph, _sizes(node)
    assert sizes is not None  # _flattens
    if sizes[0] is None:
        sizes[0] = _batch(node, node.meta["val"].shape[0])
    with graph.inserting_before(node):
        view = graph.create_node("call_function", aten.view.default, (node.all_input_nodes[0], sizes), name="view")
    view.meta = dict(node.meta)
    node.replace_all_uses_with(view)
    graph.erase_node(node)


def _batch(node: fx.Node, size: torch.SymInt) -> fx.Node:
    """Return the call that asks the input for the batch size: the first of the trace."""
    graph, (image,) = node.graph, _inputs_of(node, size)
    first = image.next
    while first.op == "placeholder":
        first = first.next
    if first.target is aten.sym_size.int and first.args == (image, 0):
        return first
    with graph.inserting_before(first):
        found = graph.call_function(aten.sym_size.int, (image, 0))
    found.meta = {"val": size}
    return found


def _normalises(node: fx.Node) -> bool:
    """May a call of batch_norm be written: does it use the statistics that were kept?"""
    return len(node.args) == 9 and not node.kwargs and node.args[5] is False and node.args[3] is not None


def _norm(node: fx.Node) -> None:
    graph, (x, weight, bias, mean, variance, _, momentum, eps, _) = node.graph, node.args
    with graph.inserting_before(node):
        made = graph.call_function(_NORM, (x, weight, bias, mean, variance, momentum, eps))
        part = graph.call_function(operator.getitem, (made, 0))
    value = node.meta["val"]
    made.meta, part.meta = {**node.meta, "val": (value, None, None)}, dict(node.meta)
    node.replace_all_uses_with(part)
    graph.erase_node(node)


def _asks_for_batch(node: fx.Node) -> bool:
    """Is a size that a call asks for the batch's?"""
    size = node.meta["val"]
    return isinstance(size, torch.SymInt) and len(_inputs_of(node, size)) == 1


def _one_size(node: fx.Node) -> None:
    """Write every question for the batch size as one, before everything else."""
    found = _batch(node, node.meta["val"])
    if found is not node:
        node.replace_all_uses_with(found)
        node.graph.erase_node(node)


#: By operator: may a call be written, and how.
_WRITERS: dict[Any, tuple[Any, Any]] = {
    aten.sym_size.int: (_asks_for_batch, _one_size),
    aten.flatten.using_ints: (_flattens, _flatten),
    aten.batch_norm.default: (_normalises, _norm),
}
