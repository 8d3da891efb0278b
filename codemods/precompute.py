"""`precompute`: prepare the rows of an array once, not again in every epoch."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass

from rewriter.codemod import Finding, Fix, Refusal, codemod
from rewriter.edits import Delete, Edit, Insert, Replace
from rewriter.graphs.dataflow import LOOPS, is_project
from rewriter.graphs.sessions import placeholder_of
from rewriter.loops.changes import global_stores
from rewriter.scopes import FUNCTIONS, Binding, Scope
from rewriter.script import Script
from rewriter.values import Value, is_drawing

TRY = "`tfboost tune` measures time and memory; `--select precompute` applies it"


@codemod(level=1, phase="input")
def precompute(script: Script) -> Iterator[Finding]:
    """Prepare the rows of an array once, in front of a loop that prepares them again in every epoch.

    Why: `np.array([standardize(images[i]) for i in picked])` runs Python code for every row of every batch, and gives
    the same rows in every epoch. Prepared once, a batch is put together from the very same rows.

    All prepared rows are kept in memory, how much that takes is not known: it is applied where it is asked for by
    `--select precompute`; `tune` does so, and measures.

    Not applied: the rows are not those of one NumPy array, or the array may change while the loop runs; what prepares
    a row draws random numbers (augmentation is to differ from epoch to epoch), reads files, prints, changes its
    argument or calls anything but functions of NumPy's that are known; rows are chosen by something else than their
    numbers; the loop is known to turn once.

    Before:
        import numpy as np
        import tensorflow as tf

        images, labels = np.random.rand(6000, 784), np.random.rand(6000)
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")

        def standardize(image):
            return (image - image.mean()) / image.std()

        for epoch in range(20):
            order = np.random.permutation(len(images))
            for start in range(0, len(images), 32):
                picked = order[start : start + 32]
                batch = np.stack([standardize(images[i]) for i in picked])
                model.train_on_batch(batch, labels[picked])
    After:
        import numpy as np
        import tensorflow as tf

        images, labels = np.random.rand(6000, 784), np.random.rand(6000)
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")

        def standardize(image):
            return (image - image.mean()) / image.std()

        prepared = [standardize(image) for image in images]
        for epoch in range(20):
            order = np.random.permutation(len(images))
            for start in range(0, len(images), 32):
                picked = order[start : start + 32]
                batch = np.stack([prepared[i] for i in picked])
                model.train_on_batch(batch, labels[picked])
    """
    taken: dict[str, tuple[str, ast.AST]] = {}
    for call in script.calls_to(*_JOINS, "numpy.array", "numpy.asarray"):
        if (rows := _rows(script, call)) is None:
            continue
        site = _Site(script, rows)
        if site.turns_once():
            continue
        try:
            yield site.fix(taken)
        except _No as no:
            where = "" if no.script is script and no.node is call else f" ({no.script.at(no.node)})"
            yield Refusal(call, no.reason + where)


class _No(Exception):
    """Why the rows cannot be prepared ahead, and the place that tells."""

    def __init__(self, reason: str, script: Script, node: ast.AST) -> None:
        super().__init__(reason)
        self.reason, self.script, self.node = reason, script, node


# -- the pattern -----------------------------------------------------------------------------------------------------

#: What copies the rows that it is given, whatever they are; `np.array` keeps rows of different lengths as they are.
_JOINS = tuple(f"numpy.{n}" for n in ("stack", "concatenate", "vstack", "hstack", "dstack", "column_stack"))


@dataclass(frozen=True, eq=False)
class _Rows:
    """`np.array([element for target in ...])` over rows of `array`, of which `index` chooses those of a batch."""

    call: ast.Call
    made: ast.ListComp
    target: ast.Name
    array: ast.expr
    index: ast.expr
    taken: tuple[ast.Subscript, ...] = ()  # `images[i]`, where the loop goes over the numbers of the rows
    batch: ast.stmt | None = None  # the statement right above that gives the chosen rows a name


def _rows(script: Script, call: ast.Call) -> _Rows | None:
    match call.args[:1]:
        case [ast.ListComp(generators=[ast.comprehension(target=ast.Name() as target, ifs=[], is_async=0)]) as made]:
            source = made.generators[0].iter
        case _:
            return None
    if not any(isinstance(n, ast.Call | ast.BinOp | ast.UnaryOp | ast.Compare) for n in ast.walk(made.elt)):
        return None  # rows that are only put together
    parents = [script.parents[n] for n in ast.walk(made.elt) if isinstance(n, ast.Name) and n.id == target.id]
    taken = tuple(
        p for p in parents if isinstance(p, ast.Subscript) and isinstance(p.slice, ast.Name) and p.slice.id == target.id
    )
    if taken and len(taken) == len(parents):
        return _Rows(call, made, target, taken[0].value, source, taken)
    if isinstance(source, ast.Subscript) and parents:
        return _Rows(call, made, target, source.value, source.slice)
    if isinstance(source, ast.Name) and parents:
        statement = script.statement(call)
        body = getattr(script.parents[statement], "body", [])
        above = body[body.index(statement) - 1] if statement in body[1:] else None
        match above, statement:
            case ast.Assign(targets=[ast.Name(id=source.id)], value=ast.Subscript() as chosen), ast.Assign(value=c) if (
                c is call
            ):
                return _Rows(call, made, target, chosen.value, chosen.slice, batch=above)
    return None


class _Site:
    """One place where rows are prepared, and what has to hold for doing that in front of the loop."""

    def __init__(self, script: Script, rows: _Rows) -> None:
        self.script, self.rows, self.call = script, rows, rows.call
        self.around: list[ast.AST] = []  # up to the function, innermost first
        for outer in script.enclosing(rows.call, ast.AST):
            if isinstance(outer, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                break
            self.around.append(outer)
        self.home = outer
        self.loops = [n for n in self.around if isinstance(n, LOOPS)]

    def no(self, reason: str, node: ast.AST) -> _No:
        return _No(reason, self.script, node)

    def turns_once(self) -> bool:
        """Is there one pass over the data, as far as this function tells?"""
        match self.loops:
            case []:
                return True
            case [*_, ast.For(iter=ast.Call(args=[count]) as turns)] if self.script.integer(count) in (0, 1):
                return self.script.called(turns) == "builtins.range"
            case [ast.For()]:  # a loop over steps draws its rows
                index = self.rows.index
                given = _assigned(self.script, index) if isinstance(index, ast.Name) else [index]
                return not any(_random(self.script, g) for g in given)
        return False

    def fix(self, taken: dict[str, tuple[str, ast.AST]]) -> Finding:
        script, rows, array, anchor = self.script, self.rows, self.rows.array, self.loops[-1]
        assert isinstance(anchor, ast.stmt)
        pure = _Pure(script, rows)
        self._check_place()
        if not isinstance(array, ast.Name) or len({ast.dump(t.value) for t in rows.taken}) > 1:
            raise self.no("the rows are not those of one variable", array)
        if not _is_array(script, array):
            raise self.no(f"`{array.id}` is not shown to be a NumPy array", array)
        if not (isinstance(rows.index, ast.Slice) and not rows.taken) and not _are_numbers(script, rows.index):
            raise self.no(f"`{script.text(rows.index)}` is not shown to hold numbers of rows", rows.call)
        pure.value(rows.made.elt)
        for owner, name in [(script, array), *pure.used]:
            if reason := _unsettled(owner, name, script, anchor):
                raise _No(reason, owner, name)
        memory = _Memory(script, anchor, rows, pure.functions)
        for owner, name in [(script, array), *pure.arrays]:
            memory.check(owner, name)
        if script.called(self.call) not in _JOINS:
            # an array of rows of different lengths holds the very rows: these must not be changed in place
            _Memory(script, anchor, rows, pure.functions, origins=False).use(script, self.call)
        if not script.options.names("precompute"):
            return Refusal(self.call, "how much memory it takes is not known", TRY)
        message = f"the rows of `{array.id}` are prepared once, not in every epoch (all are kept in memory)"
        return Fix(self.call, message, self._edits(anchor, array, taken))

    def _check_place(self) -> None:
        home = self.home
        if not isinstance(home, ast.Module | ast.FunctionDef) or any(
            isinstance(n, ast.comprehension | ast.ListComp | ast.GeneratorExp | ast.NamedExpr) for n in self.around
        ):
            raise self.no("it stands in a class body, a lambda, a coroutine or a comprehension", self.call)
        if isinstance(home, ast.FunctionDef) and (home.decorator_list or self.script.is_generator(home)):
            raise self.no("the function around the loop is decorated or a generator", home)
        for block in self.around[: self.around.index(self.loops[-1])]:
            if isinstance(block, ast.stmt) and not isinstance(block, (*LOOPS, ast.If, ast.With, *_SIMPLE)):
                raise self.no("what it raises may be caught in the loop", block)

    def _edits(self, anchor: ast.stmt, array: ast.Name, taken: dict[str, tuple[str, ast.AST]]) -> list[Edit]:
        script, rows = self.script, self.rows
        inside = {n.id for n in ast.walk(rows.made.elt) if isinstance(n, ast.Name)}
        variable = rows.target.id
        if rows.taken:
            variable = array.id[:-1] if array.id.endswith("s") else ""
            if not variable.isidentifier() or keyword.iskeyword(variable) or variable in inside:
                variable = script.free_name("row")
        right = f"[{self._element(variable)} for {variable} in {array.id}]"
        name = next((n for n, (text, place) in taken.items() if text == right and place is anchor), None)
        if name is None:
            wanted = ("prepared", f"prepared_{array.id}", *(f"prepared_{array.id}_{n}" for n in range(2, 99)))
            name = next(n for n in wanted if n not in taken and script.is_free(n))
            taken[name] = (right, anchor)
        edits: list[Edit] = [Insert(anchor, f"{name} = {right}", after=False)]
        index = script.source.snippet(rows.index)
        if rows.taken:
            edits.append(Replace(rows.made.elt, f"{name}[{rows.target.id}]"))
        elif isinstance(rows.index, ast.Slice):
            edits.append(Replace(rows.made, f"{name}[{index}]"))
        else:
            edits.append(Replace(rows.made, f"[{name}[i] for i in {index}]"))
        source = rows.made.generators[0].iter
        if rows.batch is not None and isinstance(source, ast.Name) and script.mentions(source.id) == [source]:
            edits.append(Delete(rows.batch))
        return edits

    def _element(self, variable: str) -> str:
        """The element with the variable in the place of `images[i]`."""
        text = self.script.source.snippet(self.rows.made.elt)
        for row in {self.script.source.snippet(t) for t in self.rows.taken}:
            text, count = re.subn(r"(?<![\w.])" + re.escape(row), variable, text)
            if count != len(self.rows.taken):
                raise self.no(f"`{row}` is written in several ways", self.call)
        return text


_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return)


# -- which rows ------------------------------------------------------------------------------------------------------

#: What gives whole numbers, and what gives those that it is given, or those below a number.
_COUNTS = frozenset({"builtins.range", "numpy.arange", "numpy.argsort", "numpy.flatnonzero"})
_DRAWN = frozenset({"choice", "permutation"})
_SAME_NUMBERS = frozenset(
    "builtins.list builtins.sorted builtins.reversed numpy.array numpy.asarray random.sample".split()
)


def _random(script: Script, node: ast.AST) -> str:
    """`permutation` of `np.random.permutation` and `rng.permutation`."""
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Attribute) and any(is_drawing(v) for v in script.values(node.func.value)):
        return node.func.attr
    name = script.called(node)
    return name.rpartition(".")[2] if name.startswith(("numpy.random.", "random.")) else ""


def _assigned(script: Script, name: ast.Name) -> list[ast.expr]:
    """What a name is given, [] where that is not all seen."""
    found = script.names.reaching(name)
    parts = [b.part for b in found if b.kind == "assign" and b.part is not None]
    return parts if len(parts) == len(found) else []


def _are_numbers(script: Script, node: ast.expr, depth: int = 0) -> bool:
    """Is what a loop over it gives surely a whole number? A list takes `True` for 1, an array does not."""
    match node:
        case ast.Name() if depth < 9:
            for mention in script.mentions(node.id):
                parent = script.parents[mention]
                if isinstance(parent, ast.Subscript | ast.Attribute) and not isinstance(parent.ctx, ast.Load):
                    return False
                if isinstance(parent, ast.Attribute) and parent.attr in ("append", "extend", "insert"):
                    return False
            return all(_are_numbers(script, p, depth + 1) for p in _assigned(script, node) or [ast.Constant(None)])
        case ast.Subscript(slice=ast.Slice()):
            return _are_numbers(script, node.value, depth + 1)
        case ast.Subscript(value=ast.Call(args=[_]) as call, slice=ast.Constant(value=0)):
            return script.called(call) in ("numpy.where", "numpy.nonzero")
        case ast.Call(args=[first, *rest]) if all(k.arg in ("size", "replace", "p", "k") for k in node.keywords):
            name, drawn = script.called(node), _random(script, node)
            if name in _COUNTS or drawn in ("randint", "integers"):
                return len(rest) < 3  # what follows may name a type
            given = _are_numbers(script, first, depth + 1)
            if name in _SAME_NUMBERS:
                return given and (not rest or name == "random.sample")
            return drawn in _DRAWN and (given or _is_whole(script, first))
    return False


def _is_whole(script: Script, node: ast.expr, depth: int = 0) -> bool:
    """Is it surely a whole number?"""
    match node:
        case ast.Call():
            return script.called(node) in ("builtins.len", "builtins.int")
        case ast.Subscript(value=ast.Attribute(attr="shape"), slice=ast.Constant(value=int())):
            return True
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv()):
            return _is_whole(script, node.left, depth) and _is_whole(script, node.right, depth)
        case ast.Name() if depth < 9 and script.integer(node) is None:
            return all(_is_whole(script, p, depth + 1) for p in _assigned(script, node) or [ast.Constant(None)])
    return script.integer(node) is not None


# -- what prepares a row ---------------------------------------------------------------------------------------------


def _table(prefix: str = "numpy.", **names: str) -> dict[str, int]:
    """`_table(most_2="add dot")`"""
    return {f"{prefix}{n}": int(key[-1]) for key, text in names.items() for n in text.split()}


#: Functions that change nothing and give new memory, with the arguments that they read: behind these may stand `out`.
_NEW = _table(
    most_1="abs absolute negative positive square sign floor ceil rint trunc sqrt cbrt exp expm1 log log1p log2 log10 "
    "sin cos tan arcsin arccos arctan sinh cosh tanh reciprocal fabs deg2rad rad2deg copy nan_to_num sort argsort "
    "isnan isfinite logical_not zeros_like ones_like",
    most_2="add subtract multiply maximum minimum power mod fmod remainder floor_divide hypot divide true_divide "
    "arctan2 greater less equal greater_equal less_equal not_equal logical_and logical_or dot matmul tensordot inner "
    "outer kron cross mean std var median sum prod max min amax amin ptp any all argmax argmin cumsum cumprod repeat "
    "take array tile array_equal nanmean nanstd nanmax nanmin average percentile quantile concatenate stack vstack "
    "hstack dstack column_stack fft.fft fft.rfft fft.ifft fft.fft2 linalg.norm full_like diff",
    most_3="clip where zeros ones full eye identity arange linspace pad roll interp hanning hamming",
)
_NEW |= _table("builtins.", most_3="len int float bool abs range")
_NEW |= _table("math.", most_1="sqrt exp log log2 log10 sin cos tan tanh floor ceil fabs")
#: The same, but what they give may be the argument itself or a view of it.
_SHARED = _table(
    most_1="float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool_",
    most_2="asarray ascontiguousarray round around",
    most_4="reshape ravel squeeze transpose expand_dims moveaxis swapaxes rollaxis atleast_1d atleast_2d atleast_3d "
    "rot90 flip fliplr flipud diagonal",
) | _table("builtins.", most_9="sum min max round enumerate zip")
#: Methods of arrays, in the same two kinds.
_NEW_METHODS = _table(
    "",
    most_1="astype copy flatten mean std var max min sum prod ptp any all argmax argmin cumsum dot repeat",
    most_2="clip",
)
_SHARED_METHODS = _table("", most_1="round", most_9="reshape ravel squeeze transpose swapaxes")
_TYPES = ("builtins.float", "builtins.int", "builtins.bool")
_KEYWORDS = frozenset(
    "axis dtype keepdims ddof mode constant_values decimals axes shape ord a_min a_max k num shift nan posinf neginf "
    "weights endpoint".split()
)
_FACTS = frozenset("shape dtype size ndim nbytes itemsize strides".split())
_VIEWS = frozenset({"T", "real", "imag", "flat"})


def _known(script: Script, call: ast.Call) -> tuple[str, int | None, bool]:
    """A function or method: its name, how many arguments it reads (None: unknown), does it give new memory?"""
    name = script.called(call)
    new, shared = _NEW, _SHARED
    if not name and isinstance(call.func, ast.Attribute) and not any(is_project(v) for v in script.values(call.func)):
        name, new, shared = call.func.attr, _NEW_METHODS, _SHARED_METHODS
    return name, new.get(name, shared.get(name)), name in new


def _is_new(script: Script, node: ast.expr) -> bool:
    """Does an expression, if it is of arrays, give memory that nothing else has?"""
    match node:
        case ast.Constant() | ast.BinOp() | ast.UnaryOp() | ast.Compare() | ast.JoinedStr():
            return True
        case ast.IfExp():
            return _is_new(script, node.body) and _is_new(script, node.orelse)
        case ast.Call():
            name, most, new = _known(script, node)
            held = node.args[0] if node.args else None  # lines of different lengths are kept as they are
            lines = isinstance(held, ast.List | ast.Tuple | ast.ListComp | ast.GeneratorExp)
            if name == "numpy.array" and lines and any(isinstance(n, ast.Name) for n in ast.walk(node.args[0])):
                return False
            return new and len(node.args) <= (most or 0) and all(k.arg in _KEYWORDS for k in node.keywords)
    return False


def _is_array(script: Script, node: ast.expr) -> bool:
    values = script.values(node)
    return bool(values) and all(v.kind == "array" and not is_drawing(v) for v in values)


class _Pure:
    """Goes through what prepares a row: is it the same whenever it is done, and does it change nothing?

    used: the names from outside; arrays: those of them that may be changed in place; functions: what is called.
    """

    def __init__(self, script: Script, rows: _Rows) -> None:
        self.script, self.rows = script, rows
        self.used: list[tuple[Script, ast.Name]] = []
        self.arrays: list[tuple[Script, ast.Name]] = []
        self.functions: set[ast.AST] = set()
        self.function: ast.AST | None = None  # the one that is gone through
        self._check_effects(script, rows.made.elt, set())

    def no(self, reason: str, node: ast.AST) -> _No:
        return _No(reason, self.script, node)

    def _check_effects(self, script: Script, node: ast.AST, seen: set[ast.AST]) -> None:
        """What surely stands in the way, and is named first."""
        for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
            name, what = script.called(call), f"`{script.text(call.func)}`"
            if _random(script, call):
                raise _No(f"{what} draws random numbers: every epoch is to get others", script, call)
            if name.endswith(("imread", "Image.open")) or name in ("builtins.open", "numpy.load", "numpy.loadtxt"):
                raise _No(f"{what} reads a file, which may be another one later", script, call)
            if name in ("builtins.print", "builtins.input"):
                raise _No("it prints for every row", script, call)
            for value in script.values(call.func):
                if value.script is not None and isinstance(value.node, FUNCTIONS) and value.node not in seen:
                    seen.add(value.node)
                    self._check_effects(value.script, value.node, seen)

    # -- expressions ------------------------------------------------------------------------------------------------

    def value(self, node: ast.expr, *, shown: bool = False) -> None:
        """shown: a list or tuple may stand here, which nothing keeps."""
        match node:
            case ast.Name():
                self._name(node)
            case ast.Constant(value=value) if value not in ("O", "object"):
                pass
            case ast.Attribute() if (symbol := self.script.symbol(node)).startswith(("numpy.", "math.")):
                if symbol.startswith(("numpy.random.", "numpy.object")):
                    raise self.no(f"what `{self.script.text(node)}` is for is not followed", node)
                self._root(node)
            case ast.Attribute(attr=attr) if attr in _FACTS | _VIEWS:
                self.value(node.value)
            case ast.Subscript():
                if node not in self.rows.taken:
                    self.value(node.value)
                    self.value(node.slice, shown=True)
            case ast.Call():
                self._call(node)
            case ast.BinOp() | ast.UnaryOp() | ast.Compare() | ast.BoolOp() | ast.IfExp() | ast.Slice():
                for part in ast.iter_child_nodes(node):
                    if isinstance(part, ast.expr):
                        self.value(part)
            case ast.Tuple() | ast.List() if shown:
                for element in node.elts:
                    self.value(element, shown=True)
            case _:
                raise self.no(f"what `{self.script.text(node)}` gives is not known", node)

    def _root(self, node: ast.expr) -> None:
        self.used += [(self.script, n) for n in ast.walk(node) if isinstance(n, ast.Name)]

    def _name(self, node: ast.Name) -> None:
        script = self.script
        scope = script.names.scope_of(node).lookup(node.id)
        if scope is not None and scope[0].node is self.function and self.function is not None:
            return
        if self.function is None and node.id == self.rows.target.id:
            return
        self.used.append((script, node))
        values = script.values(node)
        if all(v.kind == "constant" for v in values) or script.symbol(node) in _TYPES:
            return
        plain = all(
            isinstance(v.node, ast.Tuple | ast.List) and not any(isinstance(n, ast.Name) for n in ast.walk(v.node))
            for v in values
        )
        if not plain and not _is_array(script, node):
            raise self.no(f"what `{node.id}` is is not known", node)
        self.arrays.append((script, node))

    def _call(self, node: ast.Call) -> None:
        script, what = self.script, f"`{self.script.text(node.func)}`"
        values = script.values(node.func)
        own = any(is_project(v) for v in values)
        for argument in [*node.args, *(k.value for k in node.keywords)]:
            self.value(argument, shown=not own)
        if own:
            value = values[0]
            if len(values) > 1 or not isinstance(node.func, ast.Name) or value.script is None or value.node is None:
                raise self.no(f"what {what} does is not followed", node)
            self.used.append((script, node.func))
            bound = script.names.reaching(node.func)
            if any(b.kind == "assign" and not isinstance(b.part, ast.Lambda | ast.Name) for b in bound):
                raise self.no(f"what {what} does is not followed", node)  # `functools.partial`
            self._run(value.script, value.node, node)
            return
        name, most, _ = _known(script, node)
        if most is None:
            raise self.no(f"what {what} does is not known", node)
        if len(node.args) > most or any(k.arg not in _KEYWORDS for k in node.keywords):
            raise self.no(f"what `{script.text(node)}` is given is not followed", node)
        if script.called(node):
            self._root(node.func) if not name.startswith("builtins.") else None
        elif isinstance(node.func, ast.Attribute):
            self.value(node.func.value)

    # -- functions --------------------------------------------------------------------------------------------------

    def _run(self, script: Script, function: ast.AST, call: ast.Call) -> None:
        if function in self.functions:
            return
        self.functions.add(function)
        what = f"what `{self.script.text(call.func)}` does is not followed"
        plain = isinstance(function, ast.Lambda) or (
            isinstance(function, ast.FunctionDef) and not function.decorator_list
        )
        if not isinstance(function, ast.FunctionDef | ast.Lambda) or not plain or script.is_generator(function):
            raise self.no(what, call)
        a = function.args
        if a.vararg or a.kwarg:
            raise self.no(what, call)
        for default in [*a.defaults, *(d for d in a.kw_defaults if d is not None)]:
            if not isinstance(default, ast.Constant) and not script.symbol(default).startswith("numpy."):
                raise _No("a default is no constant", script, default)
        before = self.script, self.function
        self.script, self.function = script, function
        if isinstance(function, ast.Lambda):
            self.value(function.body)
        else:
            self._block(function.body, set())
        self.script, self.function = before

    def _block(self, body: list[ast.stmt], owned: set[str]) -> set[str]:
        """Statements; `owned` are variables whose memory is their own, before and after them."""
        for statement in body:
            match statement:
                case ast.Expr(value=ast.Constant()) | ast.Pass():
                    pass
                case ast.Assign(targets=[target], value=value):
                    self.value(value, shown=isinstance(target, ast.Tuple))
                    owned = self._assign(target, _is_new(self.script, value), owned)
                case ast.AugAssign(target=target, value=value):
                    self.value(value)
                    if isinstance(target, ast.Name) and target.id not in owned:
                        raise self.no(f"it changes `{target.id}` in place, which the next epoch would see", target)
                    owned = self._assign(target, True, owned)
                case ast.Return(value=ast.expr() as value):
                    self.value(value)
                case ast.If(test=test):
                    self.value(test)
                    owned = self._block(statement.body, owned) & self._block(statement.orelse, owned)
                case ast.For(target=target, iter=source, orelse=[]):
                    self.value(source)
                    start = self._assign(target, False, owned)
                    for _ in range(2):  # a later turn finds what an earlier one leaves
                        start &= self._block(statement.body, start)
                    owned = start
                case ast.Global() | ast.Nonlocal():
                    raise self.no(f"it changes `{statement.names[0]}`, which lasts", statement)
                case _:
                    raise self.no("what it does with a row is not followed", statement)
        return owned

    def _assign(self, target: ast.expr, new: bool, owned: set[str]) -> set[str]:
        match target:
            case ast.Name():
                return owned | {target.id} if new else owned - {target.id}
            case ast.Tuple() if all(isinstance(t, ast.Name) for t in target.elts):
                return owned - {t.id for t in target.elts if isinstance(t, ast.Name)}
            case ast.Subscript(value=ast.Name(id=name)) if name in owned:
                self.value(target.slice, shown=True)
                return owned
        what = f"it changes `{self.script.text(target)}` in place, which the next epoch would see"
        raise self.no(what, target)


# -- what stays as it is ---------------------------------------------------------------------------------------------


def _unsettled(owner: Script, name: ast.Name, script: Script, anchor: ast.stmt) -> str:
    """Why a name may stand for something else in front of the loop than in it; "" where it does not."""
    shown = f"`{name.id}`"
    found = owner.names.scope_of(name).lookup(name.id)
    if found is None:
        return f"{shown} may come from a star import" if owner.names.stars else ""
    scope, bindings = found
    function = scope.node if isinstance(scope.node, FUNCTIONS) else None
    if isinstance(scope.node, ast.ClassDef | ast.Lambda):
        return f"{shown} belongs to a class or a lambda"
    if any(owner.function_of(b.node) is not function for b in bindings if b.kind != "parameter"):
        return f"{shown} is set by a function"
    if function is None and next(global_stores(owner, name.id), None) is not None:
        return f"{shown} is set from elsewhere"
    if owner is not script or function is not script.function_of(anchor):
        return "" if function is None and len(bindings) == 1 else f"{shown} has several values"
    # variables of comprehensions are apart; what is bound behind the loop is not seen in it
    bindings = tuple(b for b in bindings if not isinstance(owner.parents.get(b.node), ast.comprehension))
    if any(anchor.lineno <= getattr(b.node, "lineno", 0) <= (anchor.end_lineno or 0) for b in bindings):
        return f"{shown} is set in the loop"
    around = {script.tree, function, *script.enclosing(anchor, ast.stmt)}
    before = [b for b in bindings if getattr(b.node, "lineno", 0) < anchor.lineno]
    if not any(b.kind == "parameter" or script.parents.get(script.statement(b.node)) in around for b in before):
        return f"{shown} may not be set in front of the loop"
    return ""


_CHANGE_FIRST = frozenset(
    "numpy.random.shuffle random.shuffle numpy.copyto numpy.put numpy.place numpy.putmask numpy.fill_diagonal".split()
)
_READ = {
    **_NEW,
    **_SHARED,
    **_table(most_1="shape size ndim unique bincount", most_2="save", most_4="random.permutation random.choice"),
    **_table("builtins.", most_9="print type isinstance str"),
}
_READS = frozenset({"numpy.load", "numpy.loadtxt", "numpy.genfromtxt"})
_PASSES_ON = frozenset(f"builtins.{n}" for n in "enumerate zip reversed iter list tuple".split())
_LIBRARIES = ("tensorflow.", "keras.", "tf_keras.", "sklearn.model_selection.", "sklearn.metrics.", "matplotlib.")
_LEARNS = frozenset("fit evaluate predict train_on_batch test_on_batch predict_on_batch run eval".split())


#: What only reads the part of it that an array stands in; the target of `a += 1` is a binding.
_ONLY_READ = (ast.Subscript, ast.Slice, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Expr, ast.AugAssign)


class _Memory:
    """Follows what has the same memory as an array, by every name it goes by, to whatever may change it in the loop.

    origins: also the names that it came from; of a batch it matters only where it goes.
    """

    def __init__(
        self, script: Script, anchor: ast.stmt, rows: _Rows, pure: set[ast.AST], *, origins: bool = True
    ) -> None:
        self.script, self.anchor, self.rows, self.pure, self.origins = script, anchor, rows, pure, origins
        self.home = script.function_of(anchor)
        self.seen: set[tuple[Script, Scope, str]] = set()

    def check(self, script: Script, node: ast.expr) -> None:
        """Of every name that what an expression gives may share its memory with."""
        match node:
            case ast.Name():
                self._check_name(script, node)
            case ast.Attribute(attr=attr):
                if attr in _VIEWS:
                    self.check(script, node.value)
                elif attr not in _FACTS and not script.symbol(node):
                    raise _No(f"what else changes `{script.text(node)}` is not seen", script, node)
            case ast.Subscript() | ast.Starred():
                self.check(script, node.value)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self.check(script, part)
            case ast.ListComp() | ast.GeneratorExp():
                self.check(script, node.elt)
            case ast.Call():
                self._check_call(script, node)
            case _ if not _is_new(script, node):
                raise _No("where it comes from is not followed", script, node)

    def _check_call(self, script: Script, node: ast.Call) -> None:
        name = script.called(node)
        of_library = name and not name.startswith("numpy.") and name not in _PASSES_ON
        if of_library or name in _READS or _random(script, node) or _is_new(script, node):
            return  # nothing else has it
        values = script.values(node.func)
        own = [v for v in values if v.kind == "function" and v.script is not None and isinstance(v.node, FUNCTIONS)]
        if own and len(own) < len(values):
            raise _No("where it comes from is not followed", script, node)
        for value in own:
            assert value.script is not None and value.node is not None
            results = [value.node.body] if isinstance(value.node, ast.Lambda) else value.script.returns(value.node)
            for result in results:
                self.check(value.script, result)
        if own:
            return
        for given in [*node.args, *(k.value for k in node.keywords)]:
            self.check(script, given)
        if isinstance(node.func, ast.Attribute) and not name:
            self.check(script, node.func.value)

    def _check_name(self, script: Script, node: ast.Name) -> None:
        if (found := script.names.scope_of(node).lookup(node.id)) is not None:
            self._follow(script, found[0], node.id)

    def _follow(self, script: Script, scope: Scope, name: str) -> None:
        if (script, scope, name) in self.seen:
            return
        self.seen.add((script, scope, name))
        if isinstance(scope.node, ast.ClassDef):
            raise _No(f"`{name}` is an attribute of a class", script, scope.node)
        for binding in scope.bindings.get(name, ()):
            if self.origins or binding.kind == "augment":
                self._bound(script, binding)
        for mention in script.mentions(name):
            found = script.names.scope_of(mention).lookup(name)
            if isinstance(mention, ast.Name) and found is not None and found[0] is scope:
                self.use(script, mention)
        for other in list(script.project.scripts.values()) if scope.parent is None else ():
            for mention in [m for a in other.aliases(name) for m in other.mentions(a)] if other is not script else ():
                there = other.names.scope_of(mention).lookup(mention.id) if isinstance(mention, ast.Name) else None
                if there is None or any(b.kind == "import" for b in there[1]):
                    raise _No(f"`{name}` is used in another file, too", other, mention)

    def _bound(self, script: Script, b: Binding) -> None:
        match b.kind:
            case "assign" | "loop" if b.value is not None:
                self.check(script, b.part or b.value if b.kind == "assign" else b.value)
            case "augment":
                self._change(script, b.node, b.name)
            case "parameter" if isinstance(function := script.function_of(b.node), ast.FunctionDef):
                names = tuple(a.arg for a in [*function.args.posonlyargs, *function.args.args])
                calls = [
                    (other, other.bind(call, names[offset:]).get(b.name))
                    for other, call, offset in script.project.calls_of(function, script)
                ]
                if not calls or any(given is None for _, given in calls):
                    raise _No(f"what `{b.name}` is given is not seen", script, b.node)
                for other, given in calls:
                    self.check(other, given) if given is not None else None
            case _:
                raise _No(f"who else has `{b.name}` is not seen", script, b.node)

    # -- where it goes ----------------------------------------------------------------------------------------------

    def _change(self, script: Script, node: ast.AST, what: str) -> None:
        line, here = getattr(node, "lineno", 0), script is self.script and script.function_of(node) is self.home
        if not here or self.anchor.lineno <= line <= (self.anchor.end_lineno or 0):
            raise _No(f"`{what}` is changed in place", script, node)

    def use(self, script: Script, node: ast.expr, depth: int = 0) -> None:
        """One use of the array, or of what has the same memory."""
        over = self.home is None and script is self.script and script.function_of(node) is None
        if over and node.lineno > (self.anchor.end_lineno or 0):
            return  # after the loop
        parent, text = script.parents[node], script.text(node)
        lost = _No(f"`{text}` is kept where it may be changed", script, node)
        if self.rows.made in script.enclosing(node, ast.ListComp):
            return  # what prepares the rows
        match parent:
            case _ if depth > 20:
                raise lost
            case ast.Subscript(value=value) if value is node:
                if not isinstance(parent.ctx, ast.Load):
                    self._change(script, parent, text)
                else:
                    self.use(script, parent, depth + 1)
            case _ if isinstance(parent, _ONLY_READ):
                pass
            case ast.Attribute(attr=attr):
                self._attribute(script, parent, attr, depth)
            case ast.Call():
                self._passed(script, parent, node, depth)
            case ast.keyword(arg=str(arg)) if arg not in ("out", "dst"):
                call = script.parents[parent]
                if not isinstance(call, ast.Call):
                    raise lost
                self._passed(script, call, node, depth)
            case ast.Assign(targets=[target]):
                self._kept(script, target, lost)
            case ast.Tuple() if isinstance(outer := script.parents[parent], ast.Subscript) and outer.slice is parent:
                pass
            case ast.For() | ast.comprehension():
                self._kept(script, parent.target, lost)
            case ast.Tuple() | ast.List() | ast.IfExp() | ast.ListComp() | ast.GeneratorExp():
                self.use(script, parent, depth + 1)
            case ast.Return():
                function = script.function_of(parent)
                calls = script.project.calls_of(function, script) if isinstance(function, ast.FunctionDef) else []
                if not calls:
                    raise lost
                for other, call, _ in calls:
                    self.use(other, call, depth + 1)
            case ast.Dict():
                self._fed(script, parent, lost)
            case _:
                raise lost

    def _kept(self, script: Script, target: ast.expr, lost: _No) -> None:
        match target:
            case ast.Name():
                self._check_name(script, target)
            case ast.Tuple() | ast.List():
                for element in target.elts:
                    self._kept(script, element, lost)
            case _:
                raise lost

    def _attribute(self, script: Script, node: ast.Attribute, attr: str, depth: int) -> None:
        call = script.parents[node]
        if isinstance(call, ast.Call) and call.func is node:
            if attr in _SHARED_METHODS or (attr in _NEW_METHODS and not _is_new(script, call)):
                self.use(script, call, depth + 1)
            elif attr not in _NEW_METHODS:
                self._change(script, call, script.text(node.value))
        elif attr in _VIEWS:
            self.use(script, node, depth + 1)
        elif attr not in _FACTS or not isinstance(node.ctx, ast.Load):
            raise _No(f"what `{script.text(node)}` does is not known", script, node)

    def _passed(self, script: Script, call: ast.Call, node: ast.expr, depth: int) -> None:
        name, drawn = script.called(call), _random(script, call)
        if name in _CHANGE_FIRST or drawn == "shuffle":
            self._change(script, call, script.text(node))
        elif name in _PASSES_ON:
            self.use(script, call, depth + 1)
        elif name in _READ or drawn in _DRAWN:
            settings = {k.arg for k in call.keywords if name.startswith("numpy.")}
            if len(call.args) > _READ.get(name, 9) or settings - _KEYWORDS - {"size", "replace", "p"}:
                raise _No(f"what `{script.text(call.func)}` does with `{script.text(node)}` is not known", script, call)
            if name in _SHARED or not _is_new(script, call):
                self.use(script, call, depth + 1)
        elif not name.startswith(_LIBRARIES):
            self._handed(script, call, node, depth)

    def _handed(self, script: Script, call: ast.Call, node: ast.expr, depth: int) -> None:
        """To a function of the project, a model or a session."""
        lost = _No(f"what `{script.text(call.func)}` does with `{script.text(node)}` is not followed", script, call)
        for value in script.values(call.func):
            learns = value.kind == "method" and value.name in _LEARNS and value.base is not None
            if value.kind in ("model", "layer") or (learns and _of_library(value.base)):
                continue
            owner, function = value.script, value.node
            if owner is None or not isinstance(function, ast.FunctionDef):
                raise lost
            if _is_compiled(owner, function):
                continue  # what it is given are tensors
            if function.decorator_list:
                raise lost
            if function in self.pure:
                self.use(script, call, depth + 1)
                continue
            names = [a.arg for a in [*function.args.posonlyargs, *function.args.args]]
            bound = script.bind(call, tuple(names[int(value.kind == "method") :]))
            given = [n for n, e in bound.given.items() if e is node]
            scope = owner.names.scopes[function]
            if not given or bound.open or given[0] not in scope.bindings:
                raise lost
            self._follow(owner, scope, given[0])

    def _fed(self, script: Script, feed: ast.Dict, lost: _No) -> None:
        """A feed dict, written out in the call or under a name."""
        uses: list[ast.expr] = [feed]
        match script.parents[feed]:
            case ast.Assign(targets=[ast.Name(id=name)]):
                uses = script.mentions(name)
        if not all(key is not None and placeholder_of(script, key) is not None for key in feed.keys):
            raise lost
        for use in uses:
            match script.parents[use]:
                case ast.keyword(arg="feed_dict") | ast.Call(func=ast.Attribute(attr="run" | "eval")):
                    pass
                case ast.Subscript(ctx=ast.Store()) as stored if not isinstance(script.parents[stored], ast.AugAssign):
                    pass
                case _:
                    raise lost


def _of_library(value: Value | None) -> bool:
    """A model, a session or an estimator, which changes nothing that it is given."""
    if value is None or value.cls is not None:
        return False
    return value.kind in ("model", "tensor") or value.name.startswith(("tensorflow.", "keras.", "sklearn."))


def _is_compiled(script: Script, function: ast.FunctionDef) -> bool:
    decorators = [d.func if isinstance(d, ast.Call) else d for d in function.decorator_list]
    return bool(decorators) and all(script.symbol(d) == "tensorflow.function" for d in decorators)
