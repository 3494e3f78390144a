"""Faults in sub-problems by parts of ranges, and in lines to choose from."""

from tests.mutants.fault import Mutant as M

PARTS = ("tests/bounds/test_ranges.py",)
SEARCH = ("tests/search/test_ranges.py",)
STEPS = ("tests/rules/test_steps.py",)

FAULTS = [
    M("bounds/linear/backward.py", "        rest, none = a - beta,", "        rest, none = a - 1.01 * beta,", PARTS),
    M(
        "bounds/linear/backward.py",
        "maximum(beta.contiguous(), self.bounds[name], none, self.mode)",
        "maximum(-beta.contiguous(), self.bounds[name], none, self.mode)",
        PARTS,
    ),
    M(
        "bounds/linear/narrowing.py",
        "        infeasible = infeasible | empty\n",
        "        infeasible = infeasible | empty.any()\n",
        PARTS,
    ),
    M(
        "bounds/linear/narrowing.py",
        "Interval(source.lower[where], source.upper[where])",
        "Interval(source.lower[where], (source.lower[where] + source.upper[where]) / 2)",
        PARTS,
    ),
    M("bounds/linear/narrowing.py", "found[where] = new.flatten()", "found[where] = new.flatten().flip(0)", PARTS),
    M(
        "bounds/linear/narrowing.py",
        "absolute=torch.maximum(old.absolute, entries.absolute.max())",
        "absolute=torch.zeros_like(old.absolute)",
        PARTS,
    ),
    M(
        "search/ranges/pool.py",
        "zip(((low, point), (point, high)), betas",
        "zip(((low, point), (high, high)), betas",
        SEARCH,
    ),
    M(
        "search/ranges/pool.py",
        "zip(((low, point), (point, high)), betas",
        "zip(((low, low), (point, high)), betas",
        SEARCH,
    ),
    M("search/ranges/pool.py", "free = torch.nn.functional.pad(same, (0, 1)) |", "free =", SEARCH),
    M(
        "search/ranges/splitter.py",
        "        self._tree.settle(batch[~free])\n",
        "\n",
        SEARCH,
    ),
    M(
        "search/ranges/splitter.py",
        "        done = proved(batch.upper)\n",
        "        done = batch.upper <= 0.1\n",
        SEARCH,
    ),
    M(
        "search/ranges/splitter.py",
        "upper = torch.where(relaxed.infeasible, -torch.inf, upper)",
        "upper = torch.where(relaxed.infeasible, torch.inf, upper)",
        SEARCH,
    ),
    M(
        "search/rule.py",
        "    if decided_by_signs(program) or program.graph.input_shape",
        "    if program.graph.input_shape",
        SEARCH,
    ),
    M("rules/relax/lines.py", "first, last = (2 * share).clamp(max=1)", "first, last = (2 * share)", STEPS),
    M("rules/relax/lines.py", "total + abs_dot(a, fan.paid) +", "total +", STEPS),
    M("rules/relax/pointwise.py", "slack = self.gap + FUNCTION_ERROR", "slack = FUNCTION_ERROR", STEPS),
    M(
        "rules/relax/pointwise.py",
        "torch.where(left, flattest, steepest), torch.where(left, steepest, flattest)",
        "torch.where(left, steepest, flattest), torch.where(left, flattest, steepest)",
        STEPS,
    ),
]
