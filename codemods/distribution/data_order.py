"""Orders that differ from process to process, or from host to host: those of sets, and of files that are listed.

Strings hash differently in every process of Python, so that `list(set(words))` gives each rank other numbers for the
words; and every host lists the files of a folder as its file system has them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rewriter.catalog import keras_path
from rewriter.edits import Replace, Wrap
from rewriter.script import Script

from .conversion import Conversion

#: What gives the same for every order.
_ORDERLESS = frozenset("sorted len set frozenset max min sum any all bool isinstance type print".split())
_TAKES_IN_ORDER = frozenset("list tuple enumerate zip map iter reversed filter dict.fromkeys".split())
_SETS = frozenset({"builtins.set", "builtins.frozenset"})
_OF_SETS = frozenset("union intersection difference symmetric_difference copy".split())
_LISTS = frozenset(
    {"os.listdir", "glob.glob", "tensorflow.io.gfile.glob", "tensorflow.io.gfile.listdir", "tensorflow.gfile.Glob"}
)
_ITERATES = frozenset("glob rglob iterdir".split())


def settle(conversion: Conversion) -> None:
    """Sort what has another order on every rank, where the order matters."""
    for script in conversion.program.scripts:
        for node in _taken_in_order(script):
            if _is_set(script, node) and _in_order(script, node) and conversion.program.reach.contains(script, node):
                _sort(conversion, script, node)
    for script, call in conversion.program.calls():
        if _lists_files(script, call):
            _sort(conversion, script, call)
        elif _hashes(script, call):
            reason = f"`{script.text(call.func)}` gives strings other numbers in every process"
            conversion.refuse(script, call, reason, "use a hash that stays the same: `hashlib.md5`")


def _taken_in_order(script: Script) -> Iterator[ast.expr]:
    yield from (loop.iter for loop in script.all(ast.For))
    yield from (loop.iter for loop in script.all(ast.comprehension))
    for call in script.calls:
        yield from call.args


def _sort(conversion: Conversion, script: Script, node: ast.expr) -> None:
    if any("sorted" in s.bindings for s in script.names.scopes.values()):
        reason = f"`{script.text(node)}` has another order on every rank"
        conversion.refuse(script, node, reason, "sort it")
        return
    parent = script.parents.get(node)
    if isinstance(parent, ast.Call) and len(parent.args) == 1 and script.called(parent) == "builtins.list":
        conversion.add(Replace(parent.func, "sorted"))
    else:
        conversion.add(Wrap(node, "sorted(...)"))


def _is_set(script: Script, node: ast.expr) -> bool:
    """A set that may hold strings."""
    match node:
        case ast.SetComp():
            return True
        case ast.Set(elts=elements):
            return any(not (isinstance(e, ast.Constant) and isinstance(e.value, int)) for e in elements)
        case ast.Call(args=args) if script.called(node) in _SETS:
            numbers = any(isinstance(a, ast.Call) and script.called(a) == "builtins.range" for a in args)
            return bool(args) and not numbers
        case ast.Call(func=ast.Attribute(value=receiver, attr=attr)) if attr in _OF_SETS:
            return _is_set(script, receiver)
        case ast.BinOp(left=left, op=ast.Sub() | ast.BitOr() | ast.BitAnd() | ast.BitXor(), right=right):
            return _is_set(script, left) and _is_set(script, right)
        case ast.Name(ctx=ast.Load()):
            bindings = script.names.reaching(node)
            return bool(bindings) and all(
                b.kind == "assign" and not b.path and b.value is not None and not isinstance(b.value, ast.Name)
                and _is_set(script, b.value)
                for b in bindings
            )  # fmt: skip
    return False


def _in_order(script: Script, node: ast.expr) -> bool:
    """Whether elements are taken one after another, and what becomes of them may depend on that."""
    parent = script.parents.get(node)
    match parent:
        case ast.For(iter=source):
            return source is node
        case ast.comprehension(iter=source) if source is node:
            made = script.parents[parent]
            around = script.parents.get(made)
            if isinstance(made, ast.SetComp):
                return False
            return not (isinstance(around, ast.Call) and made in around.args and _last(script, around) in _ORDERLESS)
        case ast.Call() if node in parent.args:
            if _last(script, parent) in _TAKES_IN_ORDER:
                grand = script.parents.get(parent)
                return not (isinstance(grand, ast.Call) and _last(script, grand) in _ORDERLESS)
            return script.called(parent) in ("numpy.array", "numpy.fromiter")
    return False


def _last(script: Script, call: ast.Call) -> str:
    name = script.called(call)
    return name.removeprefix("builtins.") if name.startswith("builtins.") else ""


def _hashes(script: Script, call: ast.Call) -> bool:
    """`hash(word)`, also in functions of Keras that number words by it."""
    name = script.called(call)
    if name == "builtins.hash":
        function = script.function_of(call)
        return getattr(function, "name", "") != "__hash__"
    if keras_path(name) not in ("preprocessing.text.one_hot", "preprocessing.text.hashing_trick"):
        return False
    return script.constant(script.argument(call, "hash_function")) != "md5"


def _lists_files(script: Script, call: ast.Call) -> bool:
    """Whether files are listed in the order of the file system, and that is kept."""
    parent = script.parents.get(call)
    if script.called(call) in _LISTS:
        if isinstance(parent, ast.Call) and call in parent.args and _last(script, parent) in _ORDERLESS:
            return False
        if isinstance(parent, ast.Compare | ast.UnaryOp | ast.Expr) or (
            isinstance(parent, ast.If) and parent.test is call
        ):
            return False
        if isinstance(parent, ast.comprehension) and not _in_order(script, call):
            return False
        return not (isinstance(parent, ast.Assign) and _sorted_later(script, parent))
    paths = isinstance(call.func, ast.Attribute) and call.func.attr in _ITERATES and not script.called(call)
    return paths and _in_order(script, call) and not _is_counted(script, call)


def _is_counted(script: Script, call: ast.Call) -> bool:
    """`len(list(folder.glob("*")))`."""
    parent = script.parents.get(call)
    around = script.parents.get(parent) if parent is not None else None
    return isinstance(around, ast.Call) and _last(script, around) in _ORDERLESS


def _sorted_later(script: Script, statement: ast.Assign) -> bool:
    """Whether what is listed is sorted or only counted afterwards."""
    target = statement.targets[0]
    if not isinstance(target, ast.Name):
        return False
    bindings = [b for b in script.names.scope_of(target).bindings.get(target.id, ()) if b.node is target]
    loads = [load for b in bindings for load in script.names.loads(b)]
    uses = [(load, script.parents.get(load)) for load in loads]
    if any(isinstance(p, ast.Attribute) and p.attr == "sort" for _, p in uses):
        return True
    return bool(uses) and all(
        isinstance(p, ast.Call) and load in p.args and _last(script, p) in _ORDERLESS for load, p in uses
    )
