"""What is known of a script's training: which `fit` calls train what a `compile` compiles, on what, how long.

    for training in trainings(script):
        training.compile               # the call of `model.compile(...)`
        training.fits                  # its `fit` and `fit_generator` calls, as far as they are seen
        training.tests                 # `evaluate` and `predict` calls, and the validation of each `fit`
        training.unseen                # reasons why a use of the model may not be seen
        training.place("jit_compile")  # the call that takes a new argument for `Model.compile`, or why none does

Numbers of steps are computed as Keras computes them; one that is not known has a reason. Nothing is executed.
"""

from __future__ import annotations

import ast
import builtins
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import TypeVar, cast

from . import catalog
from .scopes import FUNCTIONS
from .script import Script, Site, own_nodes
from .values import Value, has_length, length_of_range

FITS = ("fit", "fit_generator")
TESTS = ("evaluate", "evaluate_generator", "predict", "predict_generator")
ON_BATCH = ("train_on_batch", "test_on_batch", "predict_on_batch")
#: Stands for the length of `dataset.repeat()`.
ENDLESS = math.inf


Answer = TypeVar("Answer")


def _asked_once(question: Callable[[Script], Answer]) -> Callable[[Script], Answer]:
    """The answer to a question about all files of a project, kept until another file joins it."""

    @wraps(question)
    def answer(script: Script) -> Answer:
        facts, key = script.project.facts, f"{question.__name__} of {len(script.project.scripts)}"
        if key not in facts:
            facts[key] = question(script)
        return cast(Answer, facts[key])

    return answer


@dataclass(frozen=True, eq=False)
class Use:
    """One thing that is done to a model or with it, which another part of the script may not show."""

    node: ast.AST
    script: Script
    what: str

    @property
    def reason(self) -> str:
        return f"{self.what} ({self.script.at(self.node)})"


@dataclass(frozen=True)
class Count:
    """A number of samples, elements or steps; where it is None, `why` says what of it is not known.

    sized: Keras can tell the number by itself when it runs, even if it is not known here. None: that is open.
    given: the number stands in the call (`steps_per_epoch`, `validation_steps`, `steps`).
    rest: the last batch that is cut from arrays may be smaller than the others.
    """

    number: int | float | None = None
    why: str = ""
    sized: bool | None = None
    given: bool = False
    rest: bool = True


@dataclass(frozen=True, eq=False)
class Run:
    """A `fit`, `evaluate` or `predict`, or the validation that belongs to a `fit`.

    purpose: "fit", "evaluate", "predict" or "validation".
    data: "arrays", "dataset", "loader", "generator" or "unknown".
    source: the expression of the data.
    """

    site: Site
    purpose: str
    data: str
    source: ast.expr | None
    steps: Count


@dataclass(eq=False)
class Training:
    """A `compile` call and what is done with the models that it compiles."""

    compile: Site
    models: list[Value]
    fits: list[Run] = field(default_factory=list)
    tests: list[Run] = field(default_factory=list)
    on_batch: list[Site] = field(default_factory=list)
    unseen: list[Use] = field(default_factory=list)

    @property
    def script(self) -> Script:
        return self.compile.script

    def node_in(self, script: Script) -> ast.AST:
        """Where to report it in a script: the compile call, or the first call of this script that trains."""
        if self.compile.script is script:
            return self.compile.call
        return next((r.site.call for r in [*self.fits, *self.tests] if r.site.script is script), self.compile.call)

    def classes(self) -> list[Value]:
        """The project's own classes that the models are instances of."""
        return list({m.cls.node: m.cls for m in self.models if m.cls is not None}.values())

    def method(self, name: str) -> tuple[Script, ast.FunctionDef] | None:
        """A method of `keras.Model` that one of the models' classes defines itself."""
        for cls in self.classes():
            if cls.script and isinstance(cls.node, ast.ClassDef) and (found := cls.script.method(cls.node, name)):
                return found
        return None

    def place(self, keyword: str) -> ast.Call | str | None:
        """The call that takes `keyword=` for `Model.compile`; or why there is none; None where it is given."""
        if keyword in self.compile.arguments:
            return None
        if keyword == "jit_compile" and (old := left_behind(self.script)):
            return f"models of {old}, an old copy of Keras, take no `jit_compile`"
        if self.compile.arguments.open:
            return f"the arguments that `compile` is given through `*` or `**` may hold `{keyword}`"
        own = self.method("compile")
        if own is None:
            return self.compile.call
        script, method = own
        if len({m.cls.node if m.cls else None for m in self.models}) > 1:
            return "models of several classes are compiled here, one with a `compile` of its own"
        return self._place_in(keyword, script, method)

    def _place_in(self, keyword: str, script: Script, method: ast.FunctionDef) -> ast.Call | str | None:
        """The place for a class with a `compile` of its own: its `super().compile`, or the call that it passes on."""
        name = self.classes()[0].name
        overridden = f"`{name}` has its own `compile`"
        calls = [
            n
            for n in own_nodes(method)
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "compile"
        ]
        if (
            len(calls) != 1
            or not _is_super(script, calls[0].func)
            or script.parents.get(script.statement(calls[0])) is not method
        ):
            return f"{overridden}, which does not simply call `super().compile`"
        owner = script.parents[method]
        assert isinstance(owner, ast.ClassDef)
        for other, cls in script.ancestry(owner)[1:]:
            if other.method(cls, "compile"):
                return f"{overridden}, and a class that it derives from too"
        call = calls[0]
        arguments = script.bind(call, "Model.compile")
        if keyword in arguments:
            return None
        parameters = method.args
        names = {a.arg for a in [*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs]}
        if arguments.open:
            splats = [k.value for k in call.keywords if k.arg is None]
            passed = [
                s
                for s in splats
                if isinstance(s, ast.Name)
                and parameters.kwarg
                and s.id == parameters.kwarg.arg
                and all(b.node is parameters.kwarg for b in script.names.reaching(s))
            ]
            if (
                len(passed) == len(splats)
                and keyword not in names
                and not any(isinstance(a, ast.Starred) for a in call.args)
            ):
                return self.compile.call
            return f"{overridden}, whose `super().compile` may be given `{keyword}` already"
        if keyword in names:
            return f"{overridden} with a parameter `{keyword}`"
        sites = [
            s
            for other in list(script.project.scripts.values())
            for s in other.sites("compile")
            if any(m.cls is not None and m.cls.node is self.classes()[0].node for m in s.models)
        ]
        if len(sites) > 1:
            return f"{overridden}, which compiles several models"
        return call


# -- compile and fit sites -----------------------------------------------------------------------------------


def trainings(script: Script) -> list[Training]:
    """Every `compile` of a Keras model that stands in this script, or whose model this script trains."""
    mine = script.sites("compile", *FITS, *TESTS, *ON_BATCH)
    if not mine:
        return []
    found = []
    project = list(script.project.scripts.values())
    for other in project:
        for site in other.sites("compile"):
            models = [m for m in site.models if m.kind == "model"]
            if not models or (
                other is not script and not any(same(a, b) for s in mine for a in s.models for b in models)
            ):
                continue
            found.append(_training(site, models, project))
    return found


def compiles_something_else(site: Site) -> bool:
    """A `compile` of something that cannot be followed and does not look like Keras: `self.regex.compile(...)`."""
    if any(m.kind == "model" for m in site.models):
        return False
    return not any(
        name in site.arguments for name in ("loss", "optimizer", "metrics") if name in site.arguments.keywords
    )


def same(a: Value, b: Value) -> bool:
    """Whether two values may be one model; `self` in the methods of a class is each of its instances."""
    if a.kind != "model" or b.kind != "model":
        return a.kind == b.kind and a.node is not None and a.node is b.node
    if a.node is not None and b.node is not None:
        return a.node is b.node
    if a.cls is None or b.cls is None or a.cls.script is None or b.cls.script is None:
        return False
    first, second = a.cls.node, b.cls.node
    if not isinstance(first, ast.ClassDef) or not isinstance(second, ast.ClassDef):
        return False
    return any(c is second for _, c in a.cls.script.ancestry(first)) or any(
        c is first for _, c in b.cls.script.ancestry(second)
    )


def _training(site: Site, models: list[Value], project: list[Script]) -> Training:
    training = Training(site, models)
    for model in site.models:
        if model.kind not in ("model", "constant"):
            why = f": {model.name}" if model.kind == "unknown" else ""
            what = f" `{site.script.text(site.call.func.value)}`" if isinstance(site.call.func, ast.Attribute) else ""
            training.unseen.append(
                Use(site.call, site.script, f"which model{what} is that is compiled is not known{why}")
            )
    for script in project:
        for use in script.sites(*FITS, *TESTS, *ON_BATCH):
            if not any(same(a, b) for a in use.models for b in models) or _apart(site, use):
                continue
            if use.method in ON_BATCH:
                training.on_batch.append(use)
            elif use.method in FITS:
                training.fits.append(_fit(use))
                if validation := _validation(use):
                    training.tests.append(validation)
            else:
                training.tests.append(_test(use))
    for model in models:
        training.unseen += escapes(model)
    return training


def _apart(a: Site, b: Site) -> bool:
    """Whether the models come from different calls of functions that make a new one each: `a, b = build(), build()`."""
    made = [_calls_behind(s.script, cast(ast.Attribute, s.call.func).value) for s in (a, b)]
    return set(made[0]).isdisjoint(made[1]) and all(
        calls and all(_makes_new(v) for call in calls for v in s.script.values(call.func))
        for calls, s in zip(made, (a, b), strict=True)
    )


def _calls_behind(script: Script, expr: ast.expr, scope: ast.AST | None = None) -> list[ast.Call]:
    """The calls one of which gives an expression, or the name (of this scope) that it is, its value; [] if unsure."""
    if isinstance(expr, ast.Call):
        return [expr]
    bindings = script.names.reaching(expr) if isinstance(expr, ast.Name) else ()
    parts = [b.part for b in bindings if b.kind == "assign" and scope in (None, b.scope.node)]
    calls = [p for p in parts if isinstance(p, ast.Call)]
    return calls if len(calls) == len(bindings) else []


def _makes_new(function: Value) -> bool:
    """Whether every call of a function of the project gives a model that this call has made."""
    script, node = function.script, function.node
    if function.kind != "function" or script is None or not isinstance(node, ast.FunctionDef) or node.decorator_list:
        return False
    made = [_calls_behind(script, expr, node) for expr in script.returns(node)]
    return bool(made) and all(
        calls and all(v.kind == "model" and v.node is call for call in calls for v in script.values(call))
        for calls in made
    )


def _is_super(script: Script, func: ast.expr) -> bool:
    return (
        isinstance(func, ast.Attribute)
        and isinstance(func.value, ast.Call)
        and script.called(func.value) == "builtins.super"
    )


# -- where a model goes --------------------------------------------------------------------------------------

#: Methods of a model that train or test it, or set up how it does.
_OF_INTEREST = frozenset(("compile", *FITS, *TESTS, *ON_BATCH))
_HARMLESS_BUILTINS = re.compile(r"print|len|str|repr|type|id|isinstance|hasattr|callable|bool|sum|\w*(Error|Exception)")
#: Library functions, outside Keras and TensorFlow, that only look at a model.
_HARMLESS = re.compile(
    r"numpy\.|math\.|os\.|json\.|pickle\.|joblib\.dump$|mlflow\.\w+\.log_model$|visualkeras\.|"
    r"netron\.|gc\.|copy\.|logging\.|tensorflowjs\.|tf2onnx\.|keras2onnx\.|onnxmltools\."
)
#: Functions of Keras and TensorFlow that train the model that they are given, or give back another form of it.
_TRAINS = re.compile(
    r".*(KerasClassifier|KerasRegressor|model_to_estimator|multi_gpu_model|tpu_model|"
    r"keras_to_tpu_model|Pipeline|prune_low_magnitude|quantize_model)$"
)


def escapes(model: Value) -> list[Use]:
    """Uses of a model that lead out of what is analysed: it may be trained or tested there, unseen."""
    if model.script is None or not isinstance(model.node, ast.expr):
        return []
    found: dict[ast.AST, Use] = {}
    pending: list[tuple[Script, ast.expr]] = list(model.script.flow(model.node))
    seen = {e for _, e in pending}
    for script, expr in pending:  # grows: attributes that hold the model are looked for under every name
        if reason := _leads_out(script, expr):
            found.setdefault(expr, Use(expr, script, reason))
        parent = script.parents.get(expr)
        if isinstance(parent, ast.Assign):
            for target in parent.targets:
                if isinstance(target, ast.Attribute):
                    for other in list(script.project.scripts.values()):
                        pending += [
                            (other, m)
                            for m in other.mentions(target.attr)
                            if m not in seen
                            and isinstance(m, ast.Attribute)
                            and any(same(v, model) for v in other.values(m))
                        ]
                        seen.update(m for _, m in pending)
    return list(found.values())


def _leads_out(script: Script, expr: ast.expr) -> str:
    parent = script.parents.get(expr)
    match parent:
        case ast.Attribute():
            call = script.parents.get(parent)
            if parent.attr in _OF_INTEREST and not (isinstance(call, ast.Call) and call.func is parent):
                return f"`{script.text(parent)}` is passed on, to be called where it is not seen"
        case ast.Call() if parent.func is not expr:
            return _handed_to(script, parent)
        case ast.keyword() | ast.Starred():
            call = script.parents.get(parent)
            if isinstance(call, ast.Call):
                return _handed_to(script, call)
            return "the model is put where it is not followed"
        case ast.Return():
            function = script.function_of(parent)
            if isinstance(function, ast.FunctionDef) and not script.project.calls_of(function, script):
                return f"the model is returned by `{function.name}`, whose callers are not seen"
        case (
            ast.Dict()
            | ast.Set()
            | ast.Yield()
            | ast.YieldFrom()
            | ast.Await()
            | ast.DictComp()
            | ast.ListComp()
            | ast.GeneratorExp()
            | ast.Lambda()
        ):
            return f"the model is put into {_KINDS[type(parent)]}, and what is done with it there is not followed"
        case ast.Assign(targets=targets) if place := next((t for t in targets if isinstance(t, ast.Subscript)), None):
            return f"the model is put into `{script.text(place)}`, and what is done with it there is not followed"
    return ""


_KINDS: dict[type[ast.AST], str] = {
    ast.Dict: "a dictionary",
    ast.Set: "a set",
    ast.Yield: "what a generator gives",
    ast.YieldFrom: "what a generator gives",
    ast.Await: "what is awaited",
    ast.DictComp: "a dictionary",
    ast.ListComp: "a list",
    ast.GeneratorExp: "a generator",
    ast.Lambda: "what a lambda returns",
}


def _handed_to(script: Script, call: ast.Call) -> str:
    """Why a function that is given a model may train or test it; empty where it surely does not."""
    name = script.text(call.func)
    reason = f"the model is handed to `{name}`, which may train or test it: its code is not seen"
    for callee in script.values(call.func):
        match callee.kind:
            case "symbol":
                if callee.name.startswith("builtins."):
                    if not hasattr(builtins, callee.name[9:]):
                        return reason
                    if not _HARMLESS_BUILTINS.fullmatch(callee.name[9:]):
                        return f"`{name}` keeps the model, and what is done with it then is not followed"
                elif _TRAINS.match(callee.name) or not (
                    callee.name.startswith("tensorflow.") or callee.keras or _HARMLESS.match(callee.name)
                ):
                    return reason
            case "function" | "method" if isinstance(callee.node, ast.FunctionDef):
                arguments = [*call.args, *(k.value for k in call.keywords)]
                if (
                    any(isinstance(a, ast.Starred) for a in call.args)
                    or any(k.arg is None for k in call.keywords)
                    or len(arguments) > len(callee.node.args.args) + len(callee.node.args.kwonlyargs)
                ):
                    return f"the model is handed to `{name}` through `*` or `**`, where it is not followed"
            case "method" | "layer" | "model" if callee.base is None or callee.base.kind in (
                "model",
                "layer",
                "dataset",
            ):
                pass  # model.add(inner), outer(inner)
            case "class" if callee.script and isinstance(callee.node, ast.ClassDef):
                if _trains_a_part(callee.script, callee.node):
                    return f"`{name}` is given the model, and may train or test it with what it is given later"
            case _:
                return reason
    return ""


def _trains_a_part(script: Script, cls: ast.ClassDef) -> bool:
    """Whether a class calls `fit`, `evaluate` and the like on something other than itself."""
    for owner, node in script.ancestry(cls):
        for n in ast.walk(node):
            if not isinstance(n, ast.Attribute) or n.attr not in _OF_INTEREST or _is_super(owner, n):
                continue
            if not (isinstance(n.value, ast.Name) and n.value.id == "self"):
                return True
    return False


# -- the data of one call ------------------------------------------------------------------------------------


def _fit(site: Site) -> Run:
    arguments = site.arguments
    source = arguments.get("x") or arguments.get("generator")
    data = data_kind(site.script, source, arguments.get("y"))
    if arguments.open:
        return Run(site, "fit", data, source, Count(None, "arguments of `fit` are given through `*` or `**`"))
    explicit = _given(site, "steps_per_epoch")
    if explicit is not None:
        return Run(site, "fit", data, source, explicit)
    if data == "arrays":
        count = samples(site.script, source, arguments.get("y"))
        split = _share(site)
        if isinstance(split, str):
            return Run(site, "fit", data, source, Count(None, split, True))
        if split and count.number is not None:
            count = replace(count, number=_split_at(int(count.number), split))
        return Run(site, "fit", data, source, _in_batches(site.script, count, arguments.get("batch_size")))
    return Run(site, "fit", data, source, steps_of(site.script, source))


def _validation(site: Site) -> Run | None:
    arguments, script = site.arguments, site.script
    source = arguments.get("validation_data")
    batch = arguments.get("validation_batch_size") or arguments.get("batch_size")
    if source is None or script.is_none(source):
        split = _share(site)
        if not split:
            return None
        inputs = arguments.get("x")
        count = samples(script, inputs, arguments.get("y"))
        if isinstance(split, str):
            count = Count(None, split, True)
        elif count.number is not None:
            count = replace(count, number=int(count.number) - _split_at(int(count.number), split))
        steps = _given(site, "validation_steps") or _in_batches(script, count, batch)
        return Run(site, "validation", "arrays", inputs, steps)
    if (explicit := _given(site, "validation_steps")) is not None:
        return Run(site, "validation", validation_kind(script, source), source, explicit)
    kind = validation_kind(script, source)
    if kind != "arrays":
        return Run(site, "validation", kind, source, steps_of(script, source))
    counts = [_of_parts(script, v) for v in script.values(source)]
    return Run(site, "validation", kind, source, _in_batches(script, _agreed(counts), batch))


def validation_kind(script: Script, source: ast.expr) -> str:
    """As `data_kind`, for `validation_data`: a tuple of arrays, or a dataset, loader or generator."""
    values = [v for v in script.values(source) if not (v.kind == "constant" and v.literal is None)]
    if values and all(v.kind in ("sequence", "splits", "call-load-data") for v in values):
        return "arrays"
    return data_kind(script, source, None)


def _of_parts(script: Script, value: Value) -> Count:
    """Samples in `(x, y)` or `(x, y, weights)`."""
    unknown = f"the number of validation samples is not known{_written(value)}"
    if value.kind == "sequence":
        counts = [c for item in value.items[:2] for v in item if (c := samples_of(v)).number is not None]
        return counts[0] if counts else Count(None, unknown, True)
    if value.kind == "call-load-data":
        return Count(value.length, unknown, True)
    return Count(None, unknown, True if value.kind == "splits" else None)


def _test(site: Site) -> Run:
    arguments = site.arguments
    purpose = "predict" if site.method.startswith("predict") else "evaluate"
    source = arguments.get("x") or arguments.get("generator")
    y = arguments.get("y") if purpose == "evaluate" else None
    data = data_kind(site.script, source, y)
    if arguments.open:
        why = f"arguments of `{site.method}` are given through `*` or `**`"
        return Run(site, purpose, data, source, Count(None, why))
    explicit = _given(site, "steps")
    if explicit is not None:
        return Run(site, purpose, data, source, explicit)
    if data == "arrays":
        return Run(
            site,
            purpose,
            data,
            source,
            _in_batches(site.script, samples(site.script, source, y), arguments.get("batch_size")),
        )
    return Run(site, purpose, data, source, steps_of(site.script, source))


def _given(site: Site, name: str) -> Count | None:
    expr = site.arguments.get(name)
    if expr is None or site.script.is_none(expr):
        return None
    number = site.script.integer(expr)
    if number is None or number < 1:
        return Count(None, f"the value of `{name}` is not known: `{site.script.text(expr)}`", None, True)
    return Count(number, "", True, True)


def _share(site: Site) -> float | str:
    """`validation_split` of a `fit`, or why it is not known."""
    expr = site.arguments.get("validation_split")
    if expr is None or site.script.is_none(expr):
        return 0.0
    number = site.script.number(expr)
    if number is None:
        return f"the value of `validation_split` is not known: `{site.script.text(expr)}`"
    data = site.arguments.get("validation_data")
    if number and data is not None and not site.script.is_none(data):
        return "both `validation_split` and `validation_data` are given"
    return float(number)


def _split_at(count: int, split: float) -> int:
    return math.floor(count * (1.0 - split))  # as Keras 2 and 3 have it


def _in_batches(script: Script, count: Count, batch_size: ast.expr | None) -> Count:
    size: int | None = 32
    if batch_size is not None and not script.is_none(batch_size):
        size = script.integer(batch_size)
    if size is None or size < 1:
        written = f": `{script.text(batch_size)}`" if batch_size is not None else ""
        return Count(None, f"the batch size is not known{written}", True)
    if count.number is None:
        return count
    return Count(math.ceil(count.number / size), "", True, rest=count.number % size != 0)


def data_kind(script: Script, source: ast.expr | None, y: ast.expr | None) -> str:
    """What the first argument of `fit`, `evaluate` or `predict` is; labels of their own go with arrays only."""
    if source is None:
        return "unknown"
    if y is not None and not script.is_none(y):
        return "arrays"
    kinds = set()
    for value in script.values(source):
        match value.kind:
            case "dataset" | "tfds":
                kinds.add("dataset")
            case "array" | "tensor" | "sequence" | "mapping" | "splits":
                kinds.add("arrays")
            case "loader" | "generator":
                kinds.add(value.kind)
            case "constant" if value.literal is None:
                pass
            case _:
                kinds.add("arrays" if _is_array(value) else "unknown")
    return kinds.pop() if len(kinds) == 1 else "unknown"


#: Methods and attributes, of objects that are not followed, which give an array.
_GIVES_ARRAY = frozenset("numpy to_numpy toarray to_tensor values reshape astype transform fit_transform".split())


def _is_array(value: Value) -> bool:
    """An array by how it is made: `scaler.transform(x)`, `frame.values`, an element of a dataset in a loop."""
    node, script = value.node, value.script
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr in _GIVES_ARRAY
    if value.kind != "parameter" or script is None or not isinstance(node, ast.Name):
        return False
    loop: ast.AST = node
    while isinstance(loop, ast.Name | ast.Tuple):
        loop = script.parents[loop]
    return isinstance(loop, ast.For | ast.comprehension) and script.is_dataset(loop.iter)


# -- how many samples ----------------------------------------------------------------------------------------


def samples(script: Script, *parts: ast.expr | None) -> Count:
    """The number of samples in arrays that are given together, from the first of which it is known."""
    why = "the number of training samples is not known"
    for part in parts:
        if part is not None:
            count = _agreed([samples_of(v) for v in script.values(part)])
            if count.number is not None:
                return count
            why = count.why or why
    return Count(None, why, True)


def _agreed(counts: list[Count]) -> Count:
    """The one count that all alternatives have."""
    numbers = {c.number for c in counts}
    if len(numbers) == 1:
        sized = None if any(c.sized is None for c in counts) else all(c.sized for c in counts)
        return replace(counts[0], sized=sized)
    sized = None if not counts or any(c.sized is None for c in counts) else all(c.sized for c in counts)
    why = next((c.why for c in counts if c.number is None), "it is one of several of different length")
    return Count(None, why, sized)


_SHAPED = frozenset(
    "zeros ones fill random.normal random.uniform random.truncated_normal random_normal "
    "random_uniform truncated_normal".split()
)
_SAME_LENGTH = frozenset("constant convert_to_tensor cast identity expand_dims one_hot".split())


def samples_of(value: Value) -> Count:
    """The length of the first axis of an array, or of the arrays in a list, tuple or dict of inputs."""
    unknown = Count(None, f"the number of samples in the arrays is not known{_written(value)}", True)
    match value.kind:
        case "array":
            return Count(value.length, "" if value.length is not None else unknown.why, True)
        case "sequence" if value.items and not all(v.kind == "constant" for i in value.items for v in i):
            for item in value.items:
                count = _agreed([samples_of(v) for v in item])
                if count.number is not None:
                    return count
        case "mapping" if isinstance(value.node, ast.Dict) and value.script and value.node.values:
            return samples(value.script, *value.node.values)
        case "tensor" if isinstance(value.node, ast.Call) and value.script and value.node.args:
            name, first = value.name.removeprefix("tensorflow."), value.node.args[0]
            if name in _SHAPED and isinstance(first, ast.Tuple | ast.List) and first.elts:
                number = value.script.integer(first.elts[0])
                return Count(number, "" if number is not None else unknown.why, True)
            if name in _SAME_LENGTH and not (name == "expand_dims" and not _axis_behind(value)):
                return _agreed([samples_of(v) for v in value.script.values(first)])
    return unknown


def _written(value: Value) -> str:
    return f": `{value.script.text(value.node)}`" if value.script and isinstance(value.node, ast.expr) else ""


def _axis_behind(value: Value) -> bool:
    assert value.script is not None and isinstance(value.node, ast.Call)
    axis = value.script.integer(value.script.bind(value.node, ("input", "axis")).get("axis"))
    return axis is not None and axis != 0


# -- how many batches ----------------------------------------------------------------------------------------


def steps_of(script: Script, source: ast.expr | None) -> Count:
    """The number of batches that a dataset, loader or generator gives in one epoch."""
    if source is None:
        return Count(None, "what it is given is not seen")
    values = [v for v in script.values(source) if not (v.kind == "constant" and v.literal is None)]
    counts = [_batches(v, script.text(source)) for v in values]
    count = _agreed(counts)
    if count.number == ENDLESS:
        return Count(None, "the dataset repeats without end", False)
    return count


def _batches(value: Value, text: str) -> Count:
    match value.kind:
        case "dataset":
            return elements_of(value)
        case "loader":
            return _flow(value)
        case "generator":
            return Count(None, "a generator does not tell how many batches it gives", False)
        case "tfds":
            return Count(None, "the size of the data set is not known before it is loaded")
        case "array" | "tensor":
            return Count(None, "the number of samples is not known", True)
    why = {"unknown": f": {value.name}", "parameter": ": it is given by callers that are not seen"}.get(value.kind, "")
    return Count(None, f"what `{text}` is is not known{why}")


def _flow(loader: Value) -> Count:
    """`ImageDataGenerator(...).flow(x, y, batch_size=32)`; others tell their length only when they run."""
    if loader.name.endswith(".flow") and isinstance(loader.node, ast.Call) and loader.script:
        script = loader.script
        arguments = script.bind(loader.node, "ImageDataGenerator.flow")
        if not arguments.may_have("subset"):
            return _in_batches(
                script, samples(script, arguments.get("x"), arguments.get("y")), arguments.get("batch_size")
            )
    if loader.cls is not None:
        length = _written_length(loader.cls)
        return Count(length, "" if length else f"the length of `{loader.cls.name}` is computed when it runs", True)
    return Count(None, "the number of files is not known", True)


def _written_length(cls: Value) -> int | None:
    """What `__len__` of a loader returns, where that is a number that no object of the class can change."""
    found = cls.script.method(cls.node, "__len__") if cls.script and isinstance(cls.node, ast.ClassDef) else None
    if found is None:
        return None
    script, method = found
    returned = script.returns(method)
    if len(returned) != 1 or any(isinstance(n, ast.Attribute) for n in ast.walk(returned[0])):
        return None
    return script.integer(returned[0])


_SIZED_SOURCES = frozenset("Dataset.from_tensor_slices Dataset.from_tensors Dataset.range Dataset.list_files".split())
#: Stages that give one element for each that they are given.
_ONE_TO_ONE = frozenset("map shuffle cache prefetch enumerate with_options".split())


def elements_of(dataset: Value) -> Count:
    """How many elements a dataset has: batches, once it is batched."""
    script, call = dataset.script, dataset.node
    if script is None or not isinstance(call, ast.Call):
        return Count(None, "how the dataset is made is not seen")
    if dataset.base is None:
        return _source(dataset, script, call)
    if dataset.base.kind != "dataset":
        return Count(None, "the size of the data set is not known before it is loaded")
    before = elements_of(dataset.base)
    stage = dataset.name
    arguments = script.bind(call, f"Dataset.{stage}")
    if stage in _ONE_TO_ONE:
        return before
    unknown = Count(None, before.why, before.sized)
    match stage:
        case "batch" | "padded_batch":
            size = script.integer(arguments.get("batch_size"))
            drop = arguments.get("drop_remainder")
            dropped = False if drop is None else script.constant(drop)
            if before.number is None or before.number == ENDLESS:
                return before
            if size is None or size < 1:
                return Count(None, f"the batch size is not known: `{script.text(call)}`", before.sized)
            if not isinstance(dropped, bool):
                return Count(None, "whether the last batch is dropped is not known", before.sized)
            n = int(before.number)
            return replace(before, number=n // size if dropped else math.ceil(n / size))
        case "repeat":
            count = arguments.get("count")
            times = -1 if count is None or script.is_none(count) else script.integer(count)
            if times == -1:
                return Count(ENDLESS, "", False)
            if times is None or before.number is None:
                return replace(unknown, why=before.why or "how often the dataset repeats is not known")
            return replace(before, number=before.number * times)
        case "take" | "skip":
            n_taken = script.integer(arguments.get("count"))
            if n_taken is None or before.number is None:
                sized = True if stage == "take" and before.number == ENDLESS else before.sized
                return Count(None, before.why or f"the number in `{stage}` is not known", sized)
            if n_taken < 0:
                return before if stage == "take" else replace(before, number=0)
            if stage == "take":
                return Count(min(before.number, n_taken), "", True)
            return replace(before, number=max(before.number - n_taken, 0) if before.number != ENDLESS else ENDLESS)
        case "concatenate":
            other = steps_of(script, call.args[0] if call.args else None)
            if before.number is None or other.number is None:
                return Count(None, before.why or other.why, before.sized and other.sized)
            return Count(before.number + other.number, "", before.sized and other.sized)
        case "shard":
            return Count(None, "which part of the dataset is taken is not known", before.sized)
        case "apply":
            function = call.args[0] if call.args else None
            if isinstance(function, ast.Call):
                name = script.called(function)
                if name == "tensorflow.data.experimental.assert_cardinality" and function.args:
                    number = script.integer(function.args[0])
                    return Count(number, "" if number is not None else "the asserted size is not known", True)
                if name.endswith(("prefetch_to_device", "copy_to_device")):
                    return before
    return Count(None, f"the number of elements after `{stage}` is not known", False)


def _source(dataset: Value, script: Script, call: ast.Call) -> Count:
    name = dataset.name.removeprefix("tensorflow.data.")
    if name == "Dataset.from_tensors":
        return Count(1, "", True)
    if name == "Dataset.from_tensor_slices":
        return replace(_slices(script, call), sized=True)
    if name == "Dataset.range":
        number = length_of_range([script.integer(a) for a in call.args])
        if number is not None:
            return Count(number, "", True)
    if name in ("Dataset.zip", "zip"):
        parts = _flat(call)
        if parts and not any(k.arg for k in call.keywords):
            counts = [steps_of_dataset(script, p) for p in parts]
            if all(c.number is not None for c in counts):
                return Count(min(c.number for c in counts if c.number is not None), "", True)
            return Count(None, next(c.why for c in counts if c.number is None), all(c.sized for c in counts))
    if dataset.keras in catalog.KERAS_DATASETS:
        what = "sequences" if dataset.keras.endswith("_from_array") else "files"
        return Count(None, f"the number of {what} is not known", True)
    return Count(None, f"how many elements `{name.split('.')[-1]}` gives is not known", name in _SIZED_SOURCES)


def _slices(script: Script, call: ast.Call) -> Count:
    """The length of what is sliced; a list is one tensor, a tuple or dict holds several of one length."""
    argument = script.bind(call, "Dataset.from_tensor_slices").get("tensors")
    counts = []
    for value in script.values(argument):
        if isinstance(value.node, ast.List | ast.ListComp) and has_length(value):
            counts.append(Count(script._evaluate.length([value]), "the number of elements is not known", True))
        elif value.kind == "sequence" and isinstance(value.node, ast.Tuple) and value.script:
            parts = [_slice_of(value.script, element) for element in value.node.elts]
            counts.append(next((c for c in parts if c.number is not None), parts[0] if parts else Count()))
        else:
            counts.append(samples_of(value))
    return _agreed(counts)


def _slice_of(script: Script, element: ast.expr) -> Count:
    lists = [v for v in script.values(element) if isinstance(v.node, ast.List | ast.ListComp) and has_length(v)]
    if lists:
        return Count(script._evaluate.length(script.values(element)), "the number of elements is not known", True)
    return samples(script, element)


def steps_of_dataset(script: Script, source: ast.expr) -> Count:
    """As `steps_of`, where an endless dataset is fine: one of those that are zipped."""
    return _agreed([_batches(v, script.text(source)) for v in script.values(source)])


def _flat(call: ast.Call) -> list[ast.expr]:
    """The arguments of a call, with the elements of a tuple in its place."""
    found: list[ast.expr] = []
    for argument in [*call.args, *(k.value for k in call.keywords)]:
        found += argument.elts if isinstance(argument, ast.Tuple | ast.List) else [argument]
    return found


# -- callbacks -----------------------------------------------------------------------------------------------

#: Hooks that Keras calls once per execution instead of once per batch.
BATCH_HOOK = re.compile(r"on_((train|test|predict)_)?batch_(begin|end)$")
#: Callbacks that act at the ends of epochs, of training and of validation only.
_PER_EPOCH = frozenset(
    "EarlyStopping ReduceLROnPlateau LearningRateScheduler CSVLogger History RemoteMonitor Callback "
    "SwapEMAWeights ModelCheckpoint TensorBoard BackupAndRestore ProgbarLogger "
    "WandbCallback WandbMetricsLogger WandbModelCheckpoint WandbEvalCallback MlflowCallback MLflowCallback "
    "NeptuneCallback PlotLossesKeras PlotLossesKerasTF TimeStopping".split()
)
#: The packages of the callbacks that are not Keras's own; those that are not in `_PER_EPOCH` act at every batch.
_OF_OTHERS: dict[str, str] = {
    "WandbCallback": "wandb", "WandbMetricsLogger": "wandb", "WandbModelCheckpoint": "wandb",
    "WandbEvalCallback": "wandb", "MlflowCallback": "mlflow", "MLflowCallback": "mlflow",
    "NeptuneCallback": "neptune", "NeptuneMonitor": "neptune", "PlotLossesKeras": "livelossplot",
    "PlotLossesKerasTF": "livelossplot", "TimeStopping": "tensorflow_addons",
    "TqdmCallback": "tqdm", "TQDMCallback": "keras_tqdm", "TQDMNotebookCallback": "keras_tqdm",
    "TQDMProgressBar": "tensorflow_addons",
}  # fmt: skip
#: Arguments with which a callback acts every so many batches, and the values with which it does not.
_FREQUENCY: dict[str, tuple[str, frozenset[object]]] = {
    "ModelCheckpoint": ("save_freq", frozenset({"epoch"})),
    "BackupAndRestore": ("save_freq", frozenset({"epoch"})),
    "TensorBoard": ("update_freq", frozenset({"epoch"})),
    "WandbCallback": ("log_batch_frequency", frozenset({None})),
    "WandbMetricsLogger": ("log_freq", frozenset({"epoch"})),
    "WandbModelCheckpoint": ("save_freq", frozenset({"epoch"})),
    "MlflowCallback": ("log_every_n_steps", frozenset({None})),
    "MLflowCallback": ("log_every_n_steps", frozenset({None})),
    "NeptuneCallback": ("log_on_batch", frozenset({False})),
}
_SIGNATURES: dict[str, tuple[str, ...] | str] = {
    "ModelCheckpoint": "callbacks.ModelCheckpoint",
    "TensorBoard": "callbacks.TensorBoard",
    "BackupAndRestore": ("backup_dir", "save_freq"),
    "WandbCallback": ("monitor", "verbose", "mode"),
    "WandbMetricsLogger": ("log_freq", "initial_global_step"),
    "WandbModelCheckpoint": "callbacks.ModelCheckpoint",
    "MlflowCallback": ("run",),
    "MLflowCallback": ("run",),
    "NeptuneCallback": ("run", "base_namespace"),
}


def callbacks(site: Site) -> tuple[list[Value], str]:
    """The callbacks of a `fit`, `evaluate` or `predict`, and why there may be others that are not seen."""
    expr = site.arguments.get("callbacks")
    if expr is None:
        return [], ""
    found: list[Value] = []
    why = _gather(site.script, expr, found, set())
    return list({v.node or id(v): v for v in found}.values()), why


def _gather(script: Script, expr: ast.expr, found: list[Value], seen: set[ast.AST]) -> str:
    """Add the callbacks that a list expression may hold; returns why it may hold others."""
    if expr in seen:
        return ""
    seen.add(expr)
    if isinstance(expr, ast.BinOp) and isinstance(expr.op, ast.Add):
        return _gather(script, expr.left, found, seen) or _gather(script, expr.right, found, seen)
    if isinstance(expr, ast.List | ast.Tuple):
        for element in expr.elts:
            inner = element.value if isinstance(element, ast.Starred) else element
            if why := _gather(script, inner, found, seen):
                return why
        return _additions(script, expr, found, seen)
    for value in script.values(expr):
        node, owner = value.node, value.script
        match value.kind:
            case "constant" if value.literal is None:
                continue
            case kind if kind == "callback" or _known_as(value):
                found.append(value)
                continue
            case "sequence" if isinstance(node, ast.List | ast.Tuple | ast.BinOp) and owner:
                if why := _gather(owner, node, found, seen):
                    return why
                continue
            case "object" if value.cls is not None:
                found.append(value)
                continue
            case "object" if isinstance(node, ast.List | ast.BinOp) and node is not expr and owner:
                if why := _gather(owner, node, found, seen):
                    return why
                continue
            case "object" if (
                isinstance(node, ast.Call)
                and owner
                and value.name in ("builtins.list", "builtins.tuple", "builtins.filter")
            ):
                if not node.args:
                    why = _additions(owner, node, found, seen)
                else:
                    why = _gather(owner, node.args[-1], found, seen) or _additions(owner, node, found, seen)
                if why:
                    return why
                continue
            case "unknown" if isinstance(node, ast.Name) and owner:
                added = owner.parents.get(node)
                if isinstance(added, ast.AugAssign) and isinstance(added.op, ast.Add):  # callbacks += [...]
                    if why := _gather(owner, added.value, found, seen):
                        return why
                    continue
        text = script.text(expr)
        return (
            f"`{text}` is not a callback that is known"
            if value.kind in ("symbol", "object", "method")
            else f"not all callbacks in `{text}` are seen"
        )
    return ""


def _additions(script: Script, made: ast.expr, found: list[Value], seen: set[ast.AST]) -> str:
    """What is done to a list after it was made: `append`, `extend`, `insert`."""
    for owner, use in script.flow(made):
        parent = owner.parents.get(use)
        if isinstance(parent, ast.AugAssign) and parent.target is use:
            if why := _gather(owner, parent.value, found, seen):
                return why
        elif isinstance(parent, ast.Subscript) and parent.value is use and isinstance(parent.ctx, ast.Store):
            return f"an element of the list of callbacks is replaced ({owner.at(use)})"
        elif isinstance(parent, ast.Attribute) and parent.attr in ("append", "extend", "insert", "__iadd__"):
            call = owner.parents.get(parent)
            if not isinstance(call, ast.Call) or not call.args:
                return f"what `{owner.text(parent)}` does with the list of callbacks is not followed ({owner.at(use)})"
            if why := _gather(owner, call.args[-1], found, seen):
                return why
        elif (
            isinstance(parent, ast.Call)
            and parent.func is not use
            and not all(_leaves_lists_alone(callee) for callee in owner.values(parent.func))
        ):
            return (
                f"the list of callbacks is handed to `{owner.text(parent.func)}`, which may add to it ({owner.at(use)})"
            )
    return ""


def _leaves_lists_alone(callee: Value) -> bool:
    """A function that does not add to a list that it is given; the project's own are followed."""
    if callee.kind != "symbol":
        return callee.kind not in ("unknown", "parameter")
    family, _, name = callee.name.partition(".")
    return family in ("tensorflow", "keras") or (family == "builtins" and hasattr(builtins, name))


@_asked_once
def hooked_later(script: Script) -> str:
    """Why a callback may act per batch though its class does not: a hook or a frequency is set from outside."""
    for other in list(script.project.scripts.values()):
        for target in other.all(ast.Attribute):
            own = isinstance(target.value, ast.Name) and target.value.id == "self"
            hook = BATCH_HOOK.match(target.attr) or target.attr in ("save_freq", "update_freq")
            if hook and not own and isinstance(target.ctx, ast.Store):
                return f"`{ast.unparse(target)}` is set ({other.at(target)})"
        for call in other.calls_to("builtins.setattr"):
            name = other.constant(call.args[1]) if len(call.args) > 1 else None
            if isinstance(name, str) and (BATCH_HOOK.match(name) or name in ("save_freq", "update_freq")):
                return f"`{name}` is set with `setattr` ({other.at(call)})"
    return ""


@_asked_once
def logged_per_batch(script: Script) -> str:
    """A library that adds callbacks of its own to every `fit`, which act at batches."""
    for other in list(script.project.scripts.values()):
        for call in other.calls_into("comet_ml"):
            if other.called(call).endswith(("Experiment", ".start", ".init", ".login")):
                return f"`{other.text(call.func)}` ({other.at(call)}) logs metrics of batches"
        for call in other.calls_into("mlflow"):
            for keyword in call.keywords if other.called(call).endswith(".autolog") else ():
                every = other.values(keyword.value)
                if keyword.arg is None or (
                    keyword.arg == "log_every_n_steps"
                    and not all(v.kind == "constant" and v.literal is None for v in every)
                ):
                    return f"`{other.text(call.func)}` ({other.at(call)}) may log metrics of batches"
    return ""


def acts_per_batch(callback: Value) -> str:
    """Why a callback does something at every batch, or may do; empty for one that acts per epoch."""
    if callback.cls is not None:
        return _class_acts_per_batch(callback)
    name = _known_as(callback)
    if not name:
        return f"what `{_shown(callback)}` does per batch is not known"
    if callback.script is None or not isinstance(callback.node, ast.Call):
        return f"with which arguments `{name}` is made is not seen"
    if name == "LambdaCallback":
        call = callback.node
        if len(call.args) > 2 or any(k.arg is None or "batch" in k.arg for k in call.keywords):
            return "a `LambdaCallback` acts at every batch"
        return ""
    if name not in _PER_EPOCH:
        return f"`{name}` acts at every batch"
    return _frequency(callback.script, callback.node, name)


def _known_as(value: Value) -> str:
    """The class of a callback of Keras, or of one of another library that is known; "" for others."""
    if value.keras.startswith("callbacks.") and value.kind in ("callback", "symbol"):
        return value.keras.removeprefix("callbacks.").removeprefix("experimental.")
    package, _, name = value.name.rpartition(".")
    known = value.kind in ("object", "symbol") and value.cls is None and name in _OF_OTHERS
    return name if known and re.match(_OF_OTHERS[name] + r"(\b|_)", package) else ""


def _schedules(script: Script) -> bool:
    return any(v.kind == "schedule" for s in script.project.scripts.values() for c in s.calls for v in s.values(c))


def _frequency(script: Script, call: ast.Call, name: str) -> str:
    if name not in _FREQUENCY:
        return ""
    keyword, harmless = _FREQUENCY[name]
    signature = _SIGNATURES[name]
    names = catalog.SIGNATURES[signature] if isinstance(signature, str) else signature
    arguments = script.bind(call, names)
    given = arguments.get(keyword)
    if arguments.open:
        return f"arguments of `{name}` are given through `*` or `**`"
    if name == "WandbMetricsLogger" and _schedules(script):
        return f"`{name}` counts batches to log what a learning rate schedule gives"
    if len(call.args) > len(names):
        return f"which arguments `{name}` is given by position is not seen"
    if given is None and name == "NeptuneCallback":
        return "early versions of `NeptuneCallback` act at every batch where `log_on_batch=False` is not given"
    known = [v.literal for v in script.values(given) if v.kind == "constant"] if given is not None else []
    if given is not None and (len(known) != len(script.values(given)) or not harmless.issuperset(known)):
        (usual, *_) = harmless
        return f"`{name}` may count batches: its `{keyword}` is not {usual!r}".replace("'", '"')
    profile = arguments.get("profile_batch") if name == "TensorBoard" else None
    if profile is not None and script.constant(profile) != 0:
        return "`TensorBoard` profiles batches that are given by number"
    return ""


def _class_acts_per_batch(callback: Value) -> str:
    cls = callback.cls
    assert cls is not None
    if cls.script is None or not isinstance(cls.node, ast.ClassDef):
        return f"what `{cls.name}` does per batch is not known"
    for name, (_, method) in cls.script.methods(cls.node).items():
        if BATCH_HOOK.match(name) and not _does_nothing(method):
            return f"`{cls.name}.{name}` acts at every batch"
    for name in cls.script.assigned_attributes(cls.node):
        if BATCH_HOOK.match(name):
            return f"`{cls.name}.{name}` acts at every batch"
    known = False
    for owner, node in cls.script.ancestry(cls.node):
        for base in owner.bases(node):
            if base.kind == "class":
                continue
            path = _known_as(base)
            if base.kind != "symbol" or path not in _PER_EPOCH:
                if base.name in ("builtins.object", "abc.ABC"):
                    continue
                parent = base.name or "an unknown class"
                return f"what `{cls.name}` inherits from `{parent}` may act at every batch"
            known = True
            if path in _FREQUENCY:
                keyword = _FREQUENCY[path][0]
                if any(
                    keyword in (getattr(n, "arg", None), getattr(n, "attr", None), getattr(n, "id", None))
                    for n in ast.walk(node)
                ):
                    return f"`{cls.name}` sets the `{keyword}` of `{path}`"
                if (
                    callback.script
                    and isinstance(callback.node, ast.Call)
                    and (why := _frequency(callback.script, callback.node, path))
                ):
                    return why
    return "" if known else f"`{cls.name}` is not a Keras callback that is known"


def _does_nothing(method: ast.FunctionDef) -> bool:
    return all(
        isinstance(s, ast.Pass)
        or (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
        or (isinstance(s, ast.Return) and s.value is None)
        for s in method.body
    )


def _shown(value: Value) -> str:
    return ast.unparse(value.node.func) if isinstance(value.node, ast.Call) else value.name


# -- what holds for the whole program ------------------------------------------------------------------------


def project_calls(script: Script, names: Iterable[str]) -> Iterator[tuple[Script, ast.Call]]:
    """Calls of these library functions in the script and in the files beside it."""
    wanted = tuple(names)
    for other in list(script.project.scripts.values()):
        for call in other.calls_to(*wanted):
            yield other, call


def runs_eagerly(training: Training) -> str:
    """Why the training steps run (or may run) as Python, not as a graph."""
    site = training.compile
    expr = site.arguments.get("run_eagerly")
    if expr is not None and not site.script.is_none(expr):
        value = site.script.constant(expr)
        if value is not False:
            return "`run_eagerly=True` asks for steps in Python" if value is True else "`run_eagerly` may be on"
    if own := training.method("compile"):
        for node in own_nodes(own[1]):
            if isinstance(node, ast.keyword) and node.arg == "run_eagerly" and own[0].constant(node.value) is not False:
                return f"its `compile` sets `run_eagerly` ({own[0].at(node.value)})"
    for script in list(site.script.project.scripts.values()):
        if "run_functions_eagerly" in script.source.text and (reason := _switches_graphs_off(training, script)):
            return reason
        if "run_eagerly" not in script.source.text:
            continue
        statements: list[ast.Assign | ast.AnnAssign] = [*script.all(ast.Assign), *script.all(ast.AnnAssign)]
        for statement in statements:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            in_class = isinstance(script.parents[statement], ast.ClassDef)
            if (
                any(
                    (isinstance(t, ast.Attribute) and t.attr == "run_eagerly")
                    or (in_class and isinstance(t, ast.Name) and t.id == "run_eagerly")
                    for t in targets
                )
                and statement.value is not None
                and script.constant(statement.value) is not False
            ):
                return f"`run_eagerly` of a model is set ({script.at(statement)})"
    return ""


def _switches_graphs_off(training: Training, script: Script) -> str:
    """Why `run_functions_eagerly` makes Python of the steps, or may do so; not where it comes after all training."""
    sites = [*training.on_batch, *(run.site for run in [*training.fits, *training.tests])]
    for call in script.calls:
        if not any(v.kind == "symbol" and v.name.endswith("run_functions_eagerly") for v in script.values(call.func)):
            continue  # `experimental_run_functions_eagerly` ends so, too
        on = script.constant(call.args[0] if call.args else script.argument(call, "run_eagerly"))
        if on is False:
            continue
        if _runs_once(script, call) and all(
            s.script is script and _runs_once(script, s.call) and s.call.lineno < call.lineno for s in sites
        ):
            continue
        certain = on is True and next(script.enclosing(call, ast.If, *FUNCTIONS), None) is None
        return f"`{script.text(call)}` ({script.at(call)}) {'switches' if certain else 'may switch'} graphs off"
    return ""


def _runs_once(script: Script, node: ast.AST) -> bool:
    """Whether it stands where the lines of a file are run one after another."""
    return next(script.enclosing(node, ast.For, ast.While, ast.comprehension, ast.ClassDef, *FUNCTIONS), None) is None


@_asked_once
def checks_numerics(script: Script) -> str:
    """Why every operation is watched for infinities, which loss scaling makes on purpose and XLA cannot watch."""
    for other, call in project_calls(
        script,
        (
            "tensorflow.debugging.enable_check_numerics",
            "tensorflow.debugging.experimental.enable_dump_debug_info",
            "tensorflow.add_check_numerics_ops",
        ),
    ):
        return f"`{ast.unparse(call.func)}` ({other.at(call)}) watches every operation"
    return ""


@_asked_once
def graph_mode(script: Script) -> str:
    """Why Keras runs in the graph mode of TensorFlow 1, whose `compile` knows none of the newer arguments."""
    for other, call in project_calls(script, ("tensorflow.disable_eager_execution", "tensorflow.disable_v2_behavior")):
        return f"`{ast.unparse(call.func)}` ({other.at(call)}) puts Keras into the graph mode of TensorFlow 1"
    return ""


#: Modules of the old copy whose functions work with any Keras.
_NO_MODELS = re.compile(r"tensorflow\.python\.keras\.(utils|preprocessing|datasets|activations|initializers)\b")


@_asked_once
def left_behind(script: Script) -> str:
    """Where the Keras inside TensorFlow's own code is imported, a copy that has not changed since 2.6."""
    for other in list(script.project.scripts.values()):
        for scope in other.names.scopes.values():
            for binding in [b for found in scope.bindings.values() for b in found]:
                if binding.symbol.startswith("tensorflow.python.keras") and not _NO_MODELS.match(binding.symbol):
                    return f"`tensorflow.python.keras` ({other.at(other.statement(binding.node))})"
    return ""


@_asked_once
def other_backend(script: Script) -> str:
    """The library that Keras 3 computes with, where the script says that it is not TensorFlow."""
    for other in list(script.project.scripts.values()):
        if "KERAS_BACKEND" in other.source.text:
            for node in other.all(ast.Constant):
                if node.value in ("jax", "torch", "numpy", "openvino"):
                    return str(node.value)
        for scope in other.names.scopes.values():
            for bindings in scope.bindings.values():
                for binding in bindings:
                    root = binding.symbol.split(".")[0] if binding.kind in ("import", "star") else ""
                    if root in ("jax", "torch", "flax"):
                        return root
    return ""


_DISTRIBUTE = {
    "horovod": ("horovod", "Horovod"),
    "mirrored": ("tensorflow.distribute.MirroredStrategy", "`MirroredStrategy`"),
    "multiworker": ("tensorflow.distribute.MultiWorkerMirroredStrategy", "`MultiWorkerMirroredStrategy`"),
}


def distribute_by(script: Script) -> str:
    """What `--distribute` asks for; `auto` is Horovod where it can be built for the TensorFlow of the script."""
    wanted = script.options.distribute
    if wanted == "auto":
        return "mirrored" if script.target.since(2, 19) else "horovod"
    return wanted


@_asked_once
def distribution(script: Script) -> tuple[str, str]:
    """How training is distributed: (name of the strategy or "horovod", what to call it), or ("", "").

    What `--distribute` is about to make of it counts.
    """
    if (wanted := _DISTRIBUTE.get(distribute_by(script))) is not None:
        return wanted
    for other in list(script.project.scripts.values()):
        for scope in other.names.scopes.values():
            for found in scope.bindings.values():
                for binding in found:
                    root = binding.symbol.lstrip(".").split(".")[0] if binding.kind in ("import", "star") else ""
                    if root in ("horovod", "byteps", "herring", "smdistributed"):
                        return "horovod", root.capitalize()
        for call in other.calls_into("tensorflow.distribute", "tensorflow.keras.distribution", "keras.distribution"):
            called = other.called(call)
            last = called.rsplit(".", 1)[-1]
            if last.endswith(("Strategy", "StrategyV1", "Parallel")):
                return called, f"`{last}`"
    return "", ""
