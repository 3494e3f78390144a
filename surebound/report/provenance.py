"""Where numbers come from, and the commands that make them again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from surebound.experiment.codec import encode
from surebound.experiment.publish import portable
from surebound.report.source import ReportedRun
from surebound.report.verdicts import radius_text


def asked(run: ReportedRun) -> dict[str, object]:
    """What the run was to do, in words."""
    facts: dict[str, object] = {}
    if run.config is not None:
        config, plan = run.config, run.config.plan
        facts["network"] = f"{config.model.name}{' with batch normalisation' if config.model.batch_norm else ''}"
        facts["trained on"] = config.data.name
        method = {k: v for k, v in encode(config.method).items() if k not in ("name", "regulariser")}
        options = ", ".join(f"{k} {v}" for k, v in method.items())
        facts["method"] = f"{config.method.name}{f' ({options})' if options else ''}"
        if plan.eps_train:
            of = "" if plan.norm == "linf" else f" ({plan.norm})"
            facts["ε in training"] = f"{radius_text(plan.eps_train)}{of}"
        done = "" if run.step >= plan.steps else f"; {run.step:,} done so far"
        facts["schedule"] = (
            f"{plan.steps:,} steps of {plan.batch_size}, warm-up {plan.warmup:,}, ramp {plan.ramp:,}, "
            f"κ {plan.kappa_start:g} to {plan.kappa_final:g}{done}"
        )
        facts["seed"] = plan.seed
    if run.requests and run.config is None:
        facts["verified network"] = run.requests[-1]["network"]
    facts["asked"] = tuple(_question(request) for request in run.requests)
    facts["cascade"] = tuple(dict.fromkeys(map(_cascade, run.requests)))
    return facts


def _question(request: dict[str, Any]) -> str:
    """One call of `verify` as the question that it asked; the cascade is named, for there may have been several."""
    radii = [radius_text(Fraction(text)) for text in request["eps"]]
    shown = ", ".join(radii) if len(radii) <= 6 else f"{radii[0]} to {radii[-1]} ({len(radii)} radii)"
    limit = f", {request['timeout']:g} s per image and stage" if request.get("timeout") else ""
    images = f"{request['images']:,} images of {request['data'] or 'unknown data'}"
    asked = f"under {request['threat']}" if "threat" in request else f"within ε = {shown}"
    return f"does the label stay {asked}? {images}, cascade {request['cascade']}{limit}"


def _cascade(request: dict[str, Any]) -> str:
    return f"{request['cascade']}: {' → '.join(_short(stage) for stage in request['stages'])}"


def provenance(run: ReportedRun) -> dict[str, object]:
    """Commits, versions, machine, data."""
    environment: dict[str, Any] = run.environment or (run.requests[-1]["environment"] if run.requests else {})
    packages = environment.get("packages", {})
    data = environment.get("data", {})
    return {
        "directory": str(run.path),
        "commit": environment.get("commit"),
        "verdicts by code": ", ".join(run.codes),
        "versions": ", ".join(f"{name} {version}" for name, version in packages.items()),
        "machine": ", ".join(
            str(part)
            for part in (environment.get("processor"), environment.get("system"), _threads(environment))
            if part
        ),
        "data": f"{data.get('status')}, sha256 {str(data.get('digest'))[:16]}…" if data else None,
        "speed": _speed(run),
        "resumed": f"{len(environment['resumed'])} times" if environment.get("resumed") else None,
    }


def redo(runs: Sequence[ReportedRun]) -> str:
    """The commands of all runs, one a line, without what belongs to the machine they ran on."""
    lines = []
    for run in runs:
        command = run.environment.get("command")
        if run.config is not None and command:
            lines.append(f"{portable(str(command))} --out {shlex.quote(str(run.path))}")
        for request in run.requests:
            asked_by = str(request["environment"].get("command", ""))
            if " verify " in f" {asked_by} ":
                out = "" if run.config is not None else f" --out {shlex.quote(str(run.path))}"
                lines.append(portable(asked_by) + out)
    lines.append("surebound report " + " ".join(shlex.quote(str(run.path)) for run in runs))
    return "\n".join(dict.fromkeys(lines))


def _short(stage: str) -> str:
    """`PgdAttack(steps=200, restarts=10)` -> `PgdAttack 200x10`-like text without the options that are long."""
    name, _, options = stage.partition("(")
    options = options.removesuffix(")")
    return f"{name}({options})" if options and len(options) <= 32 else name


def _threads(environment: dict[str, Any]) -> str:
    return f"{environment['threads']} thread(s)" if "threads" in environment else ""


def _speed(run: ReportedRun) -> str | None:
    rates = sorted(float(m["samples_per_second"]) for m in run.of("training") if "samples_per_second" in m)
    return f"{rates[len(rates) // 2]:,.0f} images per second (median)" if rates else None
