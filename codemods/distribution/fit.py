"""A program that trains with `fit`."""

from __future__ import annotations

from rewriter.distribution.optimizers import Optimizer, optimizer_of, rate_of
from rewriter.distribution.program import Way, unproven_compiles
from rewriter.distribution.writes import saves_whole_models
from rewriter.training import FITS, Run, Training, graph_mode, left_behind

from . import callbacks, data, keras3, optimizers, rates
from .conversion import Conversion


def convert(conversion: Conversion, ways: list[Way]) -> None:
    """Convert every `compile` and `fit` of the program."""
    program = conversion.program
    for script, node, reason in unproven_compiles(program):
        conversion.refuse(script, node, reason)
    if why := graph_mode(conversion.script):
        conversion.refuse(conversion.script, ways[0].node, why)
    if old := left_behind(conversion.script):
        conversion.refuse(conversion.script, ways[0].node, f"models of {old} are of an old copy of Keras")
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
    seen = {run.site.call for training in trainings for run in training.fits}
    for way in ways:
        if way.node in seen:
            continue
        site = next(s for s in conversion.program.sites(*FITS) if s.call is way.node)
        loaded = any(m.name.endswith("load_model") for m in site.models)
        reason = (
            "it trains a model that is loaded with its optimizer"
            if loaded
            else f"what compiles the model that is trained here is not seen: {_unknown(site.models)}"
        )
        conversion.refuse(way.script, way.node, reason, "compile it here" if loaded else "")


def _unknown(models: tuple) -> str:  # type: ignore[type-arg]
    return next((m.name for m in models if m.kind == "unknown" and m.name), "no `compile` of it is found")


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
    script = run.site.script
    size = run.site.arguments.get("batch_size")
    number = script.integer(size) if size is not None else 32 if run.data == "arrays" else None
    if number is not None:
        return (
            f"effective batch: {number} samples on every rank, {number} times the number of ranks in all "
            f"({4 * number} with 4)"
        )
    return "effective batch: that of the script on every rank, times the number of ranks in all"
