"""Draw parts of networks as text: layers, activations, in-place and view code, shared modules, broadcasting."""

from __future__ import annotations

from collections.abc import Callable

from surebound.audit.draw import Draw
from surebound.audit.text import Piece

Shape = tuple[int, ...]  # of one example
Maker = Callable[[Draw, Shape, str], Piece]

_ACTIVATIONS = (
    "torch.relu(x)", "torch.relu(x)", "F.relu(x, inplace=True)", "x.relu_()", "F.leaky_relu(x, 0.1)",
    "F.leaky_relu(x, 1.5)", "F.leaky_relu(x, -0.5)", "torch.sigmoid(x)", "torch.tanh(x)", "x.abs()", "F.elu(x)",
    "F.gelu(x)", "F.gelu(x, approximate='tanh')", "F.silu(x)", "F.softplus(x)", "F.softplus(x, 3.0)",
    "F.softplus(x, 1.0, 0.5)", "F.hardswish(x)", "F.hardtanh(x, -0.4, 0.3)", "F.relu6(4 * x)", "x.clamp(-0.2, 0.5)",
    "x.clamp_(max=0.3)", "torch.maximum(x, 0.3 - x)", "torch.where(x > 0.1, x, 0.2 * x)", "F.mish(x)", "x.square()",
    "torch.sin(3 * x)", "torch.exp(x.clamp(max=3))", "F.celu(x, 0.5)", "F.selu(x)", "F.threshold(x, 0.1, -0.3)",
    "1 / (1 + x.square())", "(x.square() + 0.1).sqrt()", "torch.sign(x) * x", "x / (1 + x.abs())", "F.hardsigmoid(x)",
)  # fmt: skip

_FLAT = (
    "x = x + x[:, :1]",
    "x = torch.cat([x[:, 1:], x[:, :1] * x[:, 1:2]], 1)",
    "x = (x.unsqueeze(1) * x[:, :2].unsqueeze(2)).flatten(1)",
    "x = torch.stack([x[:, 0] * x[:, 1], x[:, 1], x[:, 0] - x[:, 1]], 1)",
    "y = x * 2; y.mul_(0.5); y[:, 1:].add_(y[:, :1]); x = y",
    "y = x.clone(); y[:, 0] = y[:, 1] + 0.5; x = y",
    "y = x.clone(); y.view(-1)[:] = 0.5 * x.reshape(-1); x = y",
    "y = x.clone(); z = y[:, ::2]; z -= 0.25; x = y",
    "a = torch.relu(x); b = a.view(a.shape[0], -1); x = a + b",
    "x = x - x.mean(1, keepdim=True)",
    "x = (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, unbiased=False) + 0.1).sqrt()",
    "x = x.softmax(1)",
    "x = F.log_softmax(x, 1)",
    "x = x.cumsum(1)",
    "x = torch.relu(x) - torch.relu(-x)",
    "x = x.sort(1)[0]",
    "x = F.max_pool1d(x.unsqueeze(1), 2, 1, padding=1).squeeze(1)",
    "x = F.normalize(x + 2, dim=1)",
    "x = x[:, torch.tensor([1, 0, 0, 1])]",
    "x = torch.einsum('bi,bj->bij', x, x).flatten(1)[:, :6]",
)

_FEATURES = (
    "x = F.max_pool{d}d(x, 2, 1, 1)",
    "x = F.avg_pool{d}d(x, 2, 1, 1, count_include_pad=False)",
    "x = F.adaptive_avg_pool{d}d(x, 2)",
    "x = F.interpolate(x, scale_factor=2, mode='nearest')",
    "x = x + x.mean(dim=-1, keepdim=True)",
    "x = x * torch.linspace(-1, 1, x.shape[-1])",
    "x = x.transpose(1, -1)",
    "x = x.flip(-1)",
    "x = F.pad(x, (1, 0), mode='replicate')",
    "x = torch.cat([x, -x], 1)",
    "x = x.mean(-1)",
    "x = x.amax(-1)",
    "x = x[..., ::2]",
    "x = torch.relu(x) @ torch.ones(x.shape[-1], 2)",
)


def drawn(draw: Draw, shape: Shape, name: str) -> Piece:
    """Return a piece that may follow values of such a shape; whether it fits is seen when it runs."""
    makers: list[Maker] = [activation, activation, _norm, _reshape]
    makers += [_linear, _flat, _twice, _residual] if len(shape) == 1 else [_convolution, _feature, _feature]
    return draw.choice(makers)(draw, shape, name)


def head(shape: Shape, classes: int) -> Piece:
    """Return a last layer for values of such a shape."""
    size = 1
    for each in shape:
        size *= each
    forward = ("x = self.head(x.flatten(1))",)
    return Piece(forward, (f"self.head = nn.Linear({size}, {classes})",), needed=True)


def activation(draw: Draw, shape: Shape, name: str) -> Piece:
    """Return an activation."""
    if draw.chance(0.1):
        return Piece((f"x = self.{name}(x)",), (f"self.{name} = nn.PReLU(init={draw.pick(0.25, -0.3, 2.0)})",))
    return Piece((f"x = {draw.choice(_ACTIVATIONS)}",))


def _linear(draw: Draw, shape: Shape, name: str) -> Piece:
    bias = draw.chance(0.8)
    return Piece(
        (f"x = self.{name}(x)",), (f"self.{name} = nn.Linear({shape[0]}, {draw.pick(1, 3, 4, 7)}, bias={bias})",)
    )


def _twice(draw: Draw, shape: Shape, name: str) -> Piece:
    """Use one module twice."""
    n = shape[0]
    return Piece((f"x = self.{name}(torch.relu(self.{name}(x)))",), (f"self.{name} = nn.Linear({n}, {n})",))


def _residual(draw: Draw, shape: Shape, name: str) -> Piece:
    n = shape[0]
    line = draw.pick(
        f"x = x + torch.relu(self.{name}(x))",
        f"y = self.{name}(x); y += x; x = y.relu_()",
        f"h = self.{name}(x); x = torch.relu(h) - torch.relu(-h) + self.{name}(torch.relu(h))",
    )
    return Piece((line,), (f"self.{name} = nn.Linear({n}, {n})",))


def _norm(draw: Draw, shape: Shape, name: str) -> Piece:
    kind = f"nn.BatchNorm{max(1, len(shape) - 1)}d({shape[0]})"
    draws = (f"self.{name}.running_mean.uniform_(-1, 1)", f"self.{name}.running_var.uniform_(0.2, 2)")
    return Piece((f"x = self.{name}(x)",), (f"self.{name} = {kind}", *draws))


def _flat(draw: Draw, shape: Shape, name: str) -> Piece:
    return Piece((draw.choice(_FLAT),))


def _feature(draw: Draw, shape: Shape, name: str) -> Piece:
    return Piece((draw.choice(_FEATURES).format(d=len(shape) - 1),))


def _convolution(draw: Draw, shape: Shape, name: str) -> Piece:
    c, d = shape[0], len(shape) - 1
    group = draw.choice([g for g in (1, 2, 3) if c % g == 0])
    out = group * draw.pick(1, 2)
    transposed = "Transpose" if draw.chance(0.2) else ""
    options = f"stride={draw.pick(1, 1, 2)}, padding={draw.pick(0, 1)}, dilation={draw.pick(1, 1, 2)}, groups={group}"
    kernel = tuple(draw.several((1, 2, 3), d))
    return Piece((f"x = self.{name}(x)",), (f"self.{name} = nn.Conv{transposed}{d}d({c}, {out}, {kernel}, {options})",))


def _reshape(draw: Draw, shape: Shape, name: str) -> Piece:
    """Put the entries into another number of axes."""
    if len(shape) > 1:
        return Piece((draw.pick("x = x.flatten(1)", "x = x.reshape(x.shape[0], -1)", "x = x.flatten(2)"),))
    n = shape[0]
    options: list[Shape] = [(a, n // a) for a in (1, 2, 3) if n % a == 0]
    options += [(a, b, n // (a * b)) for a in (1, 2) for b in (2, 3) if n % (a * b) == 0]
    return Piece((f"x = x.reshape(-1, {', '.join(map(str, draw.choice(options)))})",))
