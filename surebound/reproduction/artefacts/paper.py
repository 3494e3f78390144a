"""The paper's own numbers (Gowal et al. 2018), error rates in percent; None where the paper has a dash."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Row:
    """One line of table 4 or 6. `radius` and `eps_train` are written as presets write them; quoted: from literature."""

    data: str
    radius: str
    method: str  # nominal, adversarial, wong, ibp; or a citation if quoted
    clean: float
    pgd: float | None
    verified: float | None
    eps_train: str = ""
    net: str = ""
    quoted: bool = False

    @property
    def eps(self) -> Fraction:
        """The radius of the test."""
        return Fraction(self.radius.replace("-", "/"))


METHODS = {
    "nominal": "Nominal", "adversarial": "Madry et al.", "wong": "Wong et al.", "ibp": "IBP",
}  # fmt: skip
DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10", "svhn": "SVHN", "imagenet64": "ImageNet 64x64"}


def _q(data: str, radius: str, who: str, clean: float, pgd: float | None, verified: float | None, net: str = "") -> Row:
    return Row(data, radius, who, clean, pgd, verified, net=net, quoted=True)


STATE_OF_THE_ART = (
    Row("mnist", "0.1", "nominal", 0.65, 27.72, None),
    Row("mnist", "0.1", "adversarial", 0.59, 1.34, None, "0.2"),
    Row("mnist", "0.1", "wong", 1.08, 2.89, 3.01, "0.1"),
    Row("mnist", "0.1", "ibp", 1.06, 2.11, 2.23, "0.2"),
    _q("mnist", "0.1", "Xiao et al. 2018", 1.05, 3.42, 4.40),
    _q("mnist", "0.1", "Wong et al. 2018b", 1.08, None, 3.67),
    _q("mnist", "0.1", "Dvijotham et al. 2018", 1.20, 2.87, 4.44),
    Row("mnist", "0.2", "nominal", 0.65, 99.57, None),
    Row("mnist", "0.2", "adversarial", 0.70, 2.39, None, "0.4"),
    Row("mnist", "0.2", "wong", 3.22, 6.93, 7.27, "0.2"),
    Row("mnist", "0.2", "ibp", 1.66, 3.90, 4.48, "0.4"),
    _q("mnist", "0.2", "Xiao et al. 2018", 1.90, 6.86, 10.21),
    Row("mnist", "0.3", "nominal", 0.65, 99.63, None),
    Row("mnist", "0.3", "adversarial", 0.70, 3.73, None, "0.4"),
    Row("mnist", "0.3", "wong", 13.52, 26.16, 26.92, "0.3"),
    Row("mnist", "0.3", "ibp", 1.66, 6.12, 8.05, "0.4"),
    _q("mnist", "0.3", "Madry et al. 2017", 1.20, 6.96, None),
    _q("mnist", "0.3", "Xiao et al. 2018", 2.67, 7.95, 19.32),
    _q("mnist", "0.3", "Wong et al. 2018b", 14.87, None, 43.10),
    Row("mnist", "0.4", "nominal", 0.65, 99.64, None),
    Row("mnist", "0.4", "adversarial", 0.70, 5.52, None, "0.4"),
    Row("mnist", "0.4", "ibp", 1.66, 10.34, 14.88, "0.4"),
    Row("cifar10", "2-255", "nominal", 16.66, 87.24, None),
    Row("cifar10", "2-255", "adversarial", 15.54, 42.01, None, "2-255"),
    Row("cifar10", "2-255", "wong", 36.01, 45.11, 49.96, "2-255"),
    Row("cifar10", "2-255", "ibp", 29.84, 45.09, 49.98, "2-255"),
    _q("cifar10", "2-255", "Xiao et al. 2018", 38.88, 50.08, 54.07),
    _q("cifar10", "2-255", "Wong et al. 2018b", 31.72, None, 46.11),
    Row("cifar10", "8-255", "nominal", 16.66, 100.00, 100.00),
    Row("cifar10", "8-255", "adversarial", 20.33, 75.95, None, "8-255"),
    Row("cifar10", "8-255", "wong", 71.03, 78.14, 79.21, "8-255"),
    Row("cifar10", "8-255", "ibp", 50.51, 65.23, 67.96, "8-255"),
    _q("cifar10", "8-255", "Madry et al. 2017", 12.70, 52.96, None),
    _q("cifar10", "8-255", "Xiao et al. 2018", 59.55, 73.22, 79.73),
    _q("cifar10", "8-255", "Wong et al. 2018b", 71.33, None, 78.22),
    _q("cifar10", "8-255", "Dvijotham et al. 2018 (eps 0.03)", 51.36, 67.28, 73.33),
    Row("svhn", "0.01", "nominal", 5.13, 94.14, None),
    Row("svhn", "0.01", "adversarial", 6.18, 29.06, None, "0.01"),
    Row("svhn", "0.01", "wong", 18.10, 32.41, 37.96, "0.01"),
    Row("svhn", "0.01", "ibp", 14.82, 32.46, 37.60, "0.01"),
    _q("svhn", "0.01", "Wong and Kolter 2018", 20.38, 33.74, 40.67),
    _q("svhn", "0.01", "Dvijotham et al. 2018", 16.59, 33.14, 37.56),
)
"""Table 4. The nets are the best of the paper's three per row; `eps_train` is the radius that did best."""


def _ibp(data: str, radius: str, rows: str, train: str) -> tuple[Row, ...]:
    """Small, medium, large: `clean pgd verified`, separated by semicolons."""
    found = []
    for net, text in zip(("small", "medium", "large"), rows.split(";"), strict=True):
        clean, pgd, verified = (float(value) for value in text.split())
        found.append(Row(data, radius, "ibp", clean, pgd, verified, train, net))
    return tuple(found)


ADDITIONAL = (
    *_ibp("mnist", "0.1", "1.39 2.91 2.97;1.06 2.11 2.23;1.07 1.89 2.32", "0.2"),
    _q("mnist", "0.1", "Wong et al. 2018b", 1.26, None, 4.48, "small"),
    _q("mnist", "0.1", "Wong et al. 2018b", 1.08, None, 3.67, "medium"),
    _q("mnist", "0.1", "Mirman et al. 2018", 2.4, 4.4, 5.8, "small"),
    _q("mnist", "0.1", "Mirman et al. 2018", 1.0, 2.4, 3.4, "medium"),
    _q("mnist", "0.1", "Wang et al. 2018", 1.5, 3.7, 8.4, "small"),
    _q("mnist", "0.1", "Wang et al. 2018", 0.5, 1.8, 4.8, "medium"),
    *_ibp("mnist", "0.3", "4.59 9.09 10.25;2.70 7.98 9.74;1.66 6.12 8.05", "0.4"),
    _q("mnist", "0.3", "Wong et al. 2018b", 14.87, None, 43.10, "small"),
    _q("mnist", "0.3", "Wong et al. 2018b", 12.61, None, 45.66, "medium"),
    _q("mnist", "0.3", "Mirman et al. 2018", 3.2, 9.0, 19.4, "small"),
    _q("mnist", "0.3", "Mirman et al. 2018", 3.4, 6.2, 18.0, "medium"),
    _q("mnist", "0.3", "Wang et al. 2018", 4.6, 12.7, 48.0, "small"),
    _q("mnist", "0.3", "Wang et al. 2018", 3.4, 10.6, 41.6, "medium"),
    _q("cifar10", "1-510", "Mirman et al. 2018", 42.8, 46.4, 47.8, "small"),
    _q("cifar10", "1-510", "Mirman et al. 2018", 52.8, 59.2, 64.2, "medium"),
    *_ibp("cifar10", "2-255", "39.54 53.95 56.43;37.28 51.73 54.78;29.84 45.09 49.98", "2-255"),
    _q("cifar10", "2-255", "Wong et al. 2018b", 38.91, None, 52.75, "small"),
    _q("cifar10", "2-255", "Wong et al. 2018b", 31.28, None, 46.59, "medium"),
    _q("cifar10", "2-255", "Mirman et al. 2018", 45.8, 60.0, 64.8, "small"),
    _q("cifar10", "2-255", "Mirman et al. 2018", 51.6, 61.4, 75.8, "medium"),
    _q("cifar10", "2-255", "Wang et al. 2018", 28.9, 45.4, 62.4, "small"),
    _q("cifar10", "2-255", "Wang et al. 2018", 22.1, 36.5, 58.4, "medium"),
    *_ibp("cifar10", "8-255", "61.63 70.42 72.93;58.23 69.72 72.33;50.51 65.23 67.96", "8-255"),
    _q("cifar10", "8-255", "Wong et al. 2018b", 72.24, None, 79.25, "small"),
    _q("cifar10", "8-255", "Wong et al. 2018b", 80.56, None, 83.43, "medium"),
)
"""Table 6. The paper does not say which radius its small and medium networks were trained with; those of table 4."""

TIGHTNESS = (
    ("mnist", "0.1", 2.92, 2.23), ("mnist", "0.2", 4.53, 4.48), ("mnist", "0.3", 8.21, 8.05),
    ("mnist", "0.4", 15.01, 14.88), ("cifar10", "2-255", 55.88, 49.98), ("cifar10", "8-255", 68.44, 67.96),
    ("svhn", "0.01", 39.35, 37.60),
)  # fmt: skip
"""Table 3: dataset, radius, IBP bound, MIP bound."""

ABLATION = {
    "small": ((30.09, 28.63, 32.03), (26.21, 24.99, 28.49), (25.67, 24.04, 26.71), (24.94, 23.10, 26.63)),
    "medium": ((20.24, 19.77, 20.66), (19.96, 19.92, 20.19), (18.10, 17.60, 18.38), (18.02, 17.61, 18.11)),
    "large": ((18.32, 17.88, 18.55), (18.03, 17.93, 18.58), (16.39, 15.73, 17.11), (16.33, 16.00, 16.74)),
}
"""Table 5: (median, 0.25, 0.75) for softplus, + elision, cross-entropy, cross-entropy + elision."""

IMAGENET = {
    "nominal": (48.84, 100.00, None),
    "adversarial": (51.52, 70.03, None),
    "ibp": (84.04, 90.88, 93.87),
}
RUNTIME = {"nominal": 1.5, "ibp": 3.5, "adversarial": 8.5, "wong": 120.0}
"""Seconds per epoch, small network, MNIST, Titan Xp."""

ARCHITECTURES = {"small": ("8.3K", "471K"), "medium": ("47K", "1.2M"), "large": ("230K", "17M")}
