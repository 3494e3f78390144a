"""Other words in a sentence: boxes around what they are embedded as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from surebound.errors import InputError
from surebound.region import Box


def substitutions(embeddings: Tensor, tokens: Tensor, others: Mapping[int, Sequence[int]]) -> Box:
    """Return the box of embedded sentences in which every word may be replaced by one of ``others[word]``.

    embeddings (V, E), one row a word; tokens (B, L), numbers of words. The box (B, L, E) is the smallest that holds all
    choices (Jia et al. 2019), and more points than these: ask about the part of the network behind the embedding. What
    is proved holds for every choice of words; a counterexample need not be a sentence.

    >>> table = torch.tensor([[0.0, 0.0], [1.0, 2.0], [3.0, 1.0]])
    >>> substitutions(table, torch.tensor([[1, 0]]), {1: [2]}).upper.tolist()
    [[[3.0, 2.0], [0.0, 0.0]]]
    """
    if embeddings.dim() != 2 or not embeddings.is_floating_point():
        raise InputError(f"embeddings are a table (words, features) of floats, not {tuple(embeddings.shape)}")
    if tokens.dim() != 2 or tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise InputError(f"tokens are numbers of words (sentences, length), not {tokens.dtype} {tuple(tokens.shape)}")
    given = [*tokens.flatten().tolist(), *others, *(word for words in others.values() for word in words)]
    wrong = [word for word in given if not 0 <= int(word) < len(embeddings)]
    if wrong:
        raise InputError(f"word {wrong[0]} is not in the table of {len(embeddings)} words")
    table = embeddings.detach()
    lower, upper = table.clone(), table.clone()
    for word, words in others.items():
        rows = table[[int(word), *(int(each) for each in words)]]
        lower[int(word)], upper[int(word)] = rows.amin(0), rows.amax(0)
    return Box(lower[tokens.long()], upper[tokens.long()])
