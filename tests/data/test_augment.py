"""Augmentation against a slow, obvious reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from surebound.data import Augment, centre_crop, stream
from surebound.data.augment import cut
from surebound.errors import InputError


def numbered(b: int = 5, c: int = 2, h: int = 6, w: int = 7) -> Tensor:
    """Images without two equal pixels and without a zero."""
    return torch.arange(1, b * c * h * w + 1).reshape(b, c, h, w)


def test_a_window_is_cut_and_mirrored_as_told() -> None:
    x, rows, columns = numbered(), torch.tensor([0, 1, 2, 2, 0]), torch.tensor([3, 0, 1, 3, 2])
    mirrored = torch.tensor([True, False, True, False, False])
    given = cut(x, rows, columns, mirrored, (4, 3))
    for b in range(5):
        i, j = int(rows[b]), int(columns[b])
        window = x[b, :, i : i + 4, j : j + 3]
        assert torch.equal(given[b], window[:, :, [2, 1, 0]] if mirrored[b] else window)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_each_image_is_a_shifted_or_mirrored_copy_of_itself(dtype: torch.dtype) -> None:
    x = (numbered(8, 1, 5, 5) % 251).to(dtype)
    given = Augment(pad=2, flip=True)(x, stream(0))
    assert given.shape == x.shape
    assert given.dtype == dtype
    seen = set()
    for before, after in zip(x, given, strict=True):
        padded = torch.zeros(1, 9, 9, dtype=dtype)
        padded[:, 2:7, 2:7] = before
        windows = {
            (i, j, mirrored): (window.flip(2) if mirrored else window)
            for i in range(5)
            for j in range(5)
            for mirrored in (False, True)
            for window in [padded[:, i : i + 5, j : j + 5]]
        }
        matches = [key for key, window in windows.items() if torch.equal(window, after)]
        assert len(matches) == 1  # exactly one way to get there: nothing was invented
        seen.add(matches[0])
    assert len(seen) > 3  # images are moved independently of each other


def test_every_place_and_both_sides_are_reached_equally_often() -> None:
    x = torch.zeros(9000, 1, 3, 3)
    x[:, :, 1, 0] = 1  # one pixel, left of the centre
    given = Augment(pad=1, flip=True)(x, stream(1))
    # Shifts of -1, 0, 1 each way: the pixel leaves by the left edge, or lands in a column; then is mirrored.
    lost = float((given.sum((1, 2, 3)) == 0).float().mean())
    assert lost == pytest.approx(1 / 3, abs=0.02)
    where = given.sum(0)[0] / 9000
    assert torch.allclose(where[:, 0], torch.full((3,), 1 / 18), atol=0.012)
    assert torch.allclose(where[:, 1], torch.full((3,), 1 / 9), atol=0.012)
    assert torch.allclose(where[:, 2], torch.full((3,), 1 / 18), atol=0.012)


def test_crops_and_their_still_counterpart() -> None:
    x = numbered(4, 3, 64, 64)
    augment = Augment(crop=56, flip=True)
    assert augment(x, stream(0)).shape == (4, 3, 56, 56)
    assert torch.equal(augment.still(x), x[:, :, 4:60, 4:60])
    assert torch.equal(centre_crop(x, 56), x[:, :, 4:60, 4:60])
    assert Augment(pad=4, flip=True).still(x) is x


def test_the_same_generator_gives_the_same_images() -> None:
    x = numbered()
    augment = Augment(pad=2, flip=True)
    assert torch.equal(augment(x, stream(3)), augment(x, stream(3)))
    assert not torch.equal(augment(x, stream(3)), augment(x, stream(4)))


@pytest.mark.parametrize("world_size", [2, 3])
def test_processes_augment_their_blocks_as_one_process_would(world_size: int) -> None:
    x = numbered(6)
    augment = Augment(pad=2, flip=True)
    alone = augment(x, stream(0, "augment", 12))
    share = 6 // world_size
    blocks = [
        augment(x[rank * share : (rank + 1) * share], stream(0, "augment", 12), shard=(rank, world_size))
        for rank in range(world_size)
    ]
    assert torch.equal(torch.cat(blocks), alone)


def test_mirroring_alone_moves_nothing() -> None:
    x = numbered(20)
    given = Augment(flip=True)(x, stream(0))
    mirrored = torch.tensor([torch.equal(a, b.flip(2)) for a, b in zip(given, x, strict=True)])
    assert 0 < int(mirrored.sum()) < 20
    assert torch.equal(given[~mirrored], x[~mirrored])


def test_a_crop_of_all_that_was_padded_keeps_the_border() -> None:
    given = Augment(pad=1, crop=8)(numbered(2, 1, 6, 6), stream(0))
    assert torch.equal(given[:, :, 1:7, 1:7], numbered(2, 1, 6, 6))
    assert int(given[:, :, 0].abs().sum()) == 0


def test_nothing_to_do_is_nothing_done() -> None:
    x = numbered()
    assert Augment()(x, stream(0)) is x


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"pad": -1}, "pad must be 0 or more pixels, got -1"), ({"crop": 0}, "crop must be at least 1 pixel")],
)
def test_senseless_augmentations_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Augment(**arguments)  # type: ignore[arg-type]


def test_a_crop_larger_than_the_image_is_refused() -> None:
    with pytest.raises(InputError, match="a crop of 9x9 does not fit images of 6x7 padded by 1"):
        Augment(pad=1, crop=9)(numbered(), stream(0))
