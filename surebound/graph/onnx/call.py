"""One call of an ONNX file as its translation sees it, and the table of translations."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from surebound.errors import DataDependentError, GraphError
from surebound.graph.onnx.build import ANY, Builder, Shape, Span, Value, broadcast, check_size

Operand = Value | Tensor
Translation = Callable[["Call"], "Operand | list[Operand]"]

#: ONNX operator -> how to write it into a Graph when at least one operand varies.
TRANSLATIONS: dict[str, Translation] = {}

#: Sizes up to which float32 holds every whole number.
EXACT = 2.0**24

#: Element types of whole numbers and truth values: the first number that each holds, and the first beyond.
WHOLE: dict[str, Span] = {
    **{f"int{bits}": (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1)) for bits in (64, 32, 16, 8)},
    "uint8": (0.0, 256.0),
    "bool": (0.0, 2.0),
}


class Types(enum.Enum):
    """The element types that a translation takes and gives."""

    FLOAT = "float32 only"
    MOVE = "any: results hold entries of the operands"
    SAME = "any: results have the operands' type"
    OWN = "the translation says"


#: ONNX operator -> the element types of its operands and results.
TYPES: dict[str, Types] = {}

#: ONNX operator -> the attributes that its translation takes account of; any other one must have its default value.
ATTRIBUTES: dict[str, frozenset[str]] = {}


def translates(
    *operators: str, reads: Sequence[str] = (), types: Types = Types.FLOAT
) -> Callable[[Translation], Translation]:
    """Register a translation, the attributes that it reads and the element types that it takes."""

    def register(translation: Translation) -> Translation:
        for operator in operators:
            if operator in TRANSLATIONS:
                raise GraphError(f"{operator} has a translation already")
            TRANSLATIONS[operator], ATTRIBUTES[operator], TYPES[operator] = translation, frozenset(reads), types
        return translation

    return register


@dataclass(frozen=True, eq=False)
class Call:
    """An operator, its attributes and its operands: varying Values, constant Tensors, None where one is left out."""

    op: str
    attributes: Mapping[str, Any]
    operands: Sequence[Operand | None]
    results: int
    opset: int
    builder: Builder
    where: str

    def refuse(self, why: str) -> GraphError:
        """Return the error for a use that is not supported."""
        return GraphError(f"{self.where}: {why}")

    def emit(self, op: str, *args: Any) -> Value:
        """Add a call to the Graph."""
        return self.builder.call(op, *args, where=self.where)

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute or its default; it must be one of those that the translation is registered with."""
        if name not in ATTRIBUTES[self.op]:
            raise LookupError(f"the translation of {self.op} reads {name!r} without saying so")
        return self.attributes.get(name, default)

    def operand(self, index: int) -> Operand | None:
        """Return an operand that may be left out."""
        return self.operands[index] if index < len(self.operands) else None

    @property
    def x(self) -> Value:
        """The first operand, which varies."""
        return self.varying(0)

    def varying(self, index: int) -> Value:
        """Return an operand that must depend on the input."""
        found = self.operand(index)
        if not isinstance(found, Value):
            places = frozenset[int]().union(*(each.places for each in self.operands if isinstance(each, Value)))
            if places:
                raise DataDependentError(f"{self.where}: a position or a shape depends on the network's input", places)
            raise self.refuse(f"operand {index} is constant while another one varies; that is not supported")
        return found

    def constant(self, index: int) -> Tensor | None:
        """Return an operand that must not depend on the input, if it is there."""
        found = self.operand(index)
        if isinstance(found, Value) and found.places:
            why = f"operand {index}, a position or a shape, depends on the network's input"
            raise DataDependentError(f"{self.where}: {why}", found.places)
        if isinstance(found, Value):
            raise self.refuse(
                f"operand {index} depends on the network's input, or is computed in an arithmetic that differs between "
                "implementations; it must be constant"
            )
        return found

    def weight(self, index: int) -> Tensor:
        """Return a float32 operand that must be there and constant."""
        found = self.constant(index)
        if found is None or found.dtype != torch.float32:
            kind = "missing" if found is None else str(found.dtype)
            raise self.refuse(f"operand {index} is {kind}; it must be a float32 constant")
        return found

    def number_like(self, constant: Tensor) -> Tensor:
        """Return a constant as the float32 numbers that stand beside varying values of its element type."""
        kind = str(constant.dtype).removeprefix("torch.")
        if any(each.dtype != kind for each in self.operands if isinstance(each, Value)):
            kinds = " and ".join(sorted({each.dtype for each in self.operands if isinstance(each, Value)}))
            raise self.refuse(f"it mixes the network's {kinds} values with {kind}")
        return self.number_of(constant)

    def number_of(self, constant: Tensor) -> Tensor:
        """Return a constant as exactly the same float32 numbers."""
        if constant.dtype == torch.float32:
            return constant
        if max(map(abs, span_of(constant))) > EXACT:
            raise self.refuse(f"its constants are larger than {int(EXACT)}, up to which whole numbers are exact")
        return constant.to(torch.float32)

    def integers(self, index: int, attribute: str | None = None) -> list[int] | None:
        """Return a list of whole numbers: an operand, or before some opset an attribute."""
        found = self.constant(index)
        if found is not None:
            return [int(v) for v in found.flatten().tolist()]
        given = self.attribute(attribute) if attribute is not None else None
        return None if given is None else [int(v) for v in given]

    def number(self, index: int, attribute: str, default: float | None) -> float | None:
        """Return a number: an operand, or before some opset an attribute."""
        found = self.constant(index)
        if found is None:
            given = self.attribute(attribute, default)
            return None if given is None else float(given)
        if found.numel() != 1:
            raise self.refuse(f"operand {index} has shape {list(found.shape)}; it must be one number")
        return float(found)

    def held(self, value: Value, shape: Shape) -> Value:
        """Hold a value in a given shape without batch axis."""
        return self.builder.view(value, shape)

    def axis(self, axis: int, rank: int) -> int:
        """Return an axis counted from the front, or refuse it."""
        if not -rank <= axis < rank:
            raise self.refuse(f"axis {axis} of a tensor with {rank} axes")
        return axis % rank

    def image(self, value: Value) -> Value:
        """Hold a value of shape (1, C, ...) as (B, C, ...)."""
        if len(value.shape) < 2 or value.shape[0] != 1:
            raise self.refuse(f"its input has shape {list(value.shape)}; a batch of one, (1, C, ...), is supported")
        return self.held(value, value.shape[1:])

    def from_image(self, value: Value) -> Value:
        """Return a result (B, C, ...) as (1, C, ...) of the file."""
        return value.reshaped((1, *value.item))

    def aligned(self, *operands: Operand) -> tuple[list[Operand], Shape]:
        """Hold operands so that they broadcast behind the batch axis; return them and the result's shape."""
        shapes = [tuple(each.shape) for each in operands]
        out = broadcast(shapes, self.where)
        check_size(out, self.where)
        values = [each for each in operands if isinstance(each, Value)]
        item = values[0].item
        same = all(v.item == item and v.shape == out for v in values)
        ones = len(out) - len(item)
        if not (same and ones >= 0 and item == out[ones:] and all(n == 1 for n in out[:ones])):
            ones = 1 if out and out[0] == 1 and all(s[: len(s) - len(out) + 1] in ((), (1,)) for s in shapes) else 0
        return [self._broadcastable(each, len(out), ones) for each in operands], out

    def _broadcastable(self, operand: Operand, rank: int, ones: int) -> Operand:
        padded = (*([1] * (rank - len(operand.shape))), *operand.shape)[ones:]
        if isinstance(operand, Value):
            return self.held(operand, padded)
        return operand if tuple(operand.shape) == padded else operand.reshape(padded)


def span_of(operand: Operand) -> Span:
    """Return the smallest and the largest number that an entry may be: of a constant, or of whole numbers that vary."""
    if isinstance(operand, Value):
        return operand.span
    return (float(operand.min()), float(operand.max())) if operand.numel() else (0.0, 0.0)


def joined(*operands: Operand) -> Span:
    """Return the span of all entries of several operands."""
    spans = [span_of(each) for each in operands]
    return min(low for low, _ in spans), max(high for _, high in spans)


def kept(call: Call, made: Operand | list[Operand]) -> Operand | list[Operand]:
    """Give results the element type of the operands, as ``Types`` of the operator says."""
    types = TYPES[call.op]
    if types not in (Types.MOVE, Types.SAME):
        return made
    dtype = next(each.dtype for each in call.operands if isinstance(each, Value))
    # Padding adds entries of its own.
    entries = [each for each in call.operands if each is not None and str(each.dtype).endswith(dtype)]
    span = joined(torch.zeros(1), *entries) if types is Types.MOVE and dtype != "float32" else ANY

    places = frozenset[int]().union(*(each.places for each in call.operands if isinstance(each, Value)))

    def typed(value: Operand) -> Operand:
        if not isinstance(value, Value) or dtype == "float32":
            return value
        return replace(value, dtype=dtype, span=value.span if types is Types.SAME else span, places=places)

    return [typed(each) for each in made] if isinstance(made, list) else typed(made)


def check_attributes(node: Any, opset: int, where: str) -> None:
    """Refuse an attribute that the operator's translation does not read, unless it has its default value."""
    from onnx import defs, helper

    schema = defs.get_schema(node.op_type, opset, "").attributes
    for each in node.attribute:
        if each.name in ATTRIBUTES[node.op_type]:
            continue
        usual = schema[each.name].default_value if each.name in schema else None
        if usual is None or not usual.type or helper.get_attribute_value(each) != helper.get_attribute_value(usual):
            raise GraphError(
                f"{where}: the attribute {each.name}={helper.get_attribute_value(each)!r} is not supported"
            )


def attributes_of(node: Any) -> dict[str, Any]:
    """Return a node's attributes as plain values; tensors stay ``TensorProto``."""
    from onnx import helper

    found = {}
    for each in node.attribute:
        value = helper.get_attribute_value(each)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        elif not isinstance(value, (int, float, str)) and value.__class__.__name__.startswith("Repeated"):
            value = list(value)
        found[each.name] = value
    return found
