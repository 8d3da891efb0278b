"""Loss scaling in hand-written training steps: in float16 small gradients would be rounded to zero.

    found = Scaling(steps, keras2=True, keras3=False, quiet=...)
    found.edits      # wrap the optimizers, scale each loss inside its tape, unscale the gradients right behind it
    found.troubles   # where that cannot be done, and why

Keras 2 scales and unscales by `get_scaled_loss` and `get_unscaled_gradients` of a `LossScaleOptimizer`. In Keras 3
`scale_loss` is a method of every optimizer, and `apply_gradients` unscales: what stands in between sees scaled
gradients, and must do the same to them at every scale.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rewriter.edits import Edit, Insert, Replace, Wrap
from rewriter.loops.steps import LOOPS, Step, Tape, is_tape, is_update, tapes_in
from rewriter.scopes import FUNCTIONS
from rewriter.script import Script, own_nodes
from rewriter.values import Value

BFLOAT16 = "--amp-dtype bfloat16 needs no loss scaling"

#: Attributes that a `LossScaleOptimizer` shows as the optimizer in it does.
_ATTRIBUTES = frozenset("lr learning_rate iterations variables apply_gradients minimize build apply".split())
#: Functions that make finite numbers of infinite ones: an overflow would not be noticed, and its step not skipped.
_HIDES = frozenset(
    "clip_by_value clip where sign tanh sigmoid minimum maximum nan_to_num is_nan is_finite is_inf isnan isfinite "
    "isinf check_numerics assert_all_finite".split()
)
_CLIPS = frozenset({"tensorflow.clip_by_global_norm", "tensorflow.clip_by_norm"})
_PASSES = frozenset({"builtins.zip", "builtins.list", "builtins.tuple"})
_VARIABLES = frozenset("trainable_variables trainable_weights variables weights".split())


@dataclass(frozen=True)
class Trouble:
    script: Script
    node: ast.AST
    reason: str
    hint: str = BFLOAT16


@dataclass(frozen=True, eq=False)
class _Gradient:
    """A call of `tape.gradient` whose result an optimizer applies: `optimizer` as that call spells it."""

    script: Script
    call: ast.Call
    tape: Tape
    updates: list[tuple[Script, ast.Call]]

    @property
    def optimizers(self) -> set[str]:
        return {s.text(u.func.value, 200) for s, u in self.updates if isinstance(u.func, ast.Attribute)}

    @property
    def home(self) -> ast.AST | None:
        return self.script.function_of(self.call)


class Scaling:
    def __init__(self, steps: Iterable[Step], *, keras2: bool, keras3: bool, family: str) -> None:
        self.keras2, self.keras3, self.family = keras2, keras3, family
        self.edits: list[Edit] = []
        self.troubles: list[Trouble] = []
        self._wrapped: dict[ast.Call, Script] = {}
        self._scaled: dict[tuple[ast.AST, str, str], str] = {}  # (tape, loss, optimizer) → the scaled loss's name
        self._names: dict[ast.AST | None, set[str]] = {}
        self._done: set[ast.AST] = set()
        self._taken: dict[ast.Call, tuple[Script, Tape]] = {}  # every gradient of the steps
        self._optimizers: dict[ast.Call, str] = {}  # what scales it
        self._updates: set[ast.Call] = set()  # those whose gradients are seen to come from a tape, or `minimize`
        for step in steps:
            self._step(step)
        for call, owner in self._wrapped.items():
            for script, use in owner.flow(call):
                self._applies(script, use)

    def _refuse(self, script: Script, node: ast.AST, reason: str, hint: str = BFLOAT16) -> None:
        self.troubles.append(Trouble(script, node, reason, hint))

    # -- one step --------------------------------------------------------------------------------------------

    def _step(self, step: Step) -> None:
        tapes = list(_tapes(step))
        gradients = {call: (script, tape) for script, tape in tapes for call in tape.gradients}
        self._taken |= gradients
        updates = [(s, c) for s, c in step.calls if is_update(s, c)]
        applied: dict[ast.Call, list[tuple[Script, ast.Call]]] = {}
        for script, update in dict.fromkeys(updates):
            for argument in [*update.args, *(k.value for k in update.keywords)]:
                for call in _gradients_in(script, argument, gradients):
                    if (script, update) not in applied.setdefault(call, []):
                        applied[call].append((script, update))
        for update in step.updates:
            if not is_update(step.script, update) and any(
                any(_gradients_in(step.script, a, gradients)) for a in [*update.args]
            ):
                what = f"`{step.script.text(update.func)}` changes a variable by its gradient, without an optimizer"
                why = f"{what}: nothing would scale the loss"
                if _is_followed(step.script, update):
                    why = (
                        f"`{step.script.text(update.func)}` is given gradients: what it does with them is not followed"
                    )
                self._refuse(step.script, update, why)
                return
        for script, update in updates:
            assert isinstance(update.func, ast.Attribute)
            if update.func.attr == "minimize" and self.keras3:
                self._refuse(script, update, "the optimizers of Keras 3 have no `minimize`")
            self._optimizer(script, update)
            if update.func.attr == "minimize" or any((script, update) in found for found in applied.values()):
                self._updates.add(update)
            else:
                self._refuse(script, update, f"where the gradients of `{script.text(update)}` come from is not seen")
        found = {c: _Gradient(script, c, tape, applied[c]) for c, (script, tape) in gradients.items() if c in applied}
        for call, (script, tape) in gradients.items():
            if call in self._done:
                continue
            self._done.add(call)
            if call in found:
                self._gradient(found[call], [g for g in found.values() if g.call is not call])
            else:
                self._not_applied(script, call, tape)

    def _not_applied(self, script: Script, call: ast.Call, tape: Tape) -> None:
        if any(is_tape(script, i.context_expr) for w in script.enclosing(call, ast.With) for i in w.items):  # type: ignore[attr-defined]
            why = "a gradient inside the loss (a gradient penalty) may leave the range of float16"
        else:
            what = f"no optimizer is seen to apply `{script.text(call)}`"
            why = f"{what}: in a loss (a gradient penalty) it may leave the range of float16"
        self._refuse(script, call, why)

    # -- optimizers ------------------------------------------------------------------------------------------

    def _optimizer(self, script: Script, update: ast.Call) -> None:
        assert isinstance(update.func, ast.Attribute)
        receiver = update.func.value
        shown = script.text(receiver)
        for value in script.values(receiver):
            if value.kind == "constant" and value.literal is None:
                continue
            if _is_compiled(script, receiver, value):
                continue
            owner, call = value.script, value.node
            made = owner is not None and isinstance(call, ast.Call)
            if made and (
                value.cls is not None or (value.kind in ("optimizer", "object", "tensor") and not value.keras)
            ):
                assert owner is not None and isinstance(call, ast.Call)
                whose = "the script's own" if value.cls else "not one of Keras's optimizers"
                what = f"the optimizer `{owner.text(call.func)}` is {whose}"
                self._refuse(owner, call, f"{what}: its loss cannot be scaled")
            elif value.kind != "optimizer" or owner is None or not isinstance(call, ast.Call):
                why = f": {value.name}" if value.kind == "unknown" and value.name else ""
                self._refuse(script, update, f"which optimizer `{shown}` is is not known{why}")
            elif call not in self._wrapped:
                self._wrapped[call] = owner
                self._wrap(owner, call, value)

    def _wrap(self, owner: Script, call: ast.Call, value: Value) -> None:
        target = owner.target
        if target.since(2, 11) and target.before(2, 12) and ".legacy." not in f".{value.keras}.":
            self._refuse(owner, call, "TensorFlow 2.11 cannot scale the loss of its new optimizers")
        for script, use in owner.flow(call):
            self._use(script, use)
        quote = owner.source.quote
        if target.since(2, 4):
            template = f"{{{self.family}.mixed_precision.LossScaleOptimizer}}(...)"
        else:
            template = f"{{{self.family}.mixed_precision.experimental.LossScaleOptimizer}}(..., {quote}dynamic{quote})"
        self.edits.append(Wrap(call, template))

    def _use(self, script: Script, use: ast.expr) -> None:
        """The wrapper is not the optimizer: it lacks some of its attributes, and other code may look into it."""
        parent = script.parents.get(use)
        if isinstance(parent, ast.Attribute) and parent.attr not in _ATTRIBUTES:
            what = f"`{script.text(parent)}` is used, which a LossScaleOptimizer may not have"
            self._refuse(script, parent, what)
        if isinstance(parent, ast.keyword):
            parent = script.parents.get(parent)
        if not isinstance(parent, ast.Call) or parent.func is use:
            return
        name = script.called(parent)
        if name.startswith("tensorflow.train.") and name.endswith("Checkpoint"):
            if self.keras3 and _restores(script):
                what = "checkpoints hold the optimizer: Keras 3 cannot restore an older one into a LossScaleOptimizer"
                self._refuse(script, parent, what)
            elif _restores(script, "assert_consumed", "assert_existing_objects_matched"):
                what = "a restored checkpoint must hold every variable, and an older one has none of the loss scaling"
                self._refuse(script, parent, what)
        elif _is_followed(script, parent) or name in ("builtins.print", "builtins.super"):
            return
        elif isinstance(parent.func, ast.Attribute) and parent.func.attr == "compile":
            self._refuse(script, parent, "the optimizer is compiled into a model as well")
        else:
            at = f"`{script.text(parent.func)}` ({script.at(parent)})"
            self._refuse(script, parent, f"the optimizer is given to {at}: what it does with it is not seen")

    def _applies(self, script: Script, use: ast.expr) -> None:
        """Gradients that do not come from a step with a scaled loss would be unscaled all the same (Keras 3)."""
        method = script.parents.get(use)
        call = script.parents.get(method) if isinstance(method, ast.Attribute) else None
        if (
            not (isinstance(call, ast.Call) and call.func is method and is_update(script, call))
            or call in self._updates
        ):
            return
        given = [*call.args, *(k.value for k in call.keywords)]
        found = [g for a in given for g in _gradients_in(script, a, self._taken)]
        if not found or any(self._optimizers.get(g) != script.text(use, 200) for g in found):
            self._refuse(script, call, f"where the gradients of `{script.text(call)}` come from is not seen")

    # -- one gradient ----------------------------------------------------------------------------------------

    def _gradient(self, gradient: _Gradient, others: list[_Gradient]) -> None:
        script, call, tape = gradient.script, gradient.call, gradient.tape
        receivers = gradient.optimizers
        if len(receivers) > 1:
            shown = " and ".join(f"`{r}`" for r in sorted(receivers))
            self._refuse(script, call, f"the same gradients go to {shown}, which may scale differently")
            return
        (optimizer,) = receivers
        self._optimizers[call] = optimizer
        arguments = script.bind(call, ("target", "sources"))
        loss, sources = arguments.get("target"), arguments.get("sources")
        reason = (
            _unclear(loss, script, tape)
            or ("" if _is_list(script, sources, call) else f"whether `{script.text(call)}` gives a list is not seen")
            or self._out_of_sight(gradient)
            or _ends_early(tape)
        )
        if isinstance(call.func, ast.Attribute) and call.func.attr != "gradient":
            reason = f"`{call.func.attr}` is not a gradient that can be unscaled"
        if any(tape.node is w for w in script.enclosing(call, ast.With)):
            reason = "the gradients are taken inside the block of the tape: their loss cannot be scaled behind it"
        reason = reason or self._rescaled(gradient, optimizer, others) or self._in_between(gradient, optimizer)
        if reason:
            self._refuse(script, call, reason)
            return
        assert loss is not None
        scaled = self._scale(script, tape, loss, optimizer)
        self.edits.append(Replace(loss, scaled))
        if self.keras2:
            statement = script.parents[call]
            if isinstance(statement, ast.Assign) and _is_name(statement.targets) and statement.value is call:
                name = ast.unparse(statement.targets[0])
                self.edits.append(Insert(statement, f"{name} = {optimizer}.get_unscaled_gradients({name})"))
            else:
                self.edits.append(Wrap(call, f"{optimizer}.get_unscaled_gradients(...)"))

    def _scale(self, script: Script, tape: Tape, loss: ast.expr, optimizer: str) -> str:
        """The name of the scaled loss, which the last statement of the tape's block computes."""
        key = (tape.node, ast.dump(loss), optimizer)
        if key not in self._scaled:
            scope = script.function_of(tape.node)
            taken = self._names.setdefault(scope, set())
            base = f"scaled_{loss.id}" if isinstance(loss, ast.Name) else "scaled_loss"
            wanted = [base, f"{base}_{len(taken) + 1}"]
            name = script.free_name(*(w for w in wanted if w not in taken))
            taken.add(name)
            self._scaled[key] = name
            method = "get_scaled_loss" if self.keras2 else "scale_loss"
            text = f"{name} = {optimizer}.{method}({script.source.snippet(loss)})"
            self.edits.append(Insert(tape.node.body[-1], text))
        return self._scaled[key]

    def _out_of_sight(self, gradient: _Gradient) -> str:
        """Why the optimizer cannot be named where the loss is computed."""
        script, tape = gradient.script, gradient.tape
        here = script.function_of(tape.node)
        for owner, update in gradient.updates:
            assert isinstance(update.func, ast.Attribute)
            receiver = update.func.value
            shown = owner.text(receiver)
            if not _is_plain(receiver):
                return f"`{shown}` cannot be repeated where the loss is computed"
            root = receiver
            while isinstance(root, ast.Attribute | ast.Subscript):
                root = root.value
            assert isinstance(root, ast.Name)
            there = owner.function_of(update)
            bindings = owner.names.reaching(root)
            if owner is script and there is here:
                late = [b for b in bindings if b.kind != "parameter" and _line(b.node) > tape.node.lineno]
                if late and owner.names.scope_of(late[0].node) is owner.names.scope_of(root):
                    return f"`{shown}` is made behind the tape"
                continue
            if owner is script and _is_self(owner, root, there) and _is_self(owner, root, here):
                continue
            if owner is not script or not all(b in owner.names.module.bindings.get(root.id, ()) for b in bindings):
                return f"`{shown}` is not known in the function that computes the loss"
            scope = script.names.scopes.get(here) if here is not None else None
            if scope is not None and root.id in scope.bindings:
                return f"`{root.id}` is something else in the function that computes the loss"
        return ""

    # -- between the gradient and its update -----------------------------------------------------------------

    def _rescaled(self, gradient: _Gradient, optimizer: str, others: list[_Gradient]) -> str:
        """Why the optimizer may have changed its scale, by other gradients, since it scaled the loss of these."""
        script, tape, home = gradient.script, gradient.tape, gradient.home
        others = [g for g in others if optimizer in g.optimizers]
        here = [u for s, u in gradient.updates if s is script and s.function_of(u) is home]
        elsewhere = len(here) < len(gradient.updates)
        why = f"`{optimizer}` applies others before these gradients are unscaled: its loss scale may have changed"
        if self.keras3 and elsewhere:
            return why if others or len(gradient.updates) > 1 else ""
        unscaled = [gradient.call] if self.keras2 else here
        around = set(script.enclosing(tape.node, *LOOPS))
        for node in unscaled:
            loops = set(script.enclosing(node, *LOOPS)) - around
            if loops and (elsewhere or any(loops.intersection(script.enclosing(u, *LOOPS)) for u in here)):
                return why
        for other in others:
            for owner, update in other.updates:
                seen = owner is script and owner.function_of(update) is home
                place = update if seen else other.call  # applied by a function: at any time from then on
                if (
                    script.function_of(place) is home
                    and other.script is script
                    and _line(tape.node) < _line(place) < max(map(_line, unscaled))
                    and not all(_exclude(script, place, u) for u in unscaled)
                ):
                    return why
        return ""

    def _in_between(self, gradient: _Gradient, optimizer: str) -> str:
        """Why what is done with the gradients goes wrong when they overflow or, in Keras 3, when they are scaled."""
        edits: list[Edit] = []
        seen: set[ast.AST] = set()
        todo: list[tuple[Script, ast.expr]] = [(gradient.script, gradient.call)]
        while todo:
            owner, start = todo.pop()
            for script, expr in owner.flow(start):
                if expr in seen:
                    continue
                seen.add(expr)
                parent = script.parents[expr]
                if isinstance(parent, ast.keyword):
                    parent = script.parents[parent]
                if reason := self._holder(script, expr, parent, optimizer, todo, edits):
                    return reason
        self.edits += [e for e in edits if e not in self.edits]
        return ""

    def _holder(
        self,
        script: Script,
        expr: ast.expr,
        parent: ast.AST,
        optimizer: str,
        todo: list[tuple[Script, ast.expr]],
        edits: list[Edit],
    ) -> str:
        """What is done with an expression that holds gradients; what the result of that is goes to `todo`."""
        at = script.at(expr)
        match parent:
            case ast.Call() if parent.func is not expr:
                called = script.called(parent)
                last = called.rpartition(".")[2]
                if last in _HIDES:
                    return (
                        f"`{last}` ({at}) makes finite numbers of gradients that overflow, so that no step is skipped: "
                        "use `clipvalue=` of the optimizer"
                    )
                if called in _CLIPS:
                    if self.keras3:
                        return self._clip(script, parent, called, optimizer, todo, edits)
                    todo.append((script, parent))
                elif called in _PASSES:
                    todo.append((script, parent))
                elif self.keras3 and not is_update(script, parent) and not _is_followed(script, parent):
                    return self._scaled_use(script, parent)
            case ast.comprehension() if parent.iter is expr:
                around = script.parents[parent]
                names = _names_of(script, parent.target, expr)
                todo += [
                    (script, n)
                    for n in ast.walk(around)
                    if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.id in names
                ]
            case ast.For() if parent.iter is expr:
                names = _names_of(script, parent.target, expr)
                todo += [
                    (script, n)
                    for statement in parent.body
                    for n in ast.walk(statement)
                    if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.id in names
                ]
            case ast.ListComp() | ast.GeneratorExp() if parent.elt is expr:
                todo.append((script, parent))
            case ast.Tuple() | ast.List() | ast.Starred() | ast.IfExp():
                todo.append((script, parent))
            case ast.Subscript() if parent.value is expr:
                todo.append((script, parent))
            case ast.BinOp(op=ast.Mult() | ast.Div()):
                todo.append((script, parent))
            case ast.Assign() | ast.AnnAssign() | ast.Return() | ast.Delete():
                pass
            case ast.Compare(ops=[ast.Is() | ast.IsNot()]):
                pass
            case _ if self.keras3:
                return self._scaled_use(script, expr)
            case ast.expr():
                todo.append((script, parent))
        return ""

    def _scaled_use(self, script: Script, node: ast.expr) -> str:
        what = f"`{script.text(node)}` ({script.at(node)}) would work with scaled gradients"
        return f"{what}: Keras 3 unscales them when they are applied"

    def _clip(
        self,
        script: Script,
        call: ast.Call,
        called: str,
        optimizer: str,
        todo: list[tuple[Script, ast.expr]],
        edits: list[Edit],
    ) -> str:
        """Scaled gradients are clipped at the norm that is scaled alike."""
        arguments = script.bind(call, ("t_list", "clip_norm", "use_norm"))
        norm = arguments.get("clip_norm")
        parent = script.parents[call]
        if norm is None or "use_norm" in arguments or "axes" in arguments:
            return self._scaled_use(script, call)
        if called.endswith("global_norm"):
            if isinstance(parent, ast.Subscript) and script.integer(parent.slice) == 0:
                todo.append((script, parent))
            elif isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Tuple):
                first, second = (*parent.targets[0].elts, None, None)[:2]
                if not isinstance(first, ast.Name) or not isinstance(second, ast.Name) or _is_read(script, second):
                    return self._scaled_use(script, call)
                todo += [(script, load) for load in _loads(script, first)]
            else:
                return self._scaled_use(script, call)
        else:
            todo.append((script, call))
        edits.append(Wrap(norm, f"{optimizer}.scale_loss(...)"))
        return ""


# -- finding gradients ---------------------------------------------------------------------------------------


def _tapes(step: Step) -> Iterator[tuple[Script, Tape]]:
    """The tapes of a step, and those in functions that it calls."""
    seen = {t.call for t in step.tapes}
    for tape in step.tapes:
        yield step.script, tape
    for script, call in step.calls:
        if call in seen or not is_tape(script, call):
            continue
        scope = script.function_of(call) or script.tree
        for tape in tapes_in(script, own_nodes(scope)):
            if tape.call not in seen:
                seen.add(tape.call)
                yield script, tape


def _gradients_in(script: Script, expr: ast.expr, known: dict[ast.Call, tuple[Script, Tape]]) -> Iterator[ast.Call]:
    """The calls of `tape.gradient` that an expression is made from."""
    todo: list[tuple[Script, ast.AST]] = [(script, expr)]
    seen: set[ast.AST] = set()
    while todo and len(seen) < 500:
        owner, node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, ast.Call):
            if node in known:
                yield node
                continue
            for value in owner.values(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else ():
                if value.kind in ("function", "method") and isinstance(value.node, FUNCTIONS) and value.script:
                    todo += [(value.script, r) for r in value.script.returns(value.node)]
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            todo += [(owner, b.value) for b in owner.names.reaching(node) if b.value is not None]
        elif not isinstance(node, ast.Lambda):
            todo += [(owner, child) for child in ast.iter_child_nodes(node)]


def _names_of(script: Script, target: ast.expr, source: ast.expr) -> set[str]:
    """The loop variables that hold gradients: those at their place in `zip(...)`, or all."""
    if isinstance(source, ast.Call) and script.called(source) == "builtins.zip" and isinstance(target, ast.Tuple):
        held = [
            t
            for t, a in zip(target.elts, source.args, strict=False)
            if not (isinstance(a, ast.Attribute) and a.attr in _VARIABLES)
        ]
        if len(target.elts) == len(source.args):
            return {n.id for t in held for n in ast.walk(t) if isinstance(n, ast.Name)}
    return {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}


def _loads(script: Script, target: ast.Name) -> list[ast.Name]:
    scope = script.names.scope_of(target)
    owner = scope.elsewhere.get(target.id, scope)
    return [n for b in owner.bindings.get(target.id, ()) if b.node is target for n in script.names.loads(b)]


def _is_read(script: Script, target: ast.Name) -> bool:
    return bool(_loads(script, target))


# -- what can be repeated ------------------------------------------------------------------------------------


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def _exclude(script: Script, first: ast.AST, second: ast.AST) -> bool:
    """Do they stand in two branches of one `if`, in this order?"""
    around = set(script.enclosing(second, ast.If))
    return any(
        statement in around and statement.orelse and _line(first) < _line(statement.orelse[0]) <= _line(second)
        for statement in script.enclosing(first, ast.If)
        if isinstance(statement, ast.If)
    )


def _is_plain(node: ast.expr) -> bool:
    """A name, an attribute or a constant element of one: nothing happens when it is written twice."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Constant):
            return False
        node = node.value
    return isinstance(node, ast.Name)


def _is_name(targets: list[ast.expr]) -> bool:
    return len(targets) == 1 and isinstance(targets[0], ast.Name)


def _unclear(loss: ast.expr | None, script: Script, tape: Tape) -> str:
    """Why the loss cannot be scaled at the end of the tape's block."""
    if loss is None:
        return "which loss the gradients are of is not seen"
    if not _is_plain(loss):
        return f"the gradients are of `{script.text(loss)}`, not of a loss that has a name"
    for name in ast.walk(loss):
        if isinstance(name, ast.Name):
            end = tape.node.end_lineno or 0
            if any(_line(b.node) > end for b in script.names.reaching(name) if b.kind != "parameter"):
                return f"`{script.text(loss)}` gets its value behind the tape"
    return ""


def _ends_early(tape: Tape) -> str:
    last = tape.node.body[-1]
    return "the block of the tape is left early" if isinstance(last, ast.Return | ast.Continue | ast.Break) else ""


def _is_list(script: Script, sources: ast.expr | None, call: ast.Call) -> bool:
    """Are the gradients one flat list, as `get_unscaled_gradients` takes it?"""
    parent = script.parents[call]
    if isinstance(parent, ast.Call) and script.called(parent) == "builtins.zip":
        return True
    return sources is not None and _is_flat(script, sources, 0)


def _is_flat(script: Script, node: ast.expr, depth: int) -> bool:
    match node:
        case ast.Attribute(attr=attr) if attr in _VARIABLES:
            return True
        case ast.BinOp(op=ast.Add()):
            return _is_flat(script, node.left, depth) and _is_flat(script, node.right, depth)
        case ast.List() | ast.Tuple():
            return not any(isinstance(e, ast.List | ast.Tuple) or _is_flat(script, e, depth + 1) for e in node.elts)
        case ast.ListComp():
            return True
        case ast.Subscript(slice=ast.Slice()):
            return _is_flat(script, node.value, depth)
        case ast.Name() if depth < 4:
            bindings = script.names.reaching(node)
            given = [b.value for b in bindings]
            if any(b.kind == "parameter" for b in bindings):
                return _is_zipped(script, node)
            return bool(given) and all(v is not None and _is_flat(script, v, depth + 1) for v in given)
        case ast.Call(func=ast.Attribute(attr=attr)) if attr in _VARIABLES:
            return True
    return False


def _is_zipped(script: Script, node: ast.Name) -> bool:
    """The variables are paired with their gradients: they are a list."""
    function = script.function_of(node)
    return any(
        isinstance(n, ast.Call)
        and script.called(n) == "builtins.zip"
        and any(isinstance(a, ast.Name) and a.id == node.id for a in n.args)
        for n in own_nodes(function if function is not None else script.tree)
    )


def _is_self(script: Script, root: ast.Name, function: ast.AST | None) -> bool:
    return (
        isinstance(function, ast.FunctionDef)
        and isinstance(script.parents.get(function), ast.ClassDef)
        and [a.arg for a in function.args.args[:1]] == [root.id]
    )


def _is_followed(script: Script, call: ast.Call) -> bool:
    """A function or class of the project, into whose parameters values are followed."""
    return any(
        v.script is not None
        and (
            (v.kind in ("function", "method") and isinstance(v.node, ast.FunctionDef))
            or (v.kind == "class" and isinstance(v.node, ast.ClassDef))
        )
        for v in script.values(call.func)
    )


def _is_compiled(script: Script, receiver: ast.expr, value: Value) -> bool:
    """`self.optimizer` of a model, which Keras's `compile` has wrapped."""
    if value.kind != "method" or value.name != "optimizer" or value.base is None or value.base.kind != "model":
        return False
    cls = value.base.cls
    if cls is None or cls.script is None or not isinstance(cls.node, ast.ClassDef):
        return True
    own = cls.script.method(cls.node, "compile")
    if own is None:
        return "optimizer" not in cls.script.assigned_attributes(cls.node)
    return any(
        isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr == "compile"
        and (n.args or any(k.arg in (None, "optimizer") for k in n.keywords))
        for n in own_nodes(own[1])
    )


def _restores(script: Script, *names: str) -> bool:
    wanted = names or ("restore", "read", "restore_or_initialize")
    return any(m for s in script.project.scripts.values() for name in wanted for m in s.mentions(name))
