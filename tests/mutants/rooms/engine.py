"""Faults in bounds and compiled passes."""

from tests.mutants.fault import Mutant as M

ANEW = ("tests/bounds/test_anew.py",)
NARROW = ("tests/bounds/test_narrowing.py",)
REDUCED, MARGINS = ("tests/bounds/test_reduced.py",), ("tests/bounds/test_margins.py",)
ENDS, SUMS = ("tests/kernels/test_ends.py", "tests/test_region.py"), ("tests/kernels/test_sums.py",)
ROWS = ("tests/kernels/test_rows.py", "tests/kernels/test_sums.py")

FAULTS = [
    M(
        "bounds/reduced/passes.py",
        "m.betas[:, layer.own].clamp(min=0) * signs",
        "m.betas[:, layer.own] * signs",
        REDUCED,
    ),
    M(
        "bounds/reduced/passes.py",
        "alphas = alphas.clamp(layer.left, layer.right)",
        "pass",
        REDUCED,
    ),
    M("bounds/reduced/narrowing.py", "torch.maximum(*ends).clamp(min=0)", "torch.zeros_like(chord)", NARROW),
    M(
        "bounds/reduced/narrowing.py",
        "slightly_up(a.abs() @ (error + size * rate) + offsets * rate) + UNDERFLOW",
        "0 * offsets",
        NARROW,
    ),
    M("bounds/reduced/narrowing.py", "a.abs() @ (error + size * rate)", "a.abs() @ (size * rate)", NARROW),
    M("bounds/reduced/narrowing.py", "torch.where(layer.lower >= 0,", "torch.where(layer.lower >= -1,", NARROW),
    M("bounds/reduced/narrowing.py", "lower[at].clamp(min=0)", "lower[at].clamp(min=0.3)", ANEW),
    M("bounds/reduced/narrowing.py", " | (layer.fixed != 0)", "", ANEW),
    M("bounds/reduced/anew.py", "rebounded(layer, Interval(lower, upper))", "rebounded(layer, best)", ANEW),
    M(
        "bounds/reduced/anew.py",
        "columns.append(first + torch.searchsorted(places, kept))",
        "columns.append(torch.searchsorted(places, kept))",
        ANEW,
    ),
    M("bounds/reduced/swing.py", "inside[:, held] * side).sign().neg()", "inside[:, held] * side).sign()", ANEW),
    M("bounds/linear/steps.py", "offset = rows.dot(a, _mirrored(price))", "offset = rows.dot(a, price)", NARROW),
    M("bounds/reduced/passes.py", "(size * rate + tiny(self.dtype) * self.columns)", "0 * size", REDUCED),
    M("bounds/reduced/passes.py", "offset = offset + negative @ layer.bottom", "offset = offset", REDUCED),
    M("bounds/reduced/passes.py", "up @ layer.up_offset + down @ layer.low_offset", "p @ layer.up_offset", REDUCED),
    M(
        "bounds/reduced/passes.py",
        "torch.where(found.a > 0, self.upper_end, self.lower)",
        "torch.where(found.a > 0, self.lower, self.upper_end)",
        REDUCED,
    ),
    M(
        "bounds/reduced/passes.py",
        "torch.where(sign > 0, 0.0, layer.lower)",
        "torch.where(sign < 0, 0.0, layer.lower)",
        REDUCED,
    ),
    M("bounds/reduced/passes.py", "cost.clamp(min=0) - own.abs() * layer.bottom", "cost", REDUCED),
    M(
        "bounds/reduced/passes.py",
        "Interval(-upper[len(rows) :], upper[: len(rows)])",
        "Interval(upper[len(rows) :], upper[: len(rows)])",
        REDUCED,
    ),
    M("bounds/elision.py", "upper.scatter(1, labels.unsqueeze(1), 0.0)", "upper", MARGINS),
    M(
        "bounds/elision.py",
        "or not mixing(program).isdisjoint((name, *sources))",
        "",
        ("tests/bounds/test_by_example.py", "tests/bounds/test_repeats.py"),
    ),
    M(
        "bounds/elision.py",
        "merged = (weight.unsqueeze(0) - weight[labels].unsqueeze(1)).abs()",
        "merged = weight.unsqueeze(0) - weight[labels].unsqueeze(1)",
        MARGINS,
    ),
    M(
        "bounds/by_example.py",
        "for changed in range(batch) if batch > 1 else ():",
        "for changed in (0, batch - 1):",
        ("tests/bounds/test_by_example.py",),
    ),
    M(
        "bounds/by_example.py",
        "_by_place(program, own) | _by_size(program, others)",
        "_by_place(program, own)",
        ("tests/bounds/test_by_example.py",),
    ),
    M(
        "bounds/agreement.py",
        "bounds.contains(expected) & bounds.contains(ours) & expected.isfinite()",
        "bounds.contains(ours)",
        ("tests/verify/test_agreement.py",),
    ),
    M(
        "bounds/interval.py",
        "return Interval(*no_information(result.lower, result.upper))",
        "return result",
        ("tests/bounds/test_interval.py", "tests/bounds/test_undefined.py"),
    ),
    M(
        "bounds/interval.py",
        "if first in owned and reads[first] == 1 and first in dying:",
        "if first in owned:",
        ("tests/bounds/test_interval.py", "tests/bounds/test_memory.py"),
    ),
    M(
        "bounds/margins.py",
        "torch.fmin(margins, _rows(program, start, labels, spec, mode, other))",
        "torch.fmax(margins, _rows(program, start, labels, spec, mode, other))",
        ("tests/bounds/test_linear.py",),
    ),
    M(
        "bounds/linear/steps.py",
        "torch.where(wide >= 0, wide * self.upper.double(), wide * self.lower.double())",
        "wide * self.upper.double()",
        ("tests/rules/test_steps.py", "tests/bounds/test_operators.py"),
    ),
    M("kernels/ends.c", "return error > 0.0f ? next : sum;", "return sum;", ENDS),
    M("kernels/ends.c", "bits += whole < 0.0f ? -1 : 1;", "bits += 1;", ENDS),
    M(
        "kernels/ends.c",
        "down = down < least ? least : down, up = up < least ? least : up;",
        "down = down, up = up;",
        ENDS,
    ),
    M(
        "kernels/ends.c",
        "float over = at_low < at_high ? at_high : at_low,",
        "float over = at_low < at_high ? at_low : at_high,",
        (*SUMS, "tests/bounds/test_relaxations.py"),
    ),
    M(
        "kernels/ends.c",
        "LINES(sound_lines, width < least ? least : width, over * factor + extra)",
        "LINES(sound_lines, width < least ? least : width, over)",
        (*SUMS, "tests/bounds/test_relaxations.py"),
    ),
    M(
        "kernels/ends.c",
        "new_upper[j] = (high < u) | (u != u) ? high : u;",
        "new_upper[j] = high < u ? high : u;",
        ("tests/kernels/test_ends.py",),
    ),
    M("kernels/rounding.c", "return width + rate * fabsf(center);", "return width + rate * center;", ENDS),
    M("kernels/rounding.c", "out[i] = sum + (size * rate + under);", "out[i] = sum;", SUMS),
    M("kernels/rounding.c", "s[j] = all > limit ? INFINITY : all * rate + more;", "s[j] = all * rate + more;", SUMS),
    M("kernels/rounding.c", "*most = nan ? NAN : largest;", "*most = largest;", ENDS),
    M("kernels/rounding.c", "far = h[j] > -l[j] ? h[j] : -l[j];", "far = h[j];", ENDS),
    M(
        "kernels/rows.c",
        "    ADD_UP(total, sum);\n    for (; j < n; j++) sum += (double)a[j] * (double)v[j];",
        "    ADD_UP(total, sum);",
        ROWS,
    ),
    M(
        "kernels/rows.c",
        "#define ADD_PRODUCTS(total, x, y)",
        "#define ADD_PRODUCTS(total, x, y) (void)0;\n#define UNUSED(total, x, y)",
        ROWS,
    ),
]
