"""nn.Module -> Graph by torch.export: the only file that knows a tracer.

``run_decompositions`` functionalises the graph, so that mutation through views is not lost. (fx symbolic
tracing was rejected: many spellings per operator and wrong dataflow under in-place mutation.)
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, fx, nn

from surebound.errors import DataDependentError, GraphError, InputError, TraceMismatchError, first_line
from surebound.flags import kept_state
from surebound.graph import decompose, plain
from surebound.graph.attention import batch_axis_first
from surebound.graph.chosen import INSTEAD
from surebound.graph.finite import check_finite
from surebound.graph.fit import evaluating, forward
from surebound.graph.inside import Returned, check_inside, distance, tolerance
from surebound.graph.layout import laid_as, order_of
from surebound.graph.program import PART, SIZE, First, Graph, Node, Program, Ref, live
from surebound.graph.quiet import quiet
from surebound.graph.tidy import tidied
from surebound.numerics import TRACE_TOLERANCE

# Checks that export inserts about symbolic sizes; the shapes are checked by Program.check_input.
_FIRST_RESULT = (
    "aten._native_batch_norm_legit_no_training.default",
    "aten.native_layer_norm.default",
    "aten.native_group_norm.default",
    "aten.max_pool2d_with_indices.default",
    "aten.max_pool3d_with_indices.default",
)
_ASSERTIONS = ("_assert", "sym_constrain", "_assert_scalar", "_assert_tensor_metadata")


def trace(model: nn.Module, example: Tensor) -> Program:
    """Trace a network on inputs shaped like ``example`` (B, ...), with a free batch size where it allows it.

    The module is traced in eval mode, without autocast, and left as it was. The result is compared with the module on
    random inputs, also one at a time; a trace that computes something else is refused.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> [node.op for node in trace(net, torch.zeros(1, 2)).graph.nodes]
    ['aten.linear.default', 'aten.relu.default']
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"the model is a {type(model).__name__}; give a torch.nn.Module")
    with kept_state(), evaluating(model):
        program = Program(_graph(model, example), model)
    fixed = program.graph.input_shape[0]
    check_trace(program, model, example, (1, 2, 5, len(example)) if fixed is None else (fixed,))
    return program


def _graph(model: nn.Module, example: Tensor) -> Graph:
    # torch.export is slow to import, and imported networks do not need it.
    from torch.export.graph_signature import InputKind

    exported, batch_is_free = _export(model, example)
    signature = exported.graph_signature
    if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        changed = sorted({**signature.buffers_to_mutate, **signature.user_inputs_to_mutate}.values())
        raise GraphError(
            f"the network changes {', '.join(changed)} while it runs in eval mode; "
            "bounds need a network without side effects: remove the assignment from forward()"
        )
    if len(signature.user_outputs) != 1 or not isinstance(signature.user_outputs[0], str):
        forward(model, example)  # says what it returns
        raise GraphError(
            f"the network returns {len(signature.user_outputs)} values; wrap it so that forward() returns one tensor"
        )
    parameters: dict[str, str] = {}
    constants: dict[str, Tensor] = {}
    inputs: list[str] = []
    for spec in signature.input_specs:
        name = spec.arg.name
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER) and spec.target is not None:
            if spec.kind is InputKind.BUFFER and spec.target in exported.constants:
                constants[name] = exported.constants[spec.target]  # a non-persistent buffer is live, too
            parameters[name] = spec.target
            constants.pop(name, None)
        elif spec.kind is InputKind.CONSTANT_TENSOR and spec.target is not None:
            constants[name] = exported.constants[spec.target].detach()
        else:
            inputs.append(name)
    if len(inputs) != 1:
        raise GraphError(f"the network takes {len(inputs)} inputs; wrap it so that forward() takes one tensor")
    varies = {inputs[0]}
    calls = [n for n in exported.graph.nodes if n.op == "call_function"]
    nodes = _merge_first(tuple(_node(n, varies) for n in calls if not any(w in str(n.target) for w in _ASSERTIONS)))
    kinds = {n.name: n.meta["val"].dtype for n in exported.graph.nodes if isinstance(n.meta.get("val"), Tensor)}
    nodes, output = tidied(nodes, signature.user_outputs[0], kinds)
    nodes = live(nodes, output)
    used = {name for node in nodes for name in node.refs()} | {output}
    shape: tuple[int | None, ...] = (None if batch_is_free else example.shape[0], *example.shape[1:])
    return Graph(
        input=inputs[0],
        input_shape=shape,
        dtype=example.dtype,
        nodes=nodes,
        output=output,
        parameters={k: v for k, v in parameters.items() if k in used},
        constants={k: v for k, v in constants.items() if k in used},
    )


def _merge_first(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Make ``getitem(op(...), 0)`` of an operator whose other results are by-products one call."""
    by_name = {node.name: node for node in nodes}
    merged = []
    for node in nodes:
        producer = by_name.get(node.args[0].name) if node.is_part else None
        if producer is not None and node.args[1] == 0 and producer.op in _FIRST_RESULT:
            first = First(producer.target)
            node = dataclasses.replace(producer, name=node.name, target=first, shape=node.shape)
        merged.append(node)
    return tuple(merged)


def _export(model: nn.Module, example: Tensor) -> tuple[torch.export.ExportedProgram, bool]:
    batch = example[:1].expand(3, *example.shape[1:]).contiguous()
    try:
        dynamic = ({0: torch.export.Dim("batch", min=1)},)
        return _run_export(model, batch, dynamic), True
    except Exception as error:
        free_failed = error
    try:
        # The network fixes its batch size (e.g. x.view(8, -1)): trace for just this one.
        return _run_export(model, example.contiguous(), None), False
    except Exception as error:
        if any(word in type(error).__name__ + str(error) for word in ("DataDependent", "data-dependent", "GuardOn")):
            raise DataDependentError(
                f"the network's control flow depends on tensor values; no bound can follow it: {first_line(error)}\n"
                "Write the choice with tensor operations (torch.where, torch.maximum, clamp) instead of if/while."
            ) from error
        forward(model, example)  # says so where the inputs do not fit the network
        if "quantized" in str(error):
            raise GraphError(f"the network makes tensors of quantised dtypes; {INSTEAD}") from error
        raise GraphError(
            f"torch.export could not trace the network: {first_line(error)}\n"
            f"(with a free batch size: {first_line(free_failed)})\n"
            "Try torch.export.export(model, (x,)) by itself for the full message."
        ) from error


def _run_export(model: nn.Module, x: Tensor, dynamic: Any) -> torch.export.ExportedProgram:
    with quiet(), batch_axis_first():
        exported = torch.export.export(model, (x,), dynamic_shapes=dynamic, strict=False)
        if plain.written_out(list(exported.graph.nodes), decompose.table()):
            return exported
        functional: torch.export.ExportedProgram = exported.run_decompositions(decompose.table())
        return functional


def _node(node: fx.Node, varies: set[str]) -> Node:
    op = _op_name(node.target)
    args, kwargs = _freeze(node.args), {key: _freeze(value) for key, value in node.kwargs.items()}
    value = node.meta.get("val")
    if not node.all_input_nodes and isinstance(value, Tensor) and _takes_dtype(node.target):
        kwargs["dtype"] = value.dtype  # not whatever the default is when the program runs
    depends = any(parent.name in varies for parent in node.all_input_nodes) and op != SIZE
    if depends:
        varies.add(node.name)
    shape, by_example = None, True
    if isinstance(value, Tensor):
        shape = tuple(s if isinstance(s, int) else None for s in value.shape)
        by_example = _by_example(value.shape)
    return Node(
        name=node.name,
        op=op,
        target=_STAND_INS.get(op, node.target),  # type: ignore[arg-type]
        args=args,
        kwargs=kwargs,
        module=_module_path(node),
        source=_source_line(node),
        varies=depends,
        shape=shape,
        by_example=by_example,
    )


def _takes_dtype(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is not None and any(each.name == "dtype" and each.kwarg_only for each in schema.arguments)


def _by_example(shape: torch.Size) -> bool:
    """Is the first size the batch's and nothing else, such as twice the batch's, and are the others numbers?"""
    first = shape[0] if len(shape) else 1
    return isinstance(first, torch.SymInt) and first.node.expr.is_Symbol and all(isinstance(s, int) for s in shape[1:])


def _copied(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Compute ``aten.copy``, which has no derivative of its own."""
    return source.to(x.dtype).expand(x.shape).clone()


#: Stand-ins that compute the same: what a method computes may lie otherwise in memory than what was traced, so that a
#: view of it needs a copy; and attacks differentiate.
_STAND_INS = {
    "aten.view.default": torch.ops.aten.reshape.default,
    "aten._unsafe_view.default": torch.ops.aten.reshape.default,
    "aten.copy.default": _copied,
    decompose.ABOUT: decompose.as_traced,
}


def _op_name(target: Any) -> str:
    if target is operator.getitem:
        return PART
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}".removeprefix("_")


def _freeze(value: Any) -> Any:
    if isinstance(value, fx.Node):
        return Ref(value.name)
    if isinstance(value, tuple):
        return tuple(_freeze(item) for item in value)
    if isinstance(value, list):
        return [_freeze(item) for item in value]
    return value


def _module_path(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    return str(list(stack.values())[-1][0]) if stack else ""


def _source_line(node: fx.Node) -> str:
    """Return the innermost line of the stack that is not PyTorch's own."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines()]
    found = ""
    for here, text in zip(lines, [*lines[1:], ""], strict=False):
        if here.startswith('File "') and "/torch/" not in here:
            path, _, rest = here.removeprefix('File "').partition('", line ')
            found = f"{path}:{rest.partition(',')[0]}: {text}"
    return found


def check_trace(program: Program, model: nn.Module, example: Tensor, sizes: Iterable[int]) -> None:
    """Refuse a program that differs from the module on random batches of inputs like ``example``, of these sizes.

    The module is also given these inputs in the order in memory that ``example`` has.
    """
    generator = torch.Generator().manual_seed(0)
    with kept_state(), evaluating(model):
        for number, size in enumerate(dict.fromkeys(max(1, each) for each in sizes)):
            shape = (size, *example.shape[1:])
            x = torch.rand(shape, generator=generator, dtype=torch.float64).to(example)
            _compare(program, model, x, twice=number == 0)
            if (order := order_of(example)) is not None:
                check_order(model, x, order)


def check_order(model: nn.Module, x: Tensor, order: tuple[int, ...]) -> None:
    """Refuse a module that computes something else, at its end or inside, for x (B, ...) in another order in memory."""
    given = laid_as(x, order)
    plain, laid = Returned(model), Returned(model)
    with torch.no_grad():
        with plain.noted():
            expected = forward(model, laid_as(x, None))
        try:
            with laid.noted():
                got = forward(model, given)
        except InputError:  # it does not take such inputs, so that nothing that is proved is wrong of them
            return
    inside, other = plain.values(), laid.values()
    pairs = [(expected, got), *((value, other[path]) for path, value in inside.items() if path in other)]
    wrong = [apart for one, another in pairs if not (apart := distance(one, another)) <= tolerance(one)]
    if wrong:
        raise TraceMismatchError(
            f"the network computes something else, by {max(wrong):.3g}, for inputs that lie in memory as those given "
            f"do (axes {order}, the outermost first) than for contiguous ones, which bounds are about; does forward() "
            "write into what may be a view or a copy (flatten, reshape)? Give contiguous inputs, x.contiguous(), and "
            "run the network on such alone."
        )


def _compare(program: Program, model: nn.Module, x: Tensor, *, twice: bool) -> None:
    """Compare a program with the module at x; if it is to be run ``twice``, the module with itself and inside, too."""
    expected, got = forward(model, x.clone()), program(x)
    if got.shape != expected.shape:
        raise TraceMismatchError(
            f"the traced network returns {tuple(got.shape)}, the module {tuple(expected.shape)} for {len(x)} input(s)"
        )
    check_finite(program, model, x, expected, got)
    scale = expected.abs().max().clamp(min=1.0)
    apart = (got - expected).detach().abs().max()
    if not bool(apart <= TRACE_TOLERANCE * scale):
        raise TraceMismatchError(
            f"the traced network differs from the module by {float(apart):.3g} on {len(x)} random input(s); is "
            "forward() random, does it read state that changes, or does it look at the batch size? "
            "Make it a function of its input."
        )
    if not twice:
        return
    returned = Returned(model)
    with returned.noted():
        again = forward(model, x.clone())
    if x.device.type == "cpu" and not torch.equal(expected, again):  # elsewhere two runs may differ by rounding
        raise TraceMismatchError(
            f"the module gives two results for one input, {float((again - expected).abs().max()):.3g} apart; is "
            "forward() random, or does it read state that changes? Make it a function of its input."
        )
    check_inside(program, returned, x)
