"""Certificates of the semidefinite bound: dual variables from plain arithmetic, their objective bounded."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from surebound.bounds.semidefinite.form import HiddenForm
from surebound.numerics import largest_eigenvalue, several_sums, slightly_up

#: Steps of Lanczos for one look at the top eigenvectors.
LANCZOS = 20
#: How many certificates are kept: they depend on weights alone, and every batch of images asks for the same ones.
REMEMBERED = 4096
_known: dict[tuple[str, str, int], float] = {}


def certificates(rows: Tensor, weight: Tensor, steps: int) -> Tensor:
    """Bound how far rows . relu(weight x + b) moves when x moves by at most 1 in every input: (R,), rows (R, m).

    Whatever the bias and wherever x is: at radius r it moves by r times that. The same numbers are computed once.
    """
    keys = [(_digest(weight), _digest(row), steps) for row in rows]
    found = {key: _known[key] for key in keys if key in _known}
    new = [at for at, key in enumerate(keys) if key not in found]
    if new:
        form = HiddenForm(rows[new].detach().double(), weight.detach().double())
        with torch.no_grad():
            dual = optimised(form, first_dual(form), steps)
            found |= {keys[at]: certified(form, row, dual[row]) for row, at in enumerate(new)}
    if len(_known) + len(new) > REMEMBERED:
        _known.clear()
    _known.update(found)
    return torch.tensor([found[key] for key in keys], dtype=torch.float64, device=rows.device)


def _digest(value: Tensor) -> str:
    wide = value.detach().double().cpu().contiguous()
    return hashlib.sha256(repr(tuple(wide.shape)).encode() + wide.numpy().tobytes()).hexdigest()


def first_dual(form: HiddenForm) -> Tensor:
    """Start dual variables (R, N) at a share of the row sums of |M|, with the least objective of a few shares."""
    sums, best, least = form.row_sums(), None, None
    vectors = torch.ones_like(sums)
    for share in (1.0, 0.7, 0.5, 0.35, 0.25, 0.15):
        dual = share * sums
        vectors = form.top_vectors(dual, vectors, LANCZOS)
        value = form.value(dual, vectors)
        if best is None or least is None:
            best, least = dual, value
        better = value < least
        best, least = torch.where(better.unsqueeze(1), dual, best), torch.where(better, value, least)
    return sums if best is None else best


def optimised(form: HiddenForm, dual: Tensor, steps: int) -> Tensor:
    """Lower the dual objective by projected subgradient steps of Adam; return the best dual variables (R, N) met."""
    if not steps or not dual.numel():
        return dual
    scale = dual.mean(1, keepdim=True).clamp(min=torch.finfo(dual.dtype).tiny)  # heuristic: of the first step
    free = (dual / scale).requires_grad_()
    adam = torch.optim.Adam([free], lr=0.1)
    vectors, best = torch.ones_like(dual), dual.clone()
    least = torch.full((len(dual),), torch.inf, dtype=dual.dtype, device=dual.device)
    for step in range(steps + 1):
        vectors = form.top_vectors(free.detach() * scale, vectors, LANCZOS)
        with torch.enable_grad():
            value = form.value(free * scale, vectors)
            loss = (value / value.detach().clamp(min=1e-30)).sum()  # heuristic: rows of all sizes count alike
        better = value.detach() < least
        least = torch.where(better, value.detach(), least)
        best = torch.where(better.unsqueeze(1), free.detach() * scale, best)
        if step < steps:
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            adam.param_groups[0]["lr"] = 0.1 * (1 - step / steps)
            adam.step()
            with torch.no_grad():
                free.clamp_(min=0)
    return best


def certified(form: HiddenForm, row: int, dual: Tensor) -> float:
    """Bound a quarter of N max(0, largest eigenvalue of M - diag(dual)) + sum max(dual, 0) rigorously, dual (N,).

    y.My <= (largest eigenvalue of M - diag(dual)) |y|^2 + sum dual_i y_i^2, and no entry of y is larger than 1. The
    computed matrix differs from M by at most the rounding of its entries, whose largest row sum bounds what that does
    to eigenvalues.
    """
    matrix = form.matrix(row)
    rounding = float(form.row_sums()[row].max()) if dual.numel() else 0.0
    sizes = form.rows[row].abs() @ form.weight.abs()  # (d,): what the first row's sums are relative to
    rounding = max(rounding, float(sizes.sum())) * several_sums(len(form.weight) + 8, 4)
    top = largest_eigenvalue(matrix - torch.diag(dual)) + slightly_up(rounding)
    positive = dual.clamp(min=0).sum()
    total = slightly_up(form.size * top) + slightly_up(float(positive))
    return slightly_up(total) / 4.0
