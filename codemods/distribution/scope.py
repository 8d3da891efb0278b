"""Where variables are made: the ranges of statements that go under `with strategy.scope():`.

    scope.hold(script, node)    # what this makes, and where that is asked for from other functions
    scope.hold_made(script, expr)    # what an expression is made of: layers, models, optimizers, metrics
    scope.edit()                # the ranges, as small as they may be

A function that does not train itself is called under the scope; all else has the scope around its statements.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from rewriter.data.pipelines import reached
from rewriter.edits import Within
from rewriter.loops.steps import block_of
from rewriter.models import is_symbolic
from rewriter.scopes import is_main_guard
from rewriter.script import Script
from rewriter.values import Value

if TYPE_CHECKING:
    from .strategies import ByStrategy

#: What has variables, or may have some that it makes at once.
_MAKES = frozenset("layer model optimizer metric".split())
_COMPOUND = (ast.If, ast.For, ast.While, ast.With, ast.Try)
#: So many other statements may stand between two that make variables, and come under the scope with them.
_BETWEEN = 2


class Scope:
    def __init__(self, conversion: ByStrategy) -> None:
        self.conversion = conversion
        self.statements: dict[ast.stmt, Script] = {}
        self.apart: set[ast.stmt] = set()  # statements that do not come under the scope with others
        self._held: set[ast.AST] = set()

    # -- what is held ----------------------------------------------------------------------------------------

    def hold(self, script: Script, node: ast.AST) -> None:
        """Put under the scope what makes variables at this node: its statement, or the calls of its function."""
        if node in self._held:
            return
        self._held.add(node)
        statement, function = script.statement(node), script.function_of(node)
        if isinstance(function, ast.Lambda):
            self._refuse(script, node, "variables are made in a lambda", "make a function of it")
            return
        calls = []
        if isinstance(function, ast.FunctionDef) and not self._trains(script, *function.body):
            calls = script.project.calls_of(function, script)
        for owner, call, _ in calls:
            self.hold(owner, call)
        if not calls:
            self._put(script, statement)

    def holds(self, node: ast.AST) -> bool:
        return node in self._held

    def hold_made(self, script: Script, expr: ast.expr) -> None:
        """Put under the scope every layer, model, optimizer and metric that an expression is made of."""
        todo: list[tuple[Script, ast.expr]] = [(script, expr)]
        seen: set[ast.AST] = set()
        while todo:
            owner, node = todo.pop()
            if node in seen:
                continue
            seen.add(node)
            for inner in owner.behind(node):
                if isinstance(inner, ast.Call):
                    if self._makes(owner, inner):
                        self.hold(owner, inner)
                    self._hold_used(owner, inner)
                if isinstance(inner, ast.Name | ast.Attribute | ast.Call):
                    todo += [
                        (v.script, v.node)
                        for v in owner.values(inner)
                        if (v.kind in _MAKES or _is_symbolic(v))
                        and v.script is not None
                        and isinstance(v.node, ast.Call)
                    ]

    def _makes(self, script: Script, call: ast.Call) -> bool:
        """Whether a call may make variables."""
        values = script.values(call)
        if script.called(call) == "tensorflow.Variable" or any(v.kind in _MAKES or _is_symbolic(v) for v in values):
            return True
        if isinstance(call.func, ast.Name | ast.Attribute) and any(
            v.kind in ("function", "method", "class") and v.script is not None for v in script.values(call.func)
        ):
            return any(
                v.kind in _MAKES
                for owner, inner in reached(script, [call])
                if inner is not call
                for v in owner.values(inner)
            )
        return False

    def _hold_used(self, script: Script, call: ast.Call) -> None:
        """What is used as a layer, also where it is one of a library that is not known: `hub.KerasLayer(url)`."""
        layers: list[ast.expr] = []
        if any(is_symbolic(script, a) for a in call.args):
            layers.append(call.func)
        if script.called(call).endswith(".Sequential") or (
            isinstance(call.func, ast.Attribute) and call.func.attr == "add" and len(call.args) == 1
        ):
            for argument in call.args:
                layers += argument.elts if isinstance(argument, ast.List | ast.Tuple) else [argument]
        for layer in layers:
            for expr in self._given(script, layer):
                if any(v.kind in ("object", "unknown") for v in script.values(expr)):
                    self.hold(script, expr)
                    self.hold(script, call)

    def _given(self, script: Script, layer: ast.expr) -> list[ast.Call]:
        """The calls that make a layer: itself, or what its name stands for."""
        if isinstance(layer, ast.Call):
            return [layer]
        bindings = script.names.reaching(layer) if isinstance(layer, ast.Name) else ()
        return [b.part for b in bindings if isinstance(b.part, ast.Call)]

    def _trains(self, script: Script, *nodes: ast.AST) -> bool:
        ways = {w.node for w in self.conversion.program.ways}
        return any(call in ways for _, call in reached(script, list(nodes)))

    def _put(self, script: Script, statement: ast.stmt) -> None:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            self._refuse(script, statement, "variables are made where a function or class is defined")
        elif not self.conversion.knows(script, statement):
            where = "in another file" if script is not self.conversion.script else "before the strategy can be"
            self._refuse(
                script,
                statement,
                f"variables are made here, {where}: they have to be made under `{self.conversion.strategy}.scope()`",
                "make the model in a function that the script calls",
            )
        else:
            self.statements[statement] = script

    def _refuse(self, script: Script, node: ast.AST, reason: str, hint: str = "") -> None:
        self.conversion.refuse(script, node, reason, hint)

    # -- ranges ----------------------------------------------------------------------------------------------

    def edit(self) -> None:
        """Put the ranges under the scope."""
        header = f"with {self.conversion.strategy}.scope():"
        blocks: dict[int, tuple[Script, list[ast.stmt], set[ast.stmt]]] = {}
        for statement, script in self._outermost().items():
            block = block_of(script, statement)
            blocks.setdefault(id(block), (script, block, set()))[2].add(statement)
        for script, block, held in blocks.values():
            for first, last in self._ranges(script, block, held):
                self.conversion.add(Within(first, last, header))

    def _outermost(self) -> dict[ast.stmt, Script]:
        """The statements; instead of what they mostly hold, loops and branches that do not train."""
        found = dict(self.statements)
        for statement, script in self.statements.items():
            current: ast.stmt = statement
            for around in script.enclosing(statement, ast.stmt):
                if not isinstance(around, _COMPOUND) or is_main_guard(around) or self._trains(script, around):
                    break
                if not _mostly(around, found):
                    break
                assert isinstance(around, ast.stmt)
                current = around
                found[current] = script
        return {s: script for s, script in found.items() if not any(o in found for o in script.enclosing(s, ast.stmt))}

    def _ranges(self, script: Script, block: list[ast.stmt], held: set[ast.stmt]) -> list[tuple[ast.stmt, ast.stmt]]:
        ranges: list[tuple[int, int]] = []
        for index in (i for i, s in enumerate(block) if s in held):
            between = block[ranges[-1][1] + 1 : index] if ranges else []
            others = [s for s in between if not _computes(script, s)]
            if ranges and len(others) <= _BETWEEN and all(self._may_join(script, s) for s in others):
                ranges[-1] = ranges[-1][0], index
            else:
                ranges.append((index, index))
        return [(block[a], block[b]) for a, b in ranges]

    def _may_join(self, script: Script, statement: ast.stmt) -> bool:
        simple = isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign)
        return simple and statement not in self.apart and not self._trains(script, statement)


def _is_symbolic(value: Value) -> bool:
    """What a layer or model gives, and the input of one."""
    made = value.base is not None and value.base.kind in ("layer", "model")
    return value.kind == "tensor" and (made or value.keras == "layers.Input")


def _computes(script: Script, statement: ast.stmt) -> bool:
    """`x = x + y`, of what layers give."""
    return isinstance(statement, ast.Assign) and is_symbolic(script, statement.value)


def _mostly(compound: ast.stmt, held: dict[ast.stmt, Script]) -> bool:
    """Whether half of the statements in a loop or branch are held, or more."""
    inside = [n for n in ast.walk(compound) if isinstance(n, ast.stmt) and not isinstance(n, _COMPOUND)]
    return 2 * sum(s in held for s in inside) >= len(inside)
