"""A program that trains in loops of its own, with `tf.GradientTape`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rewriter.distribution.program import Way
from rewriter.edits import DropKeyword, Insert
from rewriter.loops.steps import (
    LOOPS,
    Step,
    Tape,
    call_sites,
    compiled,
    is_tape,
    is_tf_function,
    is_update,
    steps,
    tapes_in,
)
from rewriter.script import Script, own_nodes
from rewriter.training import graph_mode

from . import data, keras3, loop_rates, loops
from .conversion import Conversion
from .names import Place, Unseen, at_place, variables_of


def convert(conversion: Conversion, ways: list[Way]) -> None:
    """Convert every tape, every loop around one, and the data of these."""
    program = conversion.program
    others = [w for w in program.ways if w.kind != "tape"]
    if others:
        reason = "it trains in loops with `GradientTape` and by Keras too: only one of both is converted"
        conversion.refuse(others[0].script, others[0].node, reason)
        return
    if why := graph_mode(conversion.script):
        conversion.refuse(conversion.script, ways[0].node, why)
        return
    conversion.module = "horovod.tensorflow"
    found = [s for o in program.scripts for s in steps(o) if s.role == "train" and program.reach.contains(o, s.node)]
    _all_is_seen(conversion, ways, found)
    for script in program.scripts:
        for tape in tapes_in(script, iter(script.all(ast.With))):
            if program.reach.contains(script, tape.node):
                average(conversion, script, tape)
    for step in found:
        _not_by_xla(conversion, step)
    if not found:
        conversion.refuse(
            ways[0].script, ways[0].node, "no variables are trained with gradients: there is nothing to distribute"
        )
    if conversion.refusals:
        return
    data.same_order(conversion)
    data.caches(conversion)
    places = [(place, step) for step in found for place in _places(conversion, step)]
    for place, step in places:
        loops.check(conversion, place, step)
    loops.split(conversion, [place for place, _ in places])
    if conversion.refusals:
        return
    _share_first_weights(conversion, places)
    loops.progress_bars(conversion)
    loop_rates.scale(conversion, places)
    conversion.note("effective batch: that of the script on every rank, times the number of ranks in all")
    conversion.note("losses and metrics of training that rank 0 prints are of its own part of the data")


# -- what is there ---------------------------------------------------------------------------------------------


def _all_is_seen(conversion: Conversion, ways: list[Way], found: list[Step]) -> None:
    """Every tape is a `with`, and every update gets what a tape of a step gives."""
    updates = {u for s in found for u in s.updates}
    inner = {n for s in found for u in s.updates for n in ast.walk(u)}
    for way in ways:
        script, call = way.script, way.node
        assert isinstance(call, ast.Call)
        if is_tape(script, call):
            if not isinstance(script.parents.get(call), ast.withitem):
                conversion.refuse(script, call, "the tape is not opened by a `with`")
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "minimize":
            reason = f"`{script.text(call.func)}` takes the gradients itself, which are those of one rank"
            conversion.refuse(script, call, reason, "take them with a tape, and use `apply_gradients`")
        elif call not in updates and call not in inner and not _in_helper(found, call):
            conversion.refuse(script, call, f"which gradients `{script.text(call.func)}` applies is not seen")
    for script, call in conversion.program.calls():
        if is_update(script, call) and not _of_keras(script, call):
            conversion.refuse(
                script, call, f"whether `{script.text(call.func)}` is of an optimizer of Keras is not known"
            )
    for step in found:
        if step.override:
            conversion.refuse(step.script, step.node, "Keras calls this step: what runs it is not seen")
        if not step.updates:
            conversion.refuse(step.script, step.node, "where the gradients are applied is not seen")
        for script, use in step.other_uses:
            parent = script.parents.get(use)
            if not (isinstance(parent, ast.Call) and is_tf_function(script, parent)):
                conversion.refuse(script, use, f"`{script.text(use)}` is passed on, to be called where it is not seen")
            else:
                conversion.refuse(script, use, "the step is compiled by a call, which is not followed", "decorate it")


def _in_helper(found: list[Step], call: ast.Call) -> bool:
    return any(c is call for s in found for _, c in s.calls)


def _of_keras(script: Script, call: ast.Call) -> bool:
    assert isinstance(call.func, ast.Attribute)
    values = script.values(call.func.value)
    old = ("tensorflow.train.", "tensorflow.compat.v1.")
    return all(v.kind == "optimizer" and v.cls is None and not v.name.startswith(old) for v in values)


# -- gradients -------------------------------------------------------------------------------------------------


def average(conversion: Conversion, script: Script, tape: Tape, wrapper: str = "") -> None:
    """`tape = hvd.DistributedGradientTape(tape)` behind the block; what is differentiated again stays of one rank.

    wrapper: how Horovod's tape is called here, where it is not `hvd.DistributedGradientTape`.
    """
    if _is_differentiated(script, tape):
        for gradient in tape.gradients:
            if _applied(script, gradient):
                conversion.refuse(script, gradient, "gradients that are applied are taken inside of another tape")
        return
    if not tape.name:
        conversion.refuse(script, tape.node, "the tape has no name")
        return
    if not tape.gradients:
        conversion.refuse(script, tape.node, f"where gradients are taken of `{tape.name}` is not seen")
        return
    kind_of = {gradient: _kind_of_sources(conversion, script, gradient) for gradient in tape.gradients}
    kinds = set(kind_of.values())
    if kinds == {"inputs"}:
        return  # with respect to the inputs: a picture of the gradients, an attack
    if keras3.is_target(conversion):
        for gradient in (g for g, kind in kind_of.items() if kind == "variables"):
            keras3.average(conversion, script, gradient)
        for name in _other_uses(script, tape):
            conversion.refuse(script, name, f"`{tape.name}` is used for something else than `gradient`")
        return
    for gradient in tape.gradients:
        _can_be_averaged(conversion, script, tape, gradient)
    if len(kinds) > 1:
        reason = f"of `{tape.name}`, gradients of variables and of inputs are taken: only the first may be averaged"
        conversion.refuse(script, tape.node, reason, "use two tapes")
    for name in _other_uses(script, tape):
        conversion.refuse(script, name, f"`{tape.name}` is used for something else than `gradient`")
    if isinstance(script.parents.get(tape.node), ast.Module | ast.stmt):
        wrapper = wrapper or f"{conversion.hvd(script, tape.node)}.DistributedGradientTape"
        conversion.add(Insert(tape.node, f"{tape.name} = {wrapper}({tape.name})"))


def _is_differentiated(script: Script, tape: Tape) -> bool:
    """Whether its gradients are taken inside of another tape, as those of a gradient penalty are."""

    def inside(node: ast.AST) -> bool:
        return any(
            tape_call is not tape.call
            for around in script.enclosing(node, ast.With)
            if around is not tape.node
            for tape_call in (i.context_expr for i in around.items)  # type: ignore[attr-defined]
            if is_tape(script, tape_call)
        )

    if any(inside(g) for g in tape.gradients):
        return True
    function = script.function_of(tape.node)
    if not isinstance(function, ast.FunctionDef) or any(_applied(script, g) for g in tape.gradients):
        return False
    sites, _ = call_sites(script, function)
    return any(
        is_tape(s.script, i.context_expr)
        for s in sites
        for w in s.script.enclosing(s.call, ast.With)
        for i in w.items  # type: ignore[attr-defined]
    )


def _applied(script: Script, gradient: ast.Call) -> bool:
    """Whether an update names what a gradient is given as."""
    statement = script.statement(gradient)
    names = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    function = script.function_of(gradient) or script.tree
    for node in own_nodes(function):
        if isinstance(node, ast.Call) and is_update(script, node):
            inside = set(ast.walk(node))
            if gradient in inside or any(isinstance(n, ast.Name) and n.id in names for n in inside):
                return True
    return False


def _sources(script: Script, gradient: ast.Call) -> ast.expr | None:
    return script.bind(gradient, ("target", "sources")).get("sources")


def _kind_of_sources(conversion: Conversion, script: Script, gradient: ast.Call) -> str:
    sources = _sources(script, gradient)
    if sources is not None and not isinstance(variables_of(script, sources), Unseen):
        return "variables"
    if _applied(script, gradient):
        return "variables"
    tensors = sources is not None and all(v.kind not in ("unknown", "parameter") for v in script.values(sources))
    if sources is None or not (isinstance(sources, ast.Name) and (tensors or _watched(script, sources))):
        conversion.refuse(script, gradient, f"what `{script.text(gradient)}` takes the gradients of is not seen")
    return "inputs"


def _watched(script: Script, name: ast.Name) -> bool:
    """`tape.watch(x)`: no variable."""
    return any(
        isinstance(c.func, ast.Attribute) and c.func.attr == "watch" and any(ast.unparse(a) == name.id for a in c.args)
        for c in script.calls
    )


def _can_be_averaged(conversion: Conversion, script: Script, tape: Tape, gradient: ast.Call) -> None:
    assert isinstance(gradient.func, ast.Attribute)
    text = script.text(gradient.func)
    if gradient.func.attr != "gradient":
        conversion.refuse(script, gradient, f"Horovod does not average what `{text}` gives")
    if any(k.arg == "unconnected_gradients" or k.arg is None for k in gradient.keywords) or len(gradient.args) > 3:
        conversion.refuse(script, gradient, f"Horovod's tape does not take all arguments of `{text}`")
    if script.function_of(gradient) is not script.function_of(tape.node) or gradient.lineno <= (
        tape.node.end_lineno or 0
    ):
        conversion.refuse(script, gradient, f"`{text}` is not called behind the block of its tape")
    if _around(script, gradient, tape.node):
        conversion.refuse(script, gradient, f"`{text}` is called in another loop than its tape stands in")
    sources = _sources(script, gradient)
    listed = isinstance(sources, ast.List | ast.Tuple) or any(
        isinstance(n, ast.Attribute) and n.attr.endswith(("variables", "weights"))
        for n in ast.walk(sources or gradient)
    )
    if not listed and sources is not None:
        found = variables_of(script, sources)
        listed = not isinstance(found, Unseen) and found.is_list
    if not listed:
        conversion.refuse(script, gradient, f"`{text}` has to be given a list of variables for Horovod's tape")


def _around(script: Script, node: ast.AST, tape: ast.With) -> bool:
    mine = set(script.enclosing(tape, ast.AST))
    return any(loop not in mine and loop is not tape for loop in script.enclosing(node, *LOOPS) if loop not in mine)


def _other_uses(script: Script, tape: Tape) -> Iterator[ast.Name]:
    """Loads of the tape behind its block that are no gradients; `del tape` may stay."""
    inside = set(ast.walk(tape.node))
    scope = script.names.scope_of(tape.node)
    for binding in scope.bindings.get(tape.name, ()):
        if binding.node not in inside:
            continue
        for load in script.names.loads(binding):
            parent = script.parents.get(load)
            if load in inside:
                continue
            call = script.parents.get(parent) if parent is not None else None
            if not (isinstance(parent, ast.Attribute) and parent.value is load and call in tape.gradients):
                yield load


def _not_by_xla(conversion: Conversion, step: Step) -> None:
    """XLA cannot compile Horovod's operations in every build."""
    functions = {f for f in [step.function, *step.script.enclosing(step.node, ast.FunctionDef)] if f is not None}
    callers = {s.script.function_of(s.call): s.script for s in step.sites}
    for function, script in [*((f, step.script) for f in functions), *callers.items()]:
        not_by_xla(conversion, script, function)


def not_by_xla(conversion: Conversion, script: Script, function: ast.AST | None) -> None:
    """Take `jit_compile=True` out of the `tf.function` of a function."""
    for decorator in getattr(function, "decorator_list", ()):
        if not is_tf_function(script, decorator) or not isinstance(decorator, ast.Call):
            continue
        for keyword in decorator.keywords:
            if keyword.arg in ("jit_compile", "experimental_compile") and script.constant(keyword.value) not in (
                False,
                None,
            ):
                conversion.add(DropKeyword(decorator, keyword.arg))
                conversion.note(f"`{keyword.arg}` is left out: XLA cannot compile Horovod's operations everywhere")
            elif keyword.arg in (None, "jit_compile", "experimental_compile") and not isinstance(
                keyword.value, ast.Constant
            ):
                conversion.refuse(script, decorator, "whether XLA compiles the step is not seen")


# -- the first weights -----------------------------------------------------------------------------------------


def _places(conversion: Conversion, step: Step) -> list[Place]:
    """The statements, in loops, after which one step has been made."""
    if step.inline:
        place = Place(step.script, step.statements[-1])
        if not place.loops:
            conversion.refuse(step.script, step.node, "the step stands in no loop")
        elif why := _compiled(place):
            conversion.refuse(step.script, step.node, f"the loop around the step is compiled by {why}")
        return [place]
    found: list[Place] = []
    todo = [(s.script, s.call) for s in step.sites]
    seen: set[ast.AST] = set()
    while todo:
        script, call = todo.pop()
        if call in seen or not conversion.program.reach.contains(script, call):
            continue
        seen.add(call)
        place = Place(script, script.statement(call))
        if place.loops:
            if why := _compiled(place):
                conversion.refuse(script, call, f"the loop around the step is compiled by {why}")
            if not isinstance(place.statement, ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign):
                conversion.refuse(script, call, "the step is called in a statement that does more")
            found.append(place)
            continue
        function = script.function_of(call)
        if not isinstance(function, ast.FunctionDef):
            conversion.refuse(script, call, "the step is called in no loop")
            continue
        todo += [(s.script, s.call) for s in call_sites(script, function)[0]]
    if not found:
        conversion.refuse(step.script, step.node, "where this step is called in a loop is not seen")
    return found


def _compiled(place: Place) -> str:
    function = place.script.function_of(place.statement)
    return compiled(place.script, function) if isinstance(function, ast.FunctionDef) else ""


def _share_first_weights(conversion: Conversion, places: list[tuple[Place, Step]]) -> None:
    """`if first_step: hvd.broadcast_variables(...)`: variables are made as late as in the first step."""
    blocks: dict[tuple[ast.AST, str], list[tuple[Place, Step]]] = {}
    for place, step in places:
        parent = place.script.parents[place.statement]
        block = next(
            n for n in ("body", "orelse", "finalbody", "handlers") if place.statement in getattr(parent, n, ())
        )
        blocks.setdefault((parent, block), []).append((place, step))
    for number, members in enumerate(blocks.values()):
        script = members[0][0].script
        last = max((p for p, _ in members), key=lambda p: p.statement.lineno)
        texts: dict[str, None] = {}
        for place, step in members:
            texts.update(dict.fromkeys(_to_share(conversion, place, step)))
        if not texts:
            return
        wanted = "first_step" if not number else f"first_step_{number + 1}"
        flag = conversion.free_name(script, wanted, f"is_{wanted}")
        hvd = conversion.hvd(script, last.loops[-1])
        conversion.add(Insert(last.loops[-1], f"{flag} = True", after=False))
        lines = [f"    {hvd}.broadcast_variables({text}, root_rank=0)" for text in texts]
        text = "\n".join([f"if {flag}:", *lines, f"    {flag} = False"])
        conversion.add(Insert(last.statement, text))


def _to_share(conversion: Conversion, place: Place, step: Step) -> Iterator[str]:
    """What a step trains and uses, as it is written at a place: models, variables, then optimizers."""
    known: list[str] = []
    for script, call in step.calls:
        sources = (
            _sources(script, call) if isinstance(call.func, ast.Attribute) and call.func.attr == "gradient" else None
        )
        if sources is not None:
            found = variables_of(script, sources)
            if isinstance(found, Unseen):
                known += _single(conversion, place, script, call, sources) if keras3.is_target(conversion) else []
                continue
            for owner, model in found.models:
                known += _variables(conversion, place, owner, model)
            for owner, mapping in found.mappings:
                known += [f"list({t})" for t in _texts(conversion, place, owner, mapping, ".values()")]
            if found.single:
                parts = [t for owner, v in found.single for t in _texts(conversion, place, owner, v, "")]
                known.append(f"[{', '.join(dict.fromkeys(parts))}]")
    for script, call in step.calls:
        inside_model = any(
            script.kind_of_class(c) in ("model", "layer")
            for c in script.enclosing(call, ast.ClassDef)
            if script.function_of(call) is not step.function
            if isinstance(c, ast.ClassDef)
        )
        if not inside_model and any(v.kind == "model" for v in script.values(call.func)):
            known += _variables(conversion, place, script, call.func)
    if not known:
        conversion.refuse(step.script, step.node, "which variables this step trains is not seen")
    for script, call in step.calls:
        if is_update(script, call) and isinstance(call.func, ast.Attribute):
            if keras3.is_target(conversion):
                known += [keras3.values_of(t) for t in _texts(conversion, place, script, call.func.value, ".variables")]
            else:
                known += _texts(conversion, place, script, call.func.value, ".variables()")
    yield from dict.fromkeys(known)


def _single(conversion: Conversion, place: Place, script: Script, gradient: ast.Call, variable: ast.expr) -> list[str]:
    """A variable that gradients are taken of alone."""
    values = script.values(variable)
    if values and all(v.name == "tensorflow.Variable" for v in values):
        return [f"[{text}]" for text in _texts(conversion, place, script, variable, "")]
    if _kind_of_sources(conversion, script, gradient) == "variables":
        text = script.text(variable)
        conversion.refuse(
            script, gradient, f"which variables `{text}` are is not seen: every rank has to begin with the same"
        )
    return []


def _variables(conversion: Conversion, place: Place, script: Script, model: ast.expr) -> list[str]:
    if not keras3.is_target(conversion):
        return _texts(conversion, place, script, model, ".variables")
    if not all(v.kind in ("model", "layer") for v in script.values(model)):
        conversion.refuse(script, model, f"whether the variables of `{script.text(model)}` are of Keras is not known")
    return [keras3.values_of(text) for text in _texts(conversion, place, script, model, ".weights")]


def _texts(conversion: Conversion, place: Place, script: Script, expr: ast.expr, suffix: str) -> list[str]:
    found = at_place(place, script, expr)
    if isinstance(found, Unseen):
        reason = (
            f"`{script.text(expr)}` ({script.at(expr)}) cannot be named in the loop, where its variables are shared"
        )
        conversion.refuse(place.script, place.statement, reason)
        return []
    return [f"{text}{suffix}" for text in found]
