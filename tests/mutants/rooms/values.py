"""Faults in numerics, regions and intervals."""

from tests.mutants.fault import Mutant as M

NUMERICS = ("tests/test_numerics.py", "surebound/numerics")
ROUNDING = ("tests/rules/test_rounding.py", "tests/test_numerics.py")

FAULTS = [
    M("numerics/units.py", "nu / (1 - nu)", "nu / (1 + nu)", NUMERICS),
    M("numerics/units.py", "eps) / 2", "eps) / 4", NUMERICS),
    M("numerics/units.py", "if nu >= 0.25:", "if nu >= 25:", NUMERICS),
    M("numerics/sums.py", "total.abs() * 2.0**-52 + tiny(torch.float64)", "0 * total", NUMERICS),
    M("numerics/sums.py", "math.prod(shape[-run:]) + 2", "2", ("tests/test_numerics.py", "tests/kernels/test_sums.py")),
    M(
        "numerics/sums.py",
        "gamma(n + 4, torch.float64), 2",
        "gamma(1, torch.float64), 2",
        ("tests/test_numerics.py", "tests/kernels/test_sums.py"),
    ),
    M(
        "numerics/outward.py",
        "times = 2 if soundness is Soundness.DEPLOYED else 1\n        own",
        "times = 1\n        own",
        ROUNDING,
    ),
    M(
        "numerics/outward.py",
        "times = 2 if soundness is Soundness.DEPLOYED else 1\n    #",
        "times = 0\n    #",
        ("tests/rules/test_accuracy.py", "tests/test_numerics.py"),
    ),
    M("numerics/outward.py", "g = gamma(terms + PREPAID_ROUNDINGS, dtype)", "g = gamma(1, dtype)", ROUNDING),
    M(
        "numerics/outward.py",
        "torch.where(radius <= limit, radius, torch.full_like(radius, math.nan))",
        "radius",
        ROUNDING,
    ),
    M("numerics/outward.py", "k = 2 * (roundings + PREPAID_ROUNDINGS) * u", "k = 0.0", ROUNDING),
    M("numerics/outward.py", "bias.abs() * self.on_bias + self.absolute", "self.absolute", ROUNDING),
    M(
        "numerics/unknown.py",
        "odd = (lower + upper).isnan()",
        "odd = lower.isnan() & upper.isnan()",
        ("tests/bounds/test_undefined.py",),
    ),
    M(
        "numerics/unknown.py",
        "return bound <= 0",
        "return ~(bound > 0)",
        ("surebound/numerics", "tests/test_numerics.py"),
    ),
    M(
        "numerics/unknown.py",
        "upper.nan_to_num(math.inf, math.inf, -math.inf)",
        "upper.nan_to_num(0.0)",
        ("tests/bounds/test_undefined.py", "tests/test_numerics.py", "tests/bounds/test_margins.py"),
    ),
    M(
        "numerics/unknown.py",
        "upper.masked_fill(odd, math.inf)",
        "upper.masked_fill(odd, 0.0)",
        ("tests/bounds/test_interval.py", "tests/test_numerics.py"),
    ),
    M("numerics/neighbours.py", "torch.where(nearest.double() < value, above, nearest)", "nearest", NUMERICS),
    M(
        "numerics/neighbours.py",
        "torch.maximum(next_up(value), value + tiny(torch.float32))",
        "value",
        ("surebound/numerics", "tests/vnnlib/test_decide.py"),
    ),
    M(
        "numerics/neighbours.py",
        "(size <= least) & (size > 0)",
        "(size <= least) & (size > least)",
        ("tests/rules/test_rounding.py",),
    ),
    M(
        "numerics/fractions.py",
        "nearest if top * value.denominator >= value.numerator * bottom",
        "nearest if top * value.denominator != value.numerator * bottom",
        ("tests/test_numerics.py", "tests/test_region.py"),
    ),
    M(
        "numerics/fractions.py",
        "nearest if top * value.denominator <= value.numerator * bottom",
        "nearest if top * value.denominator != value.numerator * bottom",
        ("tests/test_numerics.py", "tests/test_region.py"),
    ),
    M(
        "numerics/fractions.py",
        "low = near.astype(np.float64) < wide",
        "low = near.astype(np.float64) > wide",
        ("tests/test_numerics.py", "surebound/numerics"),
    ),
    M("region.py", "self.lower > self.upper).any())", "self.lower > self.upper).all())", ("tests/test_region.py",)),
    M("numerics/radii.py", "next_up(x + radii)", "x + radii", ("tests/test_threats.py",)),
    M("region.py", "if radius < 0:", "if radius < -1:", ("tests/test_region.py",)),
    M(
        "region.py",
        "low = low if isinstance(low, float) else -_float_radius(-low, dtype)",
        "low = low if isinstance(low, float) else _float_radius(low, dtype)",
        ("tests/test_region.py",),
    ),
    M(
        "flags.py",
        "for device in cast:\n            torch.set_autocast_enabled(device, False)",
        "pass",
        ("tests/test_flags.py", "tests/graph/test_changes.py"),
    ),
    M("flags.py", '_matmul("highest")', '_matmul("medium")', ("tests/test_flags.py",)),
]
