"""Attacks from where a sub-problem's linear bound is largest: a few steps of gradient ascent from such a corner."""

from __future__ import annotations

import torch
from torch import Tensor

from surebound.attack.box import InnerBox, project
from surebound.attack.network import Network, evaluating
from surebound.attack.objective import Classification
from surebound.verify.query import Query
from surebound.verify.workspace import Workspace

#: How many points of a batch are climbed from, and how far of the box each step goes.
_STARTS = 8
_RATES = (0.25, 0.25, 0.125, 0.0625, 0.03)


class LeafAttack:
    """Tries points of several examples; a witness is one that was re-run inside the exact region."""

    def __init__(self, query: Query, workspace: Workspace) -> None:
        self._query, self._workspace = query, workspace
        self._network, self._box = Network(workspace.model), InnerBox.of(query.region)

    def __call__(self, points: Tensor, example: Tensor, target: Tensor) -> dict[int, Tensor]:
        """Witnesses by example, from points (N, *input) for targets (N,) of examples (N,)."""
        box = self._box[example]
        x = project(points.to(box.lower.dtype), box.lower, box.upper)
        with evaluating(self._workspace.model):
            logits = self._network.logits(x, rows=256)
            found = self._confirmed(x, logits, example)
            label = self._query.labels[example]
            value = _margin(logits, label, target)
            best = value.nan_to_num(torch.inf).argsort(descending=True, stable=True)[:_STARTS]
            return self._climb(x[best], example[best], target[best]) | found

    def _climb(self, x: Tensor, example: Tensor, target: Tensor) -> dict[int, Tensor]:
        box, label = self._box[example], self._query.labels[example]
        width, found = box.upper - box.lower, dict[int, Tensor]()
        for rate in _RATES:
            _, gradient = self._network.ascent(x, lambda logits: _margin(logits, label, target))
            x = project(x + rate * width * gradient.sign(), box.lower, box.upper)
            found |= self._confirmed(x, self._network.logits(x, rows=256), example)
            if found:
                break
        return found

    def _confirmed(self, x: Tensor, logits: Tensor, example: Tensor) -> dict[int, Tensor]:
        broken = Classification(self._query.labels[example]).violated(logits)
        found: dict[int, Tensor] = {}
        for row in broken.nonzero()[:, 0].tolist():
            i = int(example[row])
            if i not in found:
                one = self._query.take(torch.tensor([i]))
                witness = self._workspace.confirmed(one.region, one.labels, x[row])
                if witness is not None:
                    found[i] = witness
        return found


def _margin(logits: Tensor, label: Tensor, target: Tensor) -> Tensor:
    """z_target - z_true: (N,)."""
    pick = torch.stack([target, label], 1)
    chosen = logits.gather(1, pick)
    return chosen[:, 0] - chosen[:, 1]
