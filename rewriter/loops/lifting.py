"""Moves statements of a loop into a function in front of it, as they are written, with the inputs that they need.

lift = Lift(script, statements, loop)
lift.inputs      # names that the loop gives a value: the parameters
lift.outputs     # names that are read behind the statements: what is returned
lift.obstacle    # why the lines cannot be moved, "" where they can
lift.edits("train_step", "@{tensorflow.function}", {})
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

from ..edits import Delete, Edit, Insert
from ..scopes import Binding
from ..script import Script
from .steps import Loop, block_of, loops_around

_LEAVES = (ast.Return, ast.Break, ast.Continue, ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal)


#: What a function is put in front of.
Anchor: TypeAlias = Loop | ast.FunctionDef


class Lift:
    """Statements side by side in a block of `loop`, and the function that they become, in front of `loop`.

    `loop` may also be the function that the statements stand in: what it is given is then handed over, too.
    """

    def __init__(self, script: Script, statements: Sequence[ast.stmt], loop: Anchor) -> None:
        self.script, self.statements, self.loop = script, list(statements), loop
        self.nodes = {n for s in statements for n in ast.walk(s)}
        self.in_loop = set(ast.walk(loop))

    # -- names ----------------------------------------------------------------------------------------------

    @cached_property
    def bound(self) -> list[str]:
        """The names that the statements give a value, in order; those of comprehensions and functions inside not."""
        found: dict[str, None] = {}
        for statement in self.statements:
            for node in own(statement):
                if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                    found[node.id] = None
                elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                    found[node.name] = None
        return list(found)

    @cached_property
    def inputs(self) -> dict[str, ast.Name]:
        """Names that get their value in the loop, outside of the statements or in an earlier round: name → a load."""
        found: dict[str, ast.Name] = {}
        self.carried: set[str] = set()  # those that the statements themselves gave a value in an earlier round
        place: dict[
            str, tuple[int, int, int]
        ] = {}  # what the innermost loop gives first, each in the order it is bound
        innermost = next(iter(loops_around(self.script, self.statements[0])), self.loop)
        in_innermost = set(ast.walk(innermost))
        loads = [n for n in self.nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
        loads += [n for n in self._augmented if n not in loads]
        for load in sorted(loads, key=lambda n: (n.lineno, n.col_offset)):
            for binding in self._bindings(load):
                inside = binding.node in self.nodes
                carried = inside and self._is_bound_behind(binding.node, load)
                if self._is_inner(binding.node, load):
                    continue
                if carried and self._is_given_before(load):
                    continue
                given_here = not inside and load.id in self.bound and not self._is_given_before(load)
                if carried or given_here or (not inside and binding.node in self.in_loop):
                    found.setdefault(load.id, load)
                    if carried:
                        self.carried.add(load.id)
                    place[load.id] = min(
                        (int(b.node not in in_innermost), *_place(b.node))
                        for b in self._bindings_of(load)
                        if b.node in self.in_loop or b is binding
                    )
        return {name: found[name] for name in sorted(found, key=lambda n: place[n])}

    def _is_bound_behind(self, node: ast.AST, load: ast.Name) -> bool:
        """Is a name bound only when this load of it is done: `h = cell(x, h)`?"""
        owner = self.script.parents.get(node)
        if not isinstance(owner, ast.NamedExpr):
            owner = self.script.statement(node)
        if isinstance(owner, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
            return _place(node) >= _place(load) or load in ast.walk(owner)
        return _place(node) >= _place(load)

    @property
    def _augmented(self) -> list[ast.Name]:
        return [n.target for n in self.nodes if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)]

    def _bindings(self, load: ast.Name) -> list[Binding]:
        return list(self.script.names.reaching(load)) if isinstance(load.ctx, ast.Load) else self._bindings_of(load)

    def _bindings_of(self, load: ast.Name) -> list[Binding]:
        found = self.script.names.scope_of(load).lookup(load.id)
        return list(found[1]) if found else []

    def _is_inner(self, node: ast.AST, load: ast.AST) -> bool:
        """Bound by a comprehension, a lambda or a function among the statements: no name of the step itself."""
        for around in self.script.enclosing(node, ast.comprehension, ast.Lambda, ast.FunctionDef):
            if around in self.nodes:
                return True
        return False

    def _is_given_before(self, load: ast.Name) -> bool:
        """Does one of the statements surely give the name a value before it is read?"""
        for statement in self.statements:
            if statement.lineno > load.lineno:
                return False
            for node in _certain(statement):
                if isinstance(node, ast.Name) and node.id == load.id and not isinstance(node.ctx, ast.Load):
                    parent = self.script.parents[node]
                    if isinstance(parent, ast.AugAssign):
                        continue
                    end = self.script.statement(node)
                    if isinstance(end, ast.With) or (end.end_lineno or 0) < load.lineno:
                        return True
        return False

    @cached_property
    def outputs(self) -> list[str]:
        """Names that are bound here and read behind the statements, or in another function."""
        names = self.script.names
        found = []
        for name in self.bound:
            read = any(load not in self.nodes for b in self.bindings(name) for load in names.loads(b))
            if read or (name in self.inputs and name in self.carried):
                found.append(name)
        return found

    def bindings(self, name: str) -> list[Binding]:
        """Where the statements give a name its values."""
        return [b for b in self._owned(name) if b.node in self.nodes]

    @property
    def unsure(self) -> list[str]:
        """Outputs that the statements may leave without a value."""
        return [n for n in self.outputs if n not in self.inputs and not _binds(self.script, self.statements, n)]

    @cached_property
    def _deletions(self) -> list[ast.Delete]:
        """`del tape` behind the statements, of names that are theirs alone."""
        scope = self.script.names.scope_of(self.statements[0])
        own_names = set(self.bound) - set(self.outputs)
        return [
            node
            for node in self.script.all(ast.Delete)
            if node not in self.nodes
            and any(isinstance(t, ast.Name) and t.id in own_names and self._is_left(t) for t in node.targets)
            and self.script.names.scope_of(node) is scope
        ]

    def _is_left(self, deleted: ast.Name) -> bool:
        """Is a name deleted that has its value from the statements, and not from another place?"""
        last = self.statements[-1].end_lineno or 0
        around = next(iter(loops_around(self.script, self.statements[0])), None)
        if around is not None and around in self.script.enclosing(deleted, ast.For, ast.While):
            return True
        others = [b.node for b in self._owned(deleted.id) if b.node not in self.nodes]
        return deleted.lineno > last and not any(last < _place(n)[0] < deleted.lineno for n in others)

    def _owned(self, name: str) -> list[Binding]:
        scope = self.script.names.scope_of(self.statements[0])
        return list(scope.elsewhere.get(name, scope).bindings.get(name, ()))

    # -- lines ----------------------------------------------------------------------------------------------

    @cached_property
    def obstacle(self) -> str:
        script = self.script
        for node in self.nodes:
            if isinstance(node, _LEAVES):
                return f"`{type(node).__name__.lower()}` leaves the step ({script.at(node)})"
            if isinstance(node, ast.Constant | ast.JoinedStr) and node.lineno != node.end_lineno:
                return f"a string of several lines stands in the step ({script.at(node)})"
        first, last = self.statements[0], self.statements[-1]
        if self._between and len({s.lineno for s in (*self.statements, *self._between)}) < len(self.statements) + len(
            self._between
        ):
            return f"several statements stand in one line ({script.at(first)})"
        lines = script.source.lines
        if lines[first.lineno - 1][: self._column(first)].strip():
            return f"the step begins within a line ({script.at(first)})"
        behind = lines[(last.end_lineno or 0) - 1].encode()[last.end_col_offset :].decode().strip()
        if behind and not behind.startswith("#"):
            return f"the step ends within a line ({script.at(last)})"
        for deletion in self._deletions:
            names = [t.id if isinstance(t, ast.Name) else "" for t in deletion.targets]
            alone = all(n in self.bound and n not in self.outputs and n not in self.inputs for n in names)
            if not alone or self.script.parents[deletion] is not self.script.parents[first]:
                return f"`del` ({script.at(deletion)}) deletes what belongs to the step, and something else"
        for call in script.calls:
            asks = script.called(call) in ("builtins.locals", "builtins.vars", "builtins.exec")
            around = script.function_of(call) is script.function_of(first)
            if asks and around and not (call.args and script.called(call) == "builtins.vars"):
                return f"`{script.text(call)}` ({script.at(call)}) may need the step's names"
        if any(line.rstrip("\r\n").endswith("\\") for line in self._lines):
            return f"a line of the step goes on behind a backslash ({script.at(first)})"
        try:
            ast.parse(self.function("step", "", body_only=False))
        except SyntaxError:
            return f"the step's lines are indented in several ways ({script.at(first)})"
        return ""

    def _column(self, node: ast.stmt) -> int:
        return self.script.source.column(node.lineno, node.col_offset)

    @cached_property
    def _lines(self) -> list[str]:
        """The statements' lines with the comments directly above them, without what stays between them."""
        lines = self.script.source.lines
        start = self._start(self.statements[0])
        stay = {at for s in self._between for at in range(self._start(s), s.end_lineno or 0)}
        kept = [at for at in range(start, self.statements[-1].end_lineno or 0) if at not in stay]
        return [lines[at].rstrip("\r\n") for at in kept]

    def _start(self, statement: ast.stmt) -> int:
        """The index of a statement's first line, or of that of the comments directly above it."""
        lines = self.script.source.lines
        start = statement.lineno - 1
        while start > 0 and lines[start - 1].lstrip().startswith("#"):
            start -= 1
        return start

    @cached_property
    def _between(self) -> list[ast.stmt]:
        """Statements among these that are not moved: they then stand behind the call."""
        block = block_of(self.script, self.statements[0])
        inner = block[block.index(self.statements[0]) : block.index(self.statements[-1]) + 1]
        return [s for s in inner if s not in self.statements]

    @property
    def _unit(self) -> str:
        """What one more level of indentation is."""
        inner = self.loop.body[0]
        lines = self.script.source.lines
        if inner.lineno == self.loop.lineno:
            return "    "
        outer = lines[self.loop.lineno - 1][: self._column(self.loop)]
        return lines[inner.lineno - 1][len(outer) : self._column(inner)] or "    "

    def function(self, name: str, decorator: str, *, body_only: bool = False) -> str:
        """The text of the function, as it stands at the module level."""
        prefix = self.script.source.lines[self.statements[0].lineno - 1][: self._column(self.statements[0])]
        unit = self._unit
        body = []
        for line in self._lines:
            text = line[len(prefix) :] if line.startswith(prefix) else line.lstrip()
            body.append(f"{unit}{text}" if text.strip() else "")
        if self.outputs:
            body.append(f"{unit}return {', '.join(self.outputs)}")
        head = f"def {name}({', '.join(self.inputs)}):"
        return "\n".join([decorator, head, *body] if decorator else [head, *body])

    def call(self, name: str, arguments: Mapping[str, str]) -> str:
        """The statement that takes their place; `arguments`: what is given instead of the name itself."""
        call = f"{name}({', '.join(arguments.get(n, n) for n in self.inputs)})"
        return f"{', '.join(self.outputs)} = {call}" if self.outputs else call

    def edits(self, name: str, decorator: str, arguments: Mapping[str, str], *, follows: bool = False) -> list[Edit]:
        """`follows`: another function was put in front of the loop before."""
        gap = 2 if self._is_top and self._two_blanks else 1
        above = self.script.blank_lines_above(self.loop)
        return [
            Insert(
                self.loop,
                self.function(name, decorator),
                after=False,
                blank_lines=gap if follows else max(0, gap - above) if self._has_code_above(self.loop) else 0,
                below=gap,
                own_indent=True,
            ),
            Insert(self.statements[0], self.call(name, arguments), after=False),
            *(Delete(s) for s in (*self.statements, *self._deletions)),
        ]

    @property
    def _is_top(self) -> bool:
        return self.script.parents[self.loop] is self.script.tree

    @cached_property
    def _two_blanks(self) -> bool:
        """Does the file have two blank lines in front of its functions?"""
        tops = [s for s in self.script.tree.body if isinstance(s, ast.FunctionDef | ast.ClassDef)]
        return all(self.script.blank_lines_above(s) != 1 for s in tops)

    def _has_code_above(self, node: ast.stmt) -> bool:
        """In its own block; the first statement of one needs no blank line."""
        parent = self.script.parents[node]
        return not any(
            node is getattr(parent, f, [None])[:1][0]
            for f in ("body", "orelse", "finalbody")
            if getattr(parent, f, None)
        )


def _place(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def own(node: ast.AST) -> list[ast.AST]:
    """Without what comprehensions, functions and lambdas inside bind."""
    found: list[ast.AST] = []
    todo = [node]
    while todo:
        current = todo.pop(0)
        found.append(current)
        if isinstance(
            current,
            ast.FunctionDef | ast.ClassDef | ast.Lambda | ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp,
        ):
            continue
        todo = [*ast.iter_child_nodes(current), *todo]
    return found


def _binds(script: Script, statements: Sequence[ast.stmt], name: str) -> bool:
    """Do statements surely give a name a value? A loop is taken to run at least once."""
    for statement in statements:
        match statement:
            case ast.If():
                known = script.constant(statement.test)
                ways = (
                    [statement.body, statement.orelse]
                    if known is None
                    else [statement.body, statement.orelse][not known :][:1]
                )
                if all(_binds(script, way, name) for way in ways):
                    return True
            case ast.With() | ast.For():
                targets = (
                    [i.optional_vars for i in statement.items]
                    if isinstance(statement, ast.With)
                    else [statement.target]
                )
                held = {n.id for t in targets if t is not None for n in ast.walk(t) if isinstance(n, ast.Name)}
                if name in held or _binds(script, statement.body, name):
                    return True
            case ast.Try() | ast.While():
                pass
            case _:
                for node in own(statement):
                    is_bound = not isinstance(getattr(node, "ctx", None), ast.Load | ast.Del)
                    if is_bound and getattr(node, "name", getattr(node, "id", "")) == name:
                        return True
    return False


def _certain(statement: ast.stmt) -> list[ast.AST]:
    """The nodes of a statement that are run whenever it is: not those under a condition or in a loop."""
    found: list[ast.AST] = []
    todo: list[ast.AST] = [statement]
    while todo:
        current = todo.pop()
        if isinstance(current, ast.If | ast.For | ast.While | ast.Try | ast.FunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(current, ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp | ast.IfExp | ast.BoolOp):
            continue
        found.append(current)
        todo.extend(ast.iter_child_nodes(current))
    return found
