"""Loops of several workers: what all of them have to do together, and checkpoints that the chief keeps."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from rewriter.distribution.portions import Reading
from rewriter.loops.steps import Step
from rewriter.script import Script

from . import loops
from .data import same_order
from .names import Place
from .strategies import ByStrategy


def convert(conversion: ByStrategy, found: Sequence[tuple[Step, Reading]]) -> None:
    """Refuse where workers may do other steps than others; what they do together is not left to the chief."""
    same_order(conversion)
    for step, reading in found:
        _decisions(conversion, step)
        _random(conversion, reading)
        _together(conversion, step, reading)
    _checkpoints(conversion)


def _decisions(conversion: ByStrategy, step: Step) -> None:
    """Conditions of which steps, or the end of a loop, depend."""
    for site in step.sites:
        place = Place(site.script, site.script.statement(site.call))
        if not place.loops:
            continue
        for script, node in loops._deciding(place, step):
            if not loops._steady(script, node.test):
                reason = f"`{script.text(node.test)}` may differ from worker to worker, and decides about steps of all"
                conversion.refuse(script, node, reason, "decide by counters and settings")


def _random(conversion: ByStrategy, reading: Reading) -> None:
    """With a seed, all workers draw the same random rows: there would be fewer of them in a batch."""
    if not reading.drawn:
        return
    for script, call in conversion.program.calls():
        if script.called(call).endswith((".set_seed", "set_random_seed")):
            reason = "a seed is set, with which every worker draws the same random rows"
            conversion.refuse(script, call, reason, "leave the seed out")


def _together(conversion: ByStrategy, step: Step, reading: Reading) -> None:
    """Steps, and what asks a metric, which adds up what all workers have."""
    conversion.together |= {s.call for s in step.sites}
    used = {v.node for u in reading.updates for v in u.metric}
    for script, call in conversion.program.calls():
        func = call.func
        asks = isinstance(func, ast.Attribute) and func.attr in ("result", "reset_state", "reset_states")
        if asks and isinstance(func, ast.Attribute) and any(v.node in used for v in script.values(func.value)):
            conversion.together.add(call)


def _checkpoints(conversion: ByStrategy) -> None:
    """All workers take part in a checkpoint; each has a folder of its own, of which the chief's is kept."""
    from .strategy_workers import _aside

    for script, call in conversion.program.calls():
        func, name = call.func, script.called(call)
        if name.endswith("train.CheckpointManager"):
            folder = script.bind(call, ("checkpoint", "directory")).get("directory")
            if folder is None:
                conversion.refuse(script, call, "where the checkpoints are written is not seen")
            else:
                _aside(conversion, script, folder)
            continue
        if not isinstance(func, ast.Attribute) or func.attr not in ("save", "write", "restore", "read"):
            continue
        names = {v.name for v in script.values(func.value)}
        if not any(n.endswith(("train.Checkpoint", "train.CheckpointManager")) for n in names):
            continue
        if func.attr in ("restore", "read"):
            reason = "it restores what the other workers may not find"
            conversion.refuse(script, call, reason, "restore it on all workers, from a folder that they share")
            continue
        conversion.together.add(call)
        if any(n.endswith("train.Checkpoint") for n in names):
            path = script.bind(call, ("file_prefix",)).get("file_prefix")
            if path is None:
                conversion.refuse(script, call, "where the checkpoint is written is not seen")
            else:
                _aside(conversion, script, path)


def in_place(conversion: ByStrategy, script: Script, loop: ast.For, dataset: ast.expr) -> None:
    """A dataset that is distributed again for every epoch begins with the same order each time, on several workers."""
    function = script.function_of(loop)
    if function is None:
        return
    for value in script.values(dataset):
        made = value
        while made.base is not None:
            made = made.base
        inside = made.node is not None and script.project.owner(made.node).function_of(made.node) is function
        if not inside:
            reason = "it goes through a dataset that is made elsewhere, which is divided anew each time"
            conversion.refuse(script, loop, reason, "make the dataset in this function, or the loop over epochs")
            return
