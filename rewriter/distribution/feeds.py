"""What a TensorFlow 1 training run is fed, traced back to the arrays that can be split before the loop.

found = Feeds(program, script, call)   # raises `Unsplit`: what is fed, and where it cannot be followed
found.settle(others)                   # the same, when the other training runs are known
found.roots      # the bindings of arrays that are split: everything behind them sees the part of one rank
found.places     # where that is, if not right behind the binding
found.counted    # expressions for the number of steps of a loop, which become fewer
found.rows       # expressions for the number of samples, which the part has fewer of
found.whole      # every step has all samples: the number of steps stays
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..data.pipelines import reached
from ..graphs.sessions import placeholder_of
from ..scopes import FUNCTIONS, Binding
from ..script import Script
from .program import Program
from .steps import kind_of_run

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_KEEPING = frozenset("reshape astype transpose copy flatten ravel squeeze toarray tolist todense".split())
_ATTRIBUTES = frozenset({"T", "values"})
_SIZES = frozenset({"shape", "size", "ndim", "dtype"})
_TENSORS = frozenset(f"tensorflow.random.{n}" for n in "normal uniform truncated_normal gamma poisson shuffle".split())
_DRAWS = frozenset(
    "choice randint random random_sample rand randn uniform normal sample randrange standard_normal integers".split()
)
_ORDERS = frozenset({"permutation", "arange"})
#: MNIST of the tutorials of TensorFlow 1.
_READ = re.compile(r"tensorflow\.(examples\.tutorials\.mnist\.input_data|contrib\.learn\..*mnist)\.read_data_sets$")
_COUNTERS = frozenset({"builtins.range", "tqdm.tqdm", "tqdm.trange", "tqdm.std.tqdm", "past.builtins.xrange", "xrange"})


class Unsplit(Exception):
    """Data that cannot be split, and why."""

    def __init__(self, node: ast.AST, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.node, self.reason, self.hint = node, reason, hint


@dataclass(frozen=True, eq=False)
class Root:
    """An array that is split right behind the statement that gives it its name, or at the start of its function."""

    script: Script
    binding: Binding
    length: int | None = None


class Feeds:
    """One training run."""

    def __init__(self, program: Program, script: Script, call: ast.Call) -> None:
        self.program, self.script, self.call = program, script, call
        self.roots: dict[Binding, Root] = {}
        self.counted: list[ast.expr] = []
        self.rows: list[ast.expr] = []
        self.visited: set[ast.AST] = set()
        self.reshaped: list[ast.expr] = []
        self.noise = False  # it is fed random numbers of every rank's own
        self.drawn: list[ast.Call] = []  # `mnist.train.next_batch(n)`
        self.readers: list[tuple[Script, ast.Call]] = []  # the `read_data_sets(...)` of those
        self.places: dict[Binding, ast.stmt] = {}  # where an array is split later than behind its own statement
        self.function = script.function_of(call)
        self.loops = list(script.enclosing(call, *_LOOPS))
        if isinstance(self.function, ast.Lambda):
            raise Unsplit(call, "it trains in a lambda")
        self.loops = [n for n in self.loops if script.function_of(n) is self.function]
        self.varying: set[str] = set()  # targets of loops that what is fed depends on
        self.random = False
        self.turns = False  # an index starts anew at the end of the data
        self._blocks()
        self._callers()
        data, numbers = self._entries()
        for value in data:
            self._data(value)
        for value in numbers:
            self._number(value)
        self.fed = bool(data)
        self._draws_alone()
        self.traced = set(self.visited)
        self.split: dict[Binding, Root] = dict(self.roots)  # also those of the other steps of the program

    def settle(self, others: list[Feeds]) -> None:
        """When all steps of the program are known: how far the loops go, and what else reads the arrays."""
        for other in others:
            self.split |= other.roots
            self.visited |= other.visited
        self._indices()
        if not self.roots and self.fed and not self.random:
            raise Unsplit(self.call, "no array is seen of which it is fed a part")
        self._neighbours()
        self._innermost()
        self._other_uses()

    @property
    def whole(self) -> bool:
        """Whether every step has all samples."""
        return self.fed and not self.varying and not self.random

    # -- where it stands -------------------------------------------------------------------------------------

    def _blocks(self) -> None:
        """All ranks make this step, as often as the others."""
        script = self.script
        for node in script.enclosing(self.call, ast.If, ast.Try, ast.While, ast.IfExp, ast.comprehension):
            if script.function_of(node) is not self.function:
                continue
            if isinstance(node, ast.While):
                if not self._until_it_should_stop(node):
                    raise Unsplit(node, "a `while` around a training step may end on one rank before the others")
            elif isinstance(node, ast.Try):
                if node.handlers and any(self.call in ast.walk(s) for s in node.body):
                    raise Unsplit(node, "an error that is caught around a training step may occur on one rank alone")
            elif isinstance(node, ast.If | ast.IfExp):
                if self.loops and not self._by_turn(node.test):
                    raise Unsplit(node, "whether a training step is made may differ from rank to rank")
            else:
                raise Unsplit(self.call, "it trains in a comprehension")
        for loop in self.loops:
            for inner in ast.walk(loop):
                if (
                    isinstance(inner, ast.Break | ast.Return | ast.Continue)
                    and script.function_of(inner) is self.function
                ):
                    owner = next(script.enclosing(inner, *_LOOPS), loop)
                    if isinstance(inner, ast.Return) or owner in self.loops:
                        word = type(inner).__name__.lower()
                        raise Unsplit(inner, f"`{word}` may end the training on one rank before the others")

    def _callers(self) -> None:
        """The function that trains is called as often on every rank."""
        todo, seen = [(self.script, self.function)], set()
        while todo:
            script, function = todo.pop()
            if not isinstance(function, ast.FunctionDef) or function in seen:
                continue
            seen.add(function)
            for owner, call, _ in script.project.calls_of(function, script):
                inside = False
                for loop in owner.enclosing(call, *_LOOPS):
                    inside = True
                    ends = any(isinstance(n, ast.Break | ast.Return | ast.Continue) for n in ast.walk(loop))
                    if isinstance(loop, ast.While) or ends:
                        reason = f"the loop that calls `{function.name}` may end on one rank before the others"
                        raise Unsplit(self.call, f"{reason} ({owner.at(loop)})")
                if inside and any(owner.enclosing(call, ast.If, ast.IfExp, ast.Try)):
                    for block in owner.enclosing(call, ast.If, ast.IfExp, ast.Try):
                        if any(owner.enclosing(block, *_LOOPS)):
                            reason = f"whether `{function.name}` is called may differ from rank to rank"
                            raise Unsplit(self.call, f"{reason} ({owner.at(block)})")
                todo.append((owner, owner.function_of(call)))

    def _until_it_should_stop(self, loop: ast.While) -> bool:
        test = loop.test
        return (
            isinstance(test, ast.UnaryOp)
            and isinstance(test.op, ast.Not)
            and isinstance(test.operand, ast.Call)
            and isinstance(test.operand.func, ast.Attribute)
            and test.operand.func.attr == "should_stop"
            and any(v.name.endswith("MonitoredTrainingSession") for v in self.script.values(test.operand.func.value))
        )

    def _by_turn(self, test: ast.expr) -> bool:
        """A condition on the counters of the loops and on constants alone."""
        for node in ast.walk(test):
            if isinstance(node, ast.Call | ast.Subscript):
                return False
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                for b in self.script.names.reaching(node):
                    inside = any(b.node in ast.walk(loop) for loop in self.loops)
                    if inside and not self._is_counter(b):
                        return False
        return True

    def _is_counter(self, binding: Binding) -> bool:
        loop = self._loop_of(binding)
        return loop is not None and isinstance(loop.iter, ast.Call) and self._range(loop.iter) is not None

    def _loop_of(self, binding: Binding) -> ast.For | None:
        for loop in self.script.enclosing(binding.node, ast.For) if binding.kind == "loop" else ():
            if isinstance(loop, ast.For) and binding.node in ast.walk(loop.target):
                return loop
        if isinstance(binding.node, ast.For):
            return binding.node
        return None

    def _range(self, node: ast.expr) -> ast.Call | None:
        """The `range(...)` that is counted through."""
        if not isinstance(node, ast.Call):
            return None
        name = self.script.called(node)
        if name in ("tqdm.tqdm", "tqdm.std.tqdm", "tqdm.auto.tqdm") and node.args:
            return self._range(node.args[0])
        shown = isinstance(node.func, ast.Name) and node.func.id in ("xrange", "trange")
        return node if name in _COUNTERS or shown else None

    # -- what is fed -----------------------------------------------------------------------------------------

    def _entries(self) -> tuple[list[ast.expr], list[ast.expr]]:
        """The batches, and the numbers beside them (rates, flags)."""
        call, script = self.call, self.script
        given = [*call.args[1:2], *(k.value for k in call.keywords if k.arg == "feed_dict")]
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr == "run"
            and not _is_session(script, call.func.value)
        ):
            given = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "feed_dict")]
        if any(k.arg is None for k in call.keywords) or any(isinstance(a, ast.Starred) for a in call.args):
            raise Unsplit(call, "what it is fed is given through `*` or `**`")
        data: list[ast.expr] = []
        numbers: list[ast.expr] = []
        for feed in given:
            table = self._table(feed)
            for key, value in zip(table.keys, table.values, strict=True):
                if key is None:
                    raise Unsplit(table, "what it is fed is given through `**`")
                (numbers if self._is_number(key, value) else data).append(value)
        return data, numbers

    def _table(self, feed: ast.expr) -> ast.Dict:
        if isinstance(feed, ast.Dict):
            return feed
        if isinstance(feed, ast.Name):
            bindings = self.script.names.reaching(feed)
            if len(bindings) == 1 and isinstance(bindings[0].value, ast.Dict) and not bindings[0].path:
                changed = any(
                    isinstance(self.script.parents.get(load), ast.Subscript | ast.Attribute)
                    for load in self.script.names.loads(bindings[0])
                )
                if not changed:
                    return bindings[0].value
        raise Unsplit(feed, f"what `{self.script.text(feed)}` feeds is not seen", "write the dictionary out")

    def _is_number(self, key: ast.expr, value: ast.expr) -> bool:
        made = placeholder_of(self.script, key)
        if made is None:
            if self.script.constant(value) is not None:
                return True
            raise Unsplit(key, f"which placeholder `{self.script.text(key)}` is is not seen")
        if self.script.called(made) != "tensorflow.placeholder":
            return True
        shape = made.args[1] if len(made.args) > 1 else self.script.argument(made, "shape")
        if shape is not None and isinstance(self.script.constant(shape), tuple | list):
            return not self.script.constant(shape)
        if isinstance(shape, ast.List | ast.Tuple):
            return not shape.elts
        if isinstance(self.script.constant(value), int | float | bool):
            return True
        if shape is None:
            values = self.script.values(value)
            if values and all(v.kind == "array" for v in values):
                return False
            raise Unsplit(key, f"whether `{self.script.text(key)}` is a batch or a number is not seen: it has no shape")
        return False

    def _number(self, node: ast.expr) -> None:
        """A rate or flag, which has to be the same on every rank."""
        for name in [n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]:
            for b in self.script.names.reaching(name):
                statement = self.script.statement(b.node) if not isinstance(b.node, ast.arg) else None
                inside = next((loop for loop in self.loops if b.node in ast.walk(loop)), None)
                if inside is None or self._loop_of(b) in self.loops:
                    if inside is not None and not self._is_counter(b):
                        raise Unsplit(name, f"`{name.id}` may differ from rank to rank")
                    if inside is not None and self.loops and self._loop_of(b) is self.loops[0]:
                        shown = self.script.text(node)
                        reason = f"`{name.id}`, which `{shown}` depends on, counts steps: a rank makes fewer"
                        raise Unsplit(node, reason)
                    continue
                raise Unsplit(
                    statement or name,
                    f"`{name.id}`, which training is fed, changes while it trains, and may differ from rank to rank",
                )
        for call in [n for n in ast.walk(node) if isinstance(n, ast.Call)]:
            raise Unsplit(call, f"`{self.script.text(call)}`, which training is fed, may differ from rank to rank")

    # -- back to the arrays ----------------------------------------------------------------------------------

    def _data(self, node: ast.expr) -> None:
        """Trace a batch back to the arrays that it is a part of."""
        script = self.script
        if node in self.visited:
            return
        self.visited.add(node)
        match node:
            case ast.Name():
                self._name(node)
            case ast.Subscript(value=value, slice=index):
                first = index.elts[0] if isinstance(index, ast.Tuple) and index.elts else index
                if script.symbol(first) == "numpy.newaxis" or _is_none(first):
                    self.reshaped.append(node)
                self._data(value)
            case ast.Attribute(value=value, attr=attr) if attr in _ATTRIBUTES:
                self._data(value)
            case ast.List() | ast.Tuple():
                for element in node.elts:
                    self._data(element)
            case ast.BinOp(left=left, right=right):
                self._data(left)
                self._data(right)
            case ast.UnaryOp(operand=operand):
                self._data(operand)
            case ast.Constant():
                pass
            case ast.Call():
                self._call(node)
            case _:
                raise Unsplit(node, f"where `{script.text(node)}`, which training is fed, comes from is not followed")

    def _call(self, node: ast.Call) -> None:
        script = self.script
        name = script.called(node)
        last = name.rpartition(".")[2]
        if name.startswith("numpy.random.") or name.startswith("random."):
            if last in _DRAWS:
                self._drawn(node)
                return
            if last not in ("permutation", "shuffle"):
                raise Unsplit(node, f"what `{script.text(node.func)}` gives every rank is not known")
        if name.startswith("numpy.") or name in (
            "builtins.zip",
            "builtins.enumerate",
            "builtins.list",
            "sklearn.utils.shuffle",
        ):
            if last in ("zeros", "ones", "full", "eye") and not isinstance(script.parents.get(node), ast.Subscript):
                return
            if last in ("split", "array_split"):
                raise Unsplit(node, f"`{script.text(node)}` makes as many batches of a part, which are smaller")
            if last in ("reshape", "expand_dims", "atleast_2d"):
                self.reshaped.append(node)
            if last in _ORDERS and node.args and script.integer(node.args[0]) is not None:
                raise Unsplit(node, f"`{script.text(node)}` counts the samples of all ranks")
            for a in node.args:
                self._data(a.value if isinstance(a, ast.Starred) else a)
            return
        if isinstance(node.func, ast.Attribute) and node.func.attr in _KEEPING:
            if node.func.attr == "reshape":
                self.reshaped.append(node)
            self._data(node.func.value)
            return
        if isinstance(node.func, ast.Attribute) and node.func.attr == "next_batch" and self._is_mnist(node.func.value):
            self.random = True
            self.drawn.append(node)
            return
        functions = script.values(node.func)
        own = functions[0] if len(functions) == 1 else None
        if own and own.kind == "function" and own.script is script and isinstance(own.node, ast.FunctionDef):
            self._own_function(node, own.node)
            return
        hint = "train on arrays that are there before the loop"
        raise Unsplit(
            node, f"`{script.text(node.func)}` chooses what a training step is fed, the same on every rank", hint
        )

    def _is_mnist(self, node: ast.expr) -> bool:
        """The training set of TensorFlow's tutorials."""
        if not (isinstance(node, ast.Attribute) and node.attr == "train"):
            return False
        values = self.script.values(node.value)
        for v in values:
            if not (_READ.match(v.name) and v.script is not None and isinstance(v.node, ast.Call)):
                return False
            self.readers.append((v.script, v.node))
        return bool(values)

    def _draws_alone(self) -> None:
        """What gives batches in one order on all ranks draws from NumPy's random numbers, as nothing else may."""
        if not self.drawn:
            return
        for script in self.program.scripts:
            for call in script.calls:
                other = (
                    isinstance(call.func, ast.Attribute) and call.func.attr == "next_batch" and call not in self.drawn
                )
                if other or script.called(call).startswith("numpy.random."):
                    reason = (
                        f"`{script.text(call)}` also takes random numbers, which the order of the batches depends on"
                    )
                    raise Unsplit(call, reason)
        for call in self.drawn:
            if len(call.args) != 1 or call.keywords:
                raise Unsplit(call, f"`{self.script.text(call)}` is given more than the size of a batch")

    def _drawn(self, node: ast.Call) -> None:
        self.random = True
        self.noise = self.noise or not self.roots_in(node)
        for script in self.program.scripts:
            for call in script.calls:
                seeds = ("numpy.random.seed", "random.seed")
                if script.called(call) in seeds and not self.roots_in(node):
                    reason = (
                        f"`{script.text(call)}` gives every rank the same numbers from `{self.script.text(node.func)}`"
                    )
                    raise Unsplit(node, reason, f"seed it with {script.text(call)[:-1]} + hvd.rank())")

    def roots_in(self, node: ast.AST) -> bool:
        """Whether a random index goes into an array: that is another part on every rank anyway."""
        parent = self.script.parents.get(node)
        return isinstance(parent, ast.Subscript) and parent.slice is node

    def _own_function(self, call: ast.Call, function: ast.FunctionDef) -> None:
        """Batches of a function of the program's own, which sees nothing but what it is given."""
        script = self.script
        parameters = {a.arg for a in [*function.args.args, *function.args.kwonlyargs]}
        if function.args.vararg or function.args.kwarg or any(k.arg is None for k in call.keywords):
            raise Unsplit(call, f"what `{function.name}` is given is not seen")
        for inner in ast.walk(function):
            if isinstance(inner, ast.Global | ast.Nonlocal | ast.Attribute) and (
                not isinstance(inner, ast.Attribute) or isinstance(inner.ctx, ast.Store)
            ):
                raise Unsplit(call, f"`{function.name}` remembers something from call to call")
            if (
                isinstance(inner, ast.Name)
                and isinstance(inner.ctx, ast.Load)
                and script.function_of(inner) is function
            ):
                free = [b for b in script.names.reaching(inner) if b.scope is script.names.module]
                if any(b.kind not in ("import", "def", "class") for b in free) and script.number(inner) is None:
                    reason = f"`{function.name}` takes its batches from `{inner.id}`, which it is not given"
                    raise Unsplit(call, reason)
            if isinstance(inner, ast.Call):
                name = script.called(inner)
                last = name.rpartition(".")[2]
                if name.startswith("numpy.random.") and last in _DRAWS:
                    self.random = True
                known = name.startswith(("numpy.", "builtins.", "random.", "math.")) and name != "builtins.open"
                method = isinstance(inner.func, ast.Attribute) and inner.func.attr in (
                    *_KEEPING,
                    "append",
                    "sum",
                    "mean",
                )
                if not known and not method:
                    raise Unsplit(call, f"what `{script.text(inner.func)}` in `{function.name}` does is not known")
                if (counter := self._range(inner)) is not None and not _of_parameters(script, counter, parameters):
                    shown = f"`{script.text(counter)}` in `{function.name}`"
                    reason = f"whether {shown} counts the samples of one rank is not seen"
                    raise Unsplit(call, reason, "let it ask for `len(...)`")
            if isinstance(inner, ast.While):
                raise Unsplit(call, f"how often the loop in `{function.name}` runs is not seen")
        for a in [*call.args, *(k.value for k in call.keywords)]:
            if self._is_plain_number(a):
                continue
            self._data(a)

    def _is_plain_number(self, node: ast.expr) -> bool:
        values = self.script.values(node)
        if values and all(v.kind == "constant" for v in values):
            return True
        return isinstance(node, ast.Attribute) and node.attr not in _ATTRIBUTES

    def _name(self, node: ast.Name) -> None:
        script = self.script
        if self._is_plain_number(node):
            return
        bindings = script.names.reaching(node)
        if not bindings:
            raise Unsplit(node, f"where `{node.id}`, which training is fed, comes from is not seen")
        outside: list[Binding] = []
        for b in bindings:
            if b.kind == "import":
                continue
            loop = next((n for n in self.loops if b.node in ast.walk(n)), None)
            if loop is None:
                outside.append(b)
                continue
            if (own := self._loop_of(b)) is not None:
                self.varying.add(b.name)
                if self._range(own.iter) is None:
                    self._data(own.iter)
                continue
            if b.kind == "augment" or b.value is None:
                raise Unsplit(node, f"`{node.id}` goes on from step to step: the ranks would need other values")
            if any(isinstance(s, ast.If | ast.Try) and s is not loop for s in self._between(b.node, loop)):
                raise Unsplit(node, f"`{node.id}` changes in some steps only")
            self._data(b.part or b.value)
        if len(outside) > 1:
            raise Unsplit(node, f"`{node.id}` is one of several things")
        for b in outside:
            self._root(node, b)

    def _between(self, node: ast.AST, loop: ast.AST) -> list[ast.AST]:
        inside = set(ast.walk(loop))
        return [n for n in self.script.enclosing(node, ast.If, ast.Try) if n in inside]

    def _root(self, node: ast.Name, binding: Binding) -> None:
        script = self.script
        if binding in self.roots:
            return
        if binding.kind not in ("assign", "parameter", "unpack", "assignment") and not (
            isinstance(binding.node, ast.arg) or binding.value is not None
        ):
            raise Unsplit(node, f"where `{node.id}`, which training is fed, comes from is not followed")
        values = script.values(node)
        if any(v.kind in ("dataset", "iterator", "mapping", "loader") for v in values):
            raise Unsplit(node, f"`{node.id}` is no array")
        value = binding.part or binding.value
        if isinstance(value, ast.Call) and script.called(value).rpartition(".")[2] in ("arange", "permutation"):
            self.visited.add(value)
            if value.args and isinstance(script.integer(value.args[0]), int) and self._is_index(node):
                raise Unsplit(value, f"`{script.text(value)}` counts the samples of all ranks", "take `len(...)`")
            if self._is_index(node):
                return
        if isinstance(binding.node, ast.arg):
            self._called_once(node, binding)
        elif any(
            isinstance(n, ast.If | ast.Try)
            for n in script.enclosing(binding.node, ast.If, ast.Try, *FUNCTIONS)
            if script.function_of(n) is script.function_of(binding.node)
        ) and not _in_main(script, binding.node):
            raise Unsplit(node, f"`{node.id}` is made under a condition")
        elif any(script.enclosing(binding.node, *_LOOPS)):
            raise Unsplit(node, f"`{node.id}` is made in a loop")
        length = {v.length if v.kind == "array" else None for v in values}
        self.roots[binding] = Root(script, binding, length.pop() if len(length) == 1 else None)

    def length_of(self, binding: Binding) -> str:
        """How the program asks for the number of samples."""
        again = binding.scope.bindings.get(binding.name, [])  # `x, y = shuffle(x, y)`
        for load in [load for b in (binding, *again) for load in self.script.names.loads(b)]:
            parent = self.script.parents.get(load)
            if isinstance(parent, ast.Subscript):  # `x[i:j].toarray()` of a sparse matrix, which has no `len`
                parent = self.script.parents.get(parent)
            if isinstance(parent, ast.Attribute) and parent.attr in ("shape", "toarray", "todense"):
                return f"{binding.name}.shape[0]"
        return f"len({binding.name})"

    def _is_index(self, node: ast.AST) -> bool:
        parent = self.script.parents.get(node)
        while isinstance(parent, ast.Slice | ast.Tuple | ast.Subscript):
            if isinstance(parent, ast.Subscript) and parent.slice is node:
                return True
            node, parent = parent, self.script.parents.get(parent)
        return False

    def _called_once(self, node: ast.Name, binding: Binding) -> None:
        """A parameter is split at the start of its function, which no loop calls batch by batch."""
        script = self.script
        if not isinstance(self.function, ast.FunctionDef):
            raise Unsplit(node, f"where `{node.id}` comes from is not seen")
        if not self.loops:
            raise Unsplit(
                node, f"`{self.function.name}` is given one batch after the other: what it is a part of is not seen"
            )
        callers = script.project.calls_of(self.function, script)
        if len(callers) != 1 or any(any(o.enclosing(c, *_LOOPS)) for o, c, _ in callers):
            raise Unsplit(node, f"`{self.function.name}`, which trains on `{node.id}`, is not called just once")

    # -- indices and counters ---------------------------------------------------------------------------------

    def _indices(self) -> None:
        """The positions in the arrays: which loops move them, and whether they fit the part of one rank."""
        script = self.script
        seen: set[ast.AST] = set()
        todo: list[ast.AST] = [n.slice for n in self.traced if isinstance(n, ast.Subscript)]
        while todo:
            node = todo.pop()
            if node in seen:
                continue
            seen.add(node)
            for inner in self._parts_of_index(node):
                if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Mod):
                    if not self.of_part(inner.right):
                        raise Unsplit(inner, f"whether `{script.text(inner)}` fits the samples of one rank is not seen")
                    self.turns = True
                if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Mult) and self._shrinks(inner):
                    raise Unsplit(inner, f"`{script.text(inner)}` depends on the size of a batch that would shrink")
                if isinstance(inner, ast.Call):
                    self._index_call(inner)
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load):
                    bindings = script.names.reaching(inner)
                    inside = [b for b in bindings if any(b.node in ast.walk(n) for n in self.loops)]
                    if inside and len(inside) < len(bindings):
                        shuffled = all(isinstance(b.part or b.value, ast.Call) and b.kind != "augment" for b in inside)
                        if not shuffled:
                            reason = f"`{inner.id}` goes on from step to step: the ranks would need other values"
                            raise Unsplit(inner, reason)
                    for b in bindings:
                        if (own := self._loop_of(b)) is not None and own in self.loops:
                            self.varying.add(b.name)
                            if self._range(own.iter) is None:
                                todo.append(own.iter)
                        elif b.value is not None and not self._is_plain_number(inner):
                            if b.kind == "augment":
                                raise Unsplit(inner, f"`{inner.id}` goes on from step to step")
                            todo.append(b.part or b.value)

    def _shrinks(self, product: ast.BinOp) -> bool:
        """Whether a factor beside the counter of a loop is computed from the number of samples."""
        for side in (product.left, product.right):
            names = [n for n in ast.walk(side) if isinstance(n, ast.Name)]
            counts = any(self._loop_of(b) is not None for n in names for b in self.script.names.reaching(n))
            if not counts and self.of_part(side):
                return True
        return False

    def _parts_of_index(self, node: ast.AST) -> list[ast.AST]:
        """What a position is computed from, without the arrays that are only asked for their sizes."""
        found, todo = [], [node]
        while todo:
            one = todo.pop()
            if isinstance(one, ast.Attribute) or (
                isinstance(one, ast.Call) and self.script.called(one) == "builtins.len"
            ):
                continue
            if isinstance(one, ast.Name) and any(b in self.split for b in self.script.names.reaching(one)):
                continue
            found.append(one)
            todo += ast.iter_child_nodes(one)
        return found

    def _index_call(self, call: ast.Call) -> None:
        script = self.script
        name = script.called(call)
        last = name.rpartition(".")[2]
        if name in ("builtins.len", "builtins.int", "builtins.min", "builtins.max", "math.ceil", "math.floor"):
            return
        if last in _DRAWS and name.startswith(("numpy.random.", "random.")):
            self.random = True
            if not any(self.of_part(a) for a in [*call.args, *(k.value for k in call.keywords)]):
                raise Unsplit(call, f"whether `{script.text(call)}` fits the samples of one rank is not seen")
        elif (last in _ORDERS and name.startswith("numpy.")) or self._range(call) is not None:
            if not any(self.of_part(a) for a in call.args):
                raise Unsplit(call, f"whether `{script.text(call)}` fits the samples of one rank is not seen")
        elif not name.startswith(("numpy.", "builtins.list", "builtins.enumerate")):
            raise Unsplit(call, f"what position `{script.text(call)}` gives is not known")

    def of_part(self, node: ast.AST) -> bool:
        """Whether a number is computed from the size of an array that is split."""
        todo, seen = [node], set()
        while todo:
            one = todo.pop()
            if one in seen:
                continue
            seen.add(one)
            for inner in ast.walk(one):
                asked: ast.AST | None = None
                if isinstance(inner, ast.Call) and self.script.called(inner) == "builtins.len" and inner.args:
                    asked = inner.args[0]
                elif isinstance(inner, ast.Attribute) and inner.attr in ("shape", "size"):
                    asked = inner.value
                if isinstance(asked, ast.Name):
                    bindings = self.script.names.reaching(asked)
                    if bindings and any(b in self.split for b in bindings):
                        return True
                    todo += [b.value for b in bindings if b.value is not None]
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load):
                    bindings = self.script.names.reaching(inner)
                    if one is not node and any(b in self.split for b in bindings) and inner is one:
                        return True
                    todo += [b.value for b in bindings if b.value is not None and b not in self.split]
        return False

    def _innermost(self) -> None:
        """Whether the loop around the steps goes once through the part of a rank, or counts steps."""
        script = self.script
        loop = self.loops[0] if self.loops else None
        if loop is None or self.whole:
            return
        if isinstance(loop, ast.While):
            if self.varying and not self.turns:
                raise Unsplit(loop, "how far the loop goes is not seen")
            return
        assert isinstance(loop, ast.For)
        counter = self._range(loop.iter)
        if counter is None:
            if loop.iter in self.visited or not self.fed:
                return
            inside = [n for n in ast.walk(loop.iter) if n in self.visited]
            if not inside and self._names_order(loop.iter):
                return
            if not inside:
                raise Unsplit(loop.iter, f"how often `{script.text(loop.iter)}` gives a step is not seen")
            return
        if len(counter.args) > 2 and self.of_part(counter.args[2]):
            raise Unsplit(counter, f"`{script.text(counter.args[2])}` is the size of a batch that would shrink")
        used = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)} & self.varying
        stop = counter.args[1] if len(counter.args) > 1 else counter.args[0] if counter.args else None
        if stop is None:
            raise Unsplit(counter, "how often the loop runs is not seen")
        if used and not self.turns:
            if self.of_part(stop):
                return
            number = script.integer(stop)
            lengths = {r.length for r in self.roots.values()}
            if number is None or lengths != {number} or len(counter.args) < 3 or script.integer(counter.args[0]) != 0:
                reason = f"whether `{script.text(counter)}` counts the samples of one rank or of all is not seen"
                raise Unsplit(counter, reason, "let it ask for `len(...)` of the array")
            self.rows.append(stop)
            return
        if self.of_part(stop):
            return  # an epoch, in steps of the part
        start = counter.args[0] if len(counter.args) > 1 else None
        if len(counter.args) > 2 or (start is not None and script.integer(start) not in (0, 1)):
            raise Unsplit(counter, f"how many steps `{script.text(counter)}` counts is not seen")
        if len(self.loops) > 1 and self._is_part_of_a_step(loop):
            reason = f"`{script.text(counter)}` counts updates of one step of training, it seems"
            raise Unsplit(counter, reason, "write the updates out, or count steps alone")
        self.counted.append(stop)
        if start is not None and script.integer(start) == 1:
            self.from_one = stop

    from_one: ast.expr | None = None

    def _is_part_of_a_step(self, loop: ast.For) -> bool:
        """Whether the loop around this one also trains beside it, or this one is short."""
        inside = set(ast.walk(loop))
        outer = self.loops[1]
        others = [n for n in ast.walk(outer) if isinstance(n, ast.Call) and n not in inside]
        assert isinstance(loop.iter, ast.Call)
        short = any((n := self.script.integer(a)) is not None and n <= 16 for a in loop.iter.args[-1:])
        return short or any(kind_of_run(self.script, c) == "train" for c in others)

    def _names_order(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and self.of_part(node)

    def _neighbours(self) -> None:
        """The samples of a series belong together with those beside them, which another rank would have."""
        script = self.script
        loops = set(self.loops)
        for made in self.reshaped if self.roots else ():
            if loops & set(script.enclosing(made, *_LOOPS)):
                reason = f"`{script.text(made)}` may put samples together, which are on several ranks"
                raise Unsplit(made, reason, "put them together before the loop")
        places: dict[Binding, set[str]] = {}
        for node in self.traced:
            if (
                isinstance(node, ast.Subscript)
                and isinstance(node.value, ast.Name)
                and isinstance(node.slice, ast.Slice)
            ):
                for b in script.names.reaching(node.value):
                    if b in self.roots:
                        places.setdefault(b, set()).add(ast.unparse(node.slice))
        for b, slices in places.items():
            if len(slices) > 1:
                reason = f"`{b.name}` is fed in several parts, whose samples would be on several ranks"
                raise Unsplit(self.call, reason)

    # -- other uses --------------------------------------------------------------------------------------------

    def _other_uses(self) -> None:
        """What else reads the arrays: it has to come before the place where they are split."""
        script = self.script
        for binding in self.roots:
            loads = script.names.loads(binding)
            others = [n for n in loads if n not in self.visited and not self._is_harmless(n)]
            block, start = self._block(binding)
            held = [(n, self._position(n, block)) for n in loads]
            last = start
            for load in others:
                at = self._position(load, block)
                if at is None or any(loop in ast.walk(block[at]) for loop in self.loops):
                    raise Unsplit(
                        load,
                        f"`{load.id}`, of which every rank gets a part, is used for something else here too",
                        "give what is fed a name of its own",
                    )
                last = max(last, at)
            if last > start:
                early = [n for n, at in held if at is not None and at <= last and n not in others]
                if early:
                    raise Unsplit(early[0], f"`{early[0].id}` is asked for its size before it can be split")
                self.places[binding] = block[last]

    def _block(self, binding: Binding) -> tuple[list[ast.stmt], int]:
        """The statements among which a name gets its value, and where."""
        script = self.script
        if isinstance(binding.node, ast.arg):
            assert isinstance(self.function, ast.FunctionDef)
            return self.function.body, -1
        statement = script.statement(binding.node)
        parent = script.parents[statement]
        for field in ("body", "orelse", "finalbody"):
            block = getattr(parent, field, None)
            if isinstance(block, list) and statement in block:
                return block, block.index(statement)
        raise Unsplit(statement, f"`{binding.name}` is made under a condition")

    def _position(self, node: ast.AST, block: list[ast.stmt]) -> int | None:
        """Which statement of a block runs this; None for what stands elsewhere, or in a function that runs later."""
        current: ast.AST | None = node
        while current is not None:
            if isinstance(current, ast.stmt) and current in block:
                return block.index(current)
            if isinstance(current, FUNCTIONS):
                return None
            current = self.script.parents.get(current)
        return None

    def _is_shown(self, run: ast.Call) -> bool:
        """Whether what is measured on the part of a rank is only shown: it does not fit to what is whole elsewhere."""
        script = self.script
        if kind_of_run(script, run) == "train":
            return True
        uses: list[ast.AST] = [run]
        statement = script.statement(run)
        if isinstance(statement, ast.Assign | ast.AugAssign):
            inside = set(ast.walk(statement))
            for bindings in script.names.scope_of(statement).bindings.values():
                uses += [n for b in bindings if b.node in inside for n in script.names.loads(b)]
        for use in uses:
            for outer in script.enclosing(use, ast.Compare, ast.Call, ast.Subscript, ast.Return):
                if not isinstance(outer, ast.Call):
                    return False
                method = isinstance(outer.func, ast.Attribute) and outer.func.attr in ("append", "format")
                if not method and script.called(outer) not in _SHOWN and outer is not run:
                    return False
        return True

    def _is_harmless(self, load: ast.Name) -> bool:
        script = self.script
        parent = script.parents.get(load)
        if isinstance(parent, ast.Attribute) and parent.attr in _SIZES:
            return True
        if isinstance(parent, ast.Call) and load in parent.args:
            name = script.called(parent)
            if name in ("builtins.len", "numpy.random.shuffle", "random.shuffle", "builtins.type"):
                return True
        for dictionary in script.enclosing(load, ast.Dict):
            outer = script.parents.get(dictionary)
            outer = script.parents.get(outer) if isinstance(outer, ast.keyword) else outer
            if (
                isinstance(outer, ast.Call)
                and isinstance(outer.func, ast.Attribute)
                and outer.func.attr in ("run", "eval")
            ):
                return self._is_shown(outer)
        return False


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


_SHOWN = frozenset(f"builtins.{name}" for name in ("print", "str", "float", "int", "round", "format", "abs"))


def _of_parameters(script: Script, counter: ast.Call, parameters: set[str]) -> bool:
    """Whether a `range` asks for the size of what its function is given, or counts epochs that are plain numbers."""
    return any(
        (isinstance(node, ast.Call) and script.called(node) == "builtins.len")
        or (isinstance(node, ast.Attribute) and node.attr in ("shape", "size"))
        for node in script.behind(*counter.args)
    )


def _is_session(script: Script, node: ast.expr) -> bool:
    return any("ession" in v.name for v in script.values(node)) or "sess" in ast.unparse(node).lower()


def _in_main(script: Script, node: ast.AST) -> bool:
    from ..scopes import is_main_guard

    blocks = list(script.enclosing(node, ast.If, ast.Try))
    return bool(blocks) and all(isinstance(b, ast.If) and is_main_guard(b) for b in blocks)


def random_origins(script: Script, nodes: Sequence[ast.AST], *, eager: bool = False) -> list[tuple[Script, ast.Call]]:
    """Draws of random numbers that data is made of before training, which differ from rank to rank; eager: also of
    tensors."""
    behind: dict[ast.AST, Script] = {}
    todo = [(script, node) for node in nodes]
    while todo:
        owner, node = todo.pop()
        if node not in behind:
            behind[node] = owner
            todo += [origin for inner in ast.walk(node) for origin in _origins(owner, inner)]
    found: dict[ast.Call, Script] = {}
    for node, owner in behind.items():
        found.update({call: where for where, call in reached(owner, [node]) if _differs(where, call, eager=eager)})
    return sorted(((where, call) for call, where in found.items()), key=lambda f: (f[0] is not script, f[1].lineno))


def _origins(script: Script, node: ast.AST) -> Iterator[tuple[Script, ast.AST]]:
    """What a name or an attribute has its value from, also what is put into it later."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield from _elsewhere(script, node)
    if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
        return
    for binding in script.names.reaching(node):
        if binding.value is not None:
            yield script, binding.value
        elif binding.kind == "import":
            yield from _elsewhere(script, node)
        elif binding.kind == "parameter" and isinstance(binding.scope.node, ast.FunctionDef):
            for owner, call, _ in script.project.calls_of(binding.scope.node, script):
                yield from ((owner, a) for a in [*call.args, *(k.value for k in call.keywords)])
        for load in script.names.loads(binding):
            yield from ((script, put) for put in _put_into(script, load))


def _elsewhere(script: Script, node: ast.expr) -> Iterator[tuple[Script, ast.AST]]:
    for value in script.values(node):
        if value.script is not None and isinstance(value.node, ast.expr) and value.node is not node:
            yield value.script, value.node


def _put_into(script: Script, load: ast.Name) -> list[ast.expr]:
    """`x[i] = drawn`, `x[i] += drawn`, `xs.append(drawn)`."""
    parent = script.parents.get(load)
    if isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Store):
        statement = script.statement(parent)
        value = getattr(statement, "value", None)
        return [value] if isinstance(value, ast.expr) else []
    call = script.parents.get(parent) if isinstance(parent, ast.Attribute) else None
    grows = isinstance(parent, ast.Attribute) and parent.attr in ("append", "extend", "insert")
    return call.args if grows and isinstance(call, ast.Call) and call.func is parent else []


def _differs(script: Script, call: ast.Call, *, eager: bool) -> bool:
    """Whether a call draws numbers that are others in every process."""
    name = script.called(call)
    if eager and name in _TENSORS:  # not those of a model, which draws in every step
        return script.argument(call, "seed") is None and not any(script.enclosing(call, ast.ClassDef))
    if not name.startswith(("numpy.random.", "random.", "sklearn.datasets.make_")) or name.endswith(".seed"):
        return False
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    made = receiver is not None and any(
        v.name.endswith(("RandomState", "default_rng")) for v in script.values(receiver)
    )
    seeded = name.endswith(("RandomState", "default_rng")) and (call.args or call.keywords)
    return not made and not seeded and script.argument(call, "random_state") is None
