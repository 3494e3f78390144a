"""Faults in the rules: the interval, relaxation and MIP columns."""

from tests.mutants.fault import Mutant as M

HARNESS, STEPS = ("tests/rules/test_harness.py",), ("tests/rules/test_steps.py",)
LINES = ("tests/bounds/test_relaxations.py", "tests/bounds/test_operators.py")
UNDEFINED = ("tests/bounds/test_undefined.py",)
MIP = ("tests/search/test_mip.py",)

FAULTS = [
    M(
        "rules/activation.py",
        "lower = torch.where(_inside(x, f.valley[0]), torch.minimum(lower, bottom), lower)",
        "lower = lower",
        (*HARNESS, "-k", "silu or gelu or cosh"),
    ),
    M(
        "rules/activation.py",
        "upper = torch.where(_inside(x, f.peak[0]), torch.maximum(upper, top), upper)",
        "upper = upper",
        ("tests/rules/test_extrema.py", *HARNESS),
    ),
    M(
        "rules/activation.py",
        "outward(lower, upper, ctx.soundness, f.ulps, f.absolute, f.underflow)",
        "lower, upper",
        ("tests/rules/test_accuracy.py", *HARNESS),
    ),
    M("rules/activation.py", "bool((x.lower < low).any())", "bool((x.lower < low).all())", (*HARNESS, *UNDEFINED)),
    M(
        "rules/arithmetic.py",
        "torch.minimum(torch.minimum(values[0], values[1]), torch.minimum(values[2], values[3]))",
        "torch.minimum(values[0], values[3])",
        (*HARNESS, "-k", "mul or div"),
    ),
    M(
        "rules/arithmetic.py",
        "return Interval(-x.upper, -x.lower)",
        "return Interval(-x.lower, -x.upper)",
        (*HARNESS, "-k", "neg"),
    ),
    M(
        "rules/arithmetic.py",
        "return add_interval(ctx, x, y, alpha=-alpha)",
        "return add_interval(ctx, x, y, alpha=-1)",
        (*HARNESS, "-k", "sub"),
    ),
    M(
        "rules/arithmetic.py",
        "odd = (_may_be_infinite(x) & _may_be_zero(y)) | (_may_be_zero(x) & _may_be_infinite(y))",
        "odd = _may_be_infinite(x) & _may_be_infinite(y)",
        UNDEFINED,
    ),
    M(
        "rules/arithmetic.py",
        'check_clear_of_zero(ctx, y, "division by")',
        "pass",
        (*HARNESS, *UNDEFINED, "tests/rules/test_rounding.py", "tests/rules/test_extrema.py"),
    ),
    M(
        "rules/arithmetic.py",
        "return x.lower - tiny(x.dtype), x.upper + tiny(x.dtype)",
        "return x.lower, x.upper",
        ("tests/rules/test_rounding.py",),
    ),
    M(
        "rules/arithmetic.py",
        "lower, upper = outward(lower, upper, ctx.soundness, 1, underflow=4)",
        "pass",
        ("tests/rules/test_rounding.py",),
    ),
    M(
        "rules/arithmetic.py",
        "return reduce_to(a / c, in_shape)",
        "return reduce_to(a * c, in_shape)",
        ("tests/rules/test_affine.py", *STEPS),
    ),
    M(
        "rules/arithmetic.py",
        "a * (sign * (1 if first else alpha))",
        "a * (1 if first else alpha)",
        ("tests/rules/test_affine.py", *STEPS),
    ),
    M(
        "rules/normalization.py",
        "error = 4 * _ROUNDINGS * u",
        "error = 0 * u",
        ("tests/rules/test_rounding.py", *HARNESS),
    ),
    M(
        "rules/normalization.py",
        "radius = x.radius * scale.abs()",
        "radius = x.radius * scale",
        (*HARNESS, "-k", "norm"),
    ),
    M(
        "rules/normalization.py",
        "shift = -offset if bias is None else bias - offset",
        "shift = -offset if bias is None else bias + offset",
        (*HARNESS, "-k", "norm"),
    ),
    M(
        "rules/pooling.py",
        "return math.prod(sizes) + 2",
        "return 0",
        ("tests/rules/test_affine.py", "tests/rules/test_rounding.py", *STEPS),
    ),
    M(
        "rules/pooling.py",
        "blur = 2 * rank * position",
        "blur = 0 * rank * position",
        ("tests/rules/test_rounding.py", *HARNESS),
    ),
    M(
        "rules/pooling.py",
        "if divisor is not None and divisor < 0:",
        "if divisor is not None and divisor < -99:",
        ("tests/rules/test_rounding.py", "tests/rules/test_shapes.py", "tests/rules/test_extrema.py", *HARNESS),
    ),
    M(
        "rules/affine.py",
        "lower.clamp(max=largest) * (1 - rounding.on_center)",
        "lower * (1 + rounding.on_center)",
        ("tests/rules/test_rounding.py", *HARNESS),
    ),
    M(
        "rules/affine.py",
        "upper = upper * (1 + rounding.on_center) + rounding.absolute",
        "upper = upper",
        ("tests/rules/test_rounding.py", *HARNESS),
    ),
    M(
        "rules/affine.py",
        "reads.paid(center_in, radius_in, rounding.on_center / factor, owned=owned)",
        "reads.paid(center_in, radius_in, 0.0 * factor, owned=owned)",
        ("tests/rules/test_rounding.py",),
    ),
    M(
        "rules/affine.py",
        "return 16 * terms * tiny(size.dtype) * rate * size.max()",
        "return 0 * size.max()",
        ("tests/rules/test_rounding.py",),
    ),
    M(
        "rules/clamp.py",
        "if bottom > top:\n        bottom = top",
        "pass",
        ("tests/search/test_mip.py", "-k", "cross"),
    ),
    M(
        "rules/clamp.py",
        "lower, upper = (torch.minimum(a, b) for a, b",
        "lower, upper = (torch.maximum(a, b) for a, b",
        (*HARNESS, "-k", "clamp or clip"),
    ),
    M(
        "rules/relax/relu.py",
        "return value.double().abs() * (6 * unit_roundoff(value.dtype)) + 8 * tiny(value.dtype)",
        "return torch.zeros_like(value)",
        (*STEPS, "tests/bounds/test_reduced.py"),
    ),
    M("rules/relax/relu.py", "if slope < 1 else None", "if slope < 2 else None", LINES),
    M(
        "rules/relax/relu.py",
        "owes = 2 * unit_roundoff(x.dtype) if sound else 0.0",
        "owes = 0.0",
        ("tests/bounds/test_linear_floats.py", *STEPS),
    ),
    M(
        "rules/relax/lines.py",
        "upper_intercept = round_up(upper_intercept + outward * upper_intercept.abs(), dtype)",
        "upper_intercept = upper_intercept.to(dtype)",
        (*STEPS, *LINES),
    ),
    M(
        "rules/relax/lines.py",
        "slope.clamp(*self.free_range)",
        "slope",
        ("tests/bounds/test_linear.py", "tests/bounds/test_relaxations.py"),
    ),
    M(
        "rules/relax/lines.py",
        "offset = offset + dot(negative, self.lower_intercept)",
        "offset = offset",
        (*STEPS, *LINES),
    ),
    M("rules/relax/choice.py", "sure = best >= others", "sure = best >= best", LINES),
    M("rules/relax/choice.py", "highs.scatter(2, which.unsqueeze(2), -math.inf).amax(2)", "lows.amin(2)", LINES),
    M("rules/relax/choice.py", "(x.lower, x.upper) if sign > 0 else (-x.upper, -x.lower)", "(x.lower, x.upper)", LINES),
    M("rules/registry.py", "if rule.op in _rules:", "if False:", ("tests/rules/test_registry.py",)),
]
