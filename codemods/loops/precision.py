"""The hand-written training steps of a program, as mixed precision sees them: which models they call, with what."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cached_property

from rewriter.data.pipelines import reached
from rewriter.loops.steps import Step, is_tape, is_update, steps
from rewriter.reach import Reach
from rewriter.script import Script
from rewriter.values import Value

#: Arguments of a model's call that are no tensors, or that Keras itself looks after.
_FLAGS = frozenset({"training", "mask"})


class Loops:
    def __init__(self, reach: Reach) -> None:
        self.reach = reach
        self.steps = [
            step
            for script in reach.scripts
            for step in steps(script)
            if step.role == "train" and reach.contains(script, step.statements[0])
        ]

    @cached_property
    def calls(self) -> list[tuple[Script, ast.Call]]:
        """The calls in the steps, without those in what Keras calls itself: the `call` of a layer or model."""
        found = {call: script for step in self.steps for script, call in _calls(step) if not _in_call(script, call)}
        return [(script, call) for call, script in found.items()]

    def alone(self, methods: Iterable[tuple[Script, ast.FunctionDef]]) -> Iterator[tuple[Script, ast.Call, Value]]:
        """The layers that the steps, or these methods of a model, call by themselves."""
        found = {call: script for script, call in self.calls}
        for owner, method in methods:
            found |= {call: script for script, call in reached(owner, [method]) if not _in_call(script, call)}
        for call, script in found.items():
            for value in script.values(call.func):
                if value.kind == "layer":
                    yield script, call, value

    @cached_property
    def model_calls(self) -> list[tuple[Script, ast.Call, Value]]:
        return [(s, c, v) for s, c in self.calls for v in s.values(c.func) if v.kind == "model"]

    @property
    def models(self) -> list[Value]:
        return [model for _, _, model in self.model_calls]

    @cached_property
    def tapes(self) -> set[ast.Call]:
        return {call for step in self.steps for script, call in _calls(step) if is_tape(script, call)}

    @cached_property
    def with_models(self) -> list[Step]:
        """The steps that train Keras models, and not only variables of the script's own."""
        called = {call for _, call, _ in self.model_calls}
        return [step for step in self.steps if any(call in called for _, call in _calls(step))]

    @cached_property
    def is_program(self) -> bool:
        """Does a step stand in the code that runs with the file, in no function?"""
        return any(step.function is None and step.script is self.reach.script for step in self.steps)

    @cached_property
    def functions(self) -> set[ast.AST]:
        return {step.function for step in self.steps if step.function is not None and not step.inline}

    def unseen(self) -> Iterator[tuple[Script, ast.Call, str]]:
        """Calls in the steps of what may be a model, and why it is not known."""
        for script, call in self.calls:
            if not isinstance(call.func, ast.Name | ast.Attribute):
                continue
            for value in script.values(call.func):
                if value.kind == "parameter":
                    why = f"`{value.name}` is given by callers that are not seen"
                elif value.kind == "unknown":
                    why = value.name
                elif value.kind == "object" and value.cls is None and not value.keras and "." in value.name:
                    why = f"it is made by `{value.name}`"
                else:
                    continue
                if not _is_library(value):
                    what = f"what `{script.text(call.func)}` is that the training step calls is not known"
                    yield script, call, f"{what}: {why}"

    def data(self) -> Iterator[tuple[Script, ast.expr, Value]]:
        """What the models are trained on, as far as it is written in one expression: (script, features, model)."""
        for script, call, model in self.model_calls:
            for argument in call.args[:1]:
                yield script, argument, model
        for step in self.with_models:
            models = [v for s, c, v in self.model_calls if any(c is inner for _, inner in _calls(step))]
            given = [(s.script, a) for s in step.sites for a in s.call.args]
            loops = [(s.script, loop) for s in step.sites for loop in s.loops]
            loops += [(step.script, loop) for loop in step.loops]
            for script, loop in loops:
                if isinstance(loop, ast.For):
                    given += [
                        (script, n) for n in ast.walk(loop.iter) if isinstance(n, ast.expr) and script.is_dataset(n)
                    ]
            for script, expr in given:
                for model in models:
                    yield script, expr, model

    def extra_inputs(self, model: Value) -> set[int | str]:
        """Positions and names of further tensors that a model is called with: Keras 2 does not cast them."""
        found: set[int | str] = set()
        for script, call, called in self.model_calls:
            if called.node is not model.node:
                continue
            named: list[tuple[int | str, ast.expr]] = [(i, a) for i, a in enumerate(call.args) if i]
            named += [(k.arg, k.value) for k in call.keywords if k.arg and k.arg not in _FLAGS]
            found |= {key for key, expr in named if not all(v.kind == "constant" for v in script.values(expr))}
        return found


def _calls(step: Step) -> Iterator[tuple[Script, ast.Call]]:
    """The calls in a step, and those in the functions that it gives to `minimize`."""
    yield from step.calls
    for script, call in step.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "minimize" and is_update(script, call):
            for value in [v for a in call.args for v in script.values(a)]:
                if value.kind in ("function", "method") and value.script and isinstance(value.node, ast.FunctionDef):
                    yield from reached(value.script, [value.node])


def _in_call(script: Script, node: ast.AST) -> bool:
    for function in script.enclosing(node, ast.FunctionDef):
        owner = script.parents.get(function)
        if isinstance(owner, ast.ClassDef) and function.name in ("call", "__call__"):  # type: ignore[attr-defined]
            return script.kind_of_class(owner) in ("model", "layer")
    return False


def _is_library(value: Value) -> bool:
    return value.name.split(".")[0] in ("builtins", "tensorflow", "keras", "tf_keras", "numpy", "math", "time", "os")
