"""Which bindings can reach each use of a name: one walk over the syntax tree, in the order of execution."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from .source import children

Kind = Literal["import", "star", "assign", "augment", "parameter", "loop", "with", "def", "class", "unknown"]
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(eq=False, slots=True)
class Binding:
    """One place that gives a name a value.

    `value` is the expression that the value comes from, `path` the positions in it for `a, (b, c) = value`,
    `symbol` the dotted name for an import.
    """

    name: str
    kind: Kind
    node: ast.AST
    scope: Scope
    value: ast.expr | None = None
    path: tuple[int, ...] = ()
    symbol: str = ""

    @property
    def part(self) -> ast.expr | None:
        """What of an assigned tuple the name gets, where it is written out: `tf, BACKEND = None, "numpy"`."""
        value = self.value
        for index in self.path:
            if not isinstance(value, ast.Tuple | ast.List) or index >= len(value.elts):
                return None
            value = value.elts[index]
        return value


@dataclass(eq=False)
class Scope:
    node: ast.Module | ast.ClassDef | Function
    parent: Scope | None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    elsewhere: dict[str, Scope] = field(default_factory=dict)  # names declared global or nonlocal

    @property
    def module(self) -> Scope:
        return self.parent.module if self.parent else self

    def lookup(self, name: str) -> tuple[Scope, tuple[Binding, ...]] | None:
        """The scope that owns a free name, and everything bound to it there; class bodies are not visible inside."""
        scope: Scope | None = self
        while scope:
            if name in scope.elsewhere:
                scope = scope.elsewhere[name]
            if (scope is self or not isinstance(scope.node, ast.ClassDef)) and name in scope.bindings:
                return scope, tuple(scope.bindings[name])
            scope = scope.parent
        return None


Env: TypeAlias = dict[str, tuple[Binding, ...]]
_Defined: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Names:
    """`reaching[name_node]`: the bindings that can reach a load; `loads[binding]`: the loads that one can reach."""

    def __init__(self, tree: ast.Module, parents: dict[ast.AST, ast.AST]) -> None:
        self.parents = parents
        self.module = Scope(tree, None)
        self.scopes: dict[ast.AST, Scope] = {tree: self.module}
        self.stars: list[Binding] = []
        self.at_end: dict[ast.AST, Env] = {}
        self._local: dict[ast.Name, tuple[Binding, ...]] = {}
        self._made: dict[tuple[ast.AST, str], Binding] = {}
        self._scope_of_name: dict[ast.Name, Scope] = {}
        self._loads: dict[Binding, list[ast.Name]] | None = None
        self._global: set[str] | None = None
        self._mentioned_with: dict[str, list[Env]] = {}
        self._mentions_in: dict[_Defined, set[str]] | None = None
        self._envs_of: dict[_Defined, list[Env]] = {}
        self._declare(tree.body, self.module)
        self.at_end[tree] = self._block(tree.body, self.module, {}) or {}

    # -- what codemods ask ---------------------------------------------------------------------------------------

    def reaching(self, name: ast.Name) -> tuple[Binding, ...]:
        """Every binding whose value this use of the name may see; empty for builtins and unbound names."""
        scope = self._scope_of_name.get(name)
        if scope is None:
            return ()
        if (local := self._local.get(name)) is not None and name.id not in scope.elsewhere:
            return local if scope.parent or not self._rebound_elsewhere(name.id) else self._all(name.id, scope)
        found = scope.lookup(name.id)
        if found is None:
            return ()
        owner, bindings = found
        if owner is self.module and len(bindings) > 1 and not self._rebound_elsewhere(name.id):
            return self._when_called(name, scope, bindings)
        return bindings

    def _when_called(self, name: ast.Name, scope: Scope, bindings: tuple[Binding, ...]) -> tuple[Binding, ...]:
        """Of a module-level name's bindings, those that a function may see which runs from its first mention on.

        A function runs at the earliest where the module mentions it, or mentions a function or class that does.
        """
        inner: Scope | None = scope
        while inner and isinstance(inner.node, ast.ClassDef):
            inner = inner.parent
        outermost: _Defined | None = None
        current: ast.AST | None = self.parents.get(name)
        while current is not None:
            if isinstance(current, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                outermost = current
            current = self.parents.get(current)
        if outermost is None or inner is self.module:
            return bindings
        if outermost not in self._envs_of:
            if self._mentions_in is None:
                self._mentions_in = {
                    node: {
                        n.id if isinstance(n, ast.Name) else n.attr
                        for n in ast.walk(node)
                        if isinstance(n, ast.Name | ast.Attribute)
                    }
                    for node, s in self.scopes.items()
                    if s.parent is self.module
                    and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                }
            names = {outermost.name}
            while more := {n.name for n, mentioned in self._mentions_in.items() if mentioned & names} - names:
                names |= more
            self._envs_of[outermost] = [e for n in names for e in self._mentioned_with.get(n, ())]
        envs = [*self._envs_of[outermost], self.at_end.get(self.module.node, {})]
        seen = {b for env in envs for b in env.get(name.id, ())}
        return tuple(b for b in bindings if b in seen) or bindings

    def loads(self, binding: Binding) -> list[ast.Name]:
        if self._loads is None:
            self._loads = {}
            for name in self._scope_of_name:
                for reached in self.reaching(name) if isinstance(name.ctx, ast.Load) else ():
                    self._loads.setdefault(reached, []).append(name)
        return self._loads.get(binding, [])

    def scope_of(self, node: ast.AST) -> Scope:
        """The scope that a node is evaluated in."""
        child: ast.AST = node
        current = self.parents.get(node)
        while current is not None:
            if current in self.scopes and self._is_inside(child, current):
                return self.scopes[current]
            child, current = current, self.parents.get(current)
        return self.module

    # -- the walk ------------------------------------------------------------------------------------------------

    def _rebound_elsewhere(self, name: str) -> bool:
        if self._global is None:  # asked for once the walk is over
            self._global = {n for s in self.scopes.values() for n, o in s.elsewhere.items() if o is self.module}
        return name in self._global

    def _all(self, name: str, scope: Scope) -> tuple[Binding, ...]:
        return tuple(scope.bindings.get(name, ()))

    @staticmethod
    def _is_inside(child: ast.AST, scope: ast.AST) -> bool:
        """Decorators, defaults, annotations and base classes belong to the enclosing scope."""
        if isinstance(scope, ast.Lambda):
            return child is scope.body
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return any(child is statement for statement in scope.body)
        return True

    def _bind(self, scope: Scope, name: str, kind: Kind, node: ast.AST, **more: object) -> Binding:
        key = (node, name)
        if key not in self._made:
            owner = scope.elsewhere.get(name, scope)
            binding = Binding(name, kind, node, owner, **more)  # type: ignore[arg-type]
            owner.bindings.setdefault(name, []).append(binding)
            self._made[key] = binding
        return self._made[key]

    def _declare(self, body: Iterable[ast.AST], scope: Scope) -> None:
        """`global` and `nonlocal` hold for the whole scope, wherever they stand in it."""
        for node in _same_scope(body):
            if isinstance(node, ast.Global):
                scope.elsewhere.update(dict.fromkeys(node.names, scope.module))
            elif isinstance(node, ast.Nonlocal):
                for name in node.names:
                    found = scope.parent.lookup(name) if scope.parent else None
                    scope.elsewhere[name] = found[0] if found else scope.module

    def _targets(
        self, target: ast.expr, value: ast.expr | None, kind: Kind, scope: Scope, path: tuple[int, ...] = ()
    ) -> Iterator[Binding]:
        if isinstance(target, ast.Name):
            yield self._bind(scope, target.id, kind, target, value=value, path=path)
        elif isinstance(target, ast.Tuple | ast.List):
            starred = False
            for index, element in enumerate(target.elts):
                starred |= isinstance(element, ast.Starred)
                yield from self._targets(element, value, "unknown" if starred else kind, scope, (*path, index))
        elif isinstance(target, ast.Starred):
            yield from self._targets(target.value, value, "unknown", scope, path)

    def _statement_bindings(self, node: ast.AST, scope: Scope) -> list[Binding]:
        """The names that one statement or expression binds itself, without its nested blocks."""
        match node:
            case ast.Import():
                return [
                    self._bind(
                        scope,
                        a.asname or a.name.split(".")[0],
                        "import",
                        a,
                        symbol=a.name if a.asname else a.name.split(".")[0],
                    )
                    for a in node.names
                ]
            case ast.ImportFrom():
                module = "." * node.level + (node.module or "")
                found = []
                for a in node.names:
                    separator = "" if module.endswith(".") else "."
                    kind: Kind = "star" if a.name == "*" else "import"
                    symbol = module if a.name == "*" else f"{module}{separator}{a.name}"
                    binding = self._bind(scope, a.asname or a.name, kind, a, symbol=symbol)
                    if kind == "star" and binding not in self.stars:
                        self.stars.append(binding)
                    found.append(binding)
                return found
            case ast.Assign():
                return [b for t in node.targets for b in self._targets(t, node.value, "assign", scope)]
            case ast.AnnAssign():
                return list(self._targets(node.target, node.value, "assign", scope)) if node.value else []
            case ast.NamedExpr():
                return list(self._targets(node.target, node.value, "assign", scope))
            case ast.AugAssign():
                return list(self._targets(node.target, node.value, "augment", scope))
            case ast.For() | ast.AsyncFor() | ast.comprehension():
                return list(self._targets(node.target, node.iter, "loop", scope))
            case ast.withitem():
                if node.optional_vars is None:
                    return []
                return list(self._targets(node.optional_vars, node.context_expr, "with", scope))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return [self._bind(scope, node.name, "def", node)]
            case ast.ClassDef():
                return [self._bind(scope, node.name, "class", node)]
            case ast.ExceptHandler():
                return [self._bind(scope, node.name, "unknown", node)] if node.name else []
            case ast.MatchAs() | ast.MatchStar():
                return [self._bind(scope, node.name, "unknown", node)] if node.name else []
            case ast.MatchMapping():
                return [self._bind(scope, node.rest, "unknown", node)] if node.rest else []
        return []

    def _assign(self, bindings: Iterable[Binding], env: Env, scope: Scope) -> None:
        for binding in bindings:
            if binding.scope is scope:
                if binding.kind == "augment":
                    env[binding.name] = (*env.get(binding.name, ()), binding)
                else:
                    env[binding.name] = (binding,)

    def _later(self, body: Iterable[ast.AST], env: Env, scope: Scope) -> Env:
        """`env` as a loop body or handler may see it: with everything that the block may have bound before."""
        merged = dict(env)
        for node in _same_scope(body):
            for binding in self._statement_bindings(node, scope):
                if binding.scope is scope:
                    merged[binding.name] = _union(merged.get(binding.name, ()), (binding,))
        return merged

    def _block(self, body: list[ast.stmt], scope: Scope, env: Env | None) -> Env | None:
        """Walk statements; None where the end of the block cannot be reached."""
        for statement in body:
            if env is None:
                env = {}  # unreachable code: names are whatever the scope has
            env = self._statement(statement, scope, env)
        return env

    def _statement(self, node: ast.stmt, scope: Scope, env: Env) -> Env | None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for part in [*node.decorator_list, *_defaults(node.args)]:
                    self._expression(part, scope, env)
                self._assign(self._statement_bindings(node, scope), env, scope)
                if node.decorator_list and scope.parent is None:  # what decorates it might call it at once
                    self._mentioned_with.setdefault(node.name, []).append(dict(env))
                self._function(node, scope)
                return env
            case ast.ClassDef():
                for part in [*node.decorator_list, *node.bases, *(k.value for k in node.keywords)]:
                    self._expression(part, scope, env)
                self._assign(self._statement_bindings(node, scope), env, scope)
                inner = self.scopes[node] = Scope(node, scope)
                self.at_end[node] = self._block(node.body, inner, {}) or {}
                return env
            case ast.If():
                self._expression(node.test, scope, env)
                then = None if _type_checking(node.test) else self._block(node.body, scope, dict(env))
                if _type_checking(node.test):
                    return self._block(node.orelse, scope, env)
                return _merge(then, self._block(node.orelse, scope, dict(env)))
            case ast.For() | ast.AsyncFor():
                self._expression(node.iter, scope, env)
                env = self._later([node, *node.body], env, scope)
                start = dict(env)
                self._assign(self._statement_bindings(node, scope), start, scope)
                after = _merge(env, self._block(node.body, scope, start))
                return self._block(node.orelse, scope, after)
            case ast.While():
                env = self._later([node.test, *node.body], env, scope)
                self._expression(node.test, scope, env)
                after = _merge(env, self._block(node.body, scope, dict(env)))
                return self._block(node.orelse, scope, after)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._expression(item.context_expr, scope, env)
                    self._assign(self._statement_bindings(item, scope), env, scope)
                return self._block(node.body, scope, env)
            case ast.Try():
                return self._try(node, scope, env)
            case ast.Match():
                self._expression(node.subject, scope, env)
                after = dict(env)
                for match_case in node.cases:
                    start = self._later([match_case.pattern], env, scope)
                    if match_case.guard:
                        self._expression(match_case.guard, scope, start)
                    after = _merge(after, self._block(match_case.body, scope, start))
                return after
        if hasattr(ast, "TryStar") and isinstance(node, ast.TryStar):
            return self._try(node, scope, env)
        for child in children(node):
            self._expression(child, scope, env)
        self._assign(self._statement_bindings(node, scope), env, scope)
        return None if isinstance(node, ast.Return | ast.Raise | ast.Continue | ast.Break) else env

    def _try(self, node: ast.Try, scope: Scope, env: Env) -> Env | None:
        partial = self._later(node.body, env, scope)
        after = self._block(node.body, scope, dict(env))
        if node.orelse:
            after = self._block(node.orelse, scope, after)
        for handler in node.handlers:
            start = dict(partial)
            if handler.type:
                self._expression(handler.type, scope, start)
            self._assign(self._statement_bindings(handler, scope), start, scope)
            after = _merge(after, self._block(handler.body, scope, start))
        return self._block(node.finalbody, scope, after)

    def _function(self, node: Function, scope: Scope) -> None:
        inner = self.scopes[node] = Scope(node, scope)
        env: Env = {}
        a = node.args
        for argument in [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]:
            self._assign([self._bind(inner, argument.arg, "parameter", argument)], env, inner)
        if isinstance(node, ast.Lambda):
            self._expression(node.body, inner, env)
        else:
            self._declare(node.body, inner)
            self.at_end[node] = self._block(node.body, inner, env) or {}

    def _expression(self, node: ast.AST, scope: Scope, env: Env) -> None:
        match node:
            case ast.Name():
                self._scope_of_name[node] = scope
                if isinstance(node.ctx, ast.Load) and node.id in env:
                    self._local[node] = env[node.id]
                    if scope.parent is None and any(b.kind in ("def", "class") for b in env[node.id]):
                        self._mentioned_with.setdefault(node.id, []).append(dict(env))
            case ast.Lambda():
                for part in _defaults(node.args):
                    self._expression(part, scope, env)
                self._function(node, scope)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                inner = dict(env)  # evaluated on the spot: its loop variables shadow, everything else is seen as here
                for generator in node.generators:
                    self._expression(generator.iter, scope, inner)
                    for binding in self._targets(generator.target, generator.iter, "loop", scope):
                        inner[binding.name] = (binding,)
                    for condition in generator.ifs:
                        self._expression(condition, scope, inner)
                parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
                for part in parts:
                    self._expression(part, scope, inner)
            case ast.NamedExpr():
                self._expression(node.value, scope, env)
                self._assign(self._statement_bindings(node, scope), env, scope)
            case _:
                for child in children(node):
                    self._expression(child, scope, env)


def _same_scope(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All nodes of a block, not entering the bodies of functions and classes."""
    todo = list(body)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            todo.extend(children(node))


def _defaults(arguments: ast.arguments) -> list[ast.expr]:
    return [*arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)]


def holds(test: ast.expr) -> bool:
    """`if True:`, which keeps what sorts imports away from them."""
    return isinstance(test, ast.Constant) and bool(test.value)


def _type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _union(a: tuple[Binding, ...], b: tuple[Binding, ...]) -> tuple[Binding, ...]:
    return a + tuple(x for x in b if x not in a)


def _merge(a: Env | None, b: Env | None) -> Env | None:
    if a is None or b is None:
        return b if a is None else a
    merged = dict(a)
    for name, bindings in b.items():
        merged[name] = _union(merged.get(name, ()), bindings)
    return merged


def is_main_guard(node: ast.AST) -> bool:
    """`if __name__ == "__main__":`"""
    if not isinstance(node, ast.If):
        return False
    test = list(ast.walk(node.test))
    return any(isinstance(n, ast.Name) and n.id == "__name__" for n in test) and not any(
        isinstance(n, ast.NotEq | ast.Not) for n in test
    )
