"""Which code of a project runs when one of its scripts does: by mention, so that nothing is left out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from .scopes import is_main_guard
from .script import Script
from .source import children

_Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def reach_of(script: Script) -> Reach:
    """The reach of a script, found once per project: it takes a walk through every file that it imports."""
    facts, key = script.project.facts, f"reach of {script.path}"
    found = facts.get(key)
    if not isinstance(found, Reach):
        found = facts[key] = Reach(script)
    return found


class Reach:
    """The functions, classes and modules that running `script` may use."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.scripts = self._imported()
        self.defined: set[ast.AST] = set()
        index: dict[str, list[_Defined]] = {}
        for owner in self.scripts:
            for node in owner.names.scopes:
                if isinstance(node, _Defined):
                    index.setdefault(node.name, []).append(node)
        todo: list[ast.AST] = [s.tree for s in self.scripts]
        while todo:
            node = todo.pop()
            for name in _mentioned(node, programs=node is script.tree):
                for found in index.get(name, ()):
                    if found not in self.defined:
                        self.defined.add(found)
                        todo.append(found)

    def _imported(self) -> list[Script]:
        found = [self.script]
        for script in found:
            for scope in list(script.names.scopes.values()):
                for bindings in scope.bindings.values():
                    for binding in bindings:
                        if binding.kind in ("import", "star"):
                            resolved = script.project.resolve(script, binding.symbol)
                            if resolved and resolved[0] not in found:
                                found.append(resolved[0])
        return found

    def contains(self, script: Script, node: ast.AST) -> bool:
        """May this code run? Module level and class bodies do on import, what stands under another's main guard not."""
        if script not in self.scripts:
            return False
        inner = node
        for around in script.enclosing(node, *_DEFINED):
            body = isinstance(around, ast.ClassDef) and not isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
            method = isinstance(script.parents.get(around), ast.ClassDef)
            if around not in self.defined and not body and not method:
                return False
            inner = around
        return script is self.script or not script.is_program_only(node)

    def calls(self) -> Iterator[tuple[Script, ast.Call]]:
        for script in self.scripts:
            for call in script.calls:
                if self.contains(script, call):
                    yield script, call

    @cached_property
    def is_program(self) -> bool:
        """Does running the file do something, or does it only define what other files use?"""
        for node in module_level(self.script.tree):
            if isinstance(node, ast.If) and is_main_guard(node):
                return True
            if isinstance(node, ast.Call):
                if isinstance(node.func, ast.Attribute) and node.func.attr in (
                    "fit",
                    "fit_generator",
                    "compile",
                    "train_on_batch",
                ):
                    return True
                for part in (node.func, *node.args):
                    if any(
                        v.kind in ("function", "class", "method")
                        and v.script is not None
                        and v.node in v.script.names.parents
                        and not isinstance(v.node, ast.expr)
                        for v in self.script.values(part)
                    ):
                        return True
                    if isinstance(part, ast.Name) and any(
                        b.kind == "def" for b in self.script.names.reaching(part)
                    ):  # also of a decorated function
                        return True
        return False


_DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def module_level(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that are executed when a module, a statement or a class body is: no bodies of functions."""
    todo: list[ast.AST] = [node]
    while todo:
        current = todo.pop()
        yield current
        if isinstance(current, ast.FunctionDef | ast.AsyncFunctionDef):
            todo.extend(current.decorator_list)
            todo.extend(current.args.defaults)
            todo.extend(d for d in current.args.kw_defaults if d is not None)
        elif isinstance(current, ast.Lambda):
            todo.extend(current.args.defaults)
        else:
            todo.extend(children(current))


def _mentioned(node: ast.AST, *, programs: bool) -> Iterator[str]:
    """Names that a function's or class's code mentions; nested functions count when mentioned too.

    programs: what stands under a main guard counts as well.
    """
    body = getattr(node, "body", [])
    todo: list[ast.AST] = [*body, *getattr(node, "decorator_list", []), *getattr(node, "bases", [])]
    while todo:
        current = todo.pop()
        if not programs and isinstance(current, ast.If) and is_main_guard(current):
            todo.extend(current.orelse)
            continue
        if isinstance(current, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if isinstance(node, ast.ClassDef) and not isinstance(current, ast.ClassDef):
                todo.extend(current.body)  # every method of a class that is used
                todo.extend(current.args.defaults)
            else:
                todo.extend(current.decorator_list)
                if isinstance(current, ast.ClassDef):  # its body runs with what is around it, its methods do not
                    todo.extend(s for s in (*current.bases, *current.body) if not isinstance(s, ast.FunctionDef))
                else:
                    todo.extend(current.args.defaults)
            continue
        if isinstance(current, ast.Name):
            yield current.id
        elif isinstance(current, ast.Attribute):
            yield current.attr
        elif isinstance(current, ast.ImportFrom):
            yield from (a.name for a in current.names if a.asname)
        elif isinstance(current, ast.Call) and ast.unparse(current.func).endswith("app.run"):
            yield "main"  # `tf.app.run()` calls the `main` of the script
        todo.extend(children(current))
