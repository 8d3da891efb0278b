"""How something that a step uses is written in the loop that calls the step."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cached_property

from rewriter.loops.steps import Loop, call_sites, loops_around
from rewriter.script import Script

_VARIABLES = frozenset({"trainable_variables", "trainable_weights", "variables", "weights"})
_DEEP = 12


@dataclass(frozen=True)
class Unseen:
    """It is not known, or has no name there."""


@dataclass(eq=False)
class Place:
    """A statement after which a step has been made."""

    script: Script
    statement: ast.stmt

    @cached_property
    def loops(self) -> list[Loop]:
        """The loops around it, innermost first."""
        return loops_around(self.script, self.statement)


@dataclass(eq=False)
class Variables:
    """What gradients are taken of: models whose variables they are, single variables, and dicts of some."""

    models: list[tuple[Script, ast.expr]] = field(default_factory=list)
    single: list[tuple[Script, ast.expr]] = field(default_factory=list)
    mappings: list[tuple[Script, ast.expr]] = field(default_factory=list)
    is_list: bool = True


def variables_of(script: Script, sources: ast.expr, depth: int = 0) -> Variables | Unseen:
    """The variables that an expression lists, as `model.trainable_variables + [scale]`."""
    found = Variables()
    if depth > _DEEP:
        return Unseen()
    match sources:
        case ast.Attribute(value=model, attr=attr) if attr in _VARIABLES:
            found.models.append((script, model))
            return found
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            parts: list[ast.expr] = [left, right]
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            if parts and all(_is_variable(script, p) for p in parts):
                found.single += [(script, p) for p in parts]
                return found
        case ast.Call(func=ast.Name(id="list"), args=[ast.Call(func=ast.Attribute(value=mapping, attr="values"))]):
            if not _are_variables(script, mapping):
                return Unseen()
            found.mappings.append((script, mapping))
            return found
        case ast.Name():
            return _named(script, sources, depth)
        case _:
            return Unseen()
    for part in parts:
        inner = part.value if isinstance(part, ast.Starred) else part
        of_part = variables_of(script, inner, depth + 1)
        if isinstance(of_part, Unseen):
            return of_part
        found.models += of_part.models
        found.single += of_part.single
        found.mappings += of_part.mappings
    return found


def _is_variable(script: Script, expr: ast.expr) -> bool:
    values = script.values(expr)
    return bool(values) and all(v.name == "tensorflow.Variable" for v in values)


def _are_variables(script: Script, mapping: ast.expr) -> bool:
    """A dict that is written out, of variables only."""
    values = script.values(mapping)
    return bool(values) and all(
        isinstance(v.node, ast.Dict) and v.script is not None and all(_is_variable(v.script, e) for e in v.node.values)
        for v in values
    )


def _named(script: Script, name: ast.Name, depth: int) -> Variables | Unseen:
    bindings = script.names.reaching(name)
    if len(bindings) != 1:
        return Unseen()
    binding = bindings[0]
    if binding.kind == "parameter":
        found = Variables()
        values = list(given(script, name.id, binding.scope.node))
        for owner, argument in values:
            more = Unseen() if argument is None else variables_of(owner, argument, depth + 1)
            if isinstance(more, Unseen):
                return more
            found.models += more.models
            found.single += more.single
            found.mappings += more.mappings
        return found if values else Unseen()
    value = binding.part if binding.path else binding.value
    if value is None or binding.kind != "assign":
        return Unseen()
    changed = any(
        isinstance(parent := script.parents.get(load), ast.Attribute)
        and parent.attr in ("append", "extend", "insert", "remove", "pop")
        for load in script.names.loads(binding)
    )
    return Unseen() if changed else variables_of(script, value, depth + 1)


def given(
    script: Script, name: str, function: ast.AST, at: ast.stmt | None = None
) -> list[tuple[Script, ast.expr | None]]:
    """What its calls give a parameter of a function: those in the statement `at`, where there are any."""
    if not isinstance(function, ast.FunctionDef):
        return []
    parameters = [*function.args.posonlyargs, *function.args.args]
    names = [p.arg for p in parameters]
    sites, uses = call_sites(script, function)
    if name not in names or any(not _compiles(s, u) for s, u in uses):
        return [(script, None)]
    found: list[tuple[Script, ast.expr | None]] = []
    inside = set(ast.walk(at)) if at is not None else set()
    for site in [s for s in sites if s.call in inside] or sites:
        call = site.call
        index = names.index(name) - site.offset
        argument: ast.expr | None
        if index < 0:
            argument = call.func.value if isinstance(call.func, ast.Attribute) else None
        elif index < len(call.args):
            argument = call.args[index]
        else:
            argument = site.script.argument(call, name)
            defaults = function.args.defaults
            place = names.index(name) - (len(names) - len(defaults))
            if argument is None and place >= 0 and isinstance(defaults[place], ast.Constant):
                continue
        if any(isinstance(a, ast.Starred) for a in call.args):
            argument = None
        found.append((site.script, argument))
    return found


def _compiles(script: Script, use: ast.expr) -> bool:
    return isinstance(script.parents.get(use), ast.Call)


def at_place(place: Place, script: Script, expr: ast.expr, depth: int = 0) -> list[str] | Unseen:
    """The expressions that stand at a place for what `expr` is in a step."""
    root, attributes = expr, ""
    while isinstance(root, ast.Attribute):
        attributes = f".{root.attr}{attributes}"
        root = root.value
    if not isinstance(root, ast.Name) or depth > _DEEP:
        return Unseen()
    looked_up = script.names.scope_of(root).lookup(root.id)
    if looked_up is None:
        return Unseen()
    owner, bindings = looked_up
    if script is place.script:
        there = script.names.scope_of(place.statement).lookup(root.id)
        if there is not None and there[0] is owner:
            return [f"{root.id}{attributes}"]
    kinds = {b.kind for b in bindings}
    if kinds == {"parameter"}:
        sources = given(script, root.id, owner.node, place.statement)
    elif kinds == {"assign"} and len(bindings) == 1 and (value := bindings[0].part or bindings[0].value) is not None:
        if not isinstance(value, ast.Name | ast.Attribute):
            return Unseen()
        sources = [(script, value)]
    else:
        return Unseen()
    found: dict[str, None] = {}
    for other, argument in sources:
        more = Unseen() if argument is None else at_place(place, other, argument, depth + 1)
        if isinstance(more, Unseen):
            continue  # another caller, of another loop
        found.update(dict.fromkeys(f"{text}{attributes}" for text in more))
    return list(found) or Unseen()
