"""A smaller network that computes the same over a region: channels proved dead left out, BatchNorm folded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from surebound.bounds.interval import propagate
from surebound.bounds.pruning import Change, Pruning, change_of, rare_channels
from surebound.bounds.training.chains import Chain, chains, kind_of
from surebound.errors import BoundError
from surebound.graph import Graph, Node, Program, program_of
from surebound.graph.program import Ref
from surebound.graph.walk import Env, forward
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.region import Region
from surebound.rules import find


class CompactNetwork(nn.Module):
    """The smaller network: an ordinary module, so it can be saved, traced, verified and exported.

    ``kept`` says how many channels are left of how many, per weighted layer of the original (by module path);
    ``change`` what pruning did to the outputs, None without pruning.
    """

    def __init__(self, graph: Graph, values: Mapping[str, Tensor], kept: Mapping[str, tuple[int, int]]) -> None:
        super().__init__()
        self.graph, self.kept = graph, dict(kept)
        self.change: Change | None = None
        for name, value in values.items():
            self.register_buffer(name, value)

    def forward(self, x: Tensor) -> Tensor:
        return Program(self.graph, self)(x)


def compact(
    model: nn.Module | Program,
    region: Region,
    soundness: Soundness | str = Soundness.DEPLOYED,
    *,
    prune: Pruning | None = None,
) -> CompactNetwork:
    """Remove the channels and units that are proved dead over all of the region; with ``prune`` others as well.

    requirement: every operator that touches the input has a rule; weighted layers before a ReLU are narrowed where
                 only weighted layers read its output (through padding and flattening)
    return:      a module with the same outputs on the region; on other inputs they may differ
    prune:       small weights and channels that are hardly ever on go, too: another function, and ``change`` of the
                 result says by how much on the inputs given
    property:    without BatchNorm and pruning, a channel left out was exactly 0 in every execution that ``soundness``
                 names, so outputs differ by the order of summation only; folding a BatchNorm rounds its weights once.
                 A statement about the compact network, verified in ``deployed``, covers its own roundings
    reference:   an upper bound <= 0 before a ReLU; bounds as in Gowal et al. 2018, eq. 5-7

    Give the whole domain, ``sb.Box(zeros, ones)``, for deployment, or one query's region for verification.

    >>> from surebound.region import Box
    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> _ = net[0].bias.data.copy_(torch.tensor([0.0, -9.0, 0.0]))
    >>> compact(net, Box(torch.zeros(1, 2), torch.ones(1, 2))).kept["0"]
    (2, 3)
    """
    mode = Soundness.of(soundness)
    if mode is Soundness.NONE:
        raise BoundError(
            "compact leaves out what is proved off, and soundness 'none' proves nothing: use 'deployed' or 'real'"
        )
    program = program_of(model, region.reference)
    with torch.no_grad():
        off = _off(program, region.interval(mode), mode)
        if prune is None:
            return _Surgery(program, off).run()
        rare = rare_channels(program, prune)
        found = _Surgery(program, {name: off[name] | rare[name] for name in off}, prune.weights).run()
        found.change = change_of(program, found, prune.inputs)
        return found


def _off(program: Program, box: Interval, mode: Soundness) -> dict[str, Tensor]:
    """Find the channels (C,) of every value (B, C, ...) whose upper bound is <= 0 throughout; NaN is not."""
    found: dict[str, Tensor] = {}

    def observe(node: Node, bounds: Any) -> None:
        if isinstance(bounds, Interval) and len(bounds.shape) > 1:
            low = bounds.upper <= 0
            found[node.name] = low.movedim(1, 0).flatten(1).all(1)

    propagate(program, box, mode, observe=observe)
    return found


@dataclass
class _Surgery:
    """Narrows the weights of a program; ``off``: the dead channels of every value; ``least``: smaller weights are 0."""

    program: Program
    off: Mapping[str, Tensor]
    least: float = 0.0
    values: dict[str, Tensor] = field(default_factory=dict)  # weights by graph name
    kept: dict[str, tuple[int, int]] = field(default_factory=dict)
    shapes: dict[str, tuple[int | None, ...]] = field(default_factory=dict)  # of the values that get narrower
    gone: dict[str, str] = field(default_factory=dict)  # folded normalisation -> what stands for it
    weights: dict[str, tuple[str, str]] = field(default_factory=dict)  # layer -> names of its weight and bias

    def run(self) -> CompactNetwork:
        graph = self.program.graph
        self.values = {k: v.detach().clone() for k, v in self.program.parameters().items()}
        found = [c for c in chains(graph, (), norms=True) if c.layer is not None]
        for chain in found:
            self._own_weights(chain)
            if chain.norm is not None:
                self._fold(chain, chain.norm)
        for chain in found:
            self._narrow(chain)
        return CompactNetwork(*self._rebuilt(graph), self.kept)

    def _own_weights(self, chain: Chain) -> None:
        """Give the call copies of weight and bias of its own, even if other calls share the original."""
        layer = _layer(chain)
        weight = self._value(layer.args[1])
        bias = self._value(layer.args[2]) if len(layer.args) > 2 and layer.args[2] is not None else None
        names = f"{layer.name}_weight", f"{layer.name}_bias"
        self.values[names[0]] = torch.where(weight.abs() < self.least, torch.zeros_like(weight), weight)
        self.values[names[1]] = weight.new_zeros(weight.shape[0]) if bias is None else bias.clone()
        self.weights[layer.name] = names
        self.kept[layer.module or layer.name] = (weight.shape[0], weight.shape[0])

    def _value(self, argument: Any) -> Tensor:
        if not isinstance(argument, Ref) or argument.name not in self.values:
            name = argument.name if isinstance(argument, Ref) else argument
            raise BoundError(f"the weight {name} is computed while the network runs; compact needs a parameter")
        return self.values[argument.name]

    def _fold(self, chain: Chain, norm: Node) -> None:
        """Fold scale (W x + b) + shift into one layer, computed in float64 and rounded once."""
        rule = find(norm.op)
        column = rule.batch_norm if rule is not None else None
        if column is None:
            return
        args = [self.values.get(a.name) if isinstance(a, Ref) else a for a in norm.args]
        gamma, beta, mean, var, eps = (v.double() if isinstance(v, Tensor) else v for v in column.parts(args))
        scale = torch.rsqrt(var + eps) * (1.0 if gamma is None else gamma)
        weight, bias = (self.values[name] for name in self.weights[_layer(chain).name])
        shaped = scale.reshape(-1, *[1] * (weight.dim() - 1))
        shift = (bias.double() - mean) * scale + (0.0 if beta is None else beta)
        names = self.weights[_layer(chain).name]
        self.values[names[0]] = (weight.double() * shaped).to(weight.dtype)
        self.values[names[1]] = shift.to(weight.dtype)
        self.gone[norm.name] = _layer(chain).name

    def _narrow(self, chain: Chain) -> None:
        layer = _layer(chain)
        if chain.relu is None:
            return
        source = chain.norm or layer
        off = self.off.get(source.name)
        readers = self._readers(chain.relu)
        if off is None or readers is None or not bool(off.any()):
            return
        on = (~off).nonzero().squeeze(1)
        if on.numel() == 0:
            on = torch.zeros(1, dtype=torch.long, device=off.device)
        for name in self.weights[layer.name]:
            self.values[name] = self.values[name].index_select(0, on)
        for reader in readers:
            name = self.weights[reader.name][0]
            weight = self.values[name]  # (out, C or C * positions, ...)
            positions = weight.shape[1] // off.numel()
            units = (on.unsqueeze(1) * positions + torch.arange(positions, device=on.device)).flatten()
            self.values[name] = weight.index_select(1, units)
        self.kept[layer.module or layer.name] = (on.numel(), off.numel())
        self._reshape(chain, on.numel(), off.numel())

    def _readers(self, node: Node) -> list[Node] | None:
        """Return the weighted layers that read a value, directly, padded or flattened; None if anything else does."""
        graph = self.program.graph
        if node.name == graph.output:
            return None
        found: list[Node] = []
        for reader in graph.consumers().get(node.name, []):
            if reader.is_size:
                continue
            kind = kind_of(reader, graph)
            if kind == "layer" and reader.name in self.weights:
                found.append(reader)
            elif kind == "flatten" or _pads(reader):
                further = self._readers(reader)
                if further is None:
                    return None
                found += further
            else:
                return None
        return found

    def _reshape(self, chain: Chain, on: int, channels: int) -> None:
        """Update the shapes of the values between the layer and its readers."""
        graph = self.program.graph
        queue = [n for n in chain.calls if kind_of(n, graph) != "flatten"]
        while queue:
            node = queue.pop()
            if node.shape is None or node.name in self.shapes:
                continue
            old = node.shape[1] or 0
            self.shapes[node.name] = (node.shape[0], old // channels * on, *node.shape[2:])
            if node is chain.relu or node not in chain.calls or kind_of(node, graph) == "flatten":
                queue += [r for r in graph.consumers().get(node.name, []) if _pads(r) or kind_of(r, graph) == "flatten"]

    def _rebuilt(self, graph: Graph) -> tuple[Graph, dict[str, Tensor]]:
        nodes: list[Node] = []

        def visit(node: Node, names: Env) -> Ref:
            """Append a call with what it reads now; a folded one is what stands for it."""
            if node.name in self.gone:
                return Ref(self.gone[node.name])
            args, kwargs = node.arguments(names)
            if node.name in self.weights:
                args = (args[0], *(Ref(name) for name in self.weights[node.name]), *args[3:])
            shape = self.shapes.get(node.name, node.shape)
            if kind_of(node, graph) == "flatten" and shape != node.shape and node.shape and shape:
                args = tuple(_replaced(a, node.shape[1], shape[1]) for a in args)
            nodes.append(dataclasses.replace(node, args=args, kwargs=kwargs, shape=shape))
            return Ref(node.name)

        names: Env = {name: Ref(name) for name in (graph.input, *self.values)}
        output = forward(graph.steps, names, visit)[graph.output].name
        used = {name for node in nodes for name in node.refs()}
        values = {name: value for name, value in self.values.items() if name in used}
        names = {name: name for name in values}
        return Graph(graph.input, graph.input_shape, graph.dtype, tuple(nodes), output, names, {}), values


def _layer(chain: Chain) -> Node:
    if chain.layer is None:  # excluded by the caller; for the type checker
        raise BoundError("a block without a weighted layer")
    return chain.layer


def _pads(node: Node) -> bool:
    """Does a call only move channels or surround them by zeros?"""
    rule = find(node.op)
    if rule is None or rule.move is None or not rule.move.channelwise or node.kwargs or node.shape is None:
        return False
    sizes = node.args[1] if len(node.args) > 1 else []
    return len(sizes) <= 2 * (len(node.shape) - 2) and not any(
        isinstance(a, (int, float)) and a != 0 for a in node.args[2:]
    )


def _replaced(value: Any, old: Any, new: Any) -> Any:
    """Return the sizes of a reshaping with one of them changed."""
    if isinstance(value, (tuple, list)):
        return type(value)(new if not isinstance(v, Ref) and v == old else v for v in value)
    return value
