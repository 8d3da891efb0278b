"""Steady-state throughput of a run, and how many times as fast a rewritten script is, with its interval.

What is measured is training once it runs evenly: tracing, compiling and warming up are told apart, and what happens
between epochs (evaluation, checkpoints) is left out; refilling the input pipeline at an epoch's start is part of it.
Two runs are compared over the same samples, and two scripts over pairs of runs made in turn: a ratio for every
pair, their geometric mean, and Student's interval around it on the logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median, stdev
from typing import Any, Literal, TypeVar

from .record import Record, Run

K = TypeVar("K", bound=Hashable)
Unit = Literal["samples", "steps"]
Answer = Literal["faster", "slower", "no difference shown", "not measured"]

#: A shorter window says more about the clock and the machine's other work than about the script.
SHORTEST = 0.1
FEWEST_EXECUTIONS = 4
#: Of executions that take as long together, two are enough: they are of many steps, or of slow ones.
LONG = 1.0
FEWEST_PAIRS = 3
CONFIDENCE = 0.95
#: A smaller difference is of no use to anybody, however well it is shown.
SMALLEST = 0.01
#: Executions at the steady state's begin that take, at the median, at most so many times the steady time.
SETTLED = 1.25
#: An execution that takes longer than so many others was compiled (a first one, or an epoch's smaller last batch).
COMPILED = 3


@dataclass(frozen=True)
class Throughput:
    """Of one run, all ranks together. The window `begin`..`end` counts samples (or steps) since training began."""

    rate: float  # a second
    unit: Unit
    begin: float
    end: float
    seconds: float  # that were measured
    executions: int
    compile_seconds: float  # what tracing, compiling and warming up took until then
    import_seconds: float
    wait: float | None  # share of the training time that was spent waiting for input, where that was seen
    memory: int  # peak resident bytes


@dataclass(frozen=True)
class SpeedUp:
    """`ratio` times as fast, with a 95 % interval; `reason` says why an answer is not "faster" or "slower"."""

    answer: Answer
    reason: str = ""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    pairs: tuple[float, ...] = ()
    unit: Unit = "samples"
    original: tuple[Throughput, ...] = ()
    rewritten: tuple[Throughput, ...] = ()


@dataclass(frozen=True)
class _Execution:
    begin: float  # samples or steps of all ranks before it
    end: float
    amount: int  # of its own rank
    seconds: float | None  # None where it cannot be told from what came between two epochs
    cold: bool  # the first of its loop
    rest: bool  # the last of its loop's first epoch: a smaller batch is compiled anew


def throughput(run: Run) -> Throughput | None:
    """None where no steady state was measured: `why_not` says why."""
    found = _measure(run, _unit(run))
    return None if isinstance(found, str) else found


def why_not(run: Run) -> str:
    """Why `throughput` has no answer; empty where it has one."""
    found = _measure(run, _unit(run))
    return found if isinstance(found, str) else ""


def compare(original: Sequence[Run], rewritten: Sequence[Run]) -> SpeedUp:
    """Run i of one script was made right before or after run i of the other, on the same machine in the same state."""
    unit = _common_unit((*original, *rewritten))
    measured: list[tuple[Throughput, Throughput]] = []
    reasons: list[str] = []
    for before, after in zip(original, rewritten, strict=False):
        pair = _measure_pair(before, after, unit)
        if isinstance(pair, str):
            reasons.append(pair)
        else:
            measured.append(pair)
    logs = [math.log(after.rate / before.rate) for before, after in measured]
    seen: dict[str, Any] = {
        "pairs": tuple(math.exp(log) for log in logs),
        "unit": unit,
        "original": tuple(a for a, _ in measured),
        "rewritten": tuple(b for _, b in measured),
    }
    if len(measured) < FEWEST_PAIRS:
        reason = reasons[0] if reasons else f"{len(measured)} pairs of runs are too few, {FEWEST_PAIRS} are needed"
        return SpeedUp("not measured", reason, **seen)
    return replace(judged(fmean(logs), stdev(logs) / math.sqrt(len(logs)), len(logs) - 1), **seen)


def judged(log: float, error: float, freedom: int) -> SpeedUp:
    """The answer for the logarithm of a ratio, its standard error, and the degrees of freedom that this rests on."""
    from scipy.special import stdtrit

    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
    ratio, low, high = (math.exp(value) for value in (log, log - half, log + half))
    answer: Answer = "no difference shown"
    reason = ""
    if max(ratio, 1 / ratio) < 1 + SMALLEST:
        reason = f"the difference is less than {SMALLEST:.0%}"
    elif low > 1:
        answer = "faster"
    elif high < 1:
        answer = "slower"
    else:
        reason = f"the interval from {low:.2f} to {high:.2f} times as fast holds 1"
    return SpeedUp(answer, reason, ratio, low, high)


def alike(runs: Mapping[K, Run]) -> tuple[dict[K, Throughput], dict[K, str]]:
    """The throughput of several runs in the same unit, each over its own steady state; and why some have none."""
    unit = _common_unit(runs.values())
    found = {key: _measure(run, unit) for key, run in runs.items()}
    return (
        {key: one for key, one in found.items() if not isinstance(one, str)},
        {key: one for key, one in found.items() if isinstance(one, str)},
    )


def _common_unit(runs: Iterable[Run]) -> Unit:
    return "samples" if all(_unit(run) == "samples" for run in runs) else "steps"


def _unit(run: Run) -> Unit:
    return "samples" if all(step.samples > 0 for record in run.records for step in record.steps) else "steps"


def _measure_pair(before: Run, after: Run, unit: Unit) -> tuple[Throughput, Throughput] | str:
    """Both over the same samples: what one needs to compile, the other may not gain by starting earlier."""
    alone = []
    for whose, run in (("original", before), ("rewritten script", after)):
        found = _measure(run, unit)
        if isinstance(found, str):
            return f"{whose}: {found}"
        alone.append(found)
    window = max(found.begin for found in alone), min(found.end for found in alone)
    a, b = _measure(before, unit, window), _measure(after, unit, window)
    if isinstance(a, str) or isinstance(b, str):
        return f"over the same {unit} in both: {a if isinstance(a, str) else b}"
    return a, b


def _measure(run: Run, unit: Unit, window: tuple[float, float] | None = None) -> Throughput | str:
    """The throughput from where all ranks run evenly, or within `window`; or why there is none."""
    if run.ending not in ("finished", "budget"):
        return f"the run ended badly: {run.ending}"
    if not run.records or len(run.records) < run.records[0].size:
        return "the record of a rank is missing"
    ranks = [_executions(record, unit, len(run.records)) for record in run.records]
    if not all(ranks):
        return "no training step was seen"
    begin, end = 0.0, math.inf
    for executions in ranks:
        found = _steady(executions)
        if isinstance(found, str):
            return found
        begin, end = max(begin, found), min(end, executions[-1].end)
    first = begin
    if window:
        begin, end = max(begin, window[0]), min(end, window[1])
    rate, seconds, count, compiling = 0.0, math.inf, len(ranks[0]), 0.0
    for executions in ranks:
        counted = [e for e in executions if e.seconds and not e.cold and begin <= e.begin and e.end <= end]
        typical = median([e.seconds / e.amount for e in counted if e.seconds] or [math.inf])
        slow = [e for e in executions if e.rest and e.seconds and e.seconds > COMPILED * typical * e.amount]
        counted = [e for e in counted if e not in slow]
        spent = sum(e.seconds or 0 for e in counted)
        count, seconds = min(count, len(counted)), min(seconds, spent)
        if count < (2 if spent >= LONG else FEWEST_EXECUTIONS):
            return f"too short: {count} executions were measured, {FEWEST_EXECUTIONS} are needed"
        if seconds < SHORTEST:
            return f"too short: {seconds:.3f} s were measured, {SHORTEST} s are needed"
        own = sum(e.amount for e in counted) / spent
        rate += own
        early = [e for e in executions if e.end <= first] + [e for e in slow if e.end > first]
        compiling = max(compiling, sum(max(0.0, (e.seconds or 0) - e.amount / own) for e in early))
    return Throughput(
        rate,
        unit,
        begin,
        end,
        seconds,
        count,
        compiling,
        max(record.import_seconds for record in run.records),
        _wait(run.records),
        sum(record.memory for record in run.records),
    )


def _executions(record: Record, unit: Unit, ranks: int) -> list[_Execution]:
    loops = {loop.id: loop.time for loop in record.loops}
    ends = {(epoch.loop, epoch.epoch): epoch.time for epoch in record.epochs}
    first_epochs: dict[int, int] = {}
    steps = sorted(record.steps, key=lambda step: step.time)
    last = {(step.loop, step.epoch): i for i, step in enumerate(steps)}
    seen: set[tuple[int, int]] = set()
    executions = []
    position, previous = 0, 0.0
    for i, step in enumerate(steps):
        key = (step.loop, step.epoch)
        cold = step.loop not in first_epochs
        first_epochs.setdefault(step.loop, step.epoch)
        begin: float | None = previous
        if cold:
            begin = max(previous, loops.get(step.loop, 0.0))
        elif key not in seen:  # the time between two epochs is not training time
            ended = ends.get((step.loop, step.epoch - 1))
            begin = None if ended is None else max(previous, ended)
        seen.add(key)
        amount = step.samples if unit == "samples" else step.steps
        rest = key in ends and step.epoch == first_epochs[step.loop] and last[key] == i
        seconds = None if begin is None else max(step.time - begin, 1e-9)
        if amount:
            before = position * ranks
            position += amount
            executions.append(_Execution(before, position * ranks, amount, seconds, cold, rest))
        previous = step.time
    return executions


def _steady(executions: list[_Execution]) -> float | str:
    """Where the steady state begins: from there on, executions take what those of the run's second half take."""
    timed = [(e, e.seconds / e.amount) for e in executions if e.seconds and not e.cold and not e.rest]
    if len(timed) < FEWEST_EXECUTIONS:
        if len(timed) >= 2 and sum(e.seconds or 0 for e, _ in timed) >= LONG:
            return timed[0][0].begin
        return f"too short: {len(timed)} executions after the first, {FEWEST_EXECUTIONS} are needed"
    times = [time for _, time in timed]
    half = len(times) // 2
    typical = median(times[half:])
    quarters = [median(times[k * len(times) // 4 : (k + 1) * len(times) // 4]) for k in range(4)]
    if all(earlier > SETTLED * later for earlier, later in pairwise(quarters)):
        return "still compiling or warming up: the steps become faster until the end"
    for i, (execution, time) in enumerate(timed[:half]):
        if time <= 2 * typical and median(times[i : i + 5]) <= SETTLED * typical:
            return execution.begin
    if median(times[:half]) > COMPILED * typical:
        return "still compiling or warming up in half of the run"
    return timed[half][0].begin  # a busy machine looks like that, too: the interval will tell


def _wait(records: Sequence[Record]) -> float | None:
    shares = []
    for record in records:
        if record.wait and record.steps:
            begin = min((loop.time for loop in record.loops), default=0.0)
            spent = max(step.time for step in record.steps) - begin
            shares.append(min(1.0, record.wait / spent) if spent > 0 else 1.0)
    return fmean(shares) if shares else None
