"""The read-only facts about one script that codemods ask for, and the project of files around it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from . import catalog
from .files import shown
from .scopes import FUNCTIONS, Binding, Names, is_main_guard
from .source import Source, SourceError, children, parse, read
from .target import Target
from .values import Evaluator, Value, Values, apart_from_loops

if TYPE_CHECKING:
    from .engine import Options

Node = TypeVar("Node", bound=ast.AST)

_IGNORE = re.compile(r"#\s*tfboost:\s*ignore(?:\[([^\]]*)\])?", re.IGNORECASE)


#: Positions and keys in the containers around a value that is followed.
Way: TypeAlias = tuple[object, ...]


@dataclass
class Arguments:
    """A call's arguments by parameter name. `open`: a splat that cannot be followed may hold any other name."""

    given: dict[str, ast.expr]
    keywords: dict[str, ast.keyword]
    open: bool = False

    def get(self, name: str) -> ast.expr | None:
        return self.given.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self.given

    def may_have(self, name: str) -> bool:
        return self.open or name in self.given


@dataclass(frozen=True, eq=False)
class Site:
    """A call of a model's method: `model.fit(...)`."""

    script: Script
    call: ast.Call
    method: str
    models: Values
    arguments: Arguments


@dataclass
class Project:
    """The scripts that are analysed together: those given, and the files beside them that they import (read-only)."""

    target_of: Callable[[Source], Target]
    options: Options
    scripts: dict[Path, Script] = field(default_factory=dict)
    editable: set[Path] = field(default_factory=set)
    facts: dict[str, object] = field(default_factory=dict)  # what was found out about all of it, by question
    _broken: set[Path] = field(default_factory=set)
    _resolved: dict[tuple[Path, str], tuple[Script, str] | None] = field(default_factory=dict)
    _callers: dict[ast.AST, list[tuple[Script, ast.Call, int]]] = field(default_factory=dict)

    def add(self, source: Source) -> Script:
        path = source.path
        if path not in self.scripts:
            self.scripts[path] = Script(source, self)
        return self.scripts[path]

    def owner(self, node: ast.AST) -> Script:
        """The script that a node stands in."""
        for script in self.scripts.values():
            if node in script.names.parents or node is script.tree:
                return script
        raise LookupError("node of no script")

    def module(self, folders: Iterable[Path], name: str, importer: Path) -> Script | None:
        """The script that a module name means in one of these folders, or None: nothing is executed."""
        for folder in dict.fromkeys(folders):
            stem = folder.joinpath(*name.split(".")) if name else folder
            for candidate in (stem.with_suffix(".py"), stem / "__init__.py") if name else (stem / "__init__.py",):
                if candidate == importer or candidate in self._broken:
                    continue
                if candidate not in self.scripts and candidate.is_file():
                    try:
                        self.add(parse(read(candidate), candidate))
                    except SourceError:
                        self._broken.add(candidate)
                if candidate in self.scripts:
                    return self.scripts[candidate]
        return None

    def resolve(self, script: Script, name: str) -> tuple[Script, str] | None:
        """Script and attribute for an imported dotted name; attribute "" for the module itself."""
        if name.split(".")[0] in ("tensorflow", "keras", "numpy", "horovod"):
            return None
        key = (script.path, name)
        if key not in self._resolved:
            self._resolved[key] = self._resolve(script, name)
        return self._resolved[key]

    def _resolve(self, script: Script, name: str) -> tuple[Script, str] | None:
        level = len(name) - len(name.lstrip("."))
        folder = script.path.parent
        if level:
            for _ in range(level - 1):
                folder = folder.parent
            folders = [folder]
        else:
            folders = [*_roots(folder, name.split(".")[0]), *(path.parent for path in self.editable)]
        name = name.lstrip(".")
        if found := self.module(folders, name, script.path):
            return found, ""
        parent, _, attribute = name.rpartition(".")
        if (parent or level) and (found := self.module(folders, parent, script.path)):
            return found, attribute
        return None

    def calls_of(self, function: ast.FunctionDef, script: Script) -> list[tuple[Script, ast.Call, int]]:
        """Every call of a function, and how many parameters the receiver fills; [] when a call may be unseen."""
        if function in self._callers:
            return self._callers[function]
        self._callers[function] = []  # while looking: recursion sees no callers
        found: list[tuple[Script, ast.Call, int]] = []
        owner = script.names.parents.get(function)
        if isinstance(owner, ast.ClassDef) and function.name == "__init__":
            self._callers[function] = self._constructions(owner)
            return self._callers[function]
        method = isinstance(owner, ast.ClassDef)
        escaped = False
        for other in list(self.scripts.values()):
            for name in [m for alias in other.aliases(function.name) for m in other.mentions(alias)]:
                parent = other.names.parents.get(name)
                values = other.values(name)
                if not any(v.node is function for v in values):
                    continue
                if isinstance(parent, ast.Call) and parent.func is name:
                    bound = method and isinstance(name, ast.Attribute) and any(v.kind == "method" for v in values)
                    found.append((other, parent, int(bound)))
                elif not isinstance(parent, ast.ImportFrom | ast.alias):
                    escaped = True
        if method and function.name in ("call", "__call__", "build"):
            escaped = True
        self._callers[function] = [] if escaped else found
        return self._callers[function]

    def _constructions(self, cls: ast.ClassDef) -> list[tuple[Script, ast.Call, int]]:
        """Every call of a class; [] when one may be unseen, as where another class derives from it."""
        found: list[tuple[Script, ast.Call, int]] = []
        for other in list(self.scripts.values()):
            for name in other.mentions(cls.name):
                if not any(v.kind == "class" and v.node is cls for v in other.values(name)):
                    continue
                parent = other.names.parents.get(name)
                if isinstance(parent, ast.Call) and parent.func is name:
                    found.append((other, parent, 1))
                elif not (
                    isinstance(parent, ast.Call) and other.symbol(parent.func) == "builtins.super"
                ) and not isinstance(parent, ast.ImportFrom | ast.alias):
                    return []
        return found


def _roots(folder: Path, package: str) -> Iterator[Path]:
    """Where a file of this folder may find a package: beside itself, or where `python -m` is run that knows it."""
    for place in (folder, *folder.parents):
        yield place
        if not (
            package in place.parts or (place / "__init__.py").is_file() or (place.parent / package).is_dir()
        ):  # what lies above is another project
            return


class Script:
    """One file: its tree, what its names mean, and what its values are. Codemods read it and change nothing."""

    def __init__(self, source: Source, project: Project) -> None:
        self.source, self.project, self.path, self.tree = source, project, source.path, source.tree
        self.names = Names(source.tree, source.parents)
        self.parents = self.names.parents
        self._evaluate = Evaluator(self)
        self._splatting: set[ast.AST | None] = set()
        self._mentions: dict[str, list[ast.expr]] = {}
        self._attributes: dict[ast.ClassDef, dict[str, list[tuple[Script, ast.expr]]]] = {}
        self._sites: dict[tuple[str, ...], list[Site]] = {}
        self._by_type: dict[type[ast.AST], list[ast.AST]] = {}
        for node in self.parents:
            self._by_type.setdefault(type(node), []).append(node)
        for name in self.all(ast.Name):
            if isinstance(name.ctx, ast.Load):
                self._mentions.setdefault(name.id, []).append(name)
        for attribute in self.all(ast.Attribute):
            if isinstance(attribute.ctx, ast.Load):
                self._mentions.setdefault(attribute.attr, []).append(attribute)
        self.calls: list[ast.Call] = list(self.all(ast.Call))
        self.calls.sort(key=lambda c: (c.end_lineno or 0, c.end_col_offset or 0))

    def all(self, kind: type[Node]) -> list[Node]:
        """Every node of exactly this type; what asks for one kind need not walk the tree."""
        return self._by_type.get(kind, [])  # type: ignore[return-value]

    @cached_property
    def target(self) -> Target:
        return self.project.target_of(self.source)

    @property
    def options(self) -> Options:
        return self.project.options

    @property
    def autotune(self) -> str:
        """`tf.data.AUTOTUNE` is there from TensorFlow 2.4 on; before, and where the version is open, its old name."""
        return "tensorflow.data.AUTOTUNE" if self.target.since(2, 4) else "tensorflow.data.experimental.AUTOTUNE"

    # -- text ----------------------------------------------------------------------------------------------------

    def position(self, node: ast.AST) -> tuple[int, int]:
        """Line and column, both from 1, the column in characters."""
        line = getattr(node, "lineno", 1)
        return line, self.source.column(line, getattr(node, "col_offset", 0)) + 1

    def at(self, node: ast.AST) -> str:
        """`model.py:12`, for a reason: the engine says `line 12` for it where the report is on the same file."""
        return f"{self._shown}:{getattr(node, 'lineno', 1)}"

    @cached_property
    def _shown(self) -> str:
        return shown(self.path)

    def text(self, node: ast.expr, most: int = 60) -> str:
        """An expression as it is written, for a message: in one line and not too long."""
        written = " ".join(self.source.snippet(node).split())
        return written if len(written) <= most else f"{written[: most - 1].rstrip()}…"

    @cached_property
    def ignored(self) -> dict[int, frozenset[str] | None]:
        """Line → names of the `# tfboost: ignore[...]` comment that stands there, None for all."""
        found: dict[int, frozenset[str] | None] = {}
        if "tfboost:" not in self.source.text.lower():
            return found
        tokens = tokenize.generate_tokens(io.StringIO(self.source.text, newline="").readline)
        try:
            for token in tokens:
                if token.type == tokenize.COMMENT and (m := _IGNORE.search(token.string)):
                    names = None if m[1] is None else frozenset(n.strip() for n in m[1].split(",") if n.strip())
                    found[token.start[0]] = names
        except (tokenize.TokenError, IndentationError):
            pass  # the file parsed; whatever the tokenizer dislikes comes after the last comment that matters
        return found

    # -- what expressions are ------------------------------------------------------------------------------------

    def values(self, node: ast.AST | None) -> Values:
        """Every alternative of what an expression of this script may be; never empty for an expression."""
        return self._evaluate(node)

    def value(self, node: ast.AST | None) -> Value | None:
        """The one thing that an expression is, if there is only one."""
        found = [v for v in self.values(node) if not (v.kind == "constant" and v.literal is None)]
        return found[0] if len(found) == 1 else None

    def symbol(self, node: ast.AST | None) -> str:
        """Canonical dotted name of the library object that an expression is, "" where that is not certain."""
        names = {
            v.name if v.kind == "symbol" else ""
            for v in self.values(node)
            if not (v.kind == "constant" and v.literal is None)
        }
        return names.pop() if len(names) == 1 else ""

    def called(self, call: ast.Call) -> str:
        """Canonical dotted name of what is called."""
        return self.symbol(call.func)

    def constant(self, node: ast.AST | None) -> object:
        """The value of a constant expression; None also for what is not constant."""
        found = self.values(node)
        return found[0].literal if len(found) == 1 and found[0].kind == "constant" else None

    def is_none(self, node: ast.expr) -> bool:
        """Whether an expression is certainly None."""
        found = self.values(node)
        return bool(found) and all(v.kind == "constant" and v.literal is None for v in found)

    def number(self, node: ast.AST | None) -> int | float | None:
        value = self.constant(node)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def integer(self, node: ast.AST | None) -> int | None:
        value = self.number(node)
        return value if isinstance(value, int) else None

    def mentions(self, name: str) -> list[ast.expr]:
        """Loads of a bare name or of an attribute of this name."""
        return self._mentions.get(name, [])

    def is_free(self, name: str) -> bool:
        """Whether nothing in this file is called so: no variable in any scope, and no attribute that is read."""
        return not self.mentions(name) and all(name not in s.bindings for s in self.names.scopes.values())

    def free_name(self, *wanted: str) -> str:
        """The first of these names that is free, or the first one with a number."""
        numbered = (f"{wanted[0]}_{number}" for number in count(2))
        return next(name for name in chain(wanted, numbered) if self.is_free(name))

    def behind(self, *nodes: ast.AST) -> Iterator[ast.AST]:
        """Every node that expressions are made of, also through names: what was assigned to those in this file."""
        todo, seen = list(nodes), set[ast.AST]()
        while todo:
            node = todo.pop()
            if node in seen:
                continue
            seen.add(node)
            for inner in ast.walk(node):
                yield inner
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load):
                    todo += [b.value for b in self.names.reaching(inner) if b.value is not None]

    def aliases(self, name: str) -> list[str]:
        """A name, and the names that `from x import name as other` gives it in this file."""
        found = [
            b.name
            for scope in self.names.scopes.values()
            for bound in scope.bindings.values()
            for b in bound
            if b.kind == "import" and b.name != name and b.symbol.endswith(f".{name}")
        ]
        return [name, *dict.fromkeys(found)]

    # -- calls and their arguments -------------------------------------------------------------------------------

    def bind(self, call: ast.Call, signature: tuple[str, ...] | str = ()) -> Arguments:
        """Arguments by name; `signature` is the positional parameters' names or a key of `catalog.SIGNATURES`."""
        names = catalog.SIGNATURES.get(signature, ()) if isinstance(signature, str) else signature
        arguments = Arguments({}, {})
        for index, argument in enumerate(call.args):
            if isinstance(argument, ast.Starred):
                arguments.open = True
                break
            if index < len(names):
                arguments.given[names[index]] = argument
        for keyword in call.keywords:
            if keyword.arg is None:
                splat = self._splat(keyword.value)
                if splat is None:
                    arguments.open = True
                else:
                    arguments.given.update(splat)
            else:
                name = catalog.KEYWORD_SYNONYMS.get(keyword.arg, keyword.arg)
                arguments.given[name] = keyword.value
                arguments.keywords[name] = keyword
        return arguments

    def argument(self, call: ast.Call, name: str) -> ast.expr | None:
        return next((k.value for k in call.keywords if k.arg == name), None)

    def _splat(self, node: ast.expr) -> dict[str, ast.expr] | None:
        """Keys and values of a dict that is written out and never changed."""
        value = self.value(node)
        if value is None or value.script is not self or value.node in self._splatting:
            return None
        self._splatting.add(value.node)
        try:
            return self._written_out(value)
        finally:
            self._splatting.discard(value.node)

    def _written_out(self, value: Value) -> dict[str, ast.expr] | None:
        for alias_script, alias in self.flow(value.node) if isinstance(value.node, ast.expr) else ():
            parent = alias_script.parents.get(alias)
            if isinstance(parent, ast.Attribute) or (
                isinstance(parent, ast.Subscript) and not isinstance(parent.ctx, ast.Load)
            ):
                return None
        if isinstance(value.node, ast.Dict):
            if all(isinstance(k, ast.Constant) and isinstance(k.value, str) for k in value.node.keys):
                return {k.value: v for k, v in zip(value.node.keys, value.node.values, strict=True)}  # type: ignore
        elif isinstance(value.node, ast.Call) and value.name == "builtins.dict" and not value.node.args:
            given = {k.arg: k.value for k in value.node.keywords if k.arg}
            return given if len(given) == len(value.node.keywords) else None
        return None

    def calls_to(self, *names: str) -> Iterator[ast.Call]:
        """Calls of the library objects with these canonical names; a Keras path (`layers.Dense`) fits every Keras."""
        found = {call: None for name in names for call in self._called.get(name, ())}
        return iter(sorted(found, key=lambda c: (c.end_lineno or 0, c.end_col_offset or 0)))

    def calls_into(self, *modules: str) -> Iterator[ast.Call]:
        """Calls of library objects whose canonical name lies in one of these modules or classes."""
        for name, calls in self._called.items():
            if any(catalog.in_module(name, module) for module in modules):
                yield from calls

    @cached_property
    def _called(self) -> dict[str, list[ast.Call]]:
        """Calls by canonical name of what is called, and by Keras path."""
        found: dict[str, list[ast.Call]] = {}
        for call in self.calls:
            if name := self.called(call):
                found.setdefault(name, []).append(call)
                if path := catalog.keras_path(name):
                    found.setdefault(path, []).append(call)
        return found

    def dataset_calls(self, method: str) -> Iterator[ast.Call]:
        """`ds.method(...)` where `ds` is certainly a `tf.data.Dataset`."""
        for call in self.calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr == method and self.is_dataset(call.func.value):
                yield call

    def is_dataset(self, node: ast.expr | None) -> bool:
        values = apart_from_loops(self.values(node))
        return bool(values) and all(v.kind == "dataset" for v in values)

    def sites(self, *methods: str) -> list[Site]:
        """Calls of these methods on Keras models, in source order; on receivers that cannot be followed as well."""
        if methods in self._sites:
            return self._sites[methods]
        found = []
        for call in self.calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr in methods:
                models = self.values(call.func.value)
                if any(v.kind in ("model", "unknown", "parameter") for v in models):
                    arguments = self.bind(call, f"Model.{call.func.attr}")
                    found.append(Site(self, call, call.func.attr, models, arguments))
        self._sites[methods] = found
        return found

    # -- where nodes stand ---------------------------------------------------------------------------------------

    def statement(self, node: ast.AST) -> ast.stmt:
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def and_callers(self, node: ast.AST) -> Iterator[tuple[Script, ast.AST]]:
        """A node, the calls of the function around it, those of the functions around these, and so on."""
        todo: list[tuple[Script, ast.AST]] = [(self, node)]
        seen: set[ast.AST] = set()
        while todo:
            owner, current = todo.pop()
            if current in seen:
                continue
            seen.add(current)
            yield owner, current
            if isinstance(function := owner.function_of(current), ast.FunctionDef):
                todo += [(other, call) for other, call, _ in self.project.calls_of(function, owner)]

    def blank_lines_above(self, statement: ast.stmt) -> int:
        """The blank lines above a statement, its decorators and the comments that belong to it."""
        lines = self.source.lines
        at = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))]) - 2
        while at >= 0 and lines[at].lstrip().startswith("#"):
            at -= 1
        count = 0
        while at >= 0 and not lines[at].strip():
            count, at = count + 1, at - 1
        return count

    def enclosing(self, node: ast.AST, *types: type[ast.AST]) -> Iterator[ast.AST]:
        """The nodes of these types around a node, innermost first."""
        current = self.parents.get(node)
        while current is not None:
            if isinstance(current, types):
                yield current
            current = self.parents.get(current)

    def function_of(self, node: ast.AST) -> ast.AST | None:
        return next(self.enclosing(node, *FUNCTIONS), None)

    # -- functions and classes -----------------------------------------------------------------------------------

    def returns(self, function: ast.AST) -> list[ast.expr]:
        return self._returned.get(function, [])

    @cached_property
    def _returned(self) -> dict[ast.AST | None, list[ast.expr]]:
        found: dict[ast.AST | None, list[ast.expr]] = {}
        for node in sorted(self.all(ast.Return), key=lambda n: (n.lineno, n.col_offset)):
            if node.value is not None:
                found.setdefault(self.function_of(node), []).append(node.value)
        return found

    def is_generator(self, function: ast.AST) -> bool:
        return function in self._generators

    @cached_property
    def _generators(self) -> set[ast.AST | None]:
        return {self.function_of(n) for n in [*self.all(ast.Yield), *self.all(ast.YieldFrom)]}

    def bases(self, node: ast.ClassDef) -> list[Value]:
        return [v for base in node.bases for v in self.values(base)]

    def ancestry(self, node: ast.ClassDef) -> list[tuple[Script, ast.ClassDef]]:
        """The class and its bases among the project's own classes."""
        found: list[tuple[Script, ast.ClassDef]] = [(self, node)]
        for script, cls in found:
            for base in script.bases(cls):
                if (
                    base.kind == "class"
                    and base.script
                    and isinstance(base.node, ast.ClassDef)
                    and all(base.node is not c for _, c in found)
                ):
                    found.append((base.script, base.node))
        return found

    def kind_of_class(self, node: ast.ClassDef) -> str:
        """What an instance is: "layer", "model", "loader", "callback", "optimizer", "schedule" or "object"."""
        kinds = {
            "layers.Layer": "layer",
            "models.Model": "model",
            "models.Sequential": "model",
            "utils.Sequence": "loader",
            "utils.PyDataset": "loader",
            "callbacks.Callback": "callback",
            "optimizers.Optimizer": "optimizer",
            "optimizers.legacy.Optimizer": "optimizer",
            "optimizers.schedules.LearningRateSchedule": "schedule",
        }
        for script, cls in self.ancestry(node):
            for base in script.bases(cls):
                if base.keras in kinds:
                    return kinds[base.keras]
                if (kind := catalog.kind_of_call(base.name)) and base.kind == "symbol":
                    return kind
                if base.kind == "unknown":
                    return "unknown"
        return "object"

    def library_bases(self, node: ast.ClassDef) -> set[str]:
        """Canonical names of the library classes that a class derives from, directly or through the script's own."""
        return {b.name for s, c in self.ancestry(node) for b in s.bases(c) if b.kind == "symbol"}

    def method(self, node: ast.ClassDef, name: str) -> tuple[Script, ast.FunctionDef] | None:
        for script, cls in self.ancestry(node):
            for statement in cls.body:
                if isinstance(statement, ast.FunctionDef) and statement.name == name:
                    return script, statement
        return None

    def methods(self, node: ast.ClassDef) -> dict[str, tuple[Script, ast.FunctionDef]]:
        found: dict[str, tuple[Script, ast.FunctionDef]] = {}
        for script, cls in self.ancestry(node):
            for statement in cls.body:
                if isinstance(statement, ast.FunctionDef):
                    found.setdefault(statement.name, (script, statement))
        return found

    def assigned_attributes(self, node: ast.ClassDef) -> dict[str, list[tuple[Script, ast.expr]]]:
        """`self.name = value` in any method, and `name = value` in the class body."""
        if node in self._attributes:
            return self._attributes[node]
        found: dict[str, list[tuple[Script, ast.expr]]] = {}
        self._attributes[node] = found
        for script, cls in self.ancestry(node):
            for statement in ast.walk(cls):
                pairs: list[tuple[ast.expr, ast.expr]] = []
                if isinstance(statement, ast.Assign):
                    pairs = [(target, statement.value) for target in statement.targets]
                elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
                    pairs = [(statement.target, statement.value)]
                for target, value in pairs:
                    if (
                        isinstance(target, ast.Tuple)
                        and isinstance(value, ast.Tuple)
                        and len(target.elts) == len(value.elts)
                    ):
                        pairs.extend(zip(target.elts, value.elts, strict=True))
                    elif (
                        isinstance(target, ast.Attribute)
                        and isinstance(target.value, ast.Name)
                        and target.value.id == "self"
                    ):
                        found.setdefault(target.attr, []).append((script, value))
                    elif isinstance(target, ast.Name) and any(
                        b.node is target for b in script.names.at_end[cls].get(target.id, ())
                    ):
                        found.setdefault(target.id, []).append((script, value))
        return found

    def sets_attribute(self, name: str) -> bool:
        """Whether this file may set an attribute in another way than `self.name = value` and a class body do."""
        return name in self._sets or "" in self._sets

    @cached_property
    def _sets(self) -> set[str]:
        found = set()
        for target in self.all(ast.Attribute):
            own = isinstance(target.value, ast.Name) and target.value.id == "self"
            plain = own and isinstance(self.parents[target], ast.Assign | ast.AnnAssign)
            if not isinstance(target.ctx, ast.Load) and not plain:
                found.add(target.attr)
        for call in self.calls:
            match call:
                case ast.Call(func=ast.Name(id="setattr"), args=[_, ast.Constant(value=str(name)), *_]):
                    found.add(name)
                case ast.Call(func=ast.Name(id="setattr")):
                    found.add("")  # any
        return found

    # -- modules -------------------------------------------------------------------------------------------------

    def exported(self, name: str) -> Values:
        """What `from this_file import name` gives."""
        bindings = self.names.at_end[self.tree].get(name) or tuple(self.names.module.bindings.get(name, ()))
        if len(bindings) > 1:
            bindings = tuple(b for b in bindings if not self.is_program_only(b.node)) or bindings
        return tuple(v for b in bindings for v in self._evaluate.binding(b))

    def is_program_only(self, node: ast.AST) -> bool:
        """Does it stand where nothing runs if this file is imported: under its main guard?"""
        inner = node
        while (around := self.parents.get(inner)) is not None:
            if isinstance(around, ast.If) and any(inner is s for s in around.body) and is_main_guard(around):
                return True
            inner = around
        return False

    @cached_property
    def opaque_star(self) -> bool:
        """A star import from somewhere that cannot be looked into: it may bind any name."""
        return any(
            not catalog.in_module(catalog.canonical(b.symbol), "tensorflow")
            and not catalog.keras_path(b.symbol + ".x")
            and b.symbol not in ("numpy", "math", "typing")
            and self.project.resolve(self, b.symbol) is None
            for b in self.names.stars
        )

    def from_star(self, name: str) -> str:
        """Dotted name of what a star import from TensorFlow, Keras or a file beside the script binds to a name."""
        for star in reversed(self.names.stars):
            found = self.project.resolve(self, star.symbol)
            if found and not found[1]:
                if name in found[0].names.module.bindings:
                    return f"{star.symbol}.{name}"
                continue
            dotted = catalog.canonical(f"{star.symbol}.{name}")
            if star.symbol.endswith("layers") and name[:1].isupper() and name not in catalog.LAYERS | {"Input"}:
                continue
            if catalog.kind_of_call(dotted) and catalog.kind_of_call(dotted) != "array":
                return dotted
            if (
                catalog.canonical(star.symbol) in ("tensorflow", "keras", "tensorflow.keras")
                and name in catalog.STAR_NAMES
            ):
                return dotted
        return ""

    # -- where a value goes --------------------------------------------------------------------------------------

    def flow(self, node: ast.AST) -> list[tuple[Script, ast.expr]]:
        """Every expression that may be the value of `node`: the node, names bound to it, calls that return it.

        The parent of each tells what is done with the value. Containers are followed by position and constant key.
        """
        seen: dict[tuple[ast.AST, Way], Script] = {}
        todo: list[tuple[Script, ast.AST, Way]] = [(self, node, ())]
        while todo:
            script, expr, path = todo.pop()
            if (expr, path) in seen or len(seen) > 2000:
                continue
            seen[expr, path] = script
            todo.extend(script.successors(expr, path))
        return [(s, e) for (e, p), s in seen.items() if not p and isinstance(e, ast.expr)]

    def successors(self, expr: ast.AST, path: Way) -> Iterator[tuple[Script, ast.AST, Way]]:
        parent = self.parents.get(expr)
        match parent:
            case ast.Assign() | ast.AnnAssign() if parent.value is expr:
                for target in parent.targets if isinstance(parent, ast.Assign) else [parent.target]:
                    yield from self._assigned(target, path)
            case ast.NamedExpr() if parent.value is expr:
                yield from self._assigned(parent.target, path)
                yield self, parent, path
            case ast.withitem() if parent.optional_vars is not None:
                yield from self._assigned(parent.optional_vars, path)
            case ast.Return():
                function = self.function_of(parent)
                if isinstance(function, ast.FunctionDef):
                    for script, caller, _ in self.project.calls_of(function, self):
                        yield script, caller, path
            case ast.Tuple() | ast.List():
                yield self, parent, (parent.elts.index(expr), *path)  # type: ignore[arg-type]
            case ast.Dict() if expr in parent.values:
                key = parent.keys[parent.values.index(expr)]
                if isinstance(key, ast.Constant):
                    yield self, parent, (key.value, *path)
            case ast.IfExp() if expr is not parent.test:
                yield self, parent, path
            case ast.BoolOp():
                yield self, parent, path
            case ast.Subscript() if parent.value is expr and path and self.constant(parent.slice) == path[0]:
                yield self, parent, path[1:]
            case ast.For() if path and parent.iter is expr:
                yield from self._assigned(parent.target, path[1:])
            case ast.Call() if expr is not parent.func:
                yield from self._passed(parent, expr, path)
            case ast.keyword():
                call = self.parents[parent]
                if isinstance(call, ast.Call):
                    yield from self._passed(call, expr, path)

    def _assigned(self, target: ast.expr, path: Way) -> Iterator[tuple[Script, ast.AST, Way]]:
        if isinstance(target, ast.Name):
            scope = self.names.scope_of(target)
            owner = scope.elsewhere.get(target.id, scope)
            for binding in owner.bindings.get(target.id, ()):
                if binding.node is target:
                    for load in self.names.loads(binding):
                        yield self, load, path
                    if owner is self.names.module:
                        yield from self._imported(target.id, path)
                    elif isinstance(owner.node, ast.ClassDef):
                        yield from self._read_from(owner.node, target.id, path)
        elif (
            isinstance(target, ast.Tuple | ast.List)
            and path
            and isinstance(path[0], int)
            and path[0] < len(target.elts)
        ):
            yield from self._assigned(target.elts[path[0]], path[1:])
        elif isinstance(target, ast.Attribute):
            owners, text = self._classes_of(target.value), ast.dump(target.value)
            for other in list(self.project.scripts.values()):
                for mention in other.mentions(target.attr):
                    if not isinstance(mention, ast.Attribute):
                        continue
                    theirs = other._classes_of(mention.value)
                    if owners & theirs if owners and theirs else other is self and ast.dump(mention.value) == text:
                        yield other, mention, path

    def _read_from(self, cls: ast.ClassDef, name: str, path: Way) -> Iterator[tuple[Script, ast.AST, Way]]:
        """Where something that a class body gives a name is read from the class or from what is made of it."""
        for other in list(self.project.scripts.values()):
            for mention in other.mentions(name):
                if isinstance(mention, ast.Attribute) and cls in other._classes_of(mention.value):
                    yield other, mention, path

    def _classes_of(self, node: ast.expr) -> set[ast.AST]:
        """The project's classes that an expression is or may be an instance of, with their bases."""
        classes = [v if v.kind == "class" else v.cls for v in self.values(node)]
        return {
            c
            for cls in classes
            if cls and cls.script and isinstance(cls.node, ast.ClassDef)
            for _, c in cls.script.ancestry(cls.node)
        }

    def _imported(self, name: str, path: Way) -> Iterator[tuple[Script, ast.AST, Way]]:
        for other in list(self.project.scripts.values()):
            if other is self:
                continue
            for alias in other.aliases(name):
                for mention in other.mentions(alias):
                    owner = other.names.reaching(mention) if isinstance(mention, ast.Name) else ()
                    if any(
                        b.kind == "import" and self.project.resolve(other, b.symbol) == (self, name) for b in owner
                    ) or (
                        isinstance(mention, ast.Attribute)
                        and any(v.kind == "module" and v.script is self for v in other.values(mention.value))
                    ):
                        yield other, mention, path

    def _passed(self, call: ast.Call, expr: ast.AST, path: Way) -> Iterator[tuple[Script, ast.AST, Way]]:
        """Into the parameter of one of the project's own functions."""
        for callee in self.values(call.func):
            if callee.kind not in ("function", "method", "class") or callee.script is None:
                continue
            owner, function, bound_self = callee.script, callee.node, callee.kind == "method"
            if isinstance(function, ast.ClassDef) and (found := owner.method(function, "__init__")):
                (owner, function), bound_self = found, True
            if not isinstance(function, ast.FunctionDef):
                continue
            names = tuple(a.arg for a in [*function.args.posonlyargs, *function.args.args])
            bound = self.bind(call, names[1:] if bound_self else names)
            for name, given in bound.given.items():
                if given is expr:
                    for binding in owner.names.scopes[function].bindings.get(name, ()):
                        if binding.kind == "parameter":
                            for load in owner.names.loads(binding):
                                yield owner, load, path


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function's body, without those of functions and classes defined in it."""
    body = getattr(function, "body", [])
    todo: list[ast.AST] = list(body) if isinstance(body, list) else [body]
    todo.reverse()
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            todo.extend(reversed(children(node)))


def import_bindings(script: Script) -> list[Binding]:
    return [b for found in script.names.module.bindings.values() for b in found if b.kind == "import"]
