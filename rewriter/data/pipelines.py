"""Input pipelines: the stages that made a dataset, and everything that is done with one.

For a dataset value, `stages` and `upstream` look back to its sources. `routes` looks forward: one route for
every way from a dataset to something that uses it up (a fit, a loop, an iterator, an escape), with the stages
on the way. `roles` says what a dataset is for. `consumers` lists the places of a script where pipelines end.

    for use in consumers(script):            # model.fit(ds): Use(kind="fit", node=<ds>, call=<the call>)
        for value in script.values(use.node):
            [s.name for s in stages(value)]  # ["tensorflow.data.Dataset.from_tensor_slices", "batch"]
    for route in routes(script, call):       # from the dataset that `call` makes
        route.names(), route.end.kind        # the dataset methods that follow, then "fit", "loop", "escape"
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal
from weakref import WeakKeyDictionary

from .. import catalog
from ..scopes import FUNCTIONS
from ..script import Script, Way
from ..values import Value, is_property

UseKind = Literal[
    "stage",
    "fit",
    "validate",
    "evaluate",
    "predict",
    "loop",
    "iterator",
    "input_fn",
    "adapt",
    "inspect",
    "attribute",
    "escape",
]
Role = Literal["training", "validation", "prediction", "iteration", "preprocessing", "unknown"]

#: More routes than this from one dataset are not told apart: one escape is added.
MAX_ROUTES = 200

#: Functions that combine datasets into one.
COMBINING = {
    "tensorflow.data.Dataset.zip": "zip",
    "tensorflow.data.Dataset.sample_from_datasets": "sample_from_datasets",
    "tensorflow.data.Dataset.choose_from_datasets": "choose_from_datasets",
    "tensorflow.data.experimental.sample_from_datasets": "sample_from_datasets",
    "tensorflow.data.experimental.choose_from_datasets": "choose_from_datasets",
}
#: Dataset classes that read the files that they are given, which may come from a dataset.
READERS = {f"tensorflow.data.{n}": n for n in ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset")}

#: Stages that hand on what they get: a prefetch before them has everything ready.
PASSING = frozenset("take skip repeat with_options enumerate shard take_while".split())

_WRAPPERS = frozenset(
    {"builtins.enumerate", "tqdm.tqdm", "tqdm.auto.tqdm", "tqdm.notebook.tqdm", "tensorflow_datasets.as_numpy"}
)
_LOOKS = frozenset("print len type isinstance hasattr id repr str bool callable help dir vars".split())
_READS_ALL = frozenset("list tuple zip sum sorted next map".split())
_ITERATORS = frozenset("make_one_shot_iterator make_initializable_iterator".split())
_DISTRIBUTE = "experimental_distribute_dataset"
_SITES: dict[str, dict[str, UseKind]] = {
    "fit": {"x": "fit", "validation_data": "validate"},
    "fit_generator": {"generator": "fit", "validation_data": "validate"},
    "evaluate": {"x": "evaluate"},
    "evaluate_generator": {"generator": "evaluate"},
    "predict": {"x": "predict"},
    "predict_generator": {"generator": "predict"},
}
_ROLES: dict[UseKind, Role] = {
    "fit": "training",
    "validate": "validation",
    "evaluate": "validation",
    "predict": "prediction",
    "adapt": "preprocessing",
    "escape": "unknown",
}


@dataclass(frozen=True, eq=False, slots=True)
class Use:
    """One thing that is done with a dataset.

    kind: "stage" (`call` makes the next dataset), "fit", "validate" (validation_data), "evaluate", "predict",
    "loop" (`call` is the `for`, comprehension or consuming call), "iterator" (`call` makes it), "input_fn"
    (an Estimator reads it), "adapt" (a preprocessing layer learns from it), "inspect" (printed, counted),
    "attribute" (`ds.class_names`), or "escape": it goes where it is not followed; `name` says where to.
    """

    script: Script
    node: ast.expr  # the expression that is the dataset
    kind: UseKind
    name: str  # method or function
    call: ast.AST

    @property
    def line(self) -> int:
        return getattr(self.call, "lineno", 0)


@dataclass(frozen=True, eq=False, slots=True)
class Route:
    """A way from a dataset, through stages, to something that uses it up."""

    stages: tuple[Use, ...]
    end: Use

    def names(self) -> tuple[str, ...]:
        return tuple(s.name for s in self.stages)

    def first(self, *names: str) -> Use | None:
        """The first stage on the way with one of these names."""
        return next((s for s in self.stages if s.name in names), None)


# -- backwards ----------------------------------------------------------------------------------------------


def stages(dataset: Value) -> list[Value]:
    """The stages that made a dataset, its source first; combined datasets are left to `upstream`."""
    found = [dataset]
    while (base := found[-1].base) is not None and base.kind in ("dataset", "tfds"):
        found.append(base)
    return found[::-1]


def inputs(stage: Value) -> list[Value]:
    """The datasets that one stage takes: its receiver, what it is zipped or concatenated with, file names."""
    found = [stage.base] if stage.base is not None and stage.base.kind in ("dataset", "tfds") else []
    script, call = stage.script, stage.node
    if script is None or not isinstance(call, ast.Call):
        return found
    if stage.name in COMBINING or stage.name in READERS or stage.name in ("concatenate", "zip"):
        todo: list[ast.expr] = [*call.args, *(k.value for k in call.keywords)]
        for argument in todo:
            for value in script.values(argument):
                if value.kind in ("dataset", "tfds"):
                    found.append(value)
                elif value.kind == "sequence":
                    found += [v for item in value.items for v in item if v.kind in ("dataset", "tfds")]
    return found


def upstream(dataset: Value) -> Iterator[Value]:
    """A dataset and every dataset that it was made from, nearest first."""
    seen: set[tuple[ast.AST | None, str, int]] = set()
    todo = [dataset]
    while todo:
        value = todo.pop(0)
        key = (value.node, value.name, id(value.base))
        if key not in seen and len(seen) < 500:
            seen.add(key)
            yield value
            todo += inputs(value)


def prefetched(dataset: Value) -> bool:
    """Whether it ends in a prefetch, or in one that only stages without work follow."""
    for stage in reversed(stages(dataset)):
        if stage.name == "prefetch" or (
            stage.name == "apply" and _applies(stage, "prefetch_to_device", "copy_to_device")
        ):
            return True
        if stage.name not in PASSING:
            return False
    return False


def _applies(stage: Value, *names: str) -> bool:
    if stage.script is None or not isinstance(stage.node, ast.Call) or not stage.node.args:
        return False
    applied = stage.node.args[0]
    while isinstance(applied, ast.Call):
        if stage.script.called(applied).rpartition(".")[2] in names:
            return True
        applied = applied.func
    return any(v.name.rpartition(".")[2] in names for v in stage.script.values(stage.node.args[0]))


# -- forwards -----------------------------------------------------------------------------------------------

_USES: WeakKeyDictionary[Script, dict[ast.AST, list[Use]]] = WeakKeyDictionary()


def uses(script: Script, node: ast.AST) -> list[Use]:
    """What is done with the dataset that an expression makes, wherever its value goes."""
    memo = _USES.setdefault(script, {})
    if node not in memo:
        memo[node] = []  # a function that is asked for while it is looked at adds nothing
        memo[node] = _Forward(script, node).found
    return memo[node]


def routes(script: Script, node: ast.AST) -> list[Route]:
    """Every way from the dataset that `node` makes to something that uses it up."""
    found: list[Route] = []

    def walk(script: Script, node: ast.AST, way: tuple[Use, ...]) -> None:
        for use in uses(script, node):
            if len(found) >= MAX_ROUTES:
                return
            if use.kind != "stage":
                found.append(Route(way, use))
            elif all(use.call is not s.call for s in way):
                walk(use.script, use.call, (*way, use))

    walk(script, node, ())
    if len(found) >= MAX_ROUTES and isinstance(node, ast.expr):
        found.append(Route((), Use(script, node, "escape", "too many places", node)))
    return found


def roles(script: Script, node: ast.AST) -> frozenset[Role]:
    """What the dataset that `node` makes is for; empty where nothing uses it up.

    "iteration" is a loop that neither trains nor runs a model, "unknown" an escape.
    """
    return frozenset(r for route in routes(script, node) if (r := role(route.end)))


def role(use: Use) -> Role | None:
    """What the end of a route means; None for looking at a dataset without reading it."""
    if use.kind in ("loop", "iterator"):
        return _role_of_loop(use)
    if use.kind == "input_fn":
        return {"train": "training", "evaluate": "validation", "predict": "prediction"}.get(  # type: ignore
            use.name, "unknown"
        )
    return _ROLES.get(use.kind)


def consumers(script: Script) -> list[Use]:
    """The places of this script where datasets are used up for training or validation, in source order.

    `fit`, `validation_data`, `evaluate`; loops and iterators whose code trains or runs a model; Estimators'
    input functions; `experimental_distribute_dataset`. Whether `use.node` is a dataset is not certain.
    """
    facts, key = script.project.facts, f"consumers of {script.path} in {len(script.project.scripts)}"
    if key not in facts:
        facts[key] = _consumers(script)
    return facts[key]  # type: ignore[return-value]


def _consumers(script: Script) -> list[Use]:
    found: list[Use] = []
    for call in script.calls:
        match call.func:
            case ast.Attribute(attr=attr) if attr in _SITES and not script.argument(call, "input_fn"):
                found += [u for u in _site(script, call, attr) if u.kind != "predict"]
            case ast.Attribute(attr="experimental_distribute_dataset") if call.args:
                found.append(Use(script, call.args[0], "loop", _DISTRIBUTE, call))
            case ast.Attribute(attr=attr, value=receiver) if attr in _ITERATORS:
                datasets = [receiver] if script.is_dataset(receiver) else call.args[:1]
                found += [Use(script, d, "iterator", attr, call) for d in datasets]
            case ast.Attribute(attr="make_initializer") if call.args:
                found.append(Use(script, call.args[0], "iterator", "make_initializer", call))
            case ast.Name(id="iter") if len(call.args) == 1:
                found.append(Use(script, call.args[0], "iterator", "iter", call))
            case ast.Attribute(attr=attr) if attr.endswith("distribute_datasets_from_function") and call.args:
                found += [Use(script, r, "input_fn", "train", call) for r in _results(script, call.args[0])]
        if (function := _input_fn(script, call)) is not None:
            found += [
                Use(script, body, "input_fn", _estimator_method(script, call), call)
                for body in _results(script, function)
            ]
    loops: list[ast.For | ast.AsyncFor] = [*script.all(ast.For), *script.all(ast.AsyncFor)]
    for node in loops:
        iterated = _unwrapped(script, node.iter)
        if any(v.kind == "dataset" for v in script.values(iterated)):
            found.append(Use(script, iterated, "loop", "for", node))
    found = [
        u
        for u in found
        if u.kind not in ("loop", "iterator") or u.name == _DISTRIBUTE or role(u) in ("training", "validation")
    ]
    return sorted(found, key=lambda u: (u.node.lineno, u.node.col_offset))


def _unwrapped(script: Script, node: ast.expr) -> ast.expr:
    """The dataset in `enumerate(tqdm(ds))` and `ds.as_numpy_iterator()`."""
    while isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr == "as_numpy_iterator":
            node = node.func.value
        elif node.args and (script.called(node) in _WRAPPERS or _name(node.func) in ("tqdm", "enumerate")):
            node = node.args[0]
        else:
            break
    return node


def _results(script: Script, function: ast.expr) -> Iterator[ast.expr]:
    """What a function of this script returns; a name, a lambda."""
    for value in script.values(function):
        if value.kind in ("function", "method") and value.script is script and value.node is not None:
            yield from [value.node.body] if isinstance(value.node, ast.Lambda) else script.returns(value.node)


def _input_fn(script: Script, call: ast.Call) -> ast.expr | None:
    """The function that an Estimator is given for its data: `input_fn=...`, or first in `estimator.train(...)`."""
    if (given := script.argument(call, "input_fn")) is not None:
        return given
    if call.args and isinstance(call.func, ast.Attribute) and call.func.attr in ("train", "evaluate", "predict"):
        made = [v.name for v in script.values(call.func.value)]
        if made and all(name.startswith("tensorflow.") and name.endswith(_ESTIMATORS) for name in made):
            return call.args[0]
    return None


_ESTIMATORS = ("Estimator", "Classifier", "Regressor", "model_to_estimator")


def _estimator_method(script: Script, call: ast.Call) -> str:
    name = _name(call.func)
    return {"TrainSpec": "train", "EvalSpec": "evaluate"}.get(name, name)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _site(script: Script, call: ast.Call, method: str) -> Iterator[Use]:
    models = script.values(call.func.value) if isinstance(call.func, ast.Attribute) else ()
    if not any(v.kind in ("model", "unknown", "parameter", "method", "object") for v in models):
        return
    arguments = script.bind(call, f"Model.{method}")
    for name, kind in _SITES[method].items():
        if (argument := arguments.get(name)) is not None:
            yield Use(script, argument, kind, method, call)


class _Forward:
    """Follows one value through names, attributes, containers and the project's functions."""

    def __init__(self, script: Script, node: ast.AST) -> None:
        self.found: list[Use] = []
        seen: set[tuple[ast.AST, Way]] = set()
        todo: list[tuple[Script, ast.AST, Way]] = [(script, node, ())]
        while todo:
            where, expr, path = todo.pop()
            if (expr, path) in seen:
                continue
            if len(seen) > 2000:
                self._add(where, expr, "escape", "too many places", expr)
                break
            seen.add((expr, path))
            followed = list(where.successors(expr, path))
            followed += self._use(where, expr, path, bool(followed))
            todo.extend(followed)
        self.found.sort(key=lambda u: (u.line, u.node.lineno, u.node.col_offset))

    def _add(self, script: Script, node: ast.AST, kind: UseKind, name: str, call: ast.AST) -> None:
        if isinstance(node, ast.expr) and all(u.call is not call or u.kind != kind for u in self.found):
            self.found.append(Use(script, node, kind, name, call))

    def _use(self, script: Script, expr: ast.AST, path: Way, followed: bool) -> list[tuple[Script, ast.AST, Way]]:
        """Records what the parent of an expression does with it; returns where else the value goes."""
        parent = script.parents.get(expr)
        match parent:
            case ast.Attribute(attr=attr):
                call = script.parents.get(parent)
                if path:
                    if attr not in ("items", "keys", "values", "get"):
                        return []
                    self._add(script, expr, "escape", f"the container's `{attr}`", parent)
                elif not isinstance(call, ast.Call) or call.func is not parent:
                    self._add(script, expr, "attribute", attr, parent)
                else:
                    return self._method(script, expr, attr, call)
            case ast.Call() | ast.keyword():
                call = parent if isinstance(parent, ast.Call) else script.parents.get(parent)
                if isinstance(call, ast.Call) and expr is not call.func:
                    return self._argument(script, expr, path, call, followed)
                if not isinstance(call, ast.Call):
                    self._add(script, expr, "escape", "a class definition", parent)
            case ast.For() | ast.AsyncFor() if parent.iter is expr:
                if not path:
                    self._add(script, expr, "loop", "for", parent)
                elif not followed:
                    self._add(script, expr, "escape", "a loop over several datasets", parent)
            case ast.comprehension() if parent.iter is expr:
                self._add(script, expr, "loop" if not path else "escape", "a comprehension", expr)
            case ast.Lambda() | ast.Return():
                function = parent if isinstance(parent, ast.Lambda) else script.function_of(parent)
                if not followed and function is not None:
                    return self._returned(script, expr, path, function)
            case ast.Assign() | ast.AnnAssign():
                targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
                if any(
                    isinstance(t, ast.Subscript | ast.Starred) or (isinstance(t, ast.Tuple | ast.List) and not path)
                    for t in targets
                ):
                    self._add(script, expr, "escape", "a container", parent)
                elif not followed and any(isinstance(t, ast.Attribute) for t in targets):
                    self._add(script, expr, "escape", "an attribute", parent)
            case ast.Subscript() if parent.value is expr and not followed:
                self._add(script, expr, "escape", "a part of it that is not followed", parent)
            case (
                ast.Starred()
                | ast.Yield()
                | ast.YieldFrom()
                | ast.Await()
                | ast.BinOp()
                | ast.AugAssign()
                | ast.arguments()
                | ast.Set()
                | ast.ListComp()
                | ast.SetComp()
                | ast.GeneratorExp()
                | ast.DictComp()
            ):
                self._add(script, expr, "escape", "a place that is not followed", parent)
            case ast.Dict() if not followed:
                self._add(script, expr, "escape", "a dictionary", parent)
            case ast.Compare() | ast.FormattedValue():
                self._add(script, expr, "inspect", "a comparison", parent)
        return []

    def _method(self, script: Script, expr: ast.AST, attr: str, call: ast.Call) -> list[tuple[Script, ast.AST, Way]]:
        if attr == "as_numpy_iterator":
            return [(script, call, ())]
        if attr in catalog.DATASET_METHODS:
            self._add(script, expr, "stage", attr, call)
        elif attr in _ITERATORS:
            self._add(script, expr, "iterator", attr, call)
        elif attr in ("reduce", "get_single_element", "save"):
            self._add(script, expr, "loop", attr, call)
        elif attr in ("cardinality", "options", "__len__", "__class__"):
            self._add(script, expr, "inspect", attr, call)
        elif attr in ("__iter__", "make_iterator", "get_next"):
            self._add(script, expr, "iterator", attr, call)
        else:
            self._add(script, expr, "escape", f"`{attr}`", call)
        return []

    def _argument(
        self, script: Script, expr: ast.AST, path: Way, call: ast.Call, followed: bool
    ) -> list[tuple[Script, ast.AST, Way]]:
        name, last = script.called(call), _name(call.func)
        if name in COMBINING or name in READERS:
            self._add(script, expr, "stage", COMBINING.get(name) or READERS[name], call)
        elif name in _WRAPPERS or name.rpartition(".")[2] == "tqdm":
            return [(script, call, path)]
        elif name == "builtins.iter" or last in _ITERATORS or last == "make_initializer":
            self._add(script, expr, "iterator", last, call)
        elif (name.startswith("builtins.") and last in _LOOKS) or name.endswith("experimental.cardinality"):
            self._add(script, expr, "inspect", last, call)
        elif last == _DISTRIBUTE or (name.startswith("builtins.") and last in _READS_ALL and not path):
            self._add(script, expr, "loop", last, call)
        elif (
            isinstance(call.func, ast.Attribute)
            and last in _SITES
            and (site := [u for u in _site(script, call, last) if u.node is expr])
        ):
            if path:
                self._add(script, expr, "escape", f"`{last}` among other arguments", call)
            else:
                self._add(script, expr, site[0].kind, last, call)
        elif (
            isinstance(call.func, ast.Attribute)
            and last in ("concatenate", "zip")
            and script.is_dataset(call.func.value)
        ):
            self._add(script, expr, "stage", last, call)
        elif isinstance(call.func, ast.Attribute) and last == "adapt":
            self._add(script, expr, "adapt", last, call)
        elif name in ("builtins.dict",) and isinstance(script.parents.get(expr), ast.keyword):
            self._add(script, expr, "escape", "a dictionary", call)
        elif any(
            v.kind not in ("function", "method", "class") or v.script is None for v in script.values(call.func)
        ) or not (followed or _received(script, call, expr)):
            self._add(script, expr, "escape", f"`{last or 'a function'}`", call)
        return []

    def _returned(
        self, script: Script, expr: ast.AST, path: Way, function: ast.AST
    ) -> list[tuple[Script, ast.AST, Way]]:
        """A function whose calls are not all seen: a dataset's method or an Estimator may be given it."""
        if isinstance(function, ast.FunctionDef) and is_property(function):
            return [(other, mention, path) for other, mention in _reads_of(script, function)]
        mentions = _mentions_of(script, function)
        further: list[tuple[Script, ast.AST, Way]] = []
        shown = "a lambda" if isinstance(function, ast.Lambda) else f"`{getattr(function, 'name', '')}`"
        places = {e: (s, e) for other, m in mentions for s, e in other.flow(m)}
        seen = False
        for other, place in places.values():
            parent = other.parents.get(place)
            call = other.parents.get(parent) if isinstance(parent, ast.keyword) else parent
            if isinstance(call, ast.Call) and place is call.func:
                further.append((other, call, path))
            elif (
                not path
                and isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr in ("interleave", "flat_map", "apply")
                and other.is_dataset(call.func.value)
            ):
                self._add(other, expr, "stage", call.func.attr, call)
            elif isinstance(call, ast.Call) and _input_fn(other, call) is place:
                self._add(other, expr, "input_fn", _estimator_method(other, call), call)
            elif not _is_followed(other, place):
                self._add(script, expr, "escape", f"whoever calls {shown}", parent or place)
                continue
            else:
                continue
            seen = True
        if not seen and not any(u.kind == "escape" for u in self.found):
            self._add(script, expr, "escape", f"whoever calls {shown}", script.parents[expr])
        return further


def _reads_of(script: Script, function: ast.FunctionDef) -> Iterator[tuple[Script, ast.Attribute]]:
    """Where a property is read."""
    for other in list(script.project.scripts.values()):
        for mention in other.mentions(function.name):
            if isinstance(mention, ast.Attribute):
                for v in other.values(mention.value):
                    if (
                        v.cls
                        and v.cls.script
                        and isinstance(v.cls.node, ast.ClassDef)
                        and v.cls.script.method(v.cls.node, function.name) == (script, function)
                    ):
                        yield other, mention


def _is_followed(script: Script, node: ast.AST) -> bool:
    """Whether `Script.flow` goes on from here: a name, a container or a function takes the value."""
    return next(iter(script.successors(node, ())), None) is not None


def _received(script: Script, call: ast.Call, argument: ast.AST) -> bool:
    """Whether every function that may be called is the project's and has the argument as a parameter."""
    for callee in script.values(call.func):
        function = callee.node
        owner = callee.script
        bound = callee.kind == "method"
        if owner and isinstance(function, ast.ClassDef) and (found := owner.method(function, "__init__")):
            function, bound = found[1], True
        if not isinstance(function, ast.FunctionDef):
            return False
        names = [a.arg for a in [*function.args.posonlyargs, *function.args.args]][int(bound) :]
        keywords = {a.arg for a in function.args.kwonlyargs}
        given = script.bind(call, tuple(names)).given
        if not any(e is argument and (n in names or n in keywords) for n, e in given.items()):
            return False
    return True


# -- what a loop does ---------------------------------------------------------------------------------------

_TRAINING_CALLS = frozenset("apply_gradients minimize train_on_batch GradientTape apply compute_gradients".split())
#: What trains in the graph of a TensorFlow 1 program.
_GRAPH_TRAINS = frozenset("minimize apply_gradients create_train_op optimize_loss".split())
_RUNNING_CALLS = frozenset("test_on_batch predict_on_batch test_step update_state".split())


def reached(script: Script, nodes: Iterable[ast.AST]) -> Iterator[tuple[Script, ast.Call]]:
    """The calls in some code, and those in the project's functions that it calls."""
    seen: set[ast.AST] = set()
    todo: list[tuple[Script, ast.AST]] = [(script, n) for n in nodes]
    while todo and len(seen) < 300:
        where, root = todo.pop()
        if root in seen:
            continue
        seen.add(root)
        for node in ast.walk(root):
            if not isinstance(node, ast.Call):
                continue
            yield where, node
            given = [node.func, *node.args] if _name(node.func) in ("run", "function") else [node.func]
            for expr in given:
                if not isinstance(expr, ast.Name | ast.Attribute):
                    continue
                for value in where.values(expr):
                    if value.kind in ("function", "method") and value.script and isinstance(value.node, FUNCTIONS):
                        todo.append((value.script, value.node))
                    elif (
                        value.kind in ("model", "layer")
                        and value.cls
                        and value.cls.script
                        and isinstance(value.cls.node, ast.ClassDef)
                        and (method := value.cls.script.method(value.cls.node, "call"))
                    ):
                        todo.append(method)


def _role_of_loop(use: Use) -> Role:
    script, call = use.script, use.call
    if use.name in ("list", "tuple", "sorted", "reduce", "save", "next", "a comprehension"):
        return "iteration"
    blocks: list[tuple[Script, ast.AST]] = []
    if isinstance(call, ast.For | ast.AsyncFor):
        blocks = [(script, statement) for statement in call.body]
    else:  # an iterator, or a distributed dataset: the code around whatever takes elements from it
        for other, expr in script.flow(call):
            parent = other.parents.get(expr)
            if isinstance(parent, ast.For | ast.AsyncFor) and parent.iter is expr:
                blocks += [(other, s) for s in parent.body]
            elif isinstance(parent, ast.Attribute | ast.Call):
                around = next(other.enclosing(expr, ast.For, ast.While, ast.FunctionDef), other.tree)
                blocks += [(other, s) for s in around.body]  # type: ignore[attr-defined]
        in_graph = use.name in _ITERATORS or use.name == "make_initializer"
        if in_graph and (fed := _fed_by(script, call)):
            return "training" if "train" in fed else "prediction" if "predict" in fed else "validation"
        if in_graph and any(_name(c.func) in _GRAPH_TRAINS for member in related(script) for c in member.calls):
            return "training"
    runs = False
    for where, statement in blocks:
        for owner, inner in reached(where, [statement]):
            name = _name(inner.func)
            if name in _TRAINING_CALLS and (name != "apply" or _is_optimizer(owner, inner)):
                return "training"
            runs |= name in _RUNNING_CALLS or any(v.kind == "model" for v in owner.values(inner.func))
    return "validation" if runs else "iteration"


def _fed_by(script: Script, iterator: ast.AST) -> set[str]:
    """What an Estimator does with the function that makes an iterator: "train", "evaluate", "predict"."""
    found: set[str] = set()
    todo: list[tuple[Script, ast.AST]] = [(script, f) for f in script.enclosing(iterator, *FUNCTIONS)]
    seen: set[ast.AST] = set()
    while todo:
        owner, function = todo.pop()
        if function in seen:
            continue
        seen.add(function)
        for other, place in [spot for home, m in _mentions_of(owner, function) for spot in home.flow(m)]:
            parent = other.parents.get(place)
            call = other.parents.get(parent) if isinstance(parent, ast.keyword) else parent
            if isinstance(call, ast.Call) and _input_fn(other, call) is place:
                found.add(_estimator_method(other, call))
            elif isinstance(call, ast.Call) and call.func is place:
                todo += [(other, f) for f in other.enclosing(call, *FUNCTIONS)]
    return found


def _mentions_of(script: Script, function: ast.AST) -> list[tuple[Script, ast.AST]]:
    """Where a function is named; a lambda is named where it stands."""
    if isinstance(function, ast.Lambda):
        return [(script, function)]
    name = getattr(function, "name", "")
    return [
        (other, mention)
        for other in list(script.project.scripts.values())
        for alias in other.aliases(name)
        for mention in other.mentions(alias)
        if any(v.node is function for v in other.values(mention))
    ]


def _is_optimizer(script: Script, call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and any(v.kind == "optimizer" for v in script.values(call.func.value))


_RELATED: WeakKeyDictionary[Script, tuple[int, list[Script]]] = WeakKeyDictionary()


def related(script: Script) -> list[Script]:
    """The script and all of its program: what it imports and what imports it, directly or not."""
    project = script.project
    known = _RELATED.get(script)
    if known and known[0] == len(project.scripts):
        return known[1]
    links: dict[Script, set[Script]] = {}
    todo = list(project.scripts.values())
    for importer in todo:
        for scope in importer.names.scopes.values():
            for b in [b for bindings in scope.bindings.values() for b in bindings]:
                if b.kind in ("import", "star") and (found := project.resolve(importer, b.symbol)):
                    if found[0] not in todo:
                        todo.append(found[0])
                    links.setdefault(importer, set()).add(found[0])
                    links.setdefault(found[0], set()).add(importer)
    connected = [script]
    for member in connected:
        connected += sorted((o for o in links.get(member, ()) if o not in connected), key=lambda o: o.path)
    _RELATED[script] = len(project.scripts), connected
    return connected


def in_function_of(script: Script, node: ast.AST, *methods: str) -> bool:
    """Whether a node stands in a function that is given to one of these dataset methods."""
    for function in script.enclosing(node, *FUNCTIONS):
        mentions: list[ast.AST] = (
            [function]
            if isinstance(function, ast.Lambda)
            else [
                m
                for m in script.mentions(getattr(function, "name", ""))
                if any(v.node is function for v in script.values(m))
            ]
        )
        for mention in mentions:
            parent = script.parents.get(mention)
            call = script.parents.get(parent) if isinstance(parent, ast.keyword) else parent
            if (
                isinstance(call, ast.Call)
                and call.func is not mention
                and isinstance(call.func, ast.Attribute)
                and call.func.attr in methods
            ):
                return True
    return False


def program_seen(script: Script, node: ast.AST) -> bool:
    """Whether the code that reads the dataset that `node` makes is seen, with all that it sets up."""
    if script.function_of(node) is None:
        return True
    return any(r.end.kind not in ("escape", "inspect", "attribute") for r in routes(script, node))


def nondeterministic(script: Script) -> int | None:
    """The line where a pipeline's options let parallel stages change the order, or None."""
    for member in related(script):
        if "deterministic" not in member.source.text:
            continue
        for node in ast.walk(member.tree):
            if (
                isinstance(node, ast.Assign)
                and member.constant(node.value) is False
                and any(
                    isinstance(t, ast.Attribute) and t.attr in ("deterministic", "experimental_deterministic")
                    for t in node.targets
                )
            ):
                return node.lineno
    return None
