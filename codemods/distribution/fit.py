"""A program that trains with `fit`."""

from __future__ import annotations

import ast
import re

from rewriter.distribution.optimizers import Optimizer, optimizer_of, rate_of
from rewriter.distribution.program import Way, unproven_compiles
from rewriter.distribution.writes import saves_whole_models
from rewriter.script import Script, Site
from rewriter.training import FITS, Run, Training, graph_mode, left_behind
from rewriter.values import Value

from . import callbacks, data, keras3, optimizers, rates
from .conversion import Conversion

#: Functions that give a model as it was saved, maybe with its optimizer.
_LOADS = re.compile(r"loads?|load_model|from_pretrained_keras")


def check(conversion: Conversion, ways: list[Way]) -> None:
    """Refuse what no program that trains with `fit` may have, however it is distributed."""
    for script, node, reason in unproven_compiles(conversion.program):
        conversion.refuse(script, node, reason)
    if why := graph_mode(conversion.script):
        conversion.refuse(conversion.script, ways[0].node, why)
    if old := left_behind(conversion.script):
        conversion.refuse(conversion.script, ways[0].node, f"models of {old} are of an old copy of Keras")


def convert(conversion: Conversion, ways: list[Way]) -> None:
    """Convert every `compile` and `fit` of the program."""
    program = conversion.program
    check(conversion, ways)
    trainings = [t for t in program.trainings if t.fits]
    _every_fit_is_compiled(conversion, ways, trainings)
    if of_keras3 := keras3.is_target(conversion):
        conversion.module = "horovod.tensorflow"
        keras3.check_optimizers(conversion)
    found: list[tuple[Training, Optimizer]] = []
    unseen = ""  # why the optimizer of a training is not seen: Keras 3 has it at hand after `compile`
    for training in program.trainings:
        for use in training.unseen:
            conversion.refuse(use.script, use.node, use.reason)
        if not training.fits:
            continue  # it is only evaluated
        optimizer = optimizer_of(training)
        if isinstance(optimizer, str) and of_keras3:
            unseen = unseen or optimizer
        elif isinstance(optimizer, str):
            conversion.refuse(training.script, training.compile.call, optimizer)
        elif not of_keras3 and (rate := rate_of(optimizer.base)).kind == "own schedule":
            conversion.refuse(
                rate.script,
                rate.expr or optimizer.expr,
                "the learning rate is a schedule of a class of its own, which Horovod cannot make anew",
                "use a schedule of Keras, or a `LearningRateScheduler`",
            )
        else:
            found.append((training, optimizer))
    runs = list({run.site.call: run for training in trainings for run in training.fits}.values())
    data.same_order(conversion)
    data.caches(conversion)
    for run in runs:
        data.split(conversion, run)
    if conversion.refusals:
        return
    scaling = rates.scale(conversion, found, unseen)
    for training, optimizer in found:
        rate_by_name = scaling.by_name.get(optimizer.base.expr, "")
        if of_keras3:
            keras3.give_rate(conversion, optimizer, rate_by_name)
        else:
            optimizers.distribute(conversion, training, optimizer, rate_by_name)
            if saves_whole_models(program, ".keras"):
                optimizers.keep_the_class(conversion, training)
    for training in trainings if of_keras3 else ():
        keras3.distribute(conversion, training)
    for run in runs:
        callbacks.together(conversion, run, scaling.warm_ups.get(run.site.call, ""))
    if not of_keras3:
        callbacks.numbers_of_history(conversion)
    _tell(conversion, runs, scaling)


def _every_fit_is_compiled(conversion: Conversion, ways: list[Way], trainings: list[Training]) -> None:
    without = uncompiled(conversion, ways, trainings)
    for way in ways:
        if way not in without:
            _no_model_is_loaded_with_its_optimizer(conversion, way, trainings)
            continue
        loaded = next((m for m in without[way].models if m.name.endswith("load_model")), None)
        reason = _loaded(conversion, loaded) if loaded else not_compiled(without[way])
        conversion.refuse(way.script, way.node, reason, "compile it here" if loaded else "")


def uncompiled(conversion: Conversion, ways: list[Way], trainings: list[Training]) -> dict[Way, Site]:
    """The calls of `fit` that no `compile` of the program is seen to belong to."""
    seen = {run.site.call for training in trainings for run in training.fits}
    sites = {s.call: s for s in conversion.program.sites(*FITS)}
    return {w: sites[w.node] for w in ways if isinstance(w.node, ast.Call) and w.node not in seen}


def not_compiled(site: Site) -> str:
    """Why a `fit` that no `compile` belongs to cannot be converted."""
    why = next((m.name for m in site.models if m.kind == "unknown" and m.name), "no `compile` of it is found")
    return f"what compiles the model that is trained here is not seen: {why}"


def _no_model_is_loaded_with_its_optimizer(conversion: Conversion, way: Way, trainings: list[Training]) -> None:
    """`load_model(...)` in one branch, `compile` in the other: gradients would not be averaged after the first."""
    mine = [t for t in trainings if any(run.site.call is way.node for run in t.fits)]
    models = next(run.site.models for t in mine for run in t.fits if run.site.call is way.node)
    for model in models:
        if not _LOADS.fullmatch(model.name.rpartition(".")[2]):
            continue
        script, load = model.script or way.script, model.node
        if isinstance(load, ast.Call):
            if script.constant(script.argument(load, "compile")) is False:
                continue  # it is compiled here, else `fit` raises
            if any(_always_compiles(t, way, script, load) for t in mine):
                continue
        place = script.at(load) if load is not None else model.name
        reason = f"{_loaded(conversion, model)}, where no `compile` follows ({place})"
        conversion.refuse(way.script, way.node, reason, "compile it after it is loaded")


def _always_compiles(training: Training, way: Way, script: Script, load: ast.Call) -> bool:
    """Whether it compiles a loaded model in every case, before that is trained: not under an `if` of its own."""
    compile_ = training.compile
    if all(m.node is not load for m in training.models):
        return False
    function = compile_.script.function_of(compile_.call)
    near = [(s, n) for s, n in ((script, load), (way.script, way.node)) if s is compile_.script]
    near = [(s, n) for s, n in near if s.function_of(n) is function]
    if any(n is way.node and n.lineno < compile_.call.lineno for _, n in near):  # type: ignore[attr-defined]
        return False
    branches = {branch for s, n in near for branch in s.enclosing(n, ast.If, ast.Try)}
    return not near or branches >= set(compile_.script.enclosing(compile_.call, ast.If, ast.Try))


def _loaded(conversion: Conversion, model: Value) -> str:
    reason = "it trains a model that is loaded with its optimizer"
    keras2 = conversion.target.keras == 2 and conversion.target.since(2, 11)
    if keras2 and model.name.endswith("load_model"):  # run: the ranks end with weights of their own, without a word
        return f"{reason}, for which Horovod's `hvd.load_model` averages no gradients"
    return reason


def _tell(conversion: Conversion, runs: list[Run], scaling: rates.Scaling) -> None:
    for text in dict.fromkeys(_batch(run) for run in runs):
        conversion.note(text)
    if scaling.why == "--no-lr-scaling":
        conversion.note("learning rates are as they were (--no-lr-scaling)")
    elif scaling.why:
        conversion.note(
            f"learning rates are as they were: {scaling.why}; scale them by hand if the larger batch needs it"
        )
    elif scaling.warm_ups:
        conversion.note(
            "learning rates grow from their own value to that times the number of ranks, over a warm-up of some epochs "
            "(--no-lr-scaling leaves them)"
        )
    else:
        conversion.note("learning rates are multiplied by the number of ranks (--no-lr-scaling leaves them)")


def _batch(run: Run) -> str:
    """The effective batch of one `fit`."""
    if (number := batch_size(run)) is not None:
        return (
            f"effective batch: {number} samples on every rank, {number} times the number of ranks in all "
            f"({4 * number} with 4)"
        )
    return "effective batch: that of the script on every rank, times the number of ranks in all"


def batch_size(run: Run) -> int | None:
    """The batch that a `fit` itself makes of arrays, None where it is not known or the data has its own."""
    size = run.site.arguments.get("batch_size")
    return run.site.script.integer(size) if size is not None else 32 if run.data == "arrays" else None
