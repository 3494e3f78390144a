"""What is known of each dataset that comes as files: the one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from surebound.data import cifar10, idx, imagenet64, svhn
from surebound.data.augment import Augment
from surebound.data.files import Found, Layout
from surebound.data.types import Split

DIGITS = tuple("0123456789")


@dataclass(frozen=True)
class Remote:
    """A published file: its name, its published md5, and the addresses it can be had from, best first."""

    file: str
    md5: str
    urls: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """One dataset: what its files must hold, where they are looked for, and where they can be had."""

    name: str
    title: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]  # (C, H, W) of the training images
    counts: tuple[int, int]  # train, test
    folders: tuple[str, ...]  # under the data directory, in the order they are looked in
    layouts: tuple[Layout, ...]
    read: Callable[[Found], tuple[Split, Split]]
    remotes: tuple[Remote, ...] = ()  # empty: the publisher wants to be asked first
    page: str = ""  # where to ask
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    augment: Augment | None = None

    @property
    def test_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the test images: cropped where training crops."""
        c, h, w = self.shape
        crop = self.augment.crop if self.augment is not None else None
        return (c, h, w) if crop is None else (c, crop, crop)


def _remotes(mirrors: tuple[str, ...], **md5: str) -> tuple[Remote, ...]:
    """The four gzipped idx files at each of `mirrors`."""
    return tuple(
        Remote(f"{stem}.gz", md5[key], tuple(f"{mirror}{stem}.gz" for mirror in mirrors))
        for key, stem in zip(("train_images", "train_labels", "test_images", "test_labels"), idx.STEMS, strict=True)
    )


MNIST = Source(
    name="mnist",
    title="MNIST",
    classes=DIGITS,
    shape=(1, 28, 28),
    counts=(60_000, 10_000),
    folders=("mnist", "MNIST/raw", "MNIST", "."),
    layouts=idx.LAYOUTS,
    read=idx.read,
    remotes=_remotes(
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        train_images="f68b3c2dcbeaaa9fbdd348bbdeb94873",
        train_labels="d53e105ee54ea40749a09fcbcd1e9432",
        test_images="9fb629c4189551a2d022fa330f9573f3",
        test_labels="ec29112dd5afa0611ce80d1b7f02629c",
    ),
)

FASHION_MNIST = Source(
    name="fashion_mnist",
    title="Fashion-MNIST",
    classes=(
        *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ),
    shape=(1, 28, 28),
    counts=(60_000, 10_000),
    folders=("fashion_mnist", "fashion-mnist", "FashionMNIST/raw", "FashionMNIST", "."),
    layouts=idx.LAYOUTS,
    read=idx.read,
    remotes=_remotes(
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        ),
        train_images="8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        train_labels="25c81989df183df01b3e8a0aad5dffbe",
        test_images="bef4ecab320f06d8554ea6380940ec79",
        test_labels="bb300cfdad3c16e7a12a480ee83cd310",
    ),
)

CIFAR10 = Source(
    name="cifar10",
    title="CIFAR-10",
    classes=cifar10.CLASSES,
    shape=(3, 32, 32),
    counts=(50_000, 10_000),
    folders=("cifar10", "cifar-10", "CIFAR10", "."),
    layouts=cifar10.LAYOUTS,
    read=cifar10.read,
    remotes=(  # the binary version: it needs no pickle
        Remote(
            "cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        ),
    ),
    mean=(0.4914, 0.4822, 0.4465),
    # The mean of the images' own deviations, as the authors of the paper have it.
    std=(0.2023, 0.1994, 0.2010),
    augment=Augment(pad=4, flip=True),
)

SVHN = Source(
    name="svhn",
    title="SVHN (cropped digits)",
    classes=DIGITS,
    shape=(3, 32, 32),
    counts=(73_257, 26_032),
    folders=("svhn", "SVHN", "."),
    layouts=svhn.LAYOUTS,
    read=svhn.read,
    remotes=tuple(
        Remote(file, md5, (f"http://ufldl.stanford.edu/housenumbers/{file}",))
        for file, md5 in (
            ("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
            ("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
        )
    ),
    mean=(0.4377, 0.4438, 0.4728),
    std=(0.1980, 0.2010, 0.1970),
    augment=Augment(pad=4),
)

IMAGENET64 = Source(
    name="imagenet64",
    title="ImageNet 64x64",
    classes=tuple(str(number) for number in range(1, imagenet64.CLASSES + 1)),  # as the publisher counts them
    shape=imagenet64.SHAPE,
    counts=(1_281_167, 50_000),
    folders=("imagenet64", "Imagenet64", "."),
    layouts=imagenet64.LAYOUTS,
    read=imagenet64.read,
    page="https://image-net.org/download-images",
    mean=(0.4810, 0.4574, 0.4078),
    std=(0.2633, 0.2560, 0.2708),
    augment=Augment(crop=imagenet64.CROP, flip=True),
)

SOURCES = {source.name: source for source in (MNIST, FASHION_MNIST, CIFAR10, SVHN, IMAGENET64)}
