"""Splits and datasets as values: exact pixels, whole passes, refusals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from surebound.data import Augment, Dataset, Provenance, Split, Status, from_tensors, stream, to_unit
from surebound.errors import DataError, InputError


def small_split(count: int = 7) -> Split:
    images = torch.arange(count * 4, dtype=torch.uint8).reshape(count, 1, 2, 2)
    return Split(images, torch.arange(count) % 3)


def test_every_byte_becomes_the_float_nearest_to_its_255th() -> None:
    given = to_unit(torch.arange(256, dtype=torch.uint8)).numpy()
    for value in range(256):
        exact = Fraction(value, 255)
        near = given[value]
        gap = abs(Fraction(float(near)) - exact)
        for neighbour in (np.nextafter(near, np.float32(-1)), np.nextafter(near, np.float32(2))):
            assert gap <= abs(Fraction(float(neighbour)) - exact)


def test_floats_pass_through_untouched() -> None:
    x = torch.rand(2, 1, 2, 2)
    assert to_unit(x) is x


def test_a_pass_sees_every_image_once_with_a_short_last_batch() -> None:
    split = small_split(7)
    batches = list(split.batches(3))
    assert [len(y) for _, y in batches] == [3, 3, 1]
    assert torch.equal(torch.cat([x for x, _ in batches]), to_unit(split.images[:]))
    assert torch.equal(torch.cat([y for _, y in batches]), split.labels)
    assert [len(y) for _, y in split.batches(3, start=5)] == [2]


def test_batch_keeps_images_with_their_labels_in_the_order_asked_for() -> None:
    split = small_split()
    x, y = split.batch(torch.tensor([5, 0, 5]))
    assert torch.equal(
        x * 255, torch.tensor([20.0, 0.0, 20.0])[:, None, None, None] + torch.arange(4.0).view(1, 1, 2, 2)
    )
    assert y.tolist() == [2, 0, 2]


def test_take_and_subset() -> None:
    split = small_split()
    assert len(split.take(2)) == 2
    assert len(split.take(100)) == 7
    assert split.subset(torch.tensor([6, 1])).labels.tolist() == [0, 1]


def test_augmenting_without_a_generator_is_refused() -> None:
    with pytest.raises(InputError, match=r"pass the torch\.Generator"):
        small_split().batch(torch.tensor([0]), Augment(flip=True))


def test_batches_of_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="batch_size must be at least 1, got 0"):
        next(small_split().batches(0))


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(3, 2, 2, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64), r"\(N, C, H, W\)"),
        (
            torch.zeros(3, 1, 2, 2, dtype=torch.float64),
            torch.zeros(3, dtype=torch.int64),
            "uint8, or float32",
        ),
        (torch.zeros(3, 1, 2, 2), torch.zeros(2, dtype=torch.int64), "one per image"),
        (torch.zeros(3, 1, 2, 2), torch.zeros(3), "labels must be int64"),
    ],
)
def test_a_split_of_the_wrong_kind_is_refused(images: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Split(images, labels)


def test_labels_beyond_the_classes_are_refused() -> None:
    split = small_split()
    with pytest.raises(DataError, match="run from 0 to 2, but there are 2 classes: labels must be 0 to 1"):
        Dataset("x", split, split, ("a", "b"), Provenance(Status.OWN, ""))


def test_an_empty_split_is_refused() -> None:
    split = small_split()
    with pytest.raises(DataError, match="test split of 'x' is empty"):
        Dataset("x", split, split.take(0), ("a", "b", "c"), Provenance(Status.OWN, ""))


def test_own_tensors_become_a_dataset_with_a_digest_of_their_content() -> None:
    x, y = torch.rand(6, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1, 2], dtype=torch.int32)
    data = from_tensors((x[:4], y[:4]), (x[4:], y[4:]), augment=Augment(pad=1))
    assert data.classes == ("0", "1", "2")
    assert data.input_shape == (1, 4, 4)
    assert data.provenance.record()["status"] == "own"
    again = from_tensors((x[:4].clone(), y[:4]), (x[4:], y[4:]))
    assert again.provenance.digest == data.provenance.digest
    x[0, 0, 0, 0] += 1e-3
    changed = from_tensors((x[:4].clamp(0, 1), y[:4]), (x[4:], y[4:]))
    assert changed.provenance.digest != data.provenance.digest


@pytest.mark.parametrize("value", [1.5, -0.1, float("nan")])
def test_own_floats_outside_the_unit_interval_are_refused(value: float) -> None:
    x, y = torch.full((2, 1, 2, 2), 0.5), torch.tensor([0, 1])
    bad = x.clone()
    bad[0, 0, 0, 0] = value
    with pytest.raises(InputError, match=r"test images reach from .* must be in \[0, 1\]"):
        from_tensors((x, y), (bad, y))


def test_own_splits_of_different_shapes_are_refused() -> None:
    y = torch.tensor([0, 1])
    with pytest.raises(InputError, match=r"train images are \(1, 2, 2\) but test images are \(1, 3, 3\)"):
        from_tensors((torch.rand(2, 1, 2, 2), y), (torch.rand(2, 1, 3, 3), y))


def test_held_out_images_leave_the_training_and_replace_the_test_images() -> None:
    data = Dataset("x", small_split(7), small_split(2), ("a", "b", "c"), Provenance(Status.OWN, ""))
    held = data.holding_out(3)
    assert torch.equal(held.train.images, data.train.images[:4])
    assert torch.equal(held.test.images, data.train.images[4:])
    assert held.test.labels.tolist() == data.train.labels[4:].tolist()
    for count in (0, 7, -1):
        with pytest.raises(DataError, match=f"7 training images: {count} of them cannot be held out"):
            data.holding_out(count)
    other = Split(torch.zeros(2, 1, 3, 3), torch.tensor([0, 1]))
    with pytest.raises(DataError, match="cannot stand for test images"):
        Dataset("x", small_split(), other, ("a", "b", "c"), Provenance(Status.OWN, "")).holding_out(1)


def test_moving_a_dataset_keeps_it() -> None:
    x, y = torch.rand(4, 1, 2, 2), torch.tensor([0, 1, 0, 1])
    data = from_tensors((x, y), (x, y)).to("cpu")
    assert data.train.device == torch.device("cpu")
    assert torch.equal(data.train.batch(torch.tensor([1]), Augment(), stream(0))[0], x[1:2])
