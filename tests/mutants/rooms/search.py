"""Faults in the search for verdicts, and in solvers."""

from tests.mutants.fault import Mutant as M

STATUSES = ("tests/search/test_statuses.py", "tests/search/test_verdict.py")
BRANCH = ("tests/search/test_branch_and_bound.py",)
HALVES = ("tests/search/test_halves.py",)
SPEC = ("tests/search/test_specification.py",)
FORMULA = ("tests/test_formula.py",)
SETTLING, LEAVES = ("tests/search/test_settling.py",), ("tests/search/test_leaves.py",)
BOXES = (*SETTLING, "tests/search/test_few_inputs.py", *SPEC)
MANY = ("tests/search/test_many_boxes.py",)
DECIDE = ("tests/vnnlib/test_decide.py",)
SOLVERS = ("tests/solvers/test_solvers.py",)

FAULTS = [
    M(
        "search/verdicts.py",
        "return bool((self.bounds[proof] <= 0).all())",
        "return bool((self.bounds[proof] <= 0).any())",
        (*STATUSES, "tests/verify/test_verify.py"),
    ),
    M(
        "search/verdicts.py",
        "better = np.arange(len(Proof))[:, None] >= int(finding.proof)",
        "better = np.arange(len(Proof))[:, None] >= 0",
        (*STATUSES, "tests/search/test_tolerance.py"),
    ),
    M(
        "search/verdicts.py",
        "sound = state.proves(Proof.DEPLOYED)",
        "sound = True",
        (*STATUSES, "tests/search/test_tolerance.py", "tests/verify/test_verify.py"),
    ),
    M("search/verdicts.py", "np.fmin(bounds, new)", "np.minimum(new, new)", (*STATUSES, "tests/verify/test_verify.py")),
    M(
        "search/verdicts.py",
        "state.bounds[:, example.label] = -math.inf",
        "state.bounds[:, 0] = -math.inf",
        ("tests/verify/test_verify.py",),
    ),
    M("search/by_signs.py", "        tree.settle(pool)\n", "\n", (*BRANCH, *SPEC)),
    M(
        "search/branch_and_bound.py",
        'scatter_reduce(0, done.case, upper, "amax")',
        'scatter_reduce(0, done.case, upper, "amin")',
        (*BRANCH, *SPEC),
    ),
    M(
        "search/branch_and_bound.py",
        "upper = done.upper.double().nan_to_num(math.inf, math.inf, -math.inf)",
        "upper = done.upper.double().nan_to_num(0.0)",
        (*SETTLING, *BRANCH, "tests/search/test_relaxation.py"),
    ),
    M("search/complete.py", "proof=max(worst.proof, found.proof)", "proof=worst.proof", (*BRANCH, *SPEC)),
    M(
        "search/complete.py",
        "timed_out=worst.timed_out or found.timed_out",
        "timed_out=found.timed_out",
        (*BRANCH, *SPEC, "tests/search/test_questions.py"),
    ),
    M(
        "search/complete.py",
        "known.proof is not found.proof",
        "False",
        (*SETTLING, *BRANCH, "tests/search/test_questions.py"),
    ),
    M("search/inputs.py", "tree.settle(batch[~free])", "pass", BOXES),
    M("search/depth_first.py", "self.tree.settle_cases(part.cases, torch.inf)", "pass", (*HALVES, *BOXES)),
    M("search/halves.py", "for sign in (1, -1)]", "for sign in (1,)]", HALVES),
    M(
        "search/halves.py",
        "cases = torch.unique(pool.case)\n        index",
        "cases = pool.case[:1]\n        index",
        HALVES,
    ),
    M("search/parts.py", "            Part(reduced, low, reduced.upper, cases, worst, optimise, depth),\n", "", BOXES),
    M(
        "search/parts.py",
        "cases = torch.tensor([axis]), torch.unique(pool.case)",
        "cases = torch.tensor([axis]), pool.case[:1]",
        BOXES,
    ),
    M(
        "search/inputs.py",
        "torch.cat([low, low.scatter(1, axis, middle)])",
        "torch.cat([low, high.scatter(1, axis, middle)])",
        BOXES,
    ),
    M(
        "search/inputs.py",
        "torch.where(cases.valid, found.upper.double(), torch.inf).amin(1)",
        "found.upper.double().amin(1)",
        BOXES,
    ),
    M(
        "search/cases.py",
        "if any(row.opposite in rows for row in rows) and finite():",
        "if any(row.opposite in rows for row in rows):",
        (*SPEC, *DECIDE, "tests/bounds/test_undefined.py"),
    ),
    M(
        "search/cases.py",
        "if is_lower and value > low.get(place, problem.lower[place]):",
        "if is_lower and value < low.get(place, problem.lower[place]):",
        ("tests/search/test_boxes.py", *DECIDE),
    ),
    M(
        "search/cases.py",
        "offset = float_up(row.constant * scale)",
        "offset = float(row.constant * scale) * (1 - 1e-7)",
        (*SPEC, *DECIDE),
    ),
    M(
        "search/cases.py",
        "return number if Fraction(number) == value else None",
        "return number",
        ("tests/search/test_boxes.py",),
    ),
    M(
        "search/mixing.py",
        "total * several_sums(terms, 8) + UNDERFLOW",
        "0 * total",
        (*SETTLING, *SPEC, "tests/search/test_questions.py"),
    ),
    M(
        "search/mixing.py",
        "torch.where(mixed > 0, mixed * high, mixed * low).sum(1)",
        "torch.where(mixed > 0, mixed * low, mixed * high).sum(1)",
        SPEC,
    ),
    M(
        "search/signs/leaves.py",
        "        return Leaf(upper, weights, betas)\n    if outcome.row_duals",
        "        return Leaf(-1.0, weights, betas)\n    if outcome.row_duals",
        (*LEAVES, *BRANCH, "tests/search/test_relaxation.py"),
    ),
    M(
        "search/signs/leaves.py",
        "torch.from_numpy(np.abs(duals)).unsqueeze(0)",
        "torch.from_numpy(-np.abs(duals)).unsqueeze(0)",
        (*LEAVES, *BRANCH, "tests/search/test_relaxation.py"),
    ),
    M("search/signs/splitter.py", "leaf = ~batch.free.any(1)", "leaf = ~batch.free.all(1)", BRANCH),
    M(
        "search/signs/splitter.py",
        "        keep = (~leaf).nonzero()[:, 0]\n",
        "        keep = (~leaf).nonzero()[:1, 0]\n",
        (*BRANCH, *SPEC),
    ),
    M(
        "search/formula_cases.py",
        "accepted = Proof.TOLERANCE if tolerance else Proof.of(problem.soundness)",
        "accepted = Proof.TOLERANCE",
        ("tests/search/test_tolerance.py", *DECIDE),
    ),
    M(
        "search/boxes.py",
        "return torch.where(cases.valid, rows, torch.inf).amin(1)",
        "return rows.amin(1)",
        ("tests/search/test_boxes.py",),
    ),
    M(
        "search/boxes.py",
        "upper[part.flatten()] = ",
        "upper[part.t().flatten()] = ",
        ("tests/search/test_boxes.py",),
    ),
    M(
        "search/cases.py",
        "low.append(lower.get(place, problem.lower[place]))",
        "low.append(lower.get(place, problem.upper[place]))",
        ("tests/search/test_boxes.py",),
    ),
    M(
        "search/cases.py",
        "elif not is_lower and value < high.get(place, problem.upper[place]):",
        "elif not is_lower and value > high.get(place, problem.upper[place]):",
        ("tests/search/test_boxes.py",),
    ),
    M("search/boxes.py", "counts.tolist())\n", "counts.flip(0).tolist())\n", ("tests/search/test_boxes.py",)),
    M(
        "search/boxes.py",
        "torch.arange(0, len(cases), len(cases) // boxes)",
        "torch.arange(0, boxes)",
        ("tests/search/test_boxes.py",),
    ),
    M(
        "search/formula_cases.py",
        "d[torch.tensor([not case.rows for case in members]), 0] = 1.0",
        "pass",
        ("tests/search/test_boxes.py",),
    ),
    M("search/complete.py", "margins[places] = found.margins.double()", "margins[:] = -1.0", MANY),
    M(
        "search/complete.py",
        "rest = (~proved(known.margins)).nonzero()",
        "rest = proved(known.margins).nonzero()",
        MANY,
    ),
    M("search/signs/programs.py", "if targets.passes.unstable and", "if", BRANCH),
    M(
        "search/agreement.py",
        "if apart is not None:",
        "if apart is not None and apart > 1:",
        ("tests/verify/test_agreement.py",),
    ),
    M("search/specification.py", "self._check_networks(seed)", "pass", ("tests/verify/test_agreement.py", *SPEC)),
    M("search/specification.py", "low = [min(max(a, least), x)", "low = [max(a, least)", SPEC),
    M(
        "spec/formula.py",
        "AtLeast(len(parts) - formula.count + 1, parts)",
        "AtLeast(len(parts) - formula.count, parts)",
        SPEC,
    ),
    M("spec/formula.py", 'return less.atom(relation == "<")', "return less.atom(False)", (*FORMULA, *SPEC)),
    M(
        "spec/formula.py",
        "return Any((less.atom(True), more.atom(True)))",
        "return All((less.atom(True), more.atom(True)))",
        (*FORMULA, *SPEC),
    ),
    M(
        "solvers/highs.py",
        "bound = -info.objective_function_value if status is SolverStatus.OPTIMAL else math.inf",
        "bound = -info.objective_function_value",
        (*SOLVERS, "tests/search/test_mip.py"),
    ),
    M(
        "solvers/highs.py",
        "bound, duals = -info.mip_dual_bound if status is SolverStatus.OPTIMAL else seen, None",
        "bound, duals = -info.mip_dual_bound, None",
        SOLVERS,
    ),
    M("solvers/highs.py", "upper < limits.prove_below:", "found < limits.prove_below:", SOLVERS),
    M("solvers/outcome.py", '"SUBOPTIMAL": SolverStatus.NUMERICAL', '"SUBOPTIMAL": SolverStatus.OPTIMAL', SOLVERS),
    M("solvers/outcome.py", '"kTimeLimit": SolverStatus.TIME_LIMIT', '"kTimeLimit": SolverStatus.OPTIMAL', SOLVERS),
    M(
        "solvers/outcome.py",
        "if self.status.trusted and not math.isnan(self.dual_bound)",
        "if not math.isnan(self.dual_bound)",
        SOLVERS,
    ),
    M(
        "solvers/outcome.py",
        "if outcome.point is not None and outcome.bound < outcome.objective - slack:",
        "if False:",
        SOLVERS,
    ),
]
