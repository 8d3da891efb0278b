"""A program that trains in loops of its own, with `GradientTape`, under a strategy of `tf.distribute`.

The step runs on every replica with a part of each batch. What it computes as a mean over the batch is weighted with
the share of the batch that the replica has, so that the sum over the replicas, which a strategy makes of gradients and
the caller of losses, is the mean over the whole batch: also for a last, smaller batch that leaves nothing for some.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from codemods.tf_function import decorated
from rewriter.codemod import Refusal
from rewriter.distribution.portions import EACH, FREE, Portion, Reading
from rewriter.distribution.program import Way
from rewriter.edits import Insert, Rename, Replace, Undecorate, Wrap
from rewriter.loops.steps import CallSite, Step, compiled, is_tf_function, loops_around, steps
from rewriter.script import Script, own_nodes
from rewriter.training import graph_mode
from rewriter.values import Value

from . import strategy_data, strategy_hosts, strategy_lifts, strategy_losses, strategy_models
from .names import Place, Unseen, at_place
from .strategies import ByStrategy


@dataclass(eq=False)
class Run:
    """A step that every replica runs, and what is read of it.

    used: whether a caller uses what it returns.
    """

    step: Step
    function: ast.FunctionDef
    reading: Reading = field(default_factory=Reading)
    result: Portion = FREE
    used: bool = False

    @property
    def script(self) -> Script:
        return self.step.script


def convert(conversion: ByStrategy, ways: list[Way]) -> None:
    """Run every step on all replicas."""
    program, script = conversion.program, conversion.script
    others = [w for w in program.ways if w.kind != "tape"]
    if others:
        reason = "it trains in loops with `GradientTape` and by Keras too: only one of both is converted"
        conversion.refuse(others[0].script, others[0].node, reason)
        return
    if why := graph_mode(script):
        conversion.refuse(script, ways[0].node, why)
        return
    if conversion.target.keras is None:
        reason = f"it has to be certain which Keras runs it: {conversion.target} may have Keras 2 or 3"
        conversion.refuse(script, ways[0].node, reason, "--target tf2.15 or keras3, or --python")
        return
    found = [s for o in program.scripts for s in steps(o) if program.reach.contains(o, s.node)]
    if inline := [s for s in found if s.role == "train" and s.inline]:
        strategy_lifts.lift(conversion, inline)
        return
    runs = [run for s in found if s.role == "train" and (run := _read(conversion, s)) is not None]
    if not conversion.refusals:
        strategy_models.samples_apart(conversion)
        strategy_models.embeddings(conversion)
        _all_is_seen(conversion, ways, runs)
    if not conversion.refusals:
        _evaluations(conversion, [s for s in found if s.role == "eval"], runs)
    for run in runs if not conversion.refusals else ():
        _convert(conversion, run)
    if conversion.refusals:
        return
    strategy_losses.apart(conversion, [r.reading for r in runs])
    strategy_losses.elsewhere(conversion, [r.reading for r in runs])
    for run in runs:
        if conversion.target.keras == 3 and run.step.role == "train":
            _build_optimizers(conversion, run)
    if conversion.several_hosts:
        strategy_hosts.convert(conversion, [(r.step, r.reading) for r in runs])
    _one_change_each(conversion)
    conversion.note(
        "the batch of the script is the batch of all replicas together, and learning rates stay as they are"
    )


def _one_change_each(conversion: ByStrategy) -> None:
    """Two changes of one thing would not both be made."""
    made: dict[tuple[ast.AST, str], object] = {}
    for edit in conversion.edits:
        if made.setdefault((edit.node, edit.slot), edit) != edit:
            conversion.refuse(conversion.script, edit.node, "this would have to be changed in two ways")


# -- what is there ---------------------------------------------------------------------------------------------


def _read(conversion: ByStrategy, step: Step) -> Run | None:
    """What a step computes with a part of a batch; None where it cannot be converted."""
    script, function = step.script, step.function
    if step.override:
        conversion.refuse(script, step.node, "Keras calls this step: what runs it is not seen")
    elif not isinstance(function, ast.FunctionDef) or script.is_generator(function):
        conversion.refuse(script, step.node, "the step is no plain function")
    elif not conversion.knows(script, function):
        reason = f"the step stands where `{conversion.strategy}` is not known"
        conversion.refuse(script, step.node, reason, "let the script that is started have the step and its loop")
    elif (use := _passed_on(step)) is not None:
        conversion.refuse(use[0], use[1], f"`{use[0].text(use[1])}` is passed on, to be called where it is not seen")
    elif not any(conversion.program.reach.contains(s.script, s.call) for s in step.sites):
        conversion.refuse(script, step.node, "where this step is called is not seen")
    elif (why := _parameters(function)) or (why := _not_compiled(conversion, step)):
        conversion.refuse(script, function, why)
    else:
        run = Run(step, function)
        given = strategy_data.arguments(conversion, step.sites, function)
        if given is None:
            return None
        run.result = run.reading.function(script, function, given)
        if EACH not in given.values():
            conversion.refuse(script, function, "which of its arguments are of the batch is not seen")
        for owner, node, why in run.reading.problems:
            conversion.refuse(owner, node, why)
        return run
    return None


def _passed_on(step: Step) -> tuple[Script, ast.expr] | None:
    for other, use in step.other_uses:
        if not isinstance(other.parents.get(use), ast.ImportFrom | ast.alias):
            return other, use
    return None


def _parameters(function: ast.FunctionDef) -> str:
    a = function.args
    if a.vararg or a.kwarg or a.kwonlyargs:
        return "it takes any arguments, or some by name only"
    return ""


def _not_compiled(conversion: ByStrategy, step: Step) -> str:
    """Why a step that runs as Python so far cannot run as a graph, as replicas do."""
    script, function = step.script, step.function
    assert isinstance(function, ast.FunctionDef)
    if any(is_tf_function(script, d) for d in function.decorator_list):
        others = [d for d in function.decorator_list if not is_tf_function(script, d)]
        harmless = all(script.symbol(d) == "builtins.staticmethod" for d in others)
        return "" if harmless else "what its decorators do with it is not known"
    if why := compiled(script, function):
        return f"what calls the step is compiled ({why}): replicas are started by what is compiled itself"
    found = decorated(script, step)
    if isinstance(found, Refusal):
        return f"replicas run graphs, and it cannot be one: {found.reason}"
    for edit in found.edits:  # numbers that change are handed over as tensors
        if isinstance(edit, Wrap):
            conversion.wrap(edit.node, edit.template)
    return ""


def _all_is_seen(conversion: ByStrategy, ways: list[Way], runs: list[Run]) -> None:
    """Every tape and every update belongs to a step that is converted."""
    inside = {n for run in runs for f in run.reading.visited for n in ast.walk(f)}
    for way in ways:
        if way.node not in inside:
            assert isinstance(way.node, ast.Call)
            reason = f"which step `{way.script.text(way.node)}` belongs to is not seen"
            conversion.refuse(way.script, way.node, reason)
    for run in runs:
        if not run.reading.applied and not run.reading.assigned:
            conversion.refuse(run.script, run.function, "where the gradients are applied is not seen")
        for function in run.reading.visited:
            owner = conversion.script.project.owner(function)
            edited = any(function in owner.enclosing(n, ast.FunctionDef) for n in strategy_losses.edited(run.reading))
            if not edited or function is run.function or not isinstance(function, ast.FunctionDef):
                continue
            calls = owner.project.calls_of(function, owner)
            outside = [o.at(c) for o, c, _ in calls if c not in inside] if calls else ["it is not seen where"]
            if outside:
                reason = f"`{function.name}` is a part of the step, and is called elsewhere too ({outside[0]})"
                conversion.refuse(owner, function, reason)
            if not conversion.knows(owner, function):
                conversion.refuse(owner, function, f"it stands where `{conversion.strategy}` is not known")


def _evaluations(conversion: ByStrategy, found: list[Step], runs: list[Run]) -> None:
    """Evaluation goes on in one place, unless its metrics are made together with what is trained."""
    updated = {n for run in runs for n in _metrics_of(run.reading)}
    for step in found:
        theirs = {n for s, c in step.calls for n in _metrics_at(s, c)}
        if not theirs & updated and not strategy_losses.made_together(conversion, theirs, [r.reading for r in runs]):
            continue
        run = _read(conversion, step) if not step.inline else None
        if step.inline:
            reason = "a metric of the training is updated in a loop that evaluates: replicas run functions"
            conversion.refuse(step.script, step.node, reason, "give the evaluation metrics of its own, or a function")
        if run is not None:
            runs.append(run)


def _metrics_of(reading: Reading) -> set[ast.AST]:
    return {v.node for u in reading.updates for v in u.metric if v.node is not None}


def _metrics_at(script: Script, call: ast.Call) -> set[ast.AST]:
    func = call.func
    values = script.values(func.value if isinstance(func, ast.Attribute) and func.attr == "update_state" else func)
    return {v.node for v in values if v.kind == "metric" and v.node is not None}


# -- the step --------------------------------------------------------------------------------------------------


def _convert(conversion: ByStrategy, run: Run) -> None:
    run.used = any(not isinstance(s.script.parents.get(s.call), ast.Expr) for s in run.step.sites)
    strategy_losses.weight(conversion, run.script, run.function, run.reading, used=run.used)
    strategy_losses.whole_sizes(conversion, run.reading, strategy_data.sizes(run.step.sites))
    wrapper = conversion.free_name(run.script, f"distributed_{run.function.name}")
    strategy_data.distribute(conversion, run.step.sites, run.function)
    _wrap(conversion, run, wrapper)
    for site in run.step.sites:
        _call(conversion, site, wrapper)
    for script, expr in run.reading.used:
        conversion.scope.hold_made(script, expr)
    _built_before(conversion, run)
    _not_in_the_step(conversion, run)


def _not_in_the_step(conversion: ByStrategy, run: Run) -> None:
    """Nothing in a step can be under the scope, which replicas are in already."""
    inside = {n for f in run.reading.visited for n in ast.walk(f) if isinstance(n, ast.stmt)}
    for statement, script in list(conversion.scope.statements.items()):
        if statement not in inside:
            continue
        for call in [n for n in ast.walk(statement) if isinstance(n, ast.Call)]:
            kinds = {v.kind for v in script.values(call) if v.node is call}
            if kinds & {"model", "layer", "optimizer", "metric"} or script.called(call) == "tensorflow.Variable":
                conversion.refuse(script, call, "it makes variables in the step, on every replica")
        del conversion.scope.statements[statement]


def _call(conversion: ByStrategy, site: CallSite, wrapper: str) -> None:
    func = site.call.func
    if isinstance(func, ast.Attribute):
        conversion.add(Rename(func, wrapper))
    else:
        conversion.add(Replace(func, wrapper))
    if not conversion.knows(site.script, site.call):
        conversion.refuse(site.script, site.call, f"it is called where `{conversion.strategy}` is not known")


def _wrap(conversion: ByStrategy, run: Run, name: str) -> None:
    """The function that runs the step on all replicas, below it."""
    script, function = run.script, run.function
    a = function.args
    names = [p.arg for p in [*a.posonlyargs, *a.args]]
    method = run.step.sites[0].offset
    decorator = _decorator(conversion, run)
    given = names[method:]
    step = f"{names[0]}.{function.name}" if method else function.name
    started = f"{conversion.strategy}.run({step}, args=({', '.join(given)}{',' if len(given) == 1 else ''}))"
    body = [started]
    if run.used:
        body = _summed(conversion, run, started)
    text = "\n".join([decorator, f"def {name}({ast.unparse(a)}):", *(f"    {line}" for line in body)])
    top = script.parents[function] is script.tree
    gap = min(max(script.blank_lines_above(function), 1), 2 if top else 1)  # as the file has it above this one
    conversion.add(Insert(function, text, after=True, blank_lines=gap))


def _summed(conversion: ByStrategy, run: Run, started: str) -> list[str]:
    """The lines of the wrapper that add up what the replicas return."""
    add = "{tensorflow.distribute.ReduceOp.SUM}"
    several = isinstance(_returned(run), ast.Tuple | ast.List)
    if several:
        return [
            f"results = {started}",
            f"return [{conversion.strategy}.reduce({add}, result, axis=None) for result in results]",
        ]
    if isinstance(_returned(run), ast.Dict):
        return [
            f"results = {started}",
            f"return {{key: {conversion.strategy}.reduce({add}, value, axis=None) for key, value in results.items()}}",
        ]
    return [f"result = {started}", f"return {conversion.strategy}.reduce({add}, result, axis=None)"]


def _returned(run: Run) -> ast.expr | None:
    found = run.script.returns(run.function)
    return found[0] if found else None


def _decorator(conversion: ByStrategy, run: Run) -> str:
    """The step's `tf.function`, which its caller gets: without what does not go with replicas."""
    script, function = run.script, run.function
    for number, decorator in enumerate(function.decorator_list):
        if not is_tf_function(script, decorator):
            continue
        conversion.add(Undecorate(function, number))
        if not isinstance(decorator, ast.Call):
            return f"@{ast.unparse(decorator)}"
        kept = [ast.unparse(a) for a in decorator.args]
        if kept:
            conversion.refuse(script, decorator, "arguments of `tf.function` are given by position")
        for keyword in decorator.keywords:
            if keyword.arg in ("jit_compile", "experimental_compile"):
                if script.constant(keyword.value) not in (False, None):
                    conversion.note(f"`{keyword.arg}` is left out: XLA does not compile what several replicas run")
            elif keyword.arg == "input_signature":
                conversion.note("`input_signature` is left out: what a replica gets has another type")
            else:
                kept.append(ast.unparse(keyword))
        return f"@{ast.unparse(decorator.func)}" + (f"({', '.join(kept)})" if kept else "")
    return "@{tensorflow.function}"


# -- what is made before the loop ------------------------------------------------------------------------------


def _before(site: CallSite) -> list[tuple[Script, ast.stmt]]:
    """The statements of the same block that run before the loop around a call, and of what calls its function."""
    found: list[tuple[Script, ast.stmt]] = []
    seen: set[ast.AST] = set()
    todo: list[tuple[Script, ast.AST]] = [(site.script, site.call)]
    while todo:
        script, call = todo.pop()
        loops = loops_around(script, call)
        outer: ast.AST = loops[-1] if loops else script.statement(call)
        function = script.function_of(outer)
        block = function if isinstance(function, ast.FunctionDef) else script.tree
        for statement in own_nodes(block):
            if (
                isinstance(statement, ast.stmt)
                and not isinstance(statement, ast.FunctionDef | ast.ClassDef)
                and statement.lineno < getattr(outer, "lineno", 0)
                and (statement.end_lineno or 0) < getattr(outer, "lineno", 0)
            ):
                found.append((script, statement))
        if isinstance(function, ast.FunctionDef) and function not in seen:
            seen.add(function)
            todo += [(o, c) for o, c, _ in script.project.calls_of(function, script)]
    return found


def _built_before(conversion: ByStrategy, run: Run) -> None:
    """What calls a model before it is trained makes its variables, and belongs under the scope too."""
    functions = run.reading.visited
    for site in run.step.sites:
        for script, statement in _before(site):
            if isinstance(statement, ast.If | ast.For | ast.While | ast.With | ast.Try):
                continue
            for node in ast.walk(statement):
                if not isinstance(node, ast.Call) or script.function_of(node) in functions:
                    continue
                if _makes_variables(script, node, run.reading):
                    conversion.scope.hold(script, node)


def _makes_variables(script: Script, call: ast.Call, reading: Reading) -> bool:
    """`model(x)`, `model.build(...)`, `model.add(...)`, `show(model)`: of a model that is trained."""
    func = call.func
    if isinstance(func, ast.Attribute) and func.attr in ("build", "add", "load_weights", "set_weights", "summary"):
        return any(_same(v, reading) for v in script.values(func.value))
    if any(_same(v, reading) for v in script.values(func)):
        return True
    given = [*call.args, *(k.value for k in call.keywords)]
    own = any(v.kind in ("function", "method") and v.script for v in script.values(func))
    return own and any(_same(v, reading) for a in given if isinstance(a, ast.Name) for v in script.values(a))


def _same(value: Value, reading: Reading) -> bool:
    return any(value.kind == m.kind and m.node is not None and value.node is m.node for m in reading.models)


# -- optimizers of Keras 3 -------------------------------------------------------------------------------------


def _build_optimizers(conversion: ByStrategy, run: Run) -> None:
    """An optimizer of Keras 3 cannot make its variables on a replica: they are made in front of the loops."""
    for site in run.step.sites:
        script, loops = site.script, site.loops
        anchor: ast.stmt = loops[-1] if loops else script.statement(site.call)
        place = Place(script, script.statement(site.call))
        lines: dict[str, None] = {}
        for index, (owner, update) in enumerate(run.reading.applied):
            assert isinstance(update.func, ast.Attribute)
            sources = _variables(run.reading, index, update)
            optimizer = at_place(place, owner, update.func.value)
            variables = _named(place, owner, sources) if sources is not None else Unseen()
            if isinstance(optimizer, Unseen) or isinstance(variables, Unseen) or len(optimizer) != 1:
                reason = "its variables cannot be named in front of the loop, where Keras 3 makes the optimizer's"
                conversion.refuse(owner, update, reason, "call `optimizer.build(variables)` under the scope")
                return
            lines[f"{optimizer[0]}.build({variables})"] = None
        lines = dict.fromkeys([*_late_models(conversion, run, place, site), *lines])
        if not lines:
            continue
        header = f"with {conversion.strategy}.scope():"
        text = "\n".join([header, *(f"    {line}" for line in lines)])
        conversion.add(Insert(anchor, text, after=False))


def _variables(reading: Reading, index: int, update: ast.Call) -> ast.expr | None:
    """What an update changes: `zip(gradients, variables)`, or what the gradients were taken of."""
    match update.args[:1]:
        case [ast.Call(func=ast.Name(id="zip"), args=[_, variables])]:
            return variables
    found = [t for t in reading.targets if t.gradient is update] or reading.targets[index : index + 1]
    for target in found:
        names = ("loss", "var_list") if target.gradient is update else ("target", "sources")
        return target.script.bind(target.gradient, names).get(names[1])
    return None


def _named(place: Place, script: Script, sources: ast.expr) -> str | Unseen:
    """The variables as they are written in the loop."""
    if isinstance(sources, ast.Name):
        bindings = script.names.reaching(sources)
        value = bindings[0].value if len(bindings) == 1 and bindings[0].kind == "assign" else None
        if value is not None and not bindings[0].path:
            return _named(place, script, value)
    match sources:
        case ast.Attribute(value=model, attr=attr) if attr.endswith(("variables", "weights")):
            found = at_place(place, script, model)
            return found[0] + f".{attr}" if not isinstance(found, Unseen) and len(found) == 1 else Unseen()
        case ast.Call(func=ast.Name(id="list"), args=[ast.Call(func=ast.Attribute(value=mapping, attr="values"))]):
            found = at_place(place, script, mapping)
            return f"list({found[0]}.values())" if not isinstance(found, Unseen) and len(found) == 1 else Unseen()
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            parts = [_named(place, script, p) for p in (left, right)]
            return " + ".join(parts) if all(isinstance(p, str) for p in parts) else Unseen()  # type: ignore[arg-type]
        case ast.List(elts=elts) | ast.Tuple(elts=elts):
            names = [at_place(place, script, e) for e in elts]
            if all(not isinstance(n, Unseen) and len(n) == 1 for n in names):
                return f"[{', '.join(n[0] for n in names)}]"  # type: ignore[index]
    return Unseen()


def _late_models(conversion: ByStrategy, run: Run, place: Place, site: CallSite) -> list[str]:
    """Calls of the models that have no variables yet, with what tells the shapes of their inputs."""
    called = {
        v.node
        for script, statement in _before(site)
        for node in ast.walk(statement)
        if isinstance(node, ast.Call)
        for v in _built_by(script, node)
    }
    lines = []
    for model in run.reading.called:
        if model.kind != "model" or model.node in called or not _is_late(model):
            continue
        text = _first_call(run, place, site, model)
        if not text:
            script = model.script or conversion.script
            reason = "this model makes its variables when it is first called, which Keras 3 cannot do on a replica"
            conversion.refuse(script, model.node or run.function, reason, "call it once before the loop, or `build` it")
        lines.append(text)
    return lines


def _first_call(run: Run, place: Place, site: CallSite, model: Value) -> str:
    """`model(Input(...))` for `model(images)` where `images` is an element of a dataset, or a part of one; else ""."""
    handed = strategy_data.element(site, run.function)
    for script, func in run.reading.used:
        call = script.parents.get(func)
        if not isinstance(call, ast.Call) or call.func is not func or model not in script.values(func):
            continue
        given = call.args[0] if call.args else None
        tensors = [a for a in call.args[1:] if script.constant(a) is None]
        extra = [k for k in call.keywords if script.constant(k.value) is None]
        if tensors or extra or not isinstance(given, ast.Name) or given.id not in handed:
            return ""
        names = at_place(place, script, func)
        if script.function_of(call) is not run.function or isinstance(names, Unseen) or len(names) != 1:
            return ""
        if any(b.kind != "parameter" for b in script.names.reaching(given)):
            return ""
        spec = handed[given.id]
        return f"{names[0]}({{tensorflow.keras.Input}}({spec}.shape[1:], dtype={spec}.dtype))"
    return ""


def _built_by(script: Script, call: ast.Call) -> list[Value]:
    func = call.func
    if isinstance(func, ast.Attribute) and func.attr in ("build", "load_weights"):
        return [v for v in script.values(func.value) if v.cls is None]
    return [v for v in script.values(func) if v.kind == "model"]


def _is_late(model: Value) -> bool:
    """A class of the script's own, or a `Sequential` whose input is not told."""
    script, node = model.script, model.node
    if model.cls is not None:
        return True
    if not model.name.endswith("Sequential") or script is None or not isinstance(node, ast.Call):
        return False
    layers = [n for o, u in script.flow(node) for n in _added(o, u)]
    given = node.args[0] if node.args else script.argument(node, "layers")
    layers += given.elts if isinstance(given, ast.List) else []
    told = ("input_shape", "input_dim", "batch_input_shape", "shape", "input_tensor")
    return not any(
        isinstance(layer, ast.Call) and (any(k.arg in told for k in layer.keywords) or _is_input(script, layer))
        for layer in layers
    )


def _is_input(script: Script, call: ast.Call) -> bool:
    named = script.called(call).endswith((".Input", ".InputLayer"))
    return named or any(v.kind == "model" for v in script.values(call))


def _added(script: Script, use: ast.expr) -> list[ast.expr]:
    attribute = script.parents.get(use)
    call = script.parents.get(attribute) if attribute is not None else None
    if isinstance(attribute, ast.Attribute) and attribute.attr == "add" and isinstance(call, ast.Call):
        return call.args[:1]
    return []
