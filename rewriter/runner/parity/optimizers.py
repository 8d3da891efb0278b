"""Optimizers, their settings, and how the learning rate moves."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..record import Loop, Record, Run
from .batches import are_known
from .finding import Finding, Key, first_of_each_seed, loops_of_both, name_of, place_of, scale_of

RATES = ("learning_rate", "lr", "initial_learning_rate", "base_lr", "warmup_target", "end_learning_rate")
#: What an optimizer's configuration holds that changes no update.
NO_UPDATE = frozenset("name jit_compile is_legacy_optimizer registered_name module build_config".split())


def same_optimizers(original: Sequence[Run], rewritten: Sequence[Run], level: int) -> Iterator[Finding]:
    ranks = scale_of(rewritten) // scale_of(original) or 1
    rates = not are_known(original, rewritten)  # else they are judged themselves, not what they come from
    for a, b in loops_of_both(original, rewritten):
        if a.optimizer and b.optimizer:
            yield from _optimizer(a, b, ranks, level, name_of(a), rates)


def schedules(original: Sequence[Run], rewritten: Sequence[Run], level: int) -> Iterator[Finding]:
    """Learning rates at the ends of epochs, and at the script's, unless noise moves them or they are judged apart."""
    if are_known(original, rewritten):
        return
    if any(loop.reacts for run in (*original, *rewritten) for record in run.records for loop in record.loops):
        return
    ranks = scale_of(rewritten) // scale_of(original) or 1
    a, b = ({s: _rates(run) for s, run in first_of_each_seed(runs).items()} for runs in (original, rewritten))
    seeds = sorted(a.keys() & b.keys())

    def same(x: float, y: float) -> bool:
        return _alike(x, y) or (ranks > 1 and x * (1 - 1e-5) <= y <= x * ranks * (1 + 1e-5))

    if not seeds or level >= 3:
        return
    for place, first in a[seeds[0]].items():
        pairs = [(a[seed].get(place), b[seed].get(place)) for seed in seeds]
        known = [(x, y) for x, y in pairs if x is not None and y is not None]
        if first is None or len(known) < len(seeds):
            continue
        if not all(_alike(x, first) for x, _ in known):
            return
        if not any(same(x, y) for x, y in known):
            where = "at the end" if place[0] is None else f"at the end of {place_of(place[0])}"
            message = f"the learning rate is {_shown(known[0][1])} {where}, the original's is {_shown(first)}"
            yield Finding("schedule", message)
            return


def _rates(run: Run) -> dict[tuple[Key | None, int], float | None]:
    """By place and optimizer; the end is one where it is the script's own."""
    record = run.records[0] if run.records else Record()
    places: list[tuple[Key | None, tuple[float | None, ...]]] = [((e.loop, e.epoch), e.rates) for e in record.epochs]
    if run.ending == "finished":
        places.append((None, record.rates))
    return {(key, i): rate for key, rates in places for i, rate in enumerate(rates)}


def _optimizer(before: Loop, after: Loop, ranks: int, level: int, where: str, rates: bool = True) -> Iterator[Finding]:
    names, settings = zip(*(_settings(loop.optimizer) for loop in (before, after)), strict=True)
    fails = level < 3
    if _plain(names[0]) != _plain(names[1]):
        yield Finding("optimizer", f"the optimizer is {names[1]}, the original's is {names[0]}", where, fails)
        return
    old, new = settings
    for name in sorted(old.keys() | new.keys()):
        x, y = old.get(name), new.get(name)
        rate = name.rsplit(".", 1)[-1] in RATES
        if not rates and (rate or name.split(".")[0] in RATES):
            continue
        if _alike(x, y) or (rate and ranks > 1 and isinstance(x, (int, float)) and _alike(x * ranks, y)):
            continue
        kind, what = ("learning-rate", "learning rate") if rate else ("optimizer", name)
        yield Finding(kind, f"{what} is {_shown(y)}, the original's is {_shown(x)}", where, fails)


def _settings(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """An optimizer's name and its settings, without the wrapper that scales the loss."""
    name = str(config.get("name", ""))
    for _ in range(3):
        inner = _parsed(config.get("inner_optimizer") or config.get("optimizer"))
        if not isinstance(inner, Mapping):
            break
        config = inner.get("config", inner)
        name = str(inner.get("class_name") or config.get("name", ""))
    return name, {k: v for k, v in _flat(config) if k.rsplit(".", 1)[-1] not in NO_UPDATE}


def _flat(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        value = _parsed(value)
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield above + key, value


def _parsed(value: Any) -> Any:
    """Schedules are recorded as JSON."""
    if isinstance(value, str) and value.startswith("{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _plain(name: str) -> str:
    name = name.lower().replace("_", "").rstrip("0123456789")
    return name.removeprefix("distributed").removesuffix("optimizer")


def _alike(x: Any, y: Any) -> bool:
    if isinstance(x, (int, float)) and isinstance(y, (int, float)):
        return math.isclose(x, y, rel_tol=1e-5, abs_tol=1e-12)
    return bool(x == y or (not x and not y))


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "not set" if value is None else str(value)
