"""The sentence at the top: what was asked, answered in one line."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from surebound.report.source import ReportedRun
from surebound.report.table import percent
from surebound.report.verdicts import proved_share, radius_text
from surebound.verify import Summary


@dataclass(frozen=True, eq=False)
class Headline:
    """`html` marks the number that counts; `run` and `eps` say whose bar belongs below it."""

    html: str
    details: tuple[str, ...] = ()
    run: ReportedRun | None = None
    eps: Fraction | None = None

    @property
    def plain(self) -> str:
        """Without marks."""
        return html.unescape(re.sub(r"<[^>]*>", "", self.html))


def headline(runs: Sequence[ReportedRun]) -> Headline:
    """The best answer the runs give: verdicts before measurements before the state of a training."""
    verified = [run for run in runs if run.summaries]
    if verified:
        found = _compared(verified) if len(verified) > 1 else _verified(verified[0])
        return replace(found, details=(*found.details, *_left_out(runs)))
    measured = [run for run in runs if run.results.get("verified_error")]
    if measured:
        return _measured(measured)
    run = runs[0]
    total = run.config.plan.steps if run.config is not None else 0
    finished = "trained" if run.step >= total else f"in training: step {run.step:,} of {total:,}"
    return Headline(f"{html.escape(run.name)}: {finished}", ("Nothing has been verified yet.",))


def _left_out(runs: Sequence[ReportedRun]) -> tuple[str, ...]:
    """Say which runs have no verdicts, and so no place in the comparison."""
    names = [run.name for run in runs if not run.summaries]
    if not names:
        return ()
    path = next(run.path for run in runs if not run.summaries)
    them, were = ("it", "was") if len(names) == 1 else ("them", "were")
    return (f"{', '.join(names)} {were} not verified; `surebound verify {path} --eps ...` brings {them} in.",)


def _trained_for(run: ReportedRun) -> Fraction | None:
    """Return the radius of the l-infinity balls that a network was trained for, if that is known."""
    return run.config.plan.eps_train if run.config is not None and run.config.plan.norm == "linf" else None


def chosen(run: ReportedRun) -> Summary:
    """The radius a headline speaks of: the one it was trained for if it was verified, else the largest."""
    wanted = _trained_for(run)
    for summary in run.summaries:
        if summary.eps == wanted and summary.eps > 0:
            return summary
    return run.summaries[-1]


def _verified(run: ReportedRun) -> Headline:
    s = chosen(run)
    proved, upper = proved_share(s), 1 - s.falsified_error
    what = f"{_counts(proved)} of {s.total:,} images proved robust "
    what += f"under {html.escape(run.threat)}" if run.threat else f"at ε&nbsp;=&nbsp;{radius_text(s.eps)}"
    what += f" ({html.escape(run.regions)})" if run.regions and not run.threat else ""
    if upper > proved:
        between = (
            f"Counterexamples leave at most {percent(upper, 1)}, so the true robust accuracy lies "
            f"between {percent(proved, 1)} and {percent(upper, 1)}."
        )
    else:
        between = "Every image is decided: this is the exact robust accuracy."
    accuracy = f"Without any change {percent(1 - s.clean_error, 1)} are classified correctly."
    return Headline(what, (f"{accuracy} {between}",), run, s.eps)


def _counts(share: float) -> str:
    """The number that counts; nothing proved is no success."""
    return f"<b>{percent(share, 1)}</b>" if share > 0 else f'<b class="none">{percent(share, 1)}</b>'


def _compared(runs: Sequence[ReportedRun]) -> Headline:
    """Several networks at the largest radius that all of them were asked about."""
    common = set.intersection(*({s.eps for s in run.summaries} for run in runs))
    wanted = {radius for run in runs if (radius := _trained_for(run))}
    if not common:
        best = max(runs, key=lambda run: proved_share(chosen(run)))
        return _verified(best)
    eps = max(common & wanted) if common & wanted else max(common)
    at = {run.name: next(s for s in run.summaries if s.eps == eps) for run in runs}
    ranked = sorted(runs, key=lambda run: -proved_share(at[run.name]))
    best, worst = ranked[0], ranked[-1]
    text = (
        f"At ε&nbsp;=&nbsp;{radius_text(eps)}, {_counts(proved_share(at[best.name]))} of the images are "
        f"proved robust for {html.escape(best.name)}, {percent(proved_share(at[worst.name]), 1)} for "
        f"{html.escape(worst.name)}"
    )
    return Headline(text, (), best, eps)


def _measured(runs: Sequence[ReportedRun]) -> Headline:
    """Runs that were only measured by interval bounds."""
    best, radius, error = None, Fraction(0), 1.0
    for run in runs:
        found = run.evaluated("verified_error")
        wanted = _trained_for(run)
        r = wanted if wanted in found else max(found)
        if best is None or found[r] < error:
            best, radius, error = run, r, found[r]
    name = f" ({html.escape(best.name)})" if best is not None and len(runs) > 1 else ""
    at = f"ε&nbsp;=&nbsp;{radius_text(radius)}{name}"
    text = f"{_counts(1 - error)} proved robust by interval bounds at {at}"
    return Headline(text, ("`surebound verify` decides more of the images than bounds alone do.",))
