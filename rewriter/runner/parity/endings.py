"""How runs ended, NaN, what a rewrite claims without effect, precision that is lost, ranks that diverge."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ..record import Run
from .finding import Finding, batch_of, first_of_each_seed, loops_of_both, name_of, percent, place_of, ranks_of

#: Ranks whose weights are further apart than this share of them do not train together.
DIVERGED = 1e-5
GOOD = ("finished", "budget")
LOW_PRECISION = ("float16", "bfloat16")


def endings(original: Sequence[Run], rewritten: Sequence[Run]) -> Iterator[Finding]:
    def ending(run: Run) -> str:
        return "good" if run.ending in GOOD else run.ending

    a, b = [ending(run) for run in original], [ending(run) for run in rewritten]
    for run in rewritten:
        if ending(run) not in a and not (ending(run) == "good" and "timeout" in a):
            last = run.stderr.strip().splitlines()[-1:] if ending(run) != "good" else []
            expected = original[0].ending if original else "not run"
            message = f"the rewritten script's run ended as {run.ending}, the original's as {expected}"
            yield Finding("ended", message + (f": {last[0]}" if last else ""), f"seed {run.seed}")
            return
    for run in original:
        if ending(run) not in b:
            message = f"the original's run ended as {run.ending}, the rewritten script's did not"
            yield Finding("ended", message, f"seed {run.seed}", fails=False)
            return
    if "good" not in a and (failed := {"crashed", "killed", "out-of-memory"}.intersection(a)):
        yield Finding("ended", f"the original itself ended as {failed.pop()}, and so did the rewritten script")


def not_trained(original: Sequence[Run], rewritten: Sequence[Run]) -> Iterator[Finding]:
    def trained(runs: Sequence[Run]) -> bool:
        return any(record.steps for run in runs for record in run.records)

    if trained(original) and not trained(rewritten) and all(run.ending in GOOD for run in rewritten):
        yield Finding(
            "not-trained", "the rewritten script comes to its end without a training step, the original trains"
        )


def lengths(original: Sequence[Run], rewritten: Sequence[Run]) -> Iterator[Finding]:
    """Training that ends earlier, or goes on for longer; where a callback or the script ends it, seeds may differ.

    Runs are stopped at what the first one reached, and a quarter beyond where that was the script's own end.
    """
    records = [record for run in (*original, *rewritten) for record in run.records]
    if any(record.stopped or not record.steps for record in records):
        return
    counted = all(step.samples for record in records for step in record.steps)
    if not counted and ranks_of(original) != ranks_of(rewritten):  # their steps are of other size
        return
    unit = "samples" if counted else "steps"

    def length(run: Run) -> int:
        if counted:
            return sum(record.samples for record in run.records)
        return sum(step.steps for step in run.records[0].steps)

    def epochs(run: Run) -> int:
        record = run.records[0]
        fits = {loop.id for loop in record.loops if loop.kind.startswith("fit")}
        return len({(step.loop, step.epoch) for step in record.steps if step.loop in fits})

    if len({length(run) for run in original if run.ending == "finished"}) > 1:
        return
    a, b = first_of_each_seed(original), first_of_each_seed(rewritten)
    messages = []
    for seed in a.keys() & b.keys():
        before, after = length(a[seed]), length(b[seed])
        begun = epochs(a[seed]), epochs(b[seed])
        allowed = max(*begun, 1) * ranks_of(rewritten) * (batch_of(a[seed].records[0]) if counted else 1)
        if b[seed].ending == "finished" and (after < before - allowed or begun[1] < begun[0]):
            messages.append(f"training ends after {after} {unit}, the original's not before {before}")
        elif a[seed].ending == "finished" and (after > before + allowed or begun[1] > begun[0]):
            messages.append(f"training goes on to {after} {unit} or more, the original's ends after {before}")
        else:
            return
    if messages:
        yield Finding("length", messages[0])


def nans(original: Sequence[Run], rewritten: Sequence[Run]) -> Iterator[Finding]:
    """A seed whose original stays finite counts; where no seed is shared, any run of the original."""
    a = first_of_each_seed(original)
    shared = any(run.seed in a for run in rewritten)
    for run in rewritten:
        found = _first_nan(run)
        peers = [a[run.seed]] if run.seed in a else [] if shared else list(a.values())
        if found and peers and all(_first_nan(peer) is None for peer in peers):
            yield Finding(
                "nan", "the loss becomes NaN or infinite, the original's does not", f"{found}, seed {run.seed}"
            )
            return
    for run in original:
        if found := _first_nan(run):
            message = "the original's own loss becomes NaN or infinite: compared until there"
            yield Finding("nan", message, f"{found}, seed {run.seed}", fails=False)
            return


def _first_nan(run: Run) -> str | None:
    for record in run.records:
        steps = 0
        for step in record.steps:
            steps += step.steps
            if step.loss is not None and not math.isfinite(step.loss):
                return f"{place_of((step.loop, step.epoch))}, after {steps} steps"
        for epoch in record.epochs:
            if not math.isfinite(epoch.logs.get("loss", 0.0)):
                return place_of((epoch.loop, epoch.epoch))
    return None


def no_effect(original: Sequence[Run], rewritten: Sequence[Run]) -> Iterator[Finding]:
    records = [record for run in rewritten for record in run.records]
    mixed = next((p for record in records for p in record.policies if p.startswith("mixed")), None)
    before = any(p.startswith("mixed") for run in original for record in run.records for p in record.policies)
    computes = [loop.compute for record in records for loop in record.loops if loop.compute]
    if mixed and not before and computes and not any(d in LOW_PRECISION for dtypes in computes for d in dtypes):
        message = f"the policy {mixed} is set, but no layer computes in low precision: it changes nothing"
        yield Finding("no-effect", message, fails=False)


def lost_precision(original: Sequence[Run], rewritten: Sequence[Run], level: int) -> Iterator[Finding]:
    """Lower precision is what level 2 asks for, but not for a script that chose float64."""
    for a, b in loops_of_both(original, rewritten):
        for name in ("floatx", "policy", "compute"):
            before, after = ({*v} if isinstance(v := getattr(loop, name), tuple) else {v} for loop in (a, b))
            if not all(before) or not all(after) or not before or not after or before == after:
                continue
            if level == 1 or any("float64" in one for one in before - after):
                what = {"floatx": "Keras' default type", "policy": "the policy", "compute": "what layers compute in"}[
                    name
                ]
                old, new = (" and ".join(sorted(names)) for names in (before, after))
                yield Finding("precision", f"{what} is {new}, the original's is {old}", name_of(a))
                break


def ranks_diverge(original: Sequence[Run], rewritten: Sequence[Run]) -> Iterator[Finding]:
    """Ranks that train one model have the same weights after every step."""

    def apart(run: Run) -> float:
        found = 0.0
        steps = [sum(step.steps for step in record.steps) for record in run.records]
        for sums in zip(*(record.weights for record in run.records), strict=False):
            n, turned, squares = np.array(sums, float).T
            if len(set(steps)) == 1 and len(set(n)) == 1:
                size = math.sqrt(squares.max()) or 1.0
                found = max(found, float(np.ptp(turned)) / size / math.sqrt(n[0]), float(np.ptp(squares)) / size**2)
        return found if math.isfinite(found) else 0.0

    if any(apart(run) > DIVERGED for run in original):
        return
    for run in rewritten:
        if (distance := apart(run)) > DIVERGED:
            message = f"the {len(run.records)} ranks end with different weights ({percent(distance)} apart)"
            yield Finding("ranks-diverge", f"{message}: each trains a model of its own", f"seed {run.seed}")
            return
