"""What a replica has of the numbers of a training step when it gets a part of the batch.

    reading = Reading()
    result = reading.function(script, step, {"images": EACH, "labels": EACH})
    reading.targets      # what gradients are taken of, each with its kind
    reading.updates      # metrics that are updated, with what they are given
    reading.scaled       # the losses that are means, with the tapes that record them
    reading.drawn        # sizes of random batches, which are those of the whole batch
    reading.problems     # what cannot be done on parts of a batch

With n of the N samples of a batch on a replica, a MEAN over the batch is the sum of every replica's n / N times its own
mean; a SUM is the sum of the sums. Both hold for every loss that is a mean (or a sum) of something that each sample has
for itself, plus what no sample has a part in (FREE), such as the regularization of weights. What is neither is OTHER,
with the reason: a clipped, squared or masked mean, a statistic of the batch.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from .. import catalog
from ..loops.steps import Tape, is_tape, is_update, tapes_in
from ..scopes import FUNCTIONS
from ..script import Script
from ..values import Value, Values, default_of


@dataclass(frozen=True)
class Portion:
    """kind: see the module. items: of a tuple or list that is written out. why: of OTHER. zero: the number 0."""

    kind: str
    items: tuple[Portion, ...] = ()
    why: str = ""
    zero: bool = False


FREE = Portion("free")  # the same on every replica
EACH = Portion("each")  # a row for each sample
DRAWN = Portion("drawn")  # rows that belong to no sample: random numbers, of which the batch has a fixed number
MEAN = Portion("mean")
SUM = Portion("sum")
EITHER = Portion("either")  # a mean over the batch, or a number for each sample
SIZE = Portion("size")  # the number of samples, or of something that each has as many of
SHAPE = Portion("shape")  # of a tensor of samples
GRADIENTS = Portion("gradients")  # of what is a part of the loss: their sum over the replicas is the gradient
_ZERO = Portion("free", zero=True)
_ROWS = ("each", "drawn", "either")

Env: TypeAlias = dict[str, Portion]
Place: TypeAlias = tuple[Script, ast.AST]


def other(why: str) -> Portion:
    return Portion("other", why=why)


@dataclass(frozen=True, eq=False)
class Target:
    """What a gradient is taken of, at the end of the block of its tape."""

    script: Script
    gradient: ast.Call
    expr: ast.expr
    portion: Portion


@dataclass(frozen=True, eq=False)
class MetricUpdate:
    script: Script
    call: ast.Call
    metric: Values
    arguments: list[tuple[ast.expr, Portion]]


@dataclass(eq=False)
class Reading:
    """Follows the code of a step, in order, with what every expression is."""

    targets: list[Target] = field(default_factory=list)
    updates: list[MetricUpdate] = field(default_factory=list)
    drawn: list[tuple[Script, ast.expr]] = field(default_factory=list)
    problems: list[tuple[Script, ast.AST, str]] = field(default_factory=list)
    applied: list[tuple[Script, ast.Call]] = field(default_factory=list)
    assigned: list[tuple[Script, ast.Call]] = field(default_factory=list)  # `w.assign_sub(rate * gradient)`
    visited: set[ast.AST] = field(default_factory=set)  # functions
    models: list[Value] = field(default_factory=list)
    called: list[Value] = field(default_factory=list)  # those of them that are called
    used: list[tuple[Script, ast.expr]] = field(default_factory=list)  # models, optimizers, metrics, variables
    losses: list[tuple[Script, ast.Call, Value]] = field(default_factory=list)  # calls of Keras's losses that are means
    scaled: list[tuple[Script, ast.With, str]] = field(default_factory=list)  # losses, at the end of a tape's block
    frames: dict[ast.AST, Env] = field(default_factory=dict)  # what functions were given
    watched: dict[ast.Call, list[Portion]] = field(
        default_factory=dict
    )  # calls that are not entered, and what they get
    _stack: list[ast.AST] = field(default_factory=list)

    def function(self, script: Script, function: ast.AST, given: Env, *, lenient: bool = False) -> Portion:
        """What a function returns; lenient: it is a part of a model."""
        if function in self._stack or len(self._stack) > 12:
            return other("it calls itself, or too deeply")
        self.visited.add(function)
        self.frames.setdefault(function, dict(given))
        self._stack.append(function)
        try:
            frame = Frame(self, script, function, dict(given))
            frame.lenient |= lenient
            if isinstance(function, ast.Lambda):
                return frame(function.body)
            assert isinstance(function, ast.FunctionDef)
            frame.block(function.body)
            return joined([p for _, p in frame.returned]) if frame.returned else FREE
        finally:
            self._stack.pop()

    def problem(self, script: Script, node: ast.AST, why: str) -> None:
        if not any(n is node for _, n, _ in self.problems):
            self.problems.append((script, node, why))

    def uses(self, script: Script, expr: ast.expr) -> None:
        if all(e is not expr for _, e in self.used):
            self.used.append((script, expr))


class Frame:
    """The code of one function, or the statements of a step that stand in a loop."""

    def __init__(self, reading: Reading, script: Script, function: ast.AST | None, env: Env) -> None:
        self.reading, self.script, self.function, self.env = reading, script, function, env
        self.returned: list[tuple[ast.expr, Portion]] = []
        self.lenient = _is_in_model(script, function)
        self.overrides: dict[ast.AST, Portion] = {}  # what is known of single expressions

    # -- statements ----------------------------------------------------------------------------------------------

    def block(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign():
                value = self(node.value)
                for target in node.targets:
                    self.bind(target, value)
            case ast.AnnAssign() if node.value is not None:
                self.bind(node.target, self(node.value))
            case ast.AugAssign():
                left = self.env.get(node.target.id, FREE) if isinstance(node.target, ast.Name) else self(node.target)
                self.bind(node.target, self.binary(node.op, left, self(node.value), node))
            case ast.Expr():
                self(node.value)
            case ast.Return():
                if node.value is not None:
                    self.returned.append((node.value, self(node.value)))
            case ast.With():
                self.with_(node)
            case ast.If():
                self.branch(node)
            case ast.For():
                self.loop(node)
            case ast.While():
                if self(node.test).kind != "free":
                    self.reading.problem(self.script, node, "how often it is repeated depends on the batch")
                for _ in range(2):
                    self.block(node.body)
            case ast.Try():
                for part in (node.body, *(h.body for h in node.handlers), node.orelse, node.finalbody):
                    self.block(part)
            case ast.Assert() | ast.Raise():
                pass
            case _:
                pass

    def with_(self, node: ast.With) -> None:
        tapes = [i for i in node.items if is_tape(self.script, i.context_expr)]
        for item in node.items:
            if item not in tapes:
                self(item.context_expr)
            if isinstance(item.optional_vars, ast.Name):
                self.env[item.optional_vars.id] = FREE
        self.block(node.body)
        for tape in tapes_in(self.script, iter([node])):
            self.end_of_tape(node, tape)

    def end_of_tape(self, node: ast.With, tape: Tape) -> None:
        """Losses that are means are weighted with the share of the batch, as the last thing in the block."""
        root = self.function if self.function is not None else self.script.tree
        asked = [(g, self.script.bind(g, ("target", "sources")).get("target")) for g in tape.gradients]
        for call in ast.walk(root):
            given = self.script.argument(call, "tape") if isinstance(call, ast.Call) else None
            if isinstance(call, ast.Call) and isinstance(given, ast.Name) and given.id == tape.name:
                asked.append((call, self.script.bind(call, ("loss", "var_list")).get("loss")))
        for _, target in asked:
            if not isinstance(target, ast.Name) or target.id not in self.env:
                continue
            if self.env[target.id].kind == "mean":
                self.env[target.id] = SUM
                if all((w, n) != (node, target.id) for _, w, n in self.reading.scaled):
                    self.reading.scaled.append((self.script, node, target.id))

    def branch(self, node: ast.If) -> None:
        test = self(node.test)
        if test.kind not in ("free", "shape", "size"):
            self.reading.problem(self.script, node, f"`{self.script.text(node.test)}` depends on the batch")
        known = self.script.constant(node.test)
        before = dict(self.env)
        if known is None or known:
            self.block(node.body)
        first, self.env = self.env, dict(before)
        if known is None or not known:
            self.block(node.orelse)
        if known is not None:
            self.env = first if known else self.env
            return
        for name in {*first, *self.env}:
            parts = [e[name] for e in (first, self.env) if name in e]
            self.env[name] = joined(parts)

    def loop(self, node: ast.For) -> None:
        iterated = self(node.iter)
        if iterated.kind in ("each", "drawn") and not (iterated.items or _enumerates(node.iter) or self.lenient):
            iterated = other(f"it goes through the samples of a batch ({self.script.at(node)})")
        for _ in range(2):
            self.bind(node.target, element(iterated))
            before = dict(self.env)
            self.block(node.body)
            for name in before:
                self.env[name] = joined([before[name], self.env[name]])
        self.block(node.orelse)

    def bind(self, target: ast.expr, value: Portion) -> None:
        match target:
            case ast.Name(id=name):
                self.env[name] = value
            case ast.Tuple(elts=elts) | ast.List(elts=elts):
                starred = any(isinstance(e, ast.Starred) for e in elts)
                if value.items and len(value.items) == len(elts) and not starred:
                    for part, item in zip(elts, value.items, strict=True):
                        self.bind(part, item)
                else:
                    for part in elts:
                        self.bind(part, unpacked(value))
            case ast.Starred(value=inner):
                self.bind(inner, unpacked(value))
            case ast.Subscript(value=ast.Name(id=name)):
                self.env[name] = joined([self.env.get(name, FREE), value])
            case ast.Attribute() if value.kind not in ("free", "other") and not self.lenient:
                why = f"`{self.script.text(target)}` keeps what one replica has"
                self.reading.problem(self.script, target, why)

    # -- expressions ---------------------------------------------------------------------------------------------

    def __call__(self, node: ast.expr | None) -> Portion:
        if node in self.overrides:
            return self.overrides[node]
        match node:
            case None:
                return FREE
            case ast.Constant(value=value):
                return _ZERO if value in (0, 0.0) and value is not False else FREE
            case ast.Name(id=name):
                return self.env.get(name, FREE)
            case ast.Attribute():
                return self.attribute(node)
            case ast.Subscript():
                return self.subscript(node)
            case ast.Tuple(elts=elts) | ast.List(elts=elts) | ast.Set(elts=elts):
                items = tuple(self(e) for e in elts)
                if not items:
                    return _ZERO
                return replace(joined(items), items=items)
            case ast.Dict():
                return joined([self(v) for v in node.values]) if node.values else _ZERO
            case ast.Starred(value=inner):
                return self(inner)
            case ast.BinOp(left=ast.List(), op=ast.Mult(), right=right) if self(right).kind == "size":
                return EACH  # [start] * tf.shape(targets)[0]
            case ast.BinOp(left=left, op=op, right=right):
                return self.binary(op, self(left), self(right), node)
            case ast.UnaryOp(op=op, operand=operand):
                found = self(operand)
                if isinstance(op, ast.USub | ast.UAdd):
                    return found
                return self.elementwise([found], node)
            case ast.Compare():
                asked = [node.left, *node.comparators]
                if any(isinstance(o, ast.Is | ast.IsNot | ast.In | ast.NotIn) for o in node.ops):
                    return FREE
                return self.elementwise([self(a) for a in asked], node)
            case ast.BoolOp(values=values):
                return joined([self(v) for v in values])
            case ast.IfExp():
                if self(node.test).kind not in ("free", "shape", "size"):
                    return other(f"`{self.script.text(node.test)}` depends on the batch")
                return joined([self(node.body), self(node.orelse)])
            case ast.NamedExpr():
                named = self(node.value)
                self.bind(node.target, named)
                return named
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                for part in node.generators:
                    self.bind(part.target, element(self(part.iter)))
                    for test in part.ifs:
                        self(test)
                return replace(self(node.elt), zero=False)
            case ast.DictComp():
                for part in node.generators:
                    self.bind(part.target, element(self(part.iter)))
                return replace(self(node.value), zero=False)
            case ast.Call():
                return self.call(node)
            case ast.Lambda() | ast.JoinedStr() | ast.FormattedValue():
                return FREE
            case ast.Slice():
                return FREE
        return other(f"`{self.script.text(node)}` is not followed")

    def attribute(self, node: ast.Attribute) -> Portion:
        base = self(node.value)
        symbolic = base.kind == "free" and node.attr in ("input", "inputs", "output", "outputs")
        if symbolic and any(v.kind in ("model", "layer") for v in self.script.values(node.value)):
            return EACH
        if base.kind in _ROWS:
            if node.attr == "shape":
                return SHAPE
            if node.attr in ("dtype", "ndim", "name", "rank"):
                return FREE
            if node.attr == "T":
                return other(f"`{self.script.text(node)}` turns the samples around")
        return replace(base, items=())

    def subscript(self, node: ast.Subscript) -> Portion:
        base, index = self(node.value), node.slice
        number = self.script.integer(index)
        if base.items and number is not None and -len(base.items) <= number < len(base.items):
            return base.items[number]
        if base.kind == "shape":
            return SIZE if number == 0 else SHAPE if isinstance(index, ast.Slice) and _starts(index) else FREE
        if base.kind not in ("each", "drawn", "either"):
            return replace(base, items=())
        if isinstance(index, ast.Constant) and isinstance(index.value, str):
            return base
        first = index.elts[0] if isinstance(index, ast.Tuple) and index.elts else index
        whole = isinstance(first, ast.Slice) and first.lower is None and first.upper is None and first.step is None
        if whole or (isinstance(first, ast.Constant) and first.value is Ellipsis):
            return base
        if self.lenient and not isinstance(first, ast.Slice):
            return base  # one of several tensors
        return other(f"`{self.script.text(node)}` takes some of the samples")

    def binary(self, op: ast.operator, a: Portion, b: Portion, node: ast.AST) -> Portion:
        shown = f"`{self.script.text(node)}`" if isinstance(node, ast.expr) else f"`{ast.unparse(node)}`"
        kinds = {a.kind, b.kind}
        if "other" in kinds:
            return a if a.kind == "other" else b
        if kinds <= {"free"}:
            return replace(joined([a, b]), items=a.items + b.items if isinstance(op, ast.Add) else (), zero=False)
        if kinds <= {"free", "size", "shape"}:
            if isinstance(op, ast.Add) and a.items and a.items[0].kind == "size":
                return SHAPE  # (tf.shape(x)[0],) + (1, 1)
            return SIZE if "size" in kinds and isinstance(op, ast.Mult | ast.Div | ast.FloorDiv) else FREE
        if "gradients" in kinds:
            linear = kinds == {"gradients"} if isinstance(op, ast.Add | ast.Sub) else b.kind in ("free",)
            return (
                GRADIENTS if linear or (isinstance(op, ast.Mult) and a.kind == "free") else other(_of_gradients(shown))
            )
        scalars = kinds & {"mean", "sum"}
        if not scalars:
            if isinstance(op, ast.Div) and b.kind == "size" and a.kind == "each":
                return other(f"{shown} divides each sample by the size of the batch")
            return self.elementwise([a, b], node, product=isinstance(op, ast.MatMult))
        if kinds & {"each", "drawn", "either"}:
            return other(f"{shown} computes with every sample and with what the whole batch has")
        if isinstance(op, ast.Add | ast.Sub):
            if kinds <= {"mean", "free"}:
                return MEAN
            if kinds == {"sum"} or (kinds == {"sum", "free"} and (a.zero or b.zero)):
                return SUM
            return other(f"{shown} adds a sum over the batch to what is none")
        if isinstance(op, ast.Mult | ast.Div):
            if b.kind == "free" or (a.kind == "free" and isinstance(op, ast.Mult)):
                return MEAN if "mean" in kinds else SUM
            if kinds == {"sum", "size"} and isinstance(op, ast.Div) and a.kind == "sum":
                return MEAN
            if kinds == {"mean", "size"} and isinstance(op, ast.Mult):
                return SUM
        return other(f"{shown} is no mean over the batch, and no sum")

    def elementwise(self, parts: Sequence[Portion], node: ast.AST, *, product: bool = False) -> Portion:
        """Of what each sample has, something that each sample has."""
        kinds = {p.kind for p in parts}
        shown = f"`{self.script.text(node)}`" if isinstance(node, ast.expr) else "it"
        for part in parts:
            if part.kind == "other":
                return part
        if kinds <= {"free", "size", "shape"}:
            return FREE
        if kinds & {"mean", "sum"}:
            return other(f"{shown} is no mean over the batch, and no sum")
        if "gradients" in kinds:
            return other(_of_gradients(shown))
        if {"each", "drawn"} <= kinds and not self.lenient:
            return other(f"{shown} computes with samples and with random rows of a fixed number")
        if "either" in kinds:
            return EITHER if kinds <= {"either", "free"} else other(f"how many numbers {shown} is is not known")
        if product and not self.lenient and (parts[0].kind == "free" or all(p.kind in _ROWS for p in parts)):
            return other(f"{shown} computes with several samples together")
        return DRAWN if "drawn" in kinds else EACH

    # -- calls ---------------------------------------------------------------------------------------------------

    def call(self, node: ast.Call) -> Portion:
        script = self.script
        if node in self.reading.watched:
            self.reading.watched[node] = [self(a) for a in [*node.args, *(k.value for k in node.keywords)]]
            return FREE
        if isinstance(node.func, ast.Attribute):
            if (found := self.of_tape(node, node.func)) is not None:
                return found
            if is_update(script, node):
                return self.update(node)
        values = script.values(node.func)
        kinds = {v.kind for v in values}
        if kinds == {"metric"} or (isinstance(node.func, ast.Attribute) and self.is_metric(node.func.value)):
            return self.of_metric(node)
        arguments = [*node.args, *(k.value for k in node.keywords)]
        if kinds <= {"function", "method", "class"} and any(isinstance(v.node, FUNCTIONS) for v in values):
            return self.own(node, values)
        if kinds and kinds <= {"model", "layer"}:
            return self.of_model(node, values, [self(a) for a in arguments])
        if kinds == {"loss"}:
            return self.of_loss(node, values, [self(a) for a in arguments])
        name = script.called(node)
        path = catalog.keras_path(name)
        if path:
            return self.keras(path, node)
        if name.startswith("tensorflow."):
            return self.tensorflow(name.removeprefix("tensorflow."), node)
        if name.startswith("builtins."):
            return self.builtin(name.removeprefix("builtins."), node)
        if isinstance(node.func, ast.Attribute):
            return self.method(node, node.func, [self(a) for a in arguments])
        parts = [self(a) for a in arguments]
        return self.unknown(node, parts)

    def unknown(self, node: ast.Call, parts: Sequence[Portion]) -> Portion:
        if all(p.kind == "free" for p in parts):
            return FREE
        if self.lenient and all(p.kind in ("free", "each", "size", "shape") for p in parts):
            return EACH
        return next(
            (p for p in parts if p.kind == "other"),
            other(f"what `{self.script.text(node.func)}` does with the samples of a batch is not known"),
        )

    def of_tape(self, node: ast.Call, func: ast.Attribute) -> Portion | None:
        if func.attr not in ("gradient", "jacobian", "batch_jacobian", "watch", "stop_recording", "reset"):
            return None
        if not any(v.name == "tensorflow.GradientTape" for v in self.script.values(func.value)):
            return None
        if func.attr in ("watch", "stop_recording", "reset"):
            return FREE
        bound = self.script.bind(node, ("target", "sources"))
        target, sources = bound.get("target"), bound.get("sources")
        if target is None or sources is None or func.attr != "gradient":
            return other(f"`{self.script.text(func)}` is not followed")
        of, by = self(target), self(sources)
        if by.kind in ("each", "drawn"):  # of a gradient penalty
            fits = of.kind in ("each", "drawn", "sum")
            return by if fits else other(f"`{self.script.text(node)}` depends on the whole batch")
        self.reading.uses(self.script, sources)
        for inner in ast.walk(sources):
            if isinstance(inner, ast.Attribute) and inner.attr.endswith(("variables", "weights")):
                models = [v for v in self.script.values(inner.value) if v.kind == "model"]
                self.reading.models += [v for v in models if v not in self.reading.models]
        self.reading.targets.append(Target(self.script, node, target, of))
        return GRADIENTS

    def update(self, node: ast.Call) -> Portion:
        assert isinstance(node.func, ast.Attribute)
        script = self.script
        if node.func.attr == "minimize":
            tape, bound = script.argument(node, "tape"), script.bind(node, ("loss", "var_list"))
            target = bound.get("loss")
            if tape is None or target is None:
                why = f"`{script.text(node.func)}` takes the gradients of a function"
                self.reading.problem(script, node, why)
                return FREE
            self.reading.targets.append(Target(script, node, target, self(target)))
            if (variables := bound.get("var_list")) is not None:
                self.reading.uses(script, variables)
        else:
            given = joined([self(a) for a in [*node.args[:1], *(k.value for k in node.keywords[:1])]])
            if given.kind != "gradients":
                why = given.why or f"which gradients `{script.text(node.func)}` applies is not seen"
                self.reading.problem(script, node, why)
        self.reading.applied.append((script, node))
        self.reading.uses(script, node.func.value)
        return FREE

    def is_metric(self, node: ast.expr) -> bool:
        found = self.script.values(node)
        return bool(found) and all(v.kind == "metric" for v in found)

    def of_metric(self, node: ast.Call) -> Portion:
        script, func = self.script, node.func
        method = func.attr if isinstance(func, ast.Attribute) and self.is_metric(func.value) else "update_state"
        receiver = func.value if isinstance(func, ast.Attribute) and self.is_metric(func.value) else func
        given = [(a, self(a)) for a in [*node.args, *(k.value for k in node.keywords)]]
        if method != "update_state" and method != "__call__":
            why = f"`{script.text(node)}` is asked in the step, where a replica knows only of its own part"
            self.reading.problem(script, node, why)
            return other(why)
        self.reading.uses(script, receiver)
        if all(u.call is not node for u in self.reading.updates):
            self.reading.updates.append(MetricUpdate(script, node, script.values(receiver), given))
        return other("what a metric returns in the step is of one replica")

    def own(self, node: ast.Call, values: Values) -> Portion:
        """A function of the project."""
        found = []
        for value in values:
            function, owner = value.node, value.script
            if owner is None or not isinstance(function, ast.FunctionDef | ast.Lambda):
                parts = [self(a) for a in [*node.args, *(k.value for k in node.keywords)]]
                found.append(self.unknown(node, parts))
                continue
            names = [a.arg for a in [*function.args.posonlyargs, *function.args.args]]
            offset = int(value.kind == "method")
            bound = self.script.bind(node, tuple(names[offset:]))
            given: Env = {n: FREE for n in names[:offset]}
            for name in [*names[offset:], *(a.arg for a in function.args.kwonlyargs)]:
                argument = bound.get(name)
                default = default_of(function, name) if isinstance(function, ast.FunctionDef) else None
                given[name] = self(argument) if argument is not None else self(default)
            if bound.open or function.args.vararg or function.args.kwarg:
                parts = [self(a) for a in [*node.args, *(k.value for k in node.keywords)]]
                found.append(self.unknown(node, parts))
                continue
            if all(p.kind == "free" for p in given.values()) and function in self.reading.visited:
                found.append(FREE)
                continue
            found.append(self.reading.function(owner, function, given, lenient=self.lenient))
        return joined(found)

    def of_model(self, node: ast.Call, values: Values, parts: Sequence[Portion]) -> Portion:
        self.reading.uses(self.script, node.func)
        self.reading.models += [v for v in values if v not in self.reading.models]
        self.reading.called += [v for v in values if v not in self.reading.called]
        simple = [p for p in parts if p.kind not in ("free", "shape", "size")]
        if any(p.kind in ("mean", "sum", "gradients") for p in simple):
            return other(f"`{self.script.text(node.func)}` gets what the whole batch has")
        found: list[Portion] = []
        for value in values:
            if value.cls is not None and value.cls.script and isinstance(value.cls.node, ast.ClassDef):
                method = value.cls.script.method(value.cls.node, "call")
                if method is not None and method[1] not in self.reading._stack:
                    found.append(self._called(node, *method))
                    continue
            found.append(self.elementwise(parts, node) if simple else FREE)
        return joined(found)

    def _called(self, node: ast.Call, owner: Script, method: ast.FunctionDef) -> Portion:
        names = [a.arg for a in [*method.args.posonlyargs, *method.args.args]]
        bound = self.script.bind(node, tuple(names[1:]))
        given: Env = {n: FREE for n in names}
        for name in names[1:]:
            argument = bound.get(name)
            if argument is not None:
                given[name] = self(argument)
        return self.reading.function(owner, method, given)

    def of_loss(self, node: ast.Call, values: Values, parts: Sequence[Portion]) -> Portion:
        rows = self.elementwise(parts, node)
        if rows.kind in ("free", "other"):
            return rows
        found = set()
        for value in values:
            made = value.node
            if value.cls is not None or value.script is None or not isinstance(made, ast.Call):
                return other(f"what `{self.script.text(node.func)}` computes is not known")
            keyword = value.script.argument(made, "reduction")
            if keyword is None:
                found.add("mean")
                self._mean_of(node, value)
                continue
            asked = value.script.constant(keyword)
            text = str(asked) if asked is not None else ast.unparse(keyword).rpartition(".")[2]
            found.add(_REDUCTIONS.get(text.lower(), ""))
            if _REDUCTIONS.get(text.lower()) == "mean":
                self._mean_of(node, value)
        if len(found) != 1 or "" in found:
            return other(f"which reduction `{self.script.text(node.func)}` makes is not known")
        return {"mean": MEAN, "sum": SUM, "none": rows}[found.pop()]

    def _mean_of(self, node: ast.Call, loss: Value) -> None:
        if all(c is not node for _, c, _ in self.reading.losses):
            self.reading.losses.append((self.script, node, loss))

    def method(self, node: ast.Call, func: ast.Attribute, parts: Sequence[Portion]) -> Portion:
        base, name = self(func.value), func.attr
        if name == "append" and isinstance(func.value, ast.Name):
            self.env[func.value.id] = joined([base, *parts])
            return FREE
        if name == "add_loss":
            if any(p.kind not in ("mean", "free") for p in parts):
                why = f"`{self.script.text(node)}` adds a loss that is no mean over the batch"
                self.reading.problem(self.script, node, why)
            return FREE
        if name == "add_metric":
            return FREE
        if name in ("get_scaled_loss", "scale_loss") and parts:
            return parts[0]
        if name == "get_unscaled_gradients" and parts:
            return parts[0]
        if name in ("items", "values", "keys") or base.kind == "shape":
            return base
        if name in ("assign_sub", "assign_add") and [p.kind for p in parts] == ["gradients"] and not self.lenient:
            if all(c is not node for _, c in self.reading.assigned):
                self.reading.assigned.append((self.script, node))
            return FREE
        variable = any(v.kind == "tensor" and v.name.endswith("Variable") for v in self.script.values(func.value))
        if name.startswith("assign") and (variable or base.kind == "free") and not self.lenient:
            why = f"`{self.script.text(func)}` sets a variable, on every replica for itself"
            self.reading.problem(self.script, node, why)
            return FREE
        if name.startswith("assign") and self.lenient and not self._aggregates(func.value):
            shown = self.script.text(func)
            why = f"`{shown}` sets a variable that does not say how those of the replicas are put together"
            self.reading.problem(self.script, node, why)
            return FREE
        if name.startswith("assign") and any(p.kind not in ("free",) for p in parts):
            why = f"`{self.script.text(func)}` keeps what one replica has of the batch"
            self.reading.problem(self.script, node, why)
            return FREE
        if base.kind in _ROWS and name in _LINEAR_METHODS:
            return base
        if base.kind in ("mean", "sum") and name in ("numpy", "item"):
            return base
        return self.unknown(node, [base, *parts])

    def _aggregates(self, variable: ast.expr) -> bool:
        made = [(v.script, v.node) for v in self.script.values(variable)]
        if isinstance(variable, ast.Attribute):  # `self.u = self.add_weight(...)`
            made += [(s, e) for s, e in self._attribute(variable)]
        return any(
            s is not None and isinstance(n, ast.Call) and s.argument(n, "aggregation") is not None for s, n in made
        )

    def _attribute(self, node: ast.Attribute) -> list[tuple[Script, ast.expr]]:
        cls = self.script.parents.get(self.function) if self.function is not None else None
        return self.script.assigned_attributes(cls).get(node.attr, []) if isinstance(cls, ast.ClassDef) else []

    def builtin(self, name: str, node: ast.Call) -> Portion:
        parts = [self(a) for a in node.args]
        if name == "len" and parts:
            return SIZE if parts[0].kind in ("each", "drawn") and not parts[0].items else FREE
        if name == "zip":
            items = tuple(element(p) for p in parts)
            return replace(joined(items), items=(replace(joined(items), items=items),)) if items else FREE
        if name == "enumerate" and parts:
            inner = element(parts[0])
            pair = replace(inner, items=(FREE, inner))
            return replace(pair, items=(pair,))
        if name in ("list", "tuple", "reversed", "sorted", "iter", "dict") and parts:
            return parts[0]
        if name == "sum" and parts:
            return self.linear(parts[0], node)
        if name in ("float", "int", "round", "abs") and parts:
            return parts[0] if name != "abs" or parts[0].kind in _ROWS else self.elementwise(parts, node)
        if name in ("print", "isinstance", "hasattr", "type", "range", "str", "repr", "super", "callable", "getattr"):
            return FREE
        return self.unknown(node, parts)

    def keras(self, path: str, node: ast.Call) -> Portion:
        family, _, last = path.partition(".")
        parts = [self(a) for a in [*node.args, *(k.value for k in node.keywords)]]
        if family in ("backend", "ops"):
            short = last.rpartition(".")[2]
            if last == "shape" or last == "int_shape":
                return SHAPE if parts and parts[0].kind in _ROWS else FREE
            if short.startswith(("random_", "truncated_normal")):
                return self.random(node)
            return self.operation({"mean": "reduce_mean", "sum": "reduce_sum", "max": "reduce_max", "min": "reduce_min",
                                   "std": "reduce_std", "var": "reduce_variance", "dot": "matmul",
                                   "concatenate": "concat"}.get(short, short), node)  # fmt: skip
        if family in ("losses", "metrics"):
            rows = self.elementwise(parts, node)
            if rows.kind not in ("each", "drawn"):
                return rows
            known = last.rpartition(".")[2] in ("categorical_crossentropy", "sparse_categorical_crossentropy")
            return rows if known or self.lenient else EITHER
        if path == "layers.Input":
            return EACH
        if family in ("activations", "layers", "applications"):
            return self.elementwise(parts, node)
        if family == "random" and last in ("normal", "uniform", "truncated_normal", "randint"):
            return self.random(node)
        if family == "regularizers":
            return FREE
        return self.unknown(node, parts)

    def tensorflow(self, name: str, node: ast.Call) -> Portion:
        for prefix in ("math.", "compat.v1.", "nn.", "linalg.", "experimental.numpy."):
            if name.startswith(prefix) and name not in ("nn.moments", "nn.batch_normalization"):
                name = name.removeprefix(prefix)
        if name.startswith("random."):
            return self.random(node)
        if name in ("zeros", "ones", "fill"):
            return self.filled(node)
        if name.startswith(("debugging.", "print", "summary.", "print")) or name in ("Assert", "no_op", "group"):
            for argument in node.args:
                self(argument)
            if name.startswith(("summary.", "print")):
                why = f"`{self.script.text(node.func)}` writes on every replica, what is its own"
                self.reading.problem(self.script, node, why)
            return FREE
        return self.operation(name, node)

    def operation(self, name: str, node: ast.Call) -> Portion:
        """An operation of TensorFlow, by its name without the module."""
        script = self.script
        arguments = [*node.args, *(k.value for k in node.keywords if k.arg not in ("name", "axis", "dtype"))]
        parts = [self(a) for a in arguments]
        first = parts[0] if parts else FREE
        if name in ("shape", "shape_n"):
            return SHAPE if first.kind in _ROWS else FREE
        if name == "size":
            return SIZE if first.kind in _ROWS else FREE
        if name == "rank":
            return FREE
        if name in ("expand_dims", "squeeze", *_ALONG) and first.kind in _ROWS and self._mixes(name, node):
            return other(f"`{script.text(node)}` computes with several samples together")
        if name in _LINEAR:
            return replace(first, zero=False) if name != "add_n" else self.linear(first, node)
        if name in _OPERATORS and len(parts) >= 2:
            return self.binary(_OPERATORS[name](), parts[0], parts[1], node)
        if name.startswith("reduce_"):
            return self.reduced(name, node, first)
        if name == "l2_loss":
            return SUM if first.kind == "each" else first if first.kind == "free" else other(self._is_none(node))
        if name in ("clip_by_norm", "clip_by_global_norm", "global_norm") and first.kind == "gradients":
            return other(_of_gradients(f"`{script.text(node.func)}`"))
        if name == "clip_by_value" and first.kind == "gradients":
            return other(_of_gradients(f"`{script.text(node.func)}`"))
        if name in ("multiply_no_nan", "divide_no_nan") and len(parts) >= 2:
            return self.binary(ast.Mult() if name[0] == "m" else ast.Div(), parts[0], parts[1], node)
        if name in ("concat", "stack", "split", "unstack", "transpose", "reverse", "roll", "argmax", "argmin", "sort"):
            return self.moved(name, node, parts)
        if name == "reshape":
            return self.reshaped(node, first)
        if name in ("broadcast_to", "tile") and first.kind == "free" and len(parts) > 1:
            size = parts[1].items[0].kind if parts[1].items else parts[1].kind
            return EACH if size in ("size", "shape") else self.unknown(node, parts)
        if name == "matmul":
            return self.elementwise(parts[:2], node, product=True)
        if name in ("gather", "embedding_lookup") and first.kind == "free":
            return self.elementwise(parts, node)
        if name == "numpy_function" or name == "py_function":
            return self.unknown(node, parts)
        if _ELEMENTWISE.fullmatch(name):
            return self.elementwise(parts, node)
        if name in ("moments", "nn.moments", "nn.batch_normalization") and not self._along(node, 1):
            return other(f"`{script.text(node.func)}` takes statistics of the batch")
        return self.unknown(node, parts)

    def _mixes(self, name: str, node: ast.Call) -> bool:
        """Whether an operation along an axis is one along the samples, or over all of them: `tf.norm(x)`."""
        position = 2 if name in ("norm", "normalize") else 1
        if self.axis(node, position) is None:
            return name in _OVER_ALL
        along = self._along(node, position)
        return along == "" or (along == "?" and not (self.lenient and name == "squeeze"))

    def _is_none(self, node: ast.Call) -> str:
        return f"`{self.script.text(node)}` is no mean over the batch, and no sum"

    def linear(self, part: Portion, node: ast.expr) -> Portion:
        """The sum or mean of numbers in a list."""
        kinds = {p.kind for p in part.items} or {part.kind}
        if kinds <= {"mean", "free"}:
            return MEAN if "mean" in kinds else FREE
        if kinds == {"sum"}:
            return SUM
        return next((p for p in part.items if p.kind == "other"), replace(part, items=()))

    def axis(self, node: ast.Call, position: int = 1) -> ast.expr | None:
        bound = self.script.argument(node, "axis")
        for name in ("reduction_indices", "axes"):
            bound = self.script.argument(node, name) if bound is None else bound
        if bound is None and len(node.args) > position:
            bound = node.args[position]
        return None if bound is not None and self.script.is_none(bound) else bound

    def _along(self, node: ast.Call, position: int) -> str:
        """Along which axes: "" all or the first, "rows" of each sample, "last", or "?"."""
        found = self.axis(node, position)
        if found is None:
            return ""
        numbers = [self.script.integer(e) for e in (found.elts if isinstance(found, ast.List | ast.Tuple) else [found])]
        if any(n is None for n in numbers):
            folded = self.script.constant(found)
            return "?" if folded is None else ""
        if any(n == 0 for n in numbers):
            return ""
        return "rows" if all(n is not None and n > 0 for n in numbers) else "last"

    def reduced(self, name: str, node: ast.Call, part: Portion) -> Portion:
        if part.items and part.kind not in _ROWS:
            part = self.linear(part, node)
        if part.kind in ("free", "size", "shape"):
            return FREE if part.kind != "size" else SIZE
        if part.kind in ("mean", "sum") and name in ("reduce_mean", "reduce_sum"):
            return part
        if part.kind == "other":
            return part
        if part.kind not in _ROWS:
            return other(self._is_none(node))
        along = self._along(node, 1)
        if along == "?":
            return other(f"along which axis `{self.script.text(node)}` computes is not seen")
        if along == "rows" or (along == "last" and (name != "reduce_mean" or self.lenient)):
            return part if part.kind != "either" else other(self._is_none(node))
        if along == "last":
            return EITHER
        if name == "reduce_mean":
            return MEAN
        if name == "reduce_sum" and part.kind == "each":
            return SUM
        if part.kind == "drawn":
            return other(f"`{self.script.text(node)}` sums over random rows, of which a replica has a part")
        return other(f"`{self.script.text(node)}` is of all samples of a batch together")

    def moved(self, name: str, node: ast.Call, parts: list[Portion]) -> Portion:
        first = parts[0] if parts else FREE
        kinds = {p.kind for p in first.items} or {first.kind}
        if kinds <= {"free", "size", "shape"}:
            return FREE if "shape" not in kinds and "size" not in kinds else SHAPE
        along = self._along(node, 2 if name == "split" else 1)
        if name == "concat":
            if kinds in ({"each"}, {"drawn"}) or self.lenient:
                return replace(first, items=())
            return other(f"`{self.script.text(node)}` puts samples and other rows together")
        if name == "transpose":
            perm = node.args[1] if len(node.args) > 1 else self.script.argument(node, "perm")
            kept = isinstance(perm, ast.List | ast.Tuple) and perm.elts and self.script.integer(perm.elts[0]) == 0
            return first if kept or self.lenient else other(f"`{self.script.text(node)}` turns the samples around")
        if name == "stack" and kinds <= {"mean", "free"}:
            return MEAN
        if along in ("rows", "last") or self.lenient:
            return replace(first, items=())
        return other(f"`{self.script.text(node)}` works on several samples together")

    def reshaped(self, node: ast.Call, part: Portion) -> Portion:
        shape = node.args[1] if len(node.args) > 1 else self.script.argument(node, "shape")
        if part.kind not in ("each", "drawn", "either") or shape is None:
            return replace(part, items=())
        if isinstance(shape, ast.Name):
            values = self.script.values(shape)
            shape = next((v.node for v in values if isinstance(v.node, ast.List | ast.Tuple)), shape)
        if not isinstance(shape, ast.List | ast.Tuple):
            ok = self(shape).kind == "shape" or self.script.integer(shape) == -1 or self.lenient
            return part if ok else other(f"`{self.script.text(node)}` may not keep the samples apart")
        first = shape.elts[0] if shape.elts else None
        if first is not None and (self.script.integer(first) == -1 or self(first).kind == "size" or self.lenient):
            return part if part.kind != "either" else other(self._is_none(node))
        return other(f"`{self.script.text(node)}` has a batch of a fixed size")

    def random(self, node: ast.Call) -> Portion:
        """Random numbers: as many rows as there are samples, or a number of rows that has to be divided."""
        shape = self.script.bind(node, ("shape",)).get("shape")
        return self._rows(node, shape)

    def filled(self, node: ast.Call) -> Portion:
        shape = self.script.bind(node, ("shape",)).get("shape") or self.script.argument(node, "dims")
        if isinstance(shape, ast.List | ast.Tuple) and shape.elts and isinstance(shape.elts[0], ast.Name):
            return self._rows(node, shape)
        found = self(shape)
        if found.kind == "shape" or (found.items and found.items[0].kind == "size"):
            return EACH
        return FREE

    def _rows(self, node: ast.Call, shape: ast.expr | None) -> Portion:
        found = self(shape)
        if found.kind == "shape" or (found.items and found.items[0].kind == "size"):
            return EACH
        if self.lenient:
            listed = isinstance(shape, ast.List | ast.Tuple)
            one = isinstance(shape, ast.List | ast.Tuple) and (
                len(shape.elts) < 2 or self.script.integer(shape.elts[0]) == 1
            )
            if one or not (listed or found.kind != "free"):
                return FREE  # noise of weights, or the same for all samples
            return other(f"`{self.script.text(node)}` draws rows of a fixed number in the model")
        if isinstance(shape, ast.List | ast.Tuple) and shape.elts:
            first = shape.elts[0]
            size = self.script.integer(first)
            if self(first).kind == "free" and size != 1 and len(shape.elts) > 1:
                if all(n is not first for _, n in self.reading.drawn):
                    self.reading.drawn.append((self.script, first))
                return DRAWN
        return other(f"how many rows `{self.script.text(node)}` has for a part of the batch is not known")


# -- kinds -----------------------------------------------------------------------------------------------------


def joined(parts: Iterable[Portion]) -> Portion:
    """One of several things, or all of them in a container."""
    found = list(parts)
    kinds = {p.kind for p in found}
    if "other" in kinds:
        return next(p for p in found if p.kind == "other")
    if len(kinds) == 1:
        same = {len(p.items) for p in found}
        if len(same) == 1 and found[0].items:
            columns = zip(*(p.items for p in found), strict=True)
            return replace(found[0], items=tuple(joined(c) for c in columns), zero=all(p.zero for p in found))
        return replace(found[0], items=(), zero=all(p.zero for p in found))
    if kinds - {"free"} == {"sum"} and not all(p.zero for p in found if p.kind == "free"):
        return other("it is a sum over the batch, or something that is the same on every replica")
    rest = kinds - {"free", "size", "shape"}
    if len(rest) == 1:
        return replace(next(p for p in found if p.kind in rest), items=())
    if not rest:
        return FREE if "size" not in kinds else SIZE
    return other("it is one of several things: " + ", ".join(sorted(rest)))


def element(part: Portion) -> Portion:
    """What a loop over it gives."""
    if part.items:
        return joined(part.items)
    return part if part.kind not in ("shape", "size") else FREE


def unpacked(part: Portion) -> Portion:
    """One of the parts that it is unpacked into."""
    return replace(part, items=()) if part.kind != "shape" else SIZE


_REDUCTIONS = {
    "none": "none", "sum": "sum", "auto": "mean", "sum_over_batch_size": "mean", "mean": "mean",
}  # fmt: skip
_LINEAR = frozenset(
    "cast identity convert_to_tensor stop_gradient negative squeeze expand_dims add_n to_float to_double constant "
    "ones_like zeros_like as_dtype saturate_cast ensure_shape".split()
)
#: Operations along an axis, the last one where none is given; and those that are over all samples then.
_ALONG = frozenset("softmax log_softmax l2_normalize norm normalize logsumexp".split())
_OVER_ALL = frozenset("l2_normalize norm normalize".split())
_LINEAR_METHODS = frozenset("astype numpy squeeze ravel".split())
_OPERATORS: dict[str, type[ast.operator]] = {
    "add": ast.Add, "subtract": ast.Sub, "multiply": ast.Mult, "divide": ast.Div, "truediv": ast.Div,
    "scalar_mul": ast.Mult, "div": ast.Div, "pow": ast.Pow,
}  # fmt: skip
#: Operations that compute every element, or every sample, for itself.
_ELEMENTWISE = re.compile(
    r"abs|square|sqrt|rsqrt|exp|expm1|log|log1p|sigmoid|log_sigmoid|softplus|softsign|tanh|sin|cos|tan|asin|acos|atan|"
    r"sinh|cosh|erf|sign|round|floor|ceil|reciprocal\w*|maximum|minimum|squared_difference|clip_by_value|where|equal|"
    r"not_equal|greater\w*|less\w*|logical_\w+|one_hot|is_nan|is_inf|is_finite|softmax|log_softmax|relu\w*|elu|selu|gelu|"
    r"leaky_relu|silu|swish|crelu|dropout|bias_add|conv\w*|depthwise_conv\w*|separable_conv\w*|atrous_conv\w*|max_pool\w*|"
    r"avg_pool\w*|local_response_normalization|lrn|l2_normalize|xlogy|xdivy|lgamma|digamma|lbeta|"
    r"(\w*_)?cross_entropy(_with_logits(_v2)?)?|\w*crossentropy|in_top_k|ctc_loss|sequence_mask|top_k|nce_loss|"
    r"sampled_softmax_loss|cosine_similarity|image\.(ssim\w*|psnr|total_variation|resize\w*|random_\w+|adjust_\w+|"
    r"flip_\w+|rgb_to_\w+|\w+_to_rgb|grayscale_to_rgb|convert_image_dtype|per_image_standardization|sobel_edges)|pad|"
    r"floormod|mod|floordiv|polygamma|batch_flatten|hard_sigmoid|repeat_elements|relu|flatten|huber|norm|layer_norm\w*"
)


def _of_gradients(shown: str) -> str:
    return f"{shown} changes the gradients of one replica before they are summed, which is another training"


def _is_in_model(script: Script, function: ast.AST | None) -> bool:
    """Whether code is of a model or layer: what it does with its inputs it does with every sample."""
    owner = script.parents.get(function) if function is not None else None
    return isinstance(owner, ast.ClassDef) and script.kind_of_class(owner) in ("model", "layer")


def _enumerates(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("enumerate", "zip")


def _starts(index: ast.Slice) -> bool:
    return index.lower is None
