"""What statements read, bind, change and cost: what has to be known before they may run elsewhere or ahead of time.

Code of the project that is called is looked into. What is read and changed is kept as dotted paths: `mnist.train`,
`self.position`, `train::order` for a name of the module `train.py`, and `numpy.random` for NumPy's global generator.
"""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass, field

from ..scopes import FUNCTIONS
from ..script import Script, import_bindings
from ..source import children
from ..values import Value

LOOPS = (ast.For, ast.While)

# -- what code reads, changes and costs ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """What preparing a batch takes, roughly: passes over it in NumPy, microseconds per sample and per batch."""

    passes: float = 0
    sample: float = 0
    batch: float = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.passes + other.passes, self.sample + other.sample, self.batch + other.batch)

    def __bool__(self) -> bool:
        return bool(self.passes or self.sample or self.batch)

    def inside(self, loops: int) -> Cost:
        """The same in loops over samples, and over their parts."""
        if not loops:
            return self
        return Cost(0, (self.passes * 6 + self.batch + self.sample * 10) * 10 ** (loops - 1), 0)

    def microseconds(self, samples: int, numbers: int) -> float:
        """For a batch of so many samples and numbers."""
        return self.passes * (2 + numbers * 0.0005) + self.sample * samples + self.batch


#: A pass over a batch; turning once in a loop; a call; decoding or reading.
PASS, TURN, CALL, DECODES = Cost(1), Cost(sample=0.3), Cost(batch=1), Cost(batch=100)


NUMPY_DRAWS, PYTHON_DRAWS, MAY_DRAW = "numpy.random", "random", "numpy.random, perhaps"
#: Whoever looks at it later sees something else.
CLOCK = "time"

_CHEAP_NUMPY = frozenset(
    "reshape shape size ndim expand_dims squeeze transpose arange ceil floor asarray newaxis prod max min int32 int64 "
    "float32 float64 uint8 array_split split linspace zeros_like".split()
)
_READS_FILES = frozenset("load loadtxt genfromtxt fromfile memmap".split())
VIEWS = frozenset(
    "reshape asarray squeeze transpose expand_dims ravel swapaxes atleast_2d rollaxis moveaxis split array_split "
    "hsplit vsplit asanyarray ascontiguousarray broadcast_to".split()
)
_VIEWING = frozenset("reshape squeeze transpose ravel swapaxes view get items values astype".split())
_WRITES_FIRST = frozenset("put copyto place fill_diagonal putmask".split())
_MAKES_GENERATOR = frozenset({"RandomState", "default_rng", "Generator", "SeedSequence"})

#: Libraries that decode, transform or read: whatever is called there is work.
_WORKING = frozenset(
    "cv2 PIL scipy skimage imageio librosa soundfile pandas h5py albumentations imgaug pickle cPickle gzip csv json "
    "nltk lmdb wave tarfile zipfile struct pydicom nibabel SimpleITK".split()
)
_FLAGS = ("os.path.exists", "os.path.isfile")
_NOW = (".now", ".utcnow", ".today")
_HARMLESS = frozenset(
    "math os itertools functools copy re string collections time operator six glob pathlib datetime sys typing "
    "builtins".split()
)

#: Libraries whose objects belong to the thread that made them.
_OF_ONE_THREAD = frozenset("sqlite3 tkinter pygame gym gymnasium".split())

#: Methods that change nothing, with the passes over the data that they make.
PURE_METHODS = {
    **dict.fromkeys(
        "reshape transpose squeeze swapaxes ravel keys values items get split strip join format startswith endswith "
        "lower upper replace index count item view as_list get_shape min max tolist rstrip lstrip".split(),
        CALL,
    ),
    **dict.fromkeys("astype copy mean std sum dot repeat flatten clip round argmax argsort take".split(), PASS),
    **dict.fromkeys("toarray todense read readline readlines".split(), DECODES),
}
_LIST_CHANGES = frozenset("append extend insert pop remove clear sort reverse update add popleft appendleft".split())
#: Attributes that stay what they are while an object's contents change.
_FIXED = frozenset("num_examples shape size dtype ndim".split())
_MIXING = frozenset("next shuffle sample permute get_next".split())
_PRINTS = frozenset({"builtins.print", "builtins.input"})
_NUMBERS = frozenset(
    f"builtins.{n}"
    for n in "range len int float min max abs round enumerate zip reversed sum bool str list tuple".split()
)


#: Stands for an array that a generator keeps and fills for every batch.
ONE_BUFFER = "an array of a generator"


@dataclass
class Facts:
    """What a piece of code reads, binds and changes, by path, and what stands in the way of moving it."""

    reads: dict[str, ast.AST] = field(default_factory=dict)
    binds: dict[str, ast.AST] = field(default_factory=dict)
    changes: dict[str, ast.AST] = field(default_factory=dict)
    overwrites: dict[str, ast.AST] = field(default_factory=dict)  # arrays whose contents are replaced in place
    inside: set[str] = field(default_factory=set)  # read or changed by functions that are called
    cost: Cost = field(default_factory=Cost)
    graph: ast.AST | None = None  # calls TensorFlow
    shows: ast.AST | None = None  # prints or plots
    unseen: ast.AST | None = None  # a call that cannot be looked into
    reader: ast.AST | None = None  # a method of an object of an unseen class

    def add(self, other: Facts) -> None:
        for name in ("reads", "binds", "changes", "overwrites"):
            for path, node in getattr(other, name).items():
                getattr(self, name).setdefault(path, node)
        self.inside |= other.inside
        self.cost += other.cost
        for name in ("graph", "shows", "unseen", "reader"):
            setattr(self, name, getattr(self, name) or getattr(other, name))


def meets(a: str, b: str) -> bool:
    return a == b or a.startswith(b + ".") or b.startswith(a + ".")


def touches(change: str, read: str) -> bool:
    """Does a change of an object's contents show in what is read?"""
    return meets(change, read) and not (read.startswith(change + ".") and read.rpartition(".")[2] in _FIXED)


class Walk:
    """Collects the facts of code of one scope; `given` are the paths that a function's parameters stand for."""

    def __init__(self, script: Script, given: dict[str, str] | None = None, seen: frozenset[ast.AST] = frozenset()):
        self.script, self.given, self.seen, self.facts = script, given, seen, Facts()
        self.loops = 0  # around the node, over samples
        self.own: set[str] = set()  # names of the module that a function uses by itself
        self.hidden: list[str] = []  # variables of comprehensions and lambdas

    # paths

    def root(self, name: ast.Name) -> str:
        """The path of a name; "" for builtins and what is local to a function that is called."""
        if name.id in self.hidden:
            return ""
        names = self.script.names
        scope = names.scope_of(name)
        found = scope.lookup(name.id)
        if found is None and hasattr(builtins, name.id):
            return ""
        if found is None or found[0] is names.module:
            path = f"{self.script.path.stem}::{name.id}"
            self.own.add(path)
            return path
        if self.given is None or found[0] is not scope:
            return name.id
        return self.given.get(name.id, "")

    def is_global(self, name: ast.Name) -> bool:
        return name.id in self.script.names.scope_of(name).elsewhere

    def path(self, node: ast.AST) -> str:
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or not (root := self.root(node)):
            return ""
        return ".".join([root, *reversed(parts)])

    def base(self, node: ast.AST) -> str:
        """The path of the object that a subscript or call in a chain belongs to: `a.b` of `a.b[0].c`."""
        while isinstance(node, ast.Subscript | ast.Attribute | ast.Call | ast.Starred):
            if isinstance(node, ast.Attribute) and (found := self.path(node)):
                return found
            node = node.func if isinstance(node, ast.Call) else node.value
        return self.path(node)

    # nodes

    def visit(self, node: ast.AST | None) -> None:
        match node:
            case None:
                return
            case ast.Call():
                self.call(node)
            case ast.Name() | ast.Attribute():
                self.name(node)
            case ast.Subscript():
                self.subscript(node)
            case ast.Assign() | ast.AnnAssign() | ast.NamedExpr():
                self.visit(node.value)
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    self.store(target)
            case ast.AugAssign():
                self.visit(node.value)
                self.read(self.path(node.target), node.target)
                self.store(node.target)
                if isinstance(node.target, ast.Name) and not self.is_number(node.target):
                    self.overwrite(node.target, node)
            case ast.Delete():
                for target in node.targets:
                    self.store(target)
            case ast.For():
                self.visit(node.iter)
                self.asked(node.iter)
                self.store(node.target)
                self.repeated([*node.body, *node.orelse], over_samples=not _yields(node))
            case ast.While():
                self.repeated([node.test, *node.body, *node.orelse], over_samples=not _yields(node))
            case ast.With():
                for item in node.items:
                    self.visit(item.context_expr)
                    if item.optional_vars is not None:
                        self.store(item.optional_vars)
                for part in node.body:
                    self.visit(part)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                self.comprehension(node)
            case ast.Lambda():
                hidden = [a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)]
                self.inner(hidden, [node.body])
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Import() | ast.ImportFrom():
                return
            case ast.Global() | ast.Nonlocal():
                return
            case ast.BinOp():
                if any(self.is_array(side) for side in (node.left, node.right)):
                    self.spend(PASS)
                self.visit(node.left)
                self.visit(node.right)
            case _:
                for child in children(node):
                    self.visit(child)

    def header(self, node: ast.stmt) -> None:
        """Of a compound statement, what is evaluated itself."""
        match node:
            case ast.For():
                self.visit(node.iter)
                self.asked(node.iter)
                self.store(node.target)
                self.facts.cost = Cost()  # once for all batches
            case ast.With():
                for item in node.items:
                    self.visit(item.context_expr)
                    if item.optional_vars is not None:
                        self.store(item.optional_vars)
            case ast.If() | ast.While():
                self.visit(node.test)

    def repeated(self, parts: list[ast.AST], *, over_samples: bool) -> None:
        if over_samples:
            self.spend(TURN)
            self.loops += 1
        for part in parts:
            self.visit(part)
        self.loops -= over_samples

    def spend(self, cost: Cost) -> None:
        self.facts.cost += cost.inside(self.loops) if cost is not TURN else Cost(sample=0.3 * 10**self.loops)

    def comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        first = node.generators[0].iter
        self.visit(first)
        self.asked(first)
        hidden = [n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)]
        parts: list[ast.AST] = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        parts += [p for g in node.generators for p in [g.iter, *g.ifs] if p is not first]
        self.hidden += hidden
        self.repeated(parts, over_samples=True)
        del self.hidden[len(self.hidden) - len(hidden) :]

    def inner(self, hidden: list[str], parts: list[ast.AST]) -> None:
        self.hidden += hidden
        for part in parts:
            self.visit(part)
        del self.hidden[len(self.hidden) - len(hidden) :]

    def read(self, path: str, node: ast.AST) -> None:
        if path:
            self.facts.reads.setdefault(path, node)

    def change(self, path: str, node: ast.AST) -> None:
        if path:
            self.facts.changes.setdefault(path, node)

    def overwrite(self, target: ast.AST, node: ast.AST) -> None:
        """The contents of an array change, and with them those of what it is a view of."""
        if self.given is not None and self.outlives_batch(target):
            self.facts.overwrites.setdefault(ONE_BUFFER, node)
        if path := self.base(target):
            self.facts.overwrites.setdefault(path, node)
            self.change(path, node)
        for viewed in self.owners(target):
            if not meets(viewed, path):
                self.facts.overwrites.setdefault(viewed, node)
                self.change(viewed, node)

    def owners(self, target: ast.AST) -> set[str]:
        """What else changes when the contents of `a`, `a[0]` or `a.T` do."""
        while isinstance(target, ast.Subscript | ast.Attribute | ast.Starred):
            target = target.value
        if not isinstance(target, ast.Name) or target.id in self.hidden:
            return set()
        return self.viewed(target)

    def change_object(self, target: ast.expr, node: ast.AST) -> None:
        """An object changes, by whatever name it goes."""
        self.change(self.base(target), node)
        for viewed in self.owners(target):
            self.change(viewed, node)

    def viewed(self, name: ast.Name) -> set[str]:
        """What has the same memory as a variable: `data` after `x, y = data[:, :-1], data[:, -1]`."""
        found: set[str] = set()
        todo, seen = [name], {name.id}
        while todo:
            next_name = todo.pop()
            scope = self.script.names.scope_of(next_name).lookup(next_name.id)
            for binding in scope[1] if scope else ():
                value = (binding.part or binding.value) if binding.kind == "assign" else None
                for node in self.same_memory(value) if value is not None else ():
                    if path := self.base(node):
                        found.add(path)
                    if isinstance(node, ast.Name) and node.id not in seen:
                        seen.add(node.id)
                        todo.append(node)
        return found

    def same_memory(self, node: ast.expr) -> list[ast.expr]:
        """The variables that the value of an expression may share its contents with."""
        match node:
            case ast.Name():
                return [node]
            case ast.Attribute():
                return [node, *(self.same_memory(node.value) if node.attr in ("T", "flat", "real") else [])]
            case ast.Subscript():
                return self.same_memory(node.value)
            case ast.Tuple() | ast.List():
                return [n for e in node.elts for n in self.same_memory(e)]
            case ast.Dict():
                return [n for e in node.values for n in self.same_memory(e)]
            case ast.IfExp():
                return [*self.same_memory(node.body), *self.same_memory(node.orelse)]
            case ast.Call(func=func):
                called = self.script.called(node)
                if called.startswith("numpy."):
                    return self.same_memory(node.args[0]) if called.rpartition(".")[2] in VIEWS and node.args else []
                if any(is_project(v) and v.kind == "function" for v in self.script.values(func)):
                    return [n for a in node.args for n in self.same_memory(a)]
                if isinstance(func, ast.Attribute) and func.attr in _VIEWING:
                    return self.same_memory(func.value)
        return []

    def outlives_batch(self, target: ast.AST) -> bool:
        """A variable of a generator that is not made anew in its loop is there for the next batch as well."""
        while isinstance(target, ast.Subscript | ast.Attribute):
            target = target.value
        function = self.script.function_of(target)
        if not isinstance(target, ast.Name) or function is None or not self.script.is_generator(function):
            return False
        bindings = self.script.names.scopes[function].bindings.get(target.id, ())
        return not bindings or not all(
            b.kind == "parameter" or any(True for _ in self.script.enclosing(b.node, *LOOPS)) for b in bindings
        )

    def is_number(self, name: ast.Name) -> bool:
        """A counter: somewhere it is given a number."""
        scope = self.script.names.scope_of(name)
        found = scope.lookup(name.id)
        return found is not None and any(
            b.value is not None and self.script.number(b.value) is not None for b in found[1] if b.kind == "assign"
        )

    def name(self, node: ast.Name | ast.Attribute) -> None:
        if isinstance(node, ast.Attribute) and self.is_property(node):
            self.change_object(node.value, node)
            self.facts.reader = self.facts.reader or node
        if found := self.path(node):
            self.read(found, node)
            root: ast.expr = node
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id not in self.hidden:
                for viewed in self.viewed(root):
                    self.read(viewed, node)
        elif isinstance(node, ast.Attribute):
            self.visit(node.value)

    def store(self, target: ast.AST) -> None:
        match target:
            case ast.Name():
                path = self.root(target)
                if path and (self.given is None or self.is_global(target)):
                    self.facts.binds.setdefault(path, target)
            case ast.Tuple() | ast.List():
                for element in target.elts:
                    self.store(element)
            case ast.Starred():
                self.store(target.value)
            case ast.Attribute():
                self.change(self.path(target) or self.base(target), target)
            case ast.Subscript():
                self.read(self.base(target.value), target)
                self.change(self.base(target.value), target)
                self.overwrite(target.value, target)
                self.visit(target.slice)

    def subscript(self, node: ast.Subscript) -> None:
        if self.picks_rows(node.slice):
            self.spend(PASS)
        self.visit(node.value)
        self.visit(node.slice)
        self.asked(node.value)

    def asked(self, node: ast.expr) -> None:
        """An object of the project that is gone through or indexed: its `__next__` or `__getitem__` does anything."""
        if isinstance(node, ast.Call) and self.script.called(node) in ("builtins.zip", "builtins.enumerate"):
            for argument in node.args:
                self.asked(argument)
        elif any(self.has_method(v, "__iter__", "__next__", "__getitem__") for v in self.script.values(node)):
            self.change_object(node, node)
            self.change(NUMPY_DRAWS, node)
            self.facts.reader = self.facts.reader or node

    def picks_rows(self, index: ast.expr) -> bool:
        """An index of several rows that are not one slice: they are copied one by one."""
        if isinstance(index, ast.Tuple) and index.elts:
            index = index.elts[0]
        if isinstance(index, ast.Subscript):
            return isinstance(index.slice, ast.Slice) or self.picks_rows(index.slice)
        if isinstance(index, ast.Call):
            return self.script.called(index).startswith("numpy.")
        return isinstance(index, ast.Name) and any(
            b.value is not None and b.kind == "assign" and self.is_array(b.value)
            for b in self.script.names.reaching(index)
        )

    def is_array(self, node: ast.expr, depth: int = 0) -> bool:
        """Several values at once, as far as the expression tells."""
        match node:
            case ast.Subscript():
                index = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
                return isinstance(index, ast.Slice) or self.picks_rows(index)
            case ast.Call():
                name = self.script.called(node)
                if isinstance(node.func, ast.Attribute) and node.func.attr in ("astype", "reshape", "transpose"):
                    return True
                return name.startswith("numpy.") and not (
                    name.startswith("numpy.random.") and not node.args and not node.keywords
                )
            case ast.BinOp():
                return self.is_array(node.left, depth) or self.is_array(node.right, depth)
            case ast.UnaryOp():
                return self.is_array(node.operand, depth)
            case ast.Name() if depth < 5:
                return any(
                    b.kind == "assign" and b.value is not None and not b.path and self.is_array(b.value, depth + 1)
                    for b in self.script.names.reaching(node)
                )
        return False

    # calls

    def call(self, node: ast.Call) -> None:
        for keyword in node.keywords:
            if keyword.arg in ("out", "dst"):
                self.overwrite(keyword.value, node)
        if (
            self.script.called(node) == "builtins.len"
            and len(node.args) == 1
            and (path := self.path(node.args[0]))
            and not self.instance(node.args[0])
        ):
            self.read(f"{path}.size", node)
            return
        for argument in [*node.args, *(k.value for k in node.keywords)]:
            self.visit(argument)
        values = [
            v for v in self.script.values(node.func) if not (v.kind == "constant" and v.literal is None)
        ]  # the receiver is visited below: what it is decides what calling it means
        for value in values:
            if value.kind == "symbol" and not is_unbound(value.name):
                self.library(value.name, node)
            elif is_project(value):
                if isinstance(node.func, ast.Attribute) and not self.path(node.func.value):
                    self.visit(node.func.value)  # of an object with a path, what the method reads is known
                self.project(value, node)
            elif isinstance(node.func, ast.Attribute):
                self.method(node.func, node, value)
            else:
                self.visit(node.func)
                self.facts.unseen = self.facts.unseen or node

    def is_property(self, node: ast.Attribute) -> bool:
        """Is it computed by a method of the project?"""
        for value in self.script.values(node.value):
            cls = value.cls
            if cls is not None and cls.script is not None and isinstance(cls.node, ast.ClassDef):
                found = cls.script.method(cls.node, node.attr)
                if found is not None and any(ast.unparse(d).endswith("property") for d in found[1].decorator_list):
                    return True
        return False

    def has_method(self, value: Value, *names: str) -> bool:
        cls = value.cls
        return (
            cls is not None
            and cls.script is not None
            and isinstance(cls.node, ast.ClassDef)
            and any(cls.script.method(cls.node, name) is not None for name in names)
        )

    def instance(self, node: ast.expr) -> bool:
        """Of a class of the project, whose `__len__` may be anything."""
        return any(v.cls is not None for v in self.script.values(node))

    def project(self, value: Value, node: ast.Call) -> None:
        """What one of the project's own functions does, as seen from the call."""
        owner, function = value.script, value.node
        assert owner is not None
        receiver = self.base(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        bound = value.kind == "method"
        if isinstance(function, ast.ClassDef):
            found = owner.method(function, "__init__")
            if found is None:
                return
            owner, function = found
            receiver, bound = "", True
        if function in self.seen or len(self.seen) > 8:
            return
        if not isinstance(function, ast.FunctionDef | ast.Lambda):
            self.facts.unseen = self.facts.unseen or node
            return
        names = [a.arg for a in [*function.args.posonlyargs, *function.args.args]]
        arguments = self.script.bind(node, tuple(names[1:] if bound else names))
        given = {n: self.base(e) for n, e in arguments.given.items()}
        if bound and names:
            given[names[0]] = receiver
        elif isinstance(owner.parents.get(function), ast.ClassDef) and isinstance(node.func, ast.Attribute):
            given.setdefault(names[0] if names else "", receiver)
        inner = Walk(owner, given, self.seen | {function})
        inner.loops = self.loops
        self.spend(CALL)
        for part in function.body if isinstance(function, ast.FunctionDef) else [function.body]:
            inner.visit(part)
        facts = inner.facts
        for parameter, argument in arguments.given.items():  # what has the same memory changes as well
            for changed in (facts.changes, facts.overwrites):
                hit = next((n for p, n in changed.items() if given.get(parameter) and meets(p, given[parameter])), None)
                if hit is not None:
                    changed.update({v: hit for v in self.owners(argument) if v not in changed})
        # a name that the function binds is its own, unless it is declared global
        facts.changes.update({p: n for p, n in facts.binds.items() if "::" in p})
        facts.binds = {}
        for name in ("graph", "shows", "unseen", "reader"):
            if getattr(facts, name) is not None and owner is not self.script:
                setattr(facts, name, node)  # a place in this file
        facts.reads = dict.fromkeys(facts.reads, node)
        facts.changes = dict.fromkeys(facts.changes, node)
        facts.overwrites = dict.fromkeys(facts.overwrites, node)
        facts.inside |= inner.own
        self.facts.add(facts)

    def library(self, name: str, node: ast.Call) -> None:
        root, _, rest = name.partition(".")
        facts = self.facts
        first = node.args[0] if node.args else None
        if root == "numpy":
            self.numpy(rest, node, first)
        elif root == "random":
            self.change(PYTHON_DRAWS, node)
            if rest == "shuffle" and first is not None:
                self.overwrite(first, node)
            self.spend(CALL)
        elif name in _PRINTS or root == "matplotlib":
            if name.endswith("imread"):
                self.spend(DECODES)
            else:
                facts.shows = facts.shows or node
        elif name == "builtins.next" and first is not None:
            self.change(self.base(first), node)
            for value in self.script.values(first):
                if value.kind == "generator" and value.base is not None and isinstance(value.node, ast.Call):
                    self.project(value.base, value.node)
                else:
                    facts.reader = facts.reader or node
        elif name in ("builtins.setattr", "builtins.exec", "builtins.eval", "builtins.globals"):
            facts.unseen = facts.unseen or node
        elif name in ("builtins.open", "io.open"):
            self.spend(DECODES)
        elif name == "builtins.map":
            self.repeated([], over_samples=True)
            for value in self.script.values(first):
                if is_project(value) and isinstance(value.node, ast.FunctionDef):
                    self.loops += 1
                    self.project(value, node)
                    self.loops -= 1
        elif root == "sklearn":
            self.spend(PASS)
            certain = name.endswith(("shuffle", "resample", "train_test_split"))
            self.change(NUMPY_DRAWS if certain else MAY_DRAW, node)
        elif root in _WORKING:
            self.spend(DECODES)
        elif root in ("tensorflow", "keras", "tf_keras"):
            if "keras.preprocessing" in name or rest.endswith("to_categorical"):
                self.spend(DECODES if ".image." in name else PASS)
            else:
                facts.graph = facts.graph or node
        elif name.startswith("time.") or name.endswith(_NOW) or (name in _FLAGS and isinstance(first, ast.Constant)):
            self.change(CLOCK, node)
        elif root not in _HARMLESS:
            facts.unseen = facts.unseen or node

    def numpy(self, rest: str, node: ast.Call, first: ast.expr | None) -> None:
        last = rest.rpartition(".")[2]
        if rest.startswith("random."):
            if last not in _MAKES_GENERATOR:
                self.change(NUMPY_DRAWS, node)
            if last == "shuffle" and first is not None:
                self.overwrite(first, node)
            self.spend(PASS if node.args or node.keywords else CALL)
        elif rest in _READS_FILES or last in ("vectorize", "apply_along_axis", "frompyfunc"):
            self.spend(DECODES)
        else:
            if last in _WRITES_FIRST and first is not None:
                self.overwrite(first, node)
            self.spend(CALL if last in _CHEAP_NUMPY else PASS)

    def method(self, func: ast.Attribute, node: ast.Call, value: Value) -> None:
        """A method of something that is no class of the project."""
        self.visit(func.value)
        receiver, attr = self.base(func.value), func.attr
        made = value.base.name if value.base is not None else ""
        if attr in ("run", "eval", "partial_run"):
            self.facts.graph = self.facts.graph or node
        elif made.startswith("numpy.random."):
            self.change(receiver, node)
            self.spend(PASS if node.args or node.keywords else CALL)
            if attr == "shuffle" and node.args:
                self.overwrite(node.args[0], node)
        elif attr in PURE_METHODS:
            self.spend(PURE_METHODS[attr])
        elif attr in ("fill", "partition", "resize", "itemset", "put"):
            self.overwrite(func.value, node)
        elif attr in _LIST_CHANGES:
            self.change_object(func.value, node)
            if attr in ("sort", "reverse"):
                self.overwrite(func.value, node)
            if receiver and attr not in ("sort", "reverse"):
                self.change(f"{receiver}.size", node)
        elif "." in made and made.split(".")[0] in _WORKING:
            self.change(receiver, node)
            self.spend(DECODES)
        elif made.split(".")[0] in ("tensorflow", "keras") and "read_data_sets" not in made:
            self.facts.graph = self.facts.graph or node
        else:
            if any(b.symbol.split(".")[0] in _OF_ONE_THREAD for b in import_bindings(self.script)):
                self.facts.unseen = self.facts.unseen or node
            self.change_object(func.value, node)
            self.change(NUMPY_DRAWS if "batch" in attr or attr in _MIXING else MAY_DRAW, node)
            if not is_mnist_reader(self.script, func):
                self.facts.reader = self.facts.reader or node


def is_unbound(name: str) -> bool:
    """A name that nothing binds, as far as is seen."""
    root, _, rest = name.partition(".")
    return root == "builtins" and not hasattr(builtins, rest.split(".")[0]) and rest not in ("xrange", "unicode")


def is_project(value: Value) -> bool:
    """A function, method or class of the project's files."""
    return (
        value.kind in ("function", "method", "class")
        and value.script is not None
        and isinstance(value.node, (*FUNCTIONS, ast.ClassDef))
    )


def is_mnist_reader(script: Script, func: ast.Attribute) -> bool:
    """`mnist.train.next_batch` of TensorFlow's tutorials: slices, and one shuffle per epoch."""
    if func.attr != "next_batch":
        return False
    node: ast.expr = func.value
    while isinstance(node, ast.Attribute):
        node = node.value
    return any(
        "read_data_sets" in v.name or (isinstance(v.node, ast.Call) and "read_data_sets" in ast.dump(v.node.func))
        for v in script.values(node)
    )


def _yields(loop: ast.AST) -> bool:
    return any(isinstance(n, ast.Yield | ast.YieldFrom) for n in ast.walk(loop))


def facts_of(script: Script, *nodes: ast.AST | None) -> Facts:
    walk = Walk(script)
    for node in nodes:
        walk.visit(node)
    return walk.facts


def header_facts(script: Script, node: ast.stmt) -> Facts:
    walk = Walk(script)
    walk.header(node)
    return walk.facts


def path_of(script: Script, node: ast.AST) -> str:
    return Walk(script).base(node)
