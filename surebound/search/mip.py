"""A network over a box as a mixed-integer problem: one walk over the Program, the rules' third column.

requirement: piecewise linear networks (each varying operator affine, with ``pieces`` or a ``mip`` encoding)
return:      ``Encoding``; its ``problem`` maximises one row c.z + d, the last affine layers merged into it
property:    exact for the network over the reals; answers rest on the solver's tolerance, so not float-sound
reference:   Tjeng, Xiao and Tedrake 2019; relaxed: Ehlers 2017
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy  # its parts are loaded when they are used: `sparse` takes as long as a small query
import torch
from torch import Tensor

from surebound.bounds.constants import environment
from surebound.bounds.interval import propagate
from surebound.bounds.linear.intermediate import relax
from surebound.errors import BoundError, UnsupportedOperatorError
from surebound.graph import Node, Program, Ref
from surebound.graph.program import resolve, resolve_kwargs
from surebound.graph.walk import Env, forward
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.rules import Affine, Rule, describe, find
from surebound.rules.mip.expression import Encoder, Expression, Vector, combine, constant_expression
from surebound.rules.mip.matrix import affine_matrix, in_double
from surebound.rules.mip.pieces import Pieces, encode_pieces
from surebound.solvers.problem import MathProgram

Bounds = Mapping[str, Interval]


@dataclasses.dataclass(frozen=True, eq=False)
class Encoding:
    """The encoded network of one example; N inputs, K outputs."""

    encoder: Encoder
    inputs: int  # the first N variables are the input
    output: Expression  # (K,)

    def problem(self, c: Vector, d: float) -> MathProgram:
        """Maximise c.z + d for one row c (K,)."""
        return self._assembled(self.encoder, self._rows(c[None], np.array([d])))

    def smallest(self, c: Vector, d: Vector) -> MathProgram:
        """Maximise the smallest of several rows c (S, K), d (S,): a variable below all of them."""
        encoder, rows = self.encoder.copy(), self._rows(c, d)
        least = encoder.variables(rows.lower.min(keepdims=True), rows.upper.min(keepdims=True), shape=(1,))
        encoder.at_least([(1.0, rows), (-1.0, least.take(np.zeros(len(d), dtype=np.int64)))], 0.0)
        return self._assembled(encoder, least)

    def input_of(self, point: Vector, like: Tensor) -> Tensor:
        """Return the input (C, H, W) at a solver's point, as float64."""
        return torch.from_numpy(np.array(point[: self.inputs], dtype=np.float64)).reshape(like.shape)

    def _rows(self, c: Vector, d: Vector) -> Expression:
        z = self.output
        matrix = scipy.sparse.csr_array(scipy.sparse.csr_array(c) @ z.matrix)
        positive, negative = np.maximum(c, 0), np.minimum(c, 0)
        lower = positive @ z.lower + negative @ z.upper + d
        upper = positive @ z.upper + negative @ z.lower + d
        return Expression(matrix, c @ z.constant + d, lower, upper, (len(d),))

    def _assembled(self, encoder: Encoder, row: Expression) -> MathProgram:
        matrix, row_lower, row_upper = encoder.system()
        lower, upper, integral = encoder.domain()
        objective, constant = combine([(1.0, row)], encoder.width)
        return MathProgram(
            objective=objective.toarray()[0],
            offset=float(constant[0]),
            matrix=matrix,
            row_lower=row_lower,
            row_upper=row_upper,
            lower=lower,
            upper=upper,
            integral=integral,
        )


def tightest_bounds(program: Program, start: Interval, *, crown: bool) -> dict[str, Interval]:
    """Bound every varying value, by its name in the graph, soundly for the deployed network.

    By intervals; with ``crown`` also by backward passes where a value is unstable.
    """
    with torch.no_grad():
        if crown:
            return dict(relax(program, start, Soundness.DEPLOYED, own=True).bounds)
        found: dict[str, Interval] = {program.graph.input: start}
        propagate(program, start, Soundness.DEPLOYED, observe=lambda node, v: found.update({node.name: v}))
        return found


class NetworkEncoder:
    """Encodes one network for many regions; the matrices of its affine operators are kept between them."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._matrices: dict[str, tuple[scipy.sparse.csr_array, Vector]] = {}
        self._environments: dict[int, Env] = {}
        self._check()

    def _check(self) -> None:
        """Raise one error that lists every operator that LP and MIP cannot follow."""
        env = self._environment(1)
        missing = self.program.graph.calls(lambda n: n.name not in env and not _encodable(n, env))
        if missing:
            lines = "\n".join(f"  {describe(node)}" for node in missing)
            raise UnsupportedOperatorError(
                f"{len(missing)} operator call(s) of this network are not piecewise linear or have no encoding:\n"
                f"{lines}\nLP and MIP cannot decide it; use a cascade of bounds, attacks and branch and bound."
            )

    def encode(self, bounds: Bounds) -> Encoding:
        """Encode the network over the box that ``bounds`` gives for the input; every value's are (1, ...)."""
        graph, encoder = self.program.graph, Encoder()
        lower, upper = _ends(bounds[graph.input])
        start = encoder.variables(lower, upper, shape=lower.shape)

        def visit(node: Node, env: Env) -> Expression | list[Expression]:
            return _tightened(self._step(encoder, node, env), bounds.get(node.name))

        env = forward(graph.steps, {**self._environment(1), graph.input: start}, visit, graph.output)
        output = env[graph.output]
        if isinstance(output, Tensor):  # the network ignores its input
            output = constant_expression(output.numpy())
        return Encoding(encoder, start.size, output)

    def _step(self, encoder: Encoder, node: Node, env: Env) -> Expression | list[Expression]:
        if node.is_part:
            part: Expression = env[node.args[0].name][node.args[1]]
            return part
        rule = _rule(node)
        sources = [name for name in node.refs() if isinstance(env.get(name), Expression)]
        affine = _affine_facts(node, rule, sources)
        if affine is not None:
            return self._affine(encoder, node, affine, env[sources[0]], sources[0])
        args, kwargs = node.arguments(env)
        if rule.mip is not None:
            shape = None if node.shape is None else self._shape(node)
            found: Expression | list[Expression] = rule.mip(encoder, shape, *args, **kwargs)
            return found
        pieces = _pieces(rule, args, kwargs)
        if pieces is None:
            raise BoundError(f"LP and MIP cannot follow this use of {describe(node)}")
        return encode_pieces(encoder, pieces, args[0])

    def _affine(self, encoder: Encoder, node: Node, affine: Affine, x: Expression, source: str) -> Expression:
        if node.name not in self._matrices:
            self._matrices[node.name] = self._matrix(node, affine, x.shape, source)
        matrix, constant = self._matrices[node.name]
        x = _substitutable(encoder, matrix, x)
        positive, negative = matrix.maximum(0), matrix.minimum(0)
        return Expression(
            scipy.sparse.csr_array(matrix @ x.matrix),
            matrix @ x.constant + constant,
            positive @ x.lower + negative @ x.upper + constant,
            positive @ x.upper + negative @ x.lower + constant,
            self._shape(node),
        )

    def _matrix(
        self, node: Node, affine: Affine, shape: tuple[int, ...], source: str
    ) -> tuple[scipy.sparse.csr_array, Vector]:
        def apply(x: Tensor) -> Tensor:
            env = {**self._environment(len(x)), source: x}
            with torch.no_grad():
                result = node.run(env)
            first: Tensor = result[0] if isinstance(result, tuple) else result
            return first

        env = {**self._environment(1), source: None}
        rest = tuple(resolve(v, env) for i, v in enumerate(node.args) if i != affine.position)
        kwargs = resolve_kwargs(node.kwargs, env)
        if affine.matrix is not None:
            constant = apply(torch.zeros(1, *shape[1:], dtype=torch.float64)).reshape(-1).numpy()
            return affine.matrix(shape[1:], self._shape(node)[1:], *rest, **kwargs), constant
        moves = affine.count(shape, *rest, **kwargs) == 0
        return affine_matrix(apply, shape[1:], moves)

    def _environment(self, batch: int) -> Env:
        """Return the parameters and the values that depend on them and on the batch size alone, in float64.

        They are computed in the network's dtype first, as the network does.
        """
        if batch in self._environments:
            return self._environments[batch]
        env = {name: in_double(value) for name, value in environment(self.program, batch).items()}
        if batch == 1:  # other sizes come by once, and hold the same tensors
            self._environments[batch] = env
        return env

    def _shape(self, node: Node) -> tuple[int, ...]:
        if node.shape is None:
            raise BoundError(f"{describe(node)} gives no tensor; LP and MIP cannot follow it")
        return tuple(1 if size is None else size for size in node.shape)


def _substitutable(encoder: Encoder, matrix: scipy.sparse.csr_array, x: Expression) -> Expression:
    """Return x, with variables of its own where substituting it would blow the rows up."""
    terms = np.diff(x.matrix.indptr)
    substituted = float(abs(matrix).sign() @ terms.astype(np.float64) @ np.ones(matrix.shape[0])) if len(terms) else 0
    ceiling = float(matrix.shape[0]) * x.matrix.shape[1]
    live = np.flatnonzero(terms)
    kept = matrix[:, live].nnz + x.matrix.nnz
    if min(substituted, ceiling) <= 2 * kept:
        return x
    return encoder.materialised(x, 1)


def _encodable(node: Node, env: Mapping[str, Any]) -> bool:
    if node.is_part:  # as good as what it takes a part of
        return True
    rule = find(node.op)
    if rule is None:
        return False
    if rule.mip is not None or rule.is_affine:
        return True
    # Parameters are constants; what varies is not looked at.
    args, kwargs = _known(node.args, env), {key: _known(value, env) for key, value in node.kwargs.items()}
    return _pieces(rule, args, kwargs) is not None


def _known(value: Any, env: Mapping[str, Any]) -> Any:
    if isinstance(value, Ref):
        return env.get(value.name)
    return type(value)(_known(item, env) for item in value) if isinstance(value, (list, tuple)) else value


def _pieces(rule: Rule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Pieces | None:
    """Return the pieces of an elementwise function for its parameters, if it has them."""
    if rule.activation is None:
        return None
    facts = rule.activation.bind(*args[1:], **kwargs)
    return None if facts.pieces is None else facts.pieces()


def _affine_facts(node: Node, rule: Rule, sources: list[str]) -> Affine | None:
    """Return the affine facts for the argument that varies, if exactly one does and stands by itself."""
    places = [i for i, value in enumerate(node.args) if isinstance(value, Ref) and value.name in sources]
    return rule.affine_at(places[0]) if len(sources) == 1 and len(places) == 1 else None


def _rule(node: Node) -> Rule:
    rule = find(node.op)
    if rule is None:  # check_encodable has run
        raise BoundError(f"no rule for {describe(node)}")
    return rule


def _tightened(value: Expression | list[Expression], bounds: Interval | None) -> Expression | list[Expression]:
    if bounds is None or not isinstance(value, Expression):
        return value
    return value.bounded(*_ends(bounds))


def _ends(interval: Interval) -> tuple[Vector, Vector]:
    return tuple(end.detach().double().numpy() for end in (interval.lower, interval.upper))  # type: ignore[return-value]
