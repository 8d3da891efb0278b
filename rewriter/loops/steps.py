"""Training and evaluation steps that a script writes by hand: `with tf.GradientTape()`, gradients, an update.

    for step in steps(script):
        step.role         # "train", or "eval": runs a model for every batch, without an update
        step.inline       # statements of a loop, else the whole body of step.function
        step.statements   # what is done for one batch
        step.tapes, step.updates, step.models, step.optimizers, step.metrics
        step.sites        # the calls of step.function, with the loops around each
        step.compiled     # why it runs as a graph already ("" where it is eager)

A step is the smallest piece of code that holds a tape, its gradients and the update made with them. The tape may
stand in a function that returns the gradients (`loss, grads = grad(model, x, y)`): the step is then where they are
applied. A step whose loop stands in the same function is inline; the critic's steps of a WGAN in a loop over a few
numbers belong to the step around them. An evaluation step is a function that is called for every batch, or what a loop
over data does with a model and metrics. Graph-mode code of TensorFlow 1 has no steps.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

from ..data.pipelines import reached
from ..scopes import FUNCTIONS
from ..script import Script, own_nodes
from ..values import Value

Loop: TypeAlias = ast.For | ast.While
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
LOOPS = (ast.For, ast.AsyncFor, ast.While)

#: A loop over a range of at most so many numbers in a function that is called for every batch is part of the step.
FEW_ROUNDS = 50

_GRADIENTS = frozenset({"gradient", "jacobian", "batch_jacobian"})
_UPDATES = frozenset({"apply_gradients", "minimize", "apply"})
_ASSIGNS = frozenset({"assign", "assign_sub", "assign_add", "scatter_sub", "scatter_add"})
#: Methods that Keras itself compiles.
_KERAS_STEPS = frozenset({"train_step", "test_step", "predict_step", "call", "compute_loss"})


@dataclass(frozen=True, eq=False)
class Tape:
    """`with tf.GradientTape(...) as name`. `gradients` are its `name.gradient(...)` calls."""

    node: ast.With
    call: ast.Call
    name: str
    persistent: bool
    gradients: tuple[ast.Call, ...]


@dataclass(frozen=True, eq=False)
class CallSite:
    """A call of a step's function. `offset`: parameters that the receiver fills. `loops`: innermost first."""

    script: Script
    call: ast.Call
    offset: int

    @property
    def loops(self) -> list[Loop]:
        return loops_around(self.script, self.call)


@dataclass(eq=False)
class Step:
    script: Script
    role: Literal["train", "eval"]
    function: Function | None  # the step's function, or the one that an inline step stands in (None: module level)
    statements: list[ast.stmt]
    inline: bool
    tapes: list[Tape] = field(default_factory=list)
    updates: list[ast.Call] = field(default_factory=list)
    helpers: list[ast.Call] = field(default_factory=list)  # calls of functions whose tape gives the gradients
    sites: list[CallSite] = field(default_factory=list)
    other_uses: list[tuple[Script, ast.expr]] = field(default_factory=list)  # mentions of the function, not called
    override: bool = False  # a method that Keras calls and compiles: `train_step` of a model

    @property
    def node(self) -> ast.stmt:
        """Where the step is reported: the function, or the first of the statements."""
        return self.statements[0] if self.inline or self.function is None else self.function

    @property
    def loops(self) -> list[Loop]:
        """The loops of its function that an inline step stands in, innermost first."""
        return loops_around(self.script, self.statements[0]) if self.inline else []

    @cached_property
    def compiled(self) -> str:
        """What makes it run as a graph, as the user would name it; "" where it is eager."""
        if self.override:
            return "Keras compiles it"
        if self.function is not None:
            return compiled(self.script, self.function)
        return ""

    @cached_property
    def calls(self) -> list[tuple[Script, ast.Call]]:
        """Every call in the step and in the project's functions that it calls."""
        return list(reached(self.script, self.statements))

    @cached_property
    def models(self) -> list[Value]:
        """The models that the step calls, each once."""
        return _distinct(v for s, c in self.calls for v in s.values(c.func) if v.kind == "model")

    @cached_property
    def optimizers(self) -> list[Value]:
        """What its gradients are applied with; [] where variables are assigned to."""
        return _distinct(
            v
            for s, c in self.calls
            if isinstance(c.func, ast.Attribute) and is_update(s, c) and c.func.attr in _UPDATES
            for v in s.values(c.func.value)
        )

    @cached_property
    def metrics(self) -> list[Value]:
        """The metrics that it updates."""
        return _distinct(
            v
            for s, c in self.calls
            for v in s.values(
                c.func.value if isinstance(c.func, ast.Attribute) and c.func.attr == "update_state" else c.func
            )
            if v.kind == "metric"
        )


def steps(script: Script) -> list[Step]:
    """The hand-written steps of a script, in source order."""
    key = f"steps of {script.path}"
    if key not in script.project.facts:
        script.project.facts[key] = _Finder(script).found()
    return script.project.facts[key]  # type: ignore[return-value]


# -- what is asked about single nodes -----------------------------------------------------------------------


def is_tape(script: Script, node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and script.called(node) == "tensorflow.GradientTape"


def tapes_in(script: Script, nodes: Iterator[ast.AST]) -> list[Tape]:
    found = []
    for node in nodes:
        for item in node.items if isinstance(node, ast.With) else ():
            call = item.context_expr
            if not isinstance(node, ast.With) or not isinstance(call, ast.Call) or not is_tape(script, call):
                continue
            name = item.optional_vars.id if isinstance(item.optional_vars, ast.Name) else ""
            persistent = script.bind(call, ("persistent",)).get("persistent")
            found.append(
                Tape(
                    node,
                    call,
                    name,
                    persistent is not None and script.constant(persistent) is not False,
                    tuple(_gradients_of(script, item.optional_vars)),
                )
            )
    return found


def _gradients_of(script: Script, target: ast.expr | None) -> Iterator[ast.Call]:
    if not isinstance(target, ast.Name):
        return
    scope = script.names.scope_of(target)
    for binding in scope.elsewhere.get(target.id, scope).bindings.get(target.id, ()):
        if binding.node is target:
            for load in script.names.loads(binding):
                attribute = script.parents[load]
                call = script.parents.get(attribute)
                if isinstance(attribute, ast.Attribute) and attribute.attr in _GRADIENTS and isinstance(call, ast.Call):
                    yield call


def is_update(script: Script, call: ast.Call) -> bool:
    """`optimizer.apply_gradients(...)`, `optimizer.minimize(lambda: ..., ...)`, `optimizer.apply(gradients, ...)`."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _UPDATES:
        return False
    receivers = script.values(call.func.value)
    if all(v.kind in ("symbol", "dataset", "constant") for v in receivers):
        return False
    name = call.func.attr
    if name == "apply":
        return all(v.kind == "optimizer" for v in receivers)
    if name == "minimize":  # of a tensor it belongs to a graph of TensorFlow 1
        loss = script.bind(call, ("loss", "var_list")).get("loss")
        return script.argument(call, "tape") is not None or any(
            v.kind in ("function", "method") and isinstance(v.node, FUNCTIONS) for v in script.values(loss)
        )
    return True


def loops_around(script: Script, node: ast.AST) -> list[Loop]:
    """The loops of its own function that a node is run in, innermost first; what a loop iterates over is not in it."""
    found: list[Loop] = []
    inner: ast.AST = node
    for around in script.enclosing(node, ast.AST):
        if isinstance(around, ast.ClassDef | ast.Lambda | Function):
            break
        if isinstance(around, ast.For | ast.While) and any(inner is s for s in around.body):
            found.append(around)
        inner = around
    return found


def call_sites(script: Script, function: Function) -> tuple[list[CallSite], list[tuple[Script, ast.expr]]]:
    """Every call of a function in the project, and its mentions that are no calls."""
    sites: list[CallSite] = []
    uses: list[tuple[Script, ast.expr]] = []
    decorators = {script.symbol(d) for d in function.decorator_list}
    method = isinstance(script.parents.get(function), ast.ClassDef) and "builtins.staticmethod" not in decorators
    of_class = method and "builtins.classmethod" in decorators
    for other in list(script.project.scripts.values()):
        for name in [m for alias in other.aliases(function.name) for m in other.mentions(alias)]:
            found = [v for v in other.values(name) if v.node is function]
            if not found:
                continue
            parent = other.parents.get(name)
            if isinstance(parent, ast.Call) and parent.func is name:
                bound = method and (of_class or any(v.kind == "method" for v in found))
                sites.append(CallSite(other, parent, int(bound)))
            else:
                uses.append((other, name))
    return sites, uses


def is_tf_function(script: Script, node: ast.expr) -> bool:
    """`tf.function`, `tf.function(...)` or `partial(tf.function, ...)`."""
    target = node.func if isinstance(node, ast.Call) else node
    if isinstance(node, ast.Call) and script.called(node) == "functools.partial" and node.args:
        target = node.args[0]
    return script.symbol(target) in ("tensorflow.function", "tensorflow.contrib.eager.defun")


def compiled(script: Script, function: Function, seen: frozenset[ast.AST] = frozenset()) -> str:
    """What makes a function run as a graph: its decorator, `tf.function(f)`, or that all callers do; else ""."""
    for decorator in function.decorator_list:
        if is_tf_function(script, decorator):
            return f"`@{script.text(decorator)}`"
    owner = script.parents.get(function)
    if isinstance(owner, ast.ClassDef) and function.name in _KERAS_STEPS and script.kind_of_class(owner) == "model":
        return "Keras compiles it"
    sites, uses = call_sites(script, function)
    reasons = []
    for other, use in uses:
        parent = other.parents.get(use)
        if isinstance(parent, ast.keyword):
            parent = other.parents.get(parent)
        if isinstance(parent, ast.Call) and is_tf_function(other, parent):
            reasons.append(f"`{other.text(parent)}` ({other.at(parent)})")
        elif isinstance(parent, ast.Call):
            reasons.append(_in_graph(other, parent, seen | {function}))
        else:
            return ""
    reasons += [_in_graph(s.script, s.call, seen | {function}) for s in sites]
    return reasons[0] if reasons and all(reasons) else ""


def _in_graph(script: Script, node: ast.AST, seen: frozenset[ast.AST]) -> str:
    """Why the code at a node is run as a graph."""
    for around in script.enclosing(node, *FUNCTIONS):
        if around in seen or isinstance(around, ast.Lambda):
            continue
        if reason := compiled(script, around, seen):  # type: ignore[arg-type]
            return reason if reason.startswith("Keras") else f"{reason} of `{around.name}`"  # type: ignore[attr-defined]
    return ""


# -- finding them -------------------------------------------------------------------------------------------


class _Finder:
    def __init__(self, script: Script) -> None:
        self.script = script

    def found(self) -> list[Step]:
        script = self.script
        if "GradientTape" not in _program_text(script) and "minimize" not in script.source.text:
            return []
        found: list[Step] = []
        scopes: list[ast.AST] = [script.tree, *script.all(ast.FunctionDef), *script.all(ast.AsyncFunctionDef)]
        for scope in scopes:
            found += self._of_scope(scope)
        training = [s.function for s in found if not s.inline]
        found += [e for f in script.all(ast.FunctionDef) if f not in training and (e := self._evaluation(f))]
        found += [e for loop in script.all(ast.For) if (e := self._inline_evaluation(loop))]
        return sorted(found, key=lambda s: (s.statements[0].lineno, s.statements[0].col_offset))

    def _of_scope(self, scope: ast.AST) -> Iterator[Step]:
        """The steps in the own code of the module or of one function."""
        script = self.script
        nodes = [n for n in own_nodes(scope) if not isinstance(scope, ast.Module) or not _in_class(script, n)]
        tapes = [t for t in tapes_in(script, iter(nodes)) if t.gradients]
        calls = [n for n in nodes if isinstance(n, ast.Call)]
        helpers = [c for c in calls if self._gives_gradients(c)]
        updates = [c for c in calls if is_update(script, c) or self._assigns(c, tapes, helpers)]
        if tapes or helpers:
            updates += [c for c in calls if c not in updates and c not in helpers and self._updates(c)]
        tapes += [t for t in tapes_in(script, iter(nodes)) if not t.gradients and self._minimizes(t, updates)]
        groups: dict[Loop | None, list[ast.Call]] = {}
        for update in updates:
            groups.setdefault(self._loop_of(update, tapes, helpers, scope), []).append(update)
        if None in groups and isinstance(scope, ast.Module):
            del groups[None]  # a single update in no loop
        for loop, members in groups.items():
            inside = [t for t in tapes if loop is None or self._directly_in(t.node, loop, groups)]
            near = [h for h in helpers if loop is None or self._directly_in(h, loop, groups)]
            anchors: list[ast.AST] = [
                *members,
                *near,
                *(t.node for t in inside),
                *(g for t in inside for g in t.gradients),
            ]
            if loop is not None:
                anchors = [a for a in anchors if loop in script.enclosing(a, ast.For, ast.While)]
            if not inside and not near and not any(self._minimizes_function(u) for u in members):
                continue
            function = scope if isinstance(scope, Function) else None
            if loop is None:
                assert function is not None
                yield self._of_function(function, inside, members, near)
            elif statements := _run_of(script, anchors):
                yield Step(script, "train", function, statements, True, inside, members, near)

    def _of_function(
        self, function: Function, tapes: list[Tape], updates: list[ast.Call], near: list[ast.Call]
    ) -> Step:
        sites, uses = call_sites(self.script, function)
        owner = self.script.parents.get(function)
        override = (
            isinstance(owner, ast.ClassDef)
            and function.name in _KERAS_STEPS
            and self.script.kind_of_class(owner) in ("model", "unknown")
            and not sites
        )
        body = _without_docstring(function.body)
        return Step(self.script, "train", function, body, False, tapes, updates, near, sites, uses, override)

    def _loop_of(
        self, update: ast.Call, tapes: Sequence[Tape], helpers: Sequence[ast.Call], scope: ast.AST
    ) -> Loop | None:
        """The innermost loop that does one step per round; None where the whole function is one step."""
        script = self.script
        for loop in loops_around(script, update):
            sources = [*(t.node for t in tapes), *helpers]
            holds = self._minimizes_function(update) or any(
                loop in script.enclosing(s, ast.For, ast.While) for s in sources
            )
            if holds:
                return None if self._is_part(loop, scope) else loop
        return None

    def _is_part(self, loop: Loop, scope: ast.AST) -> bool:
        """Does a loop belong to the step of the function around it, which is called for every batch?"""
        if not isinstance(scope, Function) or not isinstance(loop, ast.For):
            return False
        if loops_around(self.script, loop):
            return False
        if not (isinstance(loop.iter, ast.Call) and self.script.called(loop.iter) == "builtins.range"):
            return False
        rounds = self.script.integer(loop.iter.args[-1]) if loop.iter.args else None
        if rounds is not None and rounds > FEW_ROUNDS:
            return False
        sites, _ = call_sites(self.script, scope)
        return any(s.loops for s in sites)

    def _directly_in(self, node: ast.AST, loop: Loop, groups: dict[Loop | None, list[ast.Call]]) -> bool:
        """In this loop, and in none inside it that has its own step."""
        for around in self.script.enclosing(node, ast.For, ast.While):
            if around is loop:
                return True
            if around in groups:
                return False
        return False

    def _gives_gradients(self, call: ast.Call) -> bool:
        """A call of a function of the project that holds a tape and returns gradients, without an update."""
        if not isinstance(call.func, ast.Name | ast.Attribute):
            return False
        for value in self.script.values(call.func):
            function, owner = value.node, value.script
            if value.kind not in ("function", "method") or owner is None or not isinstance(function, ast.FunctionDef):
                continue
            inner = [n for n in own_nodes(function) if isinstance(n, ast.Call)]
            if any(t.gradients for t in tapes_in(owner, own_nodes(function))) and not any(
                is_update(owner, n) for n in inner
            ):
                return bool(owner.returns(function))
        return False

    def _updates(self, call: ast.Call) -> bool:
        """A call of a function of the project that applies gradients which are computed elsewhere."""
        if not isinstance(call.func, ast.Name | ast.Attribute):
            return False
        for value in self.script.values(call.func):
            if value.kind in ("function", "method") and isinstance(value.node, ast.FunctionDef) and value.script:
                inner = [n for n in own_nodes(value.node) if isinstance(n, ast.Call)]
                gives = any("grad" in a.arg.lower() for a in value.node.args.args)
                holds = any(is_tape(value.script, n) for n in inner)
                if (
                    gives
                    and not holds
                    and any(
                        is_update(value.script, n) or (isinstance(n.func, ast.Attribute) and n.func.attr in _ASSIGNS)
                        for n in inner
                    )
                ):
                    return True
        return False

    def _assigns(self, call: ast.Call, tapes: list[Tape], helpers: list[ast.Call]) -> bool:
        """`w.assign_sub(rate * gradient)` behind a tape."""
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in _ASSIGNS:
            return False
        sources: list[ast.stmt | ast.expr] = [*(t.node for t in tapes), *helpers]
        return any(n.lineno <= call.lineno for n in sources)

    def _minimizes_function(self, update: ast.Call) -> bool:
        return isinstance(update.func, ast.Attribute) and update.func.attr == "minimize"

    def _minimizes(self, tape: Tape, updates: list[ast.Call]) -> bool:
        """`optimizer.minimize(loss, variables, tape=tape)`."""
        given = [self.script.argument(u, "tape") for u in updates]
        return any(isinstance(g, ast.Name) and g.id == tape.name for g in given)

    def _evaluation(self, function: ast.FunctionDef) -> Step | None:
        """A function that is called for every batch, runs a model and updates nothing."""
        script = self.script
        runs = any(
            isinstance(n, ast.Call) and any(v.kind == "model" for v in script.values(n.func))
            for n in own_nodes(function)
        )
        if not runs:
            return None
        owner = script.parents.get(function)
        if isinstance(owner, ast.ClassDef) and script.kind_of_class(owner) in ("model", "layer", "unknown"):
            return None
        body = _without_docstring(function.body)
        if any(is_update(s, c) or is_tape(s, c) for s, c in reached(script, body)):
            return None
        sites, uses = call_sites(script, function)
        looped = [s for s in sites if s.loops]
        if any(self._is_differentiated(s) for s in sites):
            return None
        if not looped or any(loop for loop in own_nodes(function) if isinstance(loop, ast.For | ast.While)):
            return None
        return Step(script, "eval", function, body, False, sites=sites, other_uses=uses)

    @staticmethod
    def _is_differentiated(site: CallSite) -> bool:
        """A call in a function or block that holds a tape: of a loss, not of an evaluation step."""
        function = site.script.function_of(site.call)
        inside = [w for w in site.script.enclosing(site.call, ast.With) if isinstance(w, ast.With)]
        return any(is_tape(site.script, i.context_expr) for w in inside for i in w.items) or (
            function is not None and bool(tapes_in(site.script, own_nodes(function)))
        )

    def _inline_evaluation(self, loop: ast.For) -> Step | None:
        """A loop over data that runs a model and updates metrics with what comes out, in its own statements."""
        script = self.script
        anchors: list[ast.AST] = []
        runs = updates = False
        for statement in loop.body:
            for node in ast.walk(statement):
                if isinstance(node, ast.For | ast.While | ast.FunctionDef) or (
                    isinstance(node, ast.Call) and (is_update(script, node) or is_tape(script, node))
                ):
                    return None
                if not isinstance(node, ast.Call):
                    continue
                if any(v.kind == "model" for v in script.values(node.func)):
                    runs = True
                    anchors.append(node)
                elif _updates_metric(script, node):
                    updates = True
                    anchors.append(node)
        statements = _run_of(script, anchors) if runs and updates else []
        if not statements or any(is_update(s, c) or is_tape(s, c) for s, c in reached(script, loop.body)):
            return None
        function = script.function_of(loop)
        return Step(script, "eval", function if isinstance(function, Function) else None, statements, True)


def _updates_metric(script: Script, call: ast.Call) -> bool:
    receiver = call.func
    if isinstance(receiver, ast.Attribute) and receiver.attr == "update_state":
        receiver = receiver.value
    elif isinstance(receiver, ast.Attribute) and any(v.kind == "method" for v in script.values(receiver)):
        return False
    found = script.values(receiver)
    return bool(found) and all(v.kind == "metric" for v in found)


def _run_of(script: Script, anchors: Sequence[ast.AST]) -> list[ast.stmt]:
    """The statements, side by side in one block, that hold all of these nodes."""
    paths = []
    for anchor in anchors:
        path: list[ast.stmt] = [script.statement(anchor)]
        path += [n for n in script.enclosing(path[0], ast.AST) if isinstance(n, ast.stmt)]
        paths.append(path)
    for statement in paths[0]:
        block = block_of(script, statement)
        held = [next((s for s in path if any(s is b for b in block)), None) for path in paths]
        if all(held):
            places = [next(i for i, b in enumerate(block) if b is h) for h in held]
            return block[min(places) : max(places) + 1]
    return []


def block_of(script: Script, statement: ast.stmt) -> list[ast.stmt]:
    """The list of statements that one stands in."""
    parent = script.parents[statement]
    for name in ("body", "orelse", "finalbody", "handlers"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and any(statement is s for s in block):
            return block
    return [statement]


def _in_class(script: Script, node: ast.AST) -> bool:
    return any(True for _ in script.enclosing(node, ast.ClassDef))


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and len(body) > 1
    return body[1:] if documented else body


def _program_text(script: Script) -> str:
    return "\n".join(s.source.text for s in script.project.scripts.values())


def _distinct(values: Iterator[Value]) -> list[Value]:
    """Values without repetition: the same thing may have been reached on several ways."""
    found: dict[object, Value] = {}
    for v in values:
        found.setdefault((v.kind, v.node or (v.cls.node if v.cls else None), v.name), v)
    return list(found.values())
