"""Multi-head attention with the batch axis first, while tracing.

PyTorch's own function works on (sequence, batch, features) and puts batch and heads into one axis, where bounds cannot
see that examples stay apart. Within ``batch_axis_first`` it computes the same with (batch, heads, sequence, features);
the trace is compared with the module afterwards, as always. TransformerEncoder looks at a mask's numbers to see whether
it is causal, which no tracer can follow; there it takes the mask as it is.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules import transformer

from surebound.graph.decompose import about, masked_scores

#: Arguments that the plain form of attention leaves as they are by default.
_UNUSUAL = ("bias_k", "bias_v", "add_zero_attn", "static_k", "static_v")


@contextlib.contextmanager
def batch_axis_first() -> Iterator[None]:
    """Replace F.multi_head_attention_forward; callers hold the lock of tracing."""
    original = F.multi_head_attention_forward
    signature = inspect.signature(original)

    def replaced(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        mask = given["attn_mask"]
        odd = any(given[name] is not None and given[name] is not False for name in _UNUSUAL)
        if odd or given["query"].dim() != 3 or (mask is not None and mask.dim() != 2):
            return original(*args, **kwargs)
        return _forward(given)

    F.multi_head_attention_forward = replaced
    detect = transformer._detect_is_causal_mask  # a hint: the mask is there beside it
    transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: is_causal is True
    try:
        yield
    finally:
        F.multi_head_attention_forward, transformer._detect_is_causal_mask = original, detect


def _forward(given: Any) -> tuple[Tensor, Tensor | None]:
    """Return the output (L, B, E) and, where they are wanted, the weights (B, L, S) or (B, heads, L, S)."""
    heads = int(given["num_heads"])
    if given["use_separate_proj_weight"]:
        weights = [given[f"{name}_proj_weight"] for name in "qkv"]
    else:
        weights = given["in_proj_weight"].chunk(3)
    biases = [None] * 3 if given["in_proj_bias"] is None else given["in_proj_bias"].chunk(3)
    q, k, v = (
        torch.unflatten(F.linear(given[name].transpose(0, 1), weight, bias), -1, (heads, -1)).transpose(1, 2)
        for name, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True)
    )
    mask, hidden = given["attn_mask"], given["key_padding_mask"]
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, -math.inf)  # True means: not attended to
    causal = bool(given["is_causal"]) and hidden is None and not given["need_weights"]  # as the module reads it
    if hidden is not None:
        if hidden.dtype == torch.bool:
            hidden = torch.zeros_like(hidden, dtype=q.dtype).masked_fill(hidden, -math.inf)
        hidden = hidden.reshape(hidden.shape[0], 1, 1, -1)
        mask = hidden if mask is None else mask + hidden
    made = F.scaled_dot_product_attention(q, k, v, attn_mask=None if causal else mask, is_causal=causal)
    out = F.linear(made.transpose(1, 2).flatten(2), given["out_proj_weight"], given["out_proj_bias"])
    if not given["need_weights"]:
        return out.transpose(0, 1), None
    # The module scales q first.
    root = math.sqrt(int(q.shape[-1]))
    size = q.abs().sum(-1, True) * k.abs().amax((-2, -1), True) / root
    scores = about(torch.matmul(q, k.transpose(-2, -1)) / root, size, 16.0)
    if mask is not None:
        scores = masked_scores(scores, mask, size, int(q.shape[-1]))
    shares = torch.softmax(scores, -1)
    return out.transpose(0, 1), shares.mean(1) if given["average_attn_weights"] else shares
