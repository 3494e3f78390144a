"""Certify a character LSTM against typing errors: which month or weekday is meant, if one key slips to a neighbour?

Run it with `python examples/typos.py`. A letter is embedded as its place on the keyboard, so that neighbouring keys lie
close together, and a word with one slip lies in a box: that of all neighbours of one letter. The network is trained on
the worst interval bound over such boxes, by hand, as one would write any training loop. What linear bounds and branch
and bound prove afterwards holds for every such slip at that place, and for every execution in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import surebound as sb
from surebound.threats import substitutions

MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
WORDS = [*MONTHS, "mon", "tue", "wed", "thu", "fri", "sat", "sun"]
LENGTH = 3
ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
#: A letter's row and column; rows are shifted by half a key.
KEYS = {letter: (row, column + row / 2) for row, line in enumerate(ROWS) for column, letter in enumerate(line)}
LETTERS = sorted(KEYS)
TABLE = torch.tensor([[row / 2, column / 10] for row, column in (KEYS[letter] for letter in LETTERS)])


def neighbours(letter: str) -> list[int]:
    """Return the numbers of the keys that touch a key."""
    row, column = KEYS[letter]
    return [n for n, k in enumerate(LETTERS) if 0 < abs(KEYS[k][0] - row) + abs(KEYS[k][1] - column) <= 1.5]


def tokens(words: list[str]) -> Tensor:
    """Return words as numbers of letters (B, L)."""
    return torch.tensor([[LETTERS.index(letter) for letter in word] for word in words])


def slips(words: list[str], size: float = 1.0) -> sb.Box:
    """Return the boxes (L B, L, 2) of words with one key, at the first, second, ... place, that may have slipped.

    ``size``: of the way to the neighbours.
    """
    meant = tokens(words)
    free = substitutions(TABLE, meant, {n: neighbours(letter) for n, letter in enumerate(LETTERS)})
    fixed = TABLE[meant]
    places = torch.eye(LENGTH, dtype=torch.bool).view(LENGTH, 1, LENGTH, 1)
    lower = torch.where(places, fixed + size * (free.lower - fixed), fixed)
    upper = torch.where(places, fixed + size * (free.upper - fixed), fixed)
    return sb.Box(lower.flatten(0, 1), upper.flatten(0, 1))


class Reader(nn.Module):
    """An LSTM that reads a word letter by letter, and a linear layer on its last state."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.lstm = nn.LSTM(TABLE.shape[1], hidden, batch_first=True)
        self.head = nn.Linear(hidden, len(WORDS))

    def forward(self, x: Tensor) -> Tensor:
        _, (h, _) = self.lstm(x)
        return self.head(h[-1])  # type: ignore[no-any-return]


def main(steps: int = 1000, seconds: float = 2.0) -> dict[str, int]:
    """Train on slips at all places; return how many are proved, broken and left open."""
    torch.manual_seed(0)
    net, labels, meant = Reader(), torch.arange(len(WORDS)), TABLE[tokens(WORDS)]
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
    for step in range(steps):
        boxes = slips(WORDS, min(1.0, 1.5 * step / steps))  # they grow over two thirds of the steps
        worst = sb.worst_margins(net, boxes, labels.repeat(LENGTH), soundness="none")  # by how much a class may win
        loss = nn.functional.cross_entropy(worst, labels.repeat(LENGTH))
        loss = loss + nn.functional.cross_entropy(net(meant), labels)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    right = int((net.eval()(meant).argmax(1) == labels).sum())
    verdicts = sb.decide(net, slips(WORDS), labels.repeat(LENGTH), timeout=seconds)
    counts = {"words": right, "robust": 0, "falsified": 0, "open": 0}
    for slip, verdict in enumerate(verdicts):
        status = str(verdict.status.value)
        counts[status if status in counts else "open"] += 1
        if status == "falsified":
            place, word = divmod(slip, len(WORDS))
            print(f"  {WORDS[word]!r} with a slip at letter {place + 1} may be read as another word")
    print(f"{right} of {len(WORDS)} words are read right; of {len(verdicts)} slips of one key at one place")
    print(f"{counts['robust']} can never change what is read, {counts['falsified']} can, {counts['open']} are open")
    return counts


if __name__ == "__main__":
    main()
