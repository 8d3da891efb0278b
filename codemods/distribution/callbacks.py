"""Callbacks: the first weights and the metrics in common, decisions on all ranks, files on rank 0 only."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from rewriter.distribution.writes import writes
from rewriter.edits import Prepend, Replace, SetKeyword, Wrap
from rewriter.script import Script, Site
from rewriter.training import Run, callbacks
from rewriter.values import Value

from . import keras3
from .conversion import Conversion, operand

#: Callbacks that write or show something, and decide nothing.
_WRITERS = frozenset(
    "ModelCheckpoint TensorBoard CSVLogger RemoteMonitor ProgbarLogger WandbCallback WandbMetricsLogger "
    "WandbModelCheckpoint WandbEvalCallback MlflowCallback MLflowCallback NeptuneCallback PlotLossesKeras "
    "PlotLossesKerasTF TqdmCallback TQDMCallback TQDMNotebookCallback TQDMProgressBar".split()
)
_EVERYWHERE = frozenset("EarlyStopping ReduceLROnPlateau LearningRateScheduler History Callback BaseLogger".split())
_REFUSED = {
    "BackupAndRestore": "resumes on rank 0 alone after an interruption, with fewer epochs than the others",
    "TerminateOnNaN": "looks at the batches of one rank, which would end alone",
    "TimeStopping": "looks at the clock of one rank, which would end alone",
}


def together(conversion: Conversion, run: Run, warm_up: str) -> None:
    """Give a `fit` the callbacks of Horovod, first of all; `warm_up` are the arguments of the warm-up, if any."""
    site = run.site
    found, why = callbacks(site)
    if why:
        conversion.refuse(site.script, site.call, why)
        return
    for value in found:
        _one(conversion, site, value)
    if keras3.is_target(conversion):
        own = keras3.callbacks(conversion, site, warm_up)
    else:
        hvd = conversion.hvd(site.script, site.call)
        own = [f"{hvd}.callbacks.BroadcastGlobalVariablesCallback(0)", f"{hvd}.callbacks.MetricAverageCallback()"]
        if warm_up:
            own.append(f"{hvd}.callbacks.LearningRateWarmupCallback({warm_up})")
    _give(conversion, site, ", ".join(own))
    _verbose(conversion, site)


def _give(conversion: Conversion, site: Site, own: str) -> None:
    expr = site.arguments.get("callbacks")
    if expr is None:
        conversion.add(SetKeyword(site.call, "callbacks", f"[{own}]"))
        return
    values = site.script.values(expr)
    none = [v for v in values if v.kind == "constant" and v.literal is None]
    if isinstance(expr, ast.List):
        conversion.add(Prepend(expr, own))
    elif isinstance(expr, ast.Constant):  # None
        conversion.add(Replace(expr, f"[{own}]"))
    elif any(v.kind == "callback" for v in values):
        if len(values) > 1:
            conversion.refuse(site.script, expr, "the callbacks are one callback or several")
        conversion.add(Wrap(expr, f"[{own}, ...]"))
    elif none:
        conversion.add(Wrap(expr, f"[{own}, *({operand(expr)} or [])]"))
    else:
        conversion.add(Wrap(expr, f"[{own}, *...]" if operand(expr) == "..." else f"[{own}, *(...)]"))


def _verbose(conversion: Conversion, site: Site) -> None:
    """Progress is shown by rank 0."""
    rank_0 = conversion.rank_0(site.script, site.call)
    expr = site.arguments.get("verbose")
    if expr is None:
        conversion.add(SetKeyword(site.call, "verbose", f"1 if {rank_0} else 0"))
    elif site.script.constant(expr) not in (0, False):
        conversion.add(Wrap(expr, f"{operand(expr)} if {rank_0} else 0"))


def quiet(conversion: Conversion, site: Site) -> None:
    """The progress of an `evaluate` or `predict` on every rank is shown by rank 0."""
    overridden = any(
        m.cls is not None
        and m.cls.script is not None
        and isinstance(m.cls.node, ast.ClassDef)
        and m.cls.script.method(m.cls.node, site.method) is not None
        for m in site.models
    )
    kinds = {m.kind for m in site.models}
    if overridden or site.arguments.open or "model" not in kinds or kinds - {"model", "constant"}:
        return
    shown = site.method == "evaluate" or (site.method == "predict" and site.script.target.since(2, 9))
    if "verbose" in site.arguments or shown:
        _verbose(conversion, site)


def numbers_of_history(conversion: Conversion) -> None:
    """Metrics that are averaged over the ranks are NumPy's numbers, which `json` does not write by itself."""
    for script, call in conversion.program.calls():
        if script.called(call) not in ("json.dump", "json.dumps") or not call.args:
            continue
        settled = any(k.arg in ("default", "cls", None) for k in call.keywords)
        if not settled and "float(" not in ast.unparse(call.args[0]) and _of_history(script, call.args[0]):
            conversion.add(SetKeyword(call, "default", "float"))


def _of_history(script: Script, expr: ast.expr) -> bool:
    """Whether something is made of what `fit` returns."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr == "history")
        or (isinstance(node, ast.Name | ast.Call) and any(v.name == "history" for v in script.values(node)))
        for node in script.behind(expr)
    )


# -- one callback --------------------------------------------------------------------------------------------


def _one(conversion: Conversion, site: Site, value: Value) -> None:
    name = value.name.rpartition(".")[2]
    if value.cls is not None:
        _of_the_project(conversion, site, value)
    elif name in _REFUSED:
        conversion.refuse(site.script, value_node(site, value), f"`{name}` {_REFUSED[name]}", "leave it out")
    elif name in _WRITERS:
        _for_rank_0(conversion, site, value, name)
    elif name == "LambdaCallback" and value.script is not None and isinstance(value.node, ast.Call):
        _lambda(conversion, site, value)
    elif name not in _EVERYWHERE:
        conversion.refuse(site.script, site.call, f"what the callback `{name}` does on several ranks is not known")


def value_node(site: Site, value: Value) -> ast.AST:
    return value.node if value.node is not None and value.script is site.script else site.call


def _for_rank_0(conversion: Conversion, site: Site, value: Value, name: str) -> None:
    """`ModelCheckpoint(...) if hvd.rank() == 0 else Callback()`: the other ranks have one that does nothing."""
    script, call = value.script, value.node
    if script is None or not isinstance(call, ast.Call):
        conversion.refuse(site.script, site.call, f"where the callback `{name}` is made is not seen")
        return
    for other, use in script.flow(call):
        parent = other.parents.get(use)
        if isinstance(parent, ast.Attribute) and parent.value is use:
            conversion.refuse(other, parent, f"`{other.text(parent)}` is asked of a callback that only rank 0 has")
            return
    keras = keras3.family(script) if keras3.is_target(conversion) else "tensorflow.keras"
    conversion.add(Wrap(call, f"... if {conversion.rank_0(script, call)} else {{{keras}.callbacks.Callback}}()"))


def _lambda(conversion: Conversion, site: Site, value: Value) -> None:
    script, call = value.script, value.node
    assert script is not None and isinstance(call, ast.Call)
    bodies: list[tuple[Script, ast.AST]] = []
    for expr in [*call.args, *(k.value for k in call.keywords)]:
        for function in script.values(expr):
            if function.script is None or not isinstance(function.node, ast.FunctionDef | ast.Lambda):
                if function.kind != "constant":
                    conversion.refuse(site.script, site.call, "what a `LambdaCallback` does is not seen")
                    return
                continue
            bodies.append((function.script, function.node))
    _by_what_it_does(conversion, site, value, "LambdaCallback", bodies)


def _of_the_project(conversion: Conversion, site: Site, value: Value) -> None:
    cls = value.cls
    assert cls is not None
    if cls.script is None or not isinstance(cls.node, ast.ClassDef):
        conversion.refuse(site.script, site.call, f"what the callback `{cls.name}` does is not seen")
        return
    for base in cls.script.library_bases(cls.node):
        last = base.rpartition(".")[2]
        if last in _REFUSED:
            conversion.refuse(cls.script, cls.node, f"`{cls.name}` is a `{last}`, which {_REFUSED[last]}")
            return
        if last in _WRITERS:
            _for_rank_0(conversion, site, value, cls.name)
            return
    bodies = [(s, m) for s, m in cls.script.methods(cls.node).values()]
    _by_what_it_does(conversion, site, value, cls.name, bodies)


_DECISIONS = ("stop_training", "lr", "learning_rate", "trainable")


def _by_what_it_does(
    conversion: Conversion, site: Site, value: Value, name: str, bodies: Sequence[tuple[Script, ast.AST]]
) -> None:
    """A callback that decides runs on every rank, one that writes on rank 0."""
    decides: tuple[Script, ast.AST] | None = None
    file: tuple[Script, ast.AST] | None = None
    prints = False
    for script, body in bodies:
        per_batch = "batch" in getattr(body, "name", "")
        for node in ast.walk(body):
            if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and node.attr in _DECISIONS:
                decides = script, node
                if node.attr == "stop_training" and (per_batch or _looks_at_clock(body)):
                    conversion.refuse(script, node, f"`{name}` stops the training of one rank alone")
                    return
            if isinstance(node, ast.Call):
                last = node.func.attr if isinstance(node.func, ast.Attribute) else ""
                if last in ("set_value", "set_weights", "load_weights", "assign", "assign_add", "assign_sub"):
                    decides = script, node
                kind = writes(script, node)
                prints |= kind == "print"
                file = (script, node) if kind == "file" else file
    if decides and file:
        conversion.refuse(
            file[0],
            file[1],
            f"`{name}` decides how training goes on, and writes a file on every rank",
            "split it into two",
        )
    elif (file or prints) and not decides:
        _for_rank_0(conversion, site, value, name)


def _looks_at_clock(body: ast.AST) -> bool:
    return any(
        isinstance(n, ast.Attribute) and n.attr in ("time", "perf_counter", "monotonic", "now") for n in ast.walk(body)
    )
