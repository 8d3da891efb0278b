"""A validation as text for people and as JSON.

The JSON document is a contract; `version` changes only when a key changes its meaning or goes away:

    version      1
    tfboost      version of tfboost
    command      "validate"
    original, rewritten    paths
    level        1, 2 or 3: what the rewrite promises
    verdict      "pass", "regression" or "not run"
    failure      why there is no verdict, or ""
    parity       null, or: same; tolerance (in words); compared (how many losses); blind (share of the loss
                 below which a difference of loss curves would not be noticed);
                 findings, a list of: kind, message, where, fails (false: a remark)
    speed        null, or: answer ("faster", "slower", "no difference shown", "not measured"), reason,
                 ratio, low, high (times as fast, with the 95 % interval; null where not measured), pairs (ratios),
                 unit ("samples" or "steps"), original and rewritten (a list of rates a second)
    runs         a list, in the order of its parts: script ("original" or "rewritten"), purpose ("as-is": the original
                 where "parity" gives it the batches of several ranks, "parity", "data": whether it varies without a
                 seed, or "speed"), seed, ending, exit_code, seconds, samples,
                 steps, import_seconds, compile_seconds, wait, memory (bytes), stderr (its tail, where the run failed)
    environment  python, tensorflow, keras, horovod (versions), devices, machine, cores, isolation
"""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from . import speed
from .validate import why_not_trained

if TYPE_CHECKING:
    from rich.console import RenderableType

    from .record import Run
    from .tune import Tuning
    from .validate import Validation

GOOD = ("finished", "budget")


def as_json(validation: Validation) -> dict[str, Any]:
    """The document that is described above."""
    found, fast = validation.parity, validation.speed
    as_is: tuple[list[Run], list[Run]] = (validation.as_is, [])
    parts = (
        ("as-is", as_is),
        ("parity", validation.trained),
        ("data", validation.unseeded),
        ("speed", validation.timed),
    )
    return {
        "version": 1,
        "tfboost": __version__,
        "command": "validate",
        "original": str(validation.original),
        "rewritten": str(validation.rewritten),
        "level": validation.level,
        "verdict": validation.verdict,
        "failure": validation.failure,
        "parity": found
        and {
            "same": found.same,
            "tolerance": found.tolerance,
            "compared": found.compared,
            "blind": round(found.blind, 4),
            "findings": [asdict(finding) for finding in found.findings],
        },
        "speed": fast and _speed(fast),
        "runs": [
            _run(run, script, purpose)
            for purpose, sides in parts
            for script, runs in zip(("original", "rewritten"), sides, strict=True)
            for run in runs
        ],
        "environment": environment(validation.runs),
    }


def _speed(fast: speed.SpeedUp) -> dict[str, Any]:
    return {
        **{key: getattr(fast, key) for key in ("answer", "reason", "ratio", "low", "high", "pairs", "unit")},
        "original": [one.rate for one in fast.original],
        "rewritten": [one.rate for one in fast.rewritten],
    }


def _run(run: Run, script: str, purpose: str) -> dict[str, Any]:
    measured = speed.throughput(run) if purpose == "speed" and run.ending in GOOD else None
    return {
        "script": script,
        "purpose": purpose,
        "seed": run.seed,
        "ending": run.ending,
        "exit_code": run.exit_code,
        "seconds": round(run.seconds, 3),
        "samples": sum(record.samples for record in run.records),
        "steps": sum(step.steps for record in run.records for step in record.steps),
        "import_seconds": max((record.import_seconds for record in run.records), default=None),
        "compile_seconds": measured and measured.compile_seconds,
        "wait": measured and measured.wait,
        "memory": sum(record.memory for record in run.records),
        "stderr": run.stderr if run.ending not in GOOD else "",
    }


def environment(runs: list[Run]) -> dict[str, Any]:
    """Where the runs were made: versions as the scripts saw them, the machine, the isolation in force."""
    records = [record for run in runs for record in run.records]
    versions = max((record.versions for record in records), key=len, default={})
    return {
        **{name: versions.get(name) for name in ("python", "tensorflow", "keras", "horovod")},
        "devices": sorted({device for record in records for device in record.devices}),
        "machine": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "isolation": next((run.isolation for run in runs if run.isolation), None),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


# -- for people ----------------------------------------------------------------------------------------------


def as_text(validation: Validation) -> list[RenderableType]:
    """The verdict first, then why, then what was measured."""
    from rich.text import Text

    if validation.failure:
        tail = next((run.stderr for run in validation.runs if why_not_trained(run)), "")
        return [Text(f"not run: {validation.failure}", "bold red"), *([_tail(tail)] if tail else [])]
    colour = "bold green" if validation.verdict == "pass" else "bold red"
    lines: list[RenderableType] = [Text(headline(validation), colour)]
    found = validation.parity
    if found:
        for finding in found.findings:
            where = f"{finding.where}: " if finding.where else ""
            lines.append(Text(f"  {finding.kind}: {where}{finding.message}", "red" if finding.fails else ""))
        if found.tolerance:
            lines.append(Text(f"  {found.tolerance}", "dim"))
    if bad := next((run for run in validation.trained[1] + validation.timed[1] if run.ending not in GOOD), None):
        lines.append(_tail(bad.stderr))
    if validation.speed and validation.speed.original:
        lines.append(_table(validation))
        if validation.as_is:
            lines.append(
                Text("  Each at its own speed: with the batch size and the learning rates that it has.", "dim")
            )
    told = environment(validation.runs)
    versions = ", ".join(f"{name} {told[name]}" for name in ("python", "tensorflow", "keras", "horovod") if told[name])
    lines.append(Text(f"{versions}; {told['machine']}, {told['cores']} cores; {told['isolation']}", "dim"))
    return lines


def headline(validation: Validation) -> str:
    """The verdict in one line."""
    found = validation.parity
    if found is None:
        return "not run"
    if found.same and found.blind > 1:
        training = f"no difference in training shown, but one below {found.blind:.0%} of the loss would not be seen"
    elif found.same:
        training = "same training"
    else:
        training = f"not the same training ({', '.join(dict.fromkeys(f.kind for f in found.findings if f.fails))})"
    return "; ".join(filter(None, (training, spoken(validation.speed))))


def spoken(fast: speed.SpeedUp | None) -> str:
    """A speed-up in words."""
    if fast is None:
        return ""
    if fast.ratio is None:
        return f"speed not measured: {fast.reason}"
    interval = f"{fast.ratio:.2f} times as fast ({fast.low:.2f} to {fast.high:.2f})"
    if fast.answer == "no difference shown":
        return f"no difference in speed shown: {interval}"
    return f"{fast.answer}: {interval}"


def _table(validation: Validation) -> RenderableType:
    from rich import box
    from rich.table import Table

    fast = validation.speed
    assert fast is not None
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for name in (f"{fast.unit}/s", "import s", "compile s", "input wait", "memory MB"):
        table.add_column(name, justify="right")
    for name, measured in (("original", fast.original), ("rewritten", fast.rewritten)):
        middle = sorted(measured, key=lambda one: one.rate)[len(measured) // 2]
        table.add_row(
            name,
            f"{middle.rate:,.0f}" if middle.rate >= 100 else f"{middle.rate:.2f}",
            f"{middle.import_seconds:.1f}",
            f"{middle.compile_seconds:.1f}",
            "unknown" if middle.wait is None else f"{middle.wait:.0%}",
            f"{middle.memory / 2**20:,.0f}",
        )
    return table


def _tail(stderr: str) -> RenderableType:
    from rich.padding import Padding
    from rich.text import Text

    lines = [line for line in stderr.splitlines() if line.strip()]
    return Padding(Text("\n".join(lines[-15:])), (0, 4))


# -- tuning --------------------------------------------------------------------------------------------------


def tuning_as_json(tuning: Tuning, out: Path) -> dict[str, Any]:
    """`tune` as a document: the kept codemods, each one's effect, and the validation of what survives.

    version 1; command "tune"; script, written (paths); level; tried, kept (names); failure (or ""); out_of_time;
    one_epoch (whether the runs ended in their first); whole (the speed of everything that was tried, against the
    original); effects, a list of: codemod, company (what else was in the set), answer, ratio, low, high, parity, kept,
    why; validation (null, or as of `validate`).
    """
    return {
        "version": 1,
        "tfboost": __version__,
        "command": "tune",
        "script": str(tuning.script),
        "written": None if tuning.failure else str(out),
        "level": tuning.level,
        "tried": list(tuning.tried),
        "kept": list(tuning.kept),
        "failure": tuning.failure,
        "out_of_time": tuning.out_of_time,
        "one_epoch": tuning.one_epoch,
        "whole": tuning.whole and _speed(tuning.whole),
        "effects": [
            {
                "codemod": effect.codemod,
                "company": list(effect.company),
                **{key: getattr(effect.speed, key) for key in ("answer", "ratio", "low", "high")},
                "parity": effect.parity,
                "kept": effect.kept,
                "why": effect.why,
            }
            for effect in tuning.effects
        ],
        "validation": tuning.validation and as_json(tuning.validation),
    }


def tuning_as_text(tuning: Tuning, out: Path) -> list[RenderableType]:
    """The table of the codemods, and what the script has gained."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if tuning.failure:
        return [Text(f"not tuned: {tuning.failure}", "bold red")]
    lines: list[RenderableType] = []
    if tuning.effects:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in ("codemod", "times as fast", "parity", "", "why"):
            table.add_column(name, no_wrap=name != "why")
        for effect in sorted(tuning.effects, key=lambda one: not one.kept):
            fast = effect.speed
            interval = "" if fast.ratio is None else f"{fast.ratio:.2f}"
            if fast.low is not None and fast.high is not None:
                interval += f" ({fast.low:.2f} to {fast.high:.2f})"
            kept = "kept" if effect.kept else "dropped"
            table.add_row(effect.codemod, interval, effect.parity, kept, effect.why)
        lines.append(table)
    if tuning.whole is not None and tuning.whole.ratio is not None and tuning.kept != tuning.tried:
        lines.append(Text(f"all of them: {spoken(tuning.whole)}"))
    if tuning.validation is not None:
        lines.append(Text(f"{', '.join(tuning.kept)}: {headline(tuning.validation)}", "bold green"))
    else:
        lines.append(Text("nothing was found that pays here: the script is written as it was", "bold"))
    if tuning.out_of_time:
        lines.append(Text("the time was over before all effects were sure: --budget gives more"))
    if tuning.one_epoch:
        lines.append(
            Text("the runs ended in their first epoch: what a cache gains in later ones was not seen (--run-seconds)")
        )
    lines.append(Text(f"written: {out}"))
    return lines
