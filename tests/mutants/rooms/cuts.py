"""Faults in reduced networks of units and of few entries, in signs that follow from others, and in the checker."""

from tests.mutants.fault import Mutant as M

SPARSE = ("tests/bounds/test_matrix.py",)
COUNTS = ("tests/search/test_counts.py",)
FOLLOW = ("tests/search/test_propagation.py",)
GOALS = ("tests/search/test_goals.py",)
CHECKER = ("tests/checker/test_rounding.py", "tests/checker/test_checker.py", "tests/checker/test_adversary.py")

FAULTS = [
    M("bounds/reduced/matrix.py", "rows.values().abs(), tuple(rows.shape)", "rows.values(), tuple(rows.shape)", SPARSE),
    M("bounds/reduced/matrix.py", "work[:, : self.width].add_(", "work[:, : self.width].copy_(", SPARSE),
    M(
        "bounds/reduced/matrix.py",
        "torch.arange(len(count)).repeat_interleave(count)",
        "torch.arange(len(count)).repeat(int(count.sum()) // len(count) + 1)[: int(count.sum())]",
        SPARSE,
    ),
    M("search/jumps.py", "-1 if unit.positive else 1)", "1 if unit.positive else -1)", COUNTS),
    M("search/jumps.py", "elif status is Status.ROBUST:", "else:", COUNTS),
    M("search/jumps.py", "{name for name, behind in reads.items() if behind} - set(self.bounds)", "set[str]()", COUNTS),
    M("bounds/reduced/entry.py", "-rows.low_offset, -rows.up_offset)", "rows.low_offset, -rows.up_offset)", COUNTS),
    M(
        "search/signs/inequalities.py",
        "Interval(lower - self.slack, upper + self.slack)",
        "Interval(lower, upper)",
        FOLLOW,
    ),
    M("search/signs/inequalities.py", "(self.up_offset - z.lower) + self.slack", "(self.up_offset - z.lower)", FOLLOW),
    M("search/signs/inequalities.py", "+ b.abs()) * rate(passes) + UNDERFLOW", "+ b.abs()) * 0", FOLLOW),
    M("search/signs/inequalities.py", "for side in (a > 0, a < 0))", "for side in (a < 0, a > 0))", FOLLOW),
    M(
        "search/signs/inequalities.py",
        "upper = most / self.right if self.right > 0 else unknown",
        "upper = most",
        FOLLOW,
    ),
    M(
        "search/signs/propagation.py",
        "torch.where(self._targets.valid[batch.case], offset, torch.inf)",
        "torch.where(self._targets.valid[batch.case], offset, -torch.inf)",
        FOLLOW,
    ),
    M("search/signs/splitter.py", "return _GOAL - _MORE * inside", "return _GOAL - 0 * inside", GOALS),
    M("search/signs/splitter.py", "if bool(torch.isinf(batch.upper).any()):", "if False:", GOALS),
    M("bounds/reduced/descent.py", "~(best[active] <= goals[active])", "~(best[active] <= goals.amin())", GOALS),
    M("search/signs/propagation.py", "(self.grips & ~after.refuted).any()", "self.grips.any()", FOLLOW),
    M("search/signs/rounding.py", ">= _PART * pool.upper", ">= 2 * pool.upper", ("tests/search/test_rounding.py",)),
    M("checker/checker.py", "total[2] += dot(sizes, at) * rate", "total[2] += 0 * rate", CHECKER),
    M(
        "checker/checker.py",
        "error = size * (self.number.network(step.terms) + self.number.own(4 * step.terms + 64, step.always))",
        "error = 0 * size",
        CHECKER,
    ),
    M(
        "checker/checker.py",
        "np.maximum(np.abs(self.low[value]), np.abs(self.high[value])) + self.floor",
        "np.abs(self.high[value])",
        CHECKER,
    ),
]
