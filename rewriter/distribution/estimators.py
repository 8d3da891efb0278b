"""Estimators of TensorFlow 1 and 2: where they are made, what is asked of them, and where their data comes from.

found = Estimators(program)
found.made       # tf.estimator.Estimator(...), DNNClassifier(...), model_to_estimator(...)
found.trains     # est.train(...) and TrainSpec(...): what each is given
found.looks      # est.evaluate(...), est.predict(...), exports: work for one process
found.problems   # what is not seen, or is not converted
purposes(script, node)    # what a piece of an input function is for: {"train"}, {"train", "evaluate"}
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from ..data.pipelines import reached
from ..scopes import FUNCTIONS, Binding
from ..script import Arguments, Script
from .draws import is_fixed
from .program import ESTIMATORS, Program, is_estimator, trains_estimator
from .sources import Problem

Kind = Literal["own", "canned", "keras"]

_DNN, _LINEAR, _BOTH = (
    ("hidden_units", "feature_columns", "model_dir"),
    ("feature_columns", "model_dir"),
    ("model_dir",),
)
#: Positional parameters of what makes an Estimator, up to those that matter here.
_SIGNATURES: dict[str, tuple[str, ...]] = {
    "Estimator": ("model_fn", "model_dir", "config", "params", "warm_start_from"),
    "DNNClassifier": _DNN,
    "DNNRegressor": _DNN,
    "DNNEstimator": ("head", *_DNN),
    "LinearClassifier": _LINEAR,
    "LinearRegressor": _LINEAR,
    "LinearEstimator": ("head", *_LINEAR),
    "DNNLinearCombinedClassifier": _BOTH,
    "DNNLinearCombinedRegressor": _BOTH,
    "model_to_estimator": ("keras_model", "keras_model_path", "custom_objects", "model_dir", "config"),
}
RUN_CONFIG = (
    "model_dir", "tf_random_seed", "save_summary_steps", "save_checkpoints_steps", "save_checkpoints_secs",
    "session_config",
)  # fmt: skip
_TRAIN = ("input_fn", "hooks", "steps", "max_steps", "saving_listeners")
_TRAIN_SPEC = ("input_fn", "max_steps", "hooks", "saving_listeners")
_TRAIN_AND_EVALUATE = ("estimator", "train_spec", "eval_spec")
_LOOKS = frozenset(
    "evaluate predict export_saved_model export_savedmodel experimental_export_all_saved_models eval_dir".split()
)
#: What may be asked of an Estimator on every rank, or is nothing that it does.
_HARMLESS = frozenset("model_dir config params model_fn get_variable_names get_variable_value".split())


_LOOKING = tuple(f"builtins.{name}" for name in "print type isinstance str repr id hasattr dir".split())


@dataclass(frozen=True, eq=False)
class Made:
    """A call that makes an Estimator."""

    script: Script
    call: ast.Call
    kind: Kind
    name: str  # "DNNClassifier"
    arguments: Arguments


@dataclass(frozen=True, eq=False)
class Train:
    """`est.train(...)` or `TrainSpec(...)`."""

    script: Script
    call: ast.Call
    arguments: Arguments


@dataclass(frozen=True, eq=False)
class Both:
    """`train_and_evaluate(est, train_spec, eval_spec)`."""

    script: Script
    call: ast.Call
    arguments: Arguments


@dataclass(eq=False)
class Estimators:
    """What a program has of Estimators."""

    program: Program
    made: list[Made] = field(default_factory=list)
    trains: list[Train] = field(default_factory=list)
    both: list[Both] = field(default_factory=list)
    looks: list[tuple[Script, ast.Call]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def __post_init__(self) -> None:
        for script, call in self.program.calls():
            self._call(script, call)
        for made in self.made:
            self._goes(made)

    def _problem(self, script: Script, node: ast.AST, reason: str, hint: str = "") -> None:
        self.problems.append(Problem(script, node, reason, hint))

    def _call(self, script: Script, call: ast.Call) -> None:
        name = script.called(call)
        last = name.rpartition(".")[2]
        if ESTIMATORS.match(name):
            self._made(script, call, name)
        elif name == "tensorflow.estimator.TrainSpec":
            self.trains.append(Train(script, call, script.bind(call, _TRAIN_SPEC)))
        elif name == "tensorflow.estimator.train_and_evaluate":
            self.both.append(Both(script, call, script.bind(call, _TRAIN_AND_EVALUATE)))
        elif name.startswith("tensorflow.contrib.learn.") or last in ("Experiment", "make_early_stopping_hook"):
            if last not in ("read_data_sets", "load_dataset", "head") and not name.startswith(
                "tensorflow.contrib.learn.datasets"
            ):
                self._problem(script, call, f"`{script.text(call.func)}` is not converted")
        elif isinstance(call.func, ast.Attribute):
            self._method(script, call, call.func)

    def _made(self, script: Script, call: ast.Call, name: str) -> None:
        last = name.rpartition(".")[2]
        signature = _SIGNATURES.get(last)
        if signature is None or not name.startswith(("tensorflow.estimator.", "tensorflow.keras.estimator.")):
            self._problem(
                script, call, f"`{script.text(call.func)}` trains in a way of its own, which is not converted"
            )
            return
        arguments = script.bind(call, signature)
        if arguments.open or len(call.args) > len(signature):
            self._problem(
                script, call, f"not all arguments of `{script.text(call.func)}` are seen", "give them by name"
            )
            return
        kind: Kind = "own" if last == "Estimator" else "keras" if last == "model_to_estimator" else "canned"
        self.made.append(Made(script, call, kind, last, arguments))

    def _method(self, script: Script, call: ast.Call, func: ast.Attribute) -> None:
        if func.attr not in ("train", *_LOOKS):
            return
        values = script.values(func.value)
        of_estimators = [v for v in values if is_estimator(v)]
        if of_estimators and len(of_estimators) == len(
            [v for v in values if not (v.kind == "constant" and v.literal is None)]
        ):
            if func.attr == "train":
                self.trains.append(Train(script, call, script.bind(call, _TRAIN)))
            elif func.attr != "eval_dir":
                self.looks.append((script, call))
        elif of_estimators or any(
            k.arg in ("input_fn", "max_steps", "serving_input_receiver_fn") for k in call.keywords
        ):
            self._problem(
                script, call, f"what `{script.text(func.value)}` is, which is asked to `{func.attr}`, is not seen"
            )

    def _goes(self, made: Made) -> None:
        """An Estimator is only used in ways that are known."""
        for script, expr in made.script.flow(made.call):
            parent = script.parents.get(expr)
            if isinstance(parent, ast.keyword):
                parent = script.parents.get(parent)
            if isinstance(parent, ast.Attribute) and parent.value is expr:
                if parent.attr == "train" or parent.attr in _LOOKS:
                    outer = script.parents.get(parent)
                    if not (isinstance(outer, ast.Call) and outer.func is parent):
                        self._problem(script, parent, f"`{script.text(parent)}` is called where it is not seen")
                elif parent.attr not in _HARMLESS and parent.attr != "latest_checkpoint":
                    self._problem(script, parent, f"`{script.text(parent)}` is not known on several ranks")
            elif isinstance(parent, ast.Call) and expr is not parent.func:
                name = script.called(parent)
                known = name in ("tensorflow.estimator.train_and_evaluate", *_LOOKING)
                if name.rpartition(".")[2].startswith("stop_if") or "early_stopping" in name:
                    reason = f"`{script.text(parent.func)}` may end the training on one rank alone"
                    self._problem(script, parent, reason, "give it a number of steps instead")
                elif not known and next(iter(script.successors(expr, ())), None) is None:
                    self._problem(script, parent, f"`{script.text(parent.func)}` is given the Estimator")


# -- what a piece of an input function is for ------------------------------------------------------------------

_ROLES = {"TrainSpec": "train", "EvalSpec": "evaluate"}


def reads(script: Script, call: ast.Call) -> tuple[str, ast.expr] | None:
    """For a call that takes an input function: what it is for, and the expression that it is."""
    func = call.func
    last = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
    role = _ROLES.get(script.called(call).rpartition(".")[2]) or last
    if (given := script.argument(call, "input_fn")) is not None:
        return role, given
    if not call.args:
        return None
    if script.called(call) in ("tensorflow.estimator.TrainSpec", "tensorflow.estimator.EvalSpec"):
        return role, call.args[0]
    if isinstance(func, ast.Attribute) and func.attr in ("train", "evaluate", "predict"):
        values = script.values(func.value)
        return (role, call.args[0]) if any(is_estimator(v) for v in values) else None
    return None


def purposes(script: Script, node: ast.AST) -> set[str]:
    """What Estimators do with the data that this code prepares: "train", "evaluate", "predict"."""
    found: set[str] = set()
    todo: list[tuple[Script, ast.AST]] = [(script, node), *((script, f) for f in script.enclosing(node, *FUNCTIONS))]
    seen: set[ast.AST] = set()
    while todo:
        owner, one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        for other, place in _places(owner, one):
            parent = other.parents.get(place)
            call = other.parents.get(parent) if isinstance(parent, ast.keyword) else parent
            if not isinstance(call, ast.Call):
                continue
            taken = reads(other, call)
            if taken is not None and taken[1] is place:
                found.add(taken[0])
            elif call.func is place and not _fits(one, call):
                continue
            elif call.func is place or other.called(call) == "functools.partial":
                todo += [(other, call), *((other, f) for f in other.enclosing(call, *FUNCTIONS))]
    return found


def _fits(function: ast.AST, call: ast.Call) -> bool:
    """Whether a function can be called so: a name may stand for another function by then."""
    if not isinstance(function, ast.FunctionDef):
        return True
    given = function.args
    if given.vararg or given.kwarg or any(isinstance(a, ast.Starred) for a in call.args):
        return True
    names = [a.arg for a in [*given.posonlyargs, *given.args]]
    if names[:1] in (["self"], ["cls"]):
        names = names[1:]
    keywords = {k.arg for k in call.keywords}
    if None in keywords:
        return True
    needed = names[len(call.args) : max(len(names) - len(given.defaults), 0)]
    known = keywords <= {*names, *(a.arg for a in given.kwonlyargs)}
    return len(call.args) <= len(names) and known and all(n in keywords for n in needed)


def _places(script: Script, node: ast.AST) -> Iterator[tuple[Script, ast.expr]]:
    if isinstance(node, ast.FunctionDef):
        for home, mention in mentions(script, node):
            yield from home.flow(mention)
    elif isinstance(node, ast.expr):
        yield from script.flow(node)


def mentions(script: Script, function: ast.FunctionDef) -> list[tuple[Script, ast.expr]]:
    """Where a function is named."""
    return [
        (other, mention)
        for other in list(script.project.scripts.values())
        for alias in other.aliases(function.name)
        for mention in other.mentions(alias)
        if any(v.node is function for v in other.values(mention))
    ]


def told_apart(script: Script, node: ast.AST) -> str:
    """A condition that holds, where `node` stands, for training data alone: `is_training`; "" where there is none."""
    inner: set[str] = set()  # names that mean something else between the function and the node
    for function in script.enclosing(node, ast.FunctionDef):
        assert isinstance(function, ast.FunctionDef)
        text = _by_mode(script, function) or _by_parameter(script, function)
        if text:
            return "" if inner & set(re.findall(r"\w+", text)) else text
        inner |= set(script.names.scopes[function].bindings)
    return ""


def _by_mode(script: Script, function: ast.FunctionDef) -> str:
    """Estimators tell an input function that has such a parameter what it is for."""
    direct = {taken[0] for other, call, place in taken_by(script, function) if (taken := reads(other, call))}
    calls = [1 for other, call, place in taken_by(script, function) if call.func is place]
    named = [a.arg for a in [*function.args.args, *function.args.kwonlyargs]]
    if direct and not calls and "mode" in named and _is_fixed(script, function, "mode"):
        return "mode == {tensorflow.estimator.ModeKeys.TRAIN}"
    return ""


def taken_by(script: Script, function: ast.FunctionDef) -> Iterator[tuple[Script, ast.Call, ast.expr]]:
    """The calls of a function, and those that it is given to; with the expression there that is the function."""
    for home, mention in mentions(script, function):
        for other, place in home.flow(mention):
            parent = other.parents.get(place)
            call = other.parents.get(parent) if isinstance(parent, ast.keyword) else parent
            if isinstance(call, ast.Call) and (call.func is not place or _fits(function, call)):
                yield other, call, place


def _by_parameter(script: Script, function: ast.FunctionDef) -> str:
    """A parameter that is given one constant by every call for training, and others by the rest."""
    names = [a.arg for a in [*function.args.posonlyargs, *function.args.args]]
    if function.args.vararg or function.args.kwarg:
        return ""
    given: list[tuple[bool, dict[str, object]]] = []
    for other, call, place in taken_by(script, function):
        partial = other.called(call) == "functools.partial" and call.args and call.args[0] is place
        if not partial and call.func is not place:
            return ""  # it is handed on
        roles = purposes(other, call)
        if not roles or ("train" in roles and len(roles) > 1):
            return ""
        bound = any(v.kind == "method" for v in other.values(place))
        arguments = other.bind(
            ast.Call(call.func, call.args[1:], call.keywords) if partial else call, tuple(names[1:] if bound else names)
        )
        constants = {name: _constant(other, arguments.get(name)) for name in names}
        for name, default in zip(names[::-1], function.args.defaults[::-1], strict=False):
            if arguments.get(name) is None and not arguments.open:
                constants[name] = _constant(script, default)
        given.append((roles == {"train"}, constants))
    told: list[str] = []
    for name in names:
        training = {repr(c[name]): c[name] for is_training, c in given if is_training}
        others = {repr(c[name]) for is_training, c in given if not is_training}
        if len(training) != 1 or not others or training.keys() & others or not _is_fixed(script, function, name):
            continue
        (value,) = training.values()
        if value is _UNKNOWN or repr(_UNKNOWN) in others:
            continue
        if value is True and others <= {"False", "None", "0"}:
            told.append(name)
        elif value is False and others == {"True"}:
            told.append(f"not {name}")
        elif isinstance(value, str) and value.startswith("symbol "):
            told.append(f"{name} == {{{value.removeprefix('symbol ')}}}")
        elif isinstance(value, str) and value.lower() in ("train", "training"):
            told.append(f"{name} == {value!r}")
    return min(told, key=lambda text: "train" not in text.lower(), default="")


_UNKNOWN = type("Unknown", (), {"__repr__": lambda self: "?"})()


def _constant(script: Script, expr: ast.expr | None) -> object:
    if expr is None:
        return _UNKNOWN
    values = script.values(expr)
    if len(values) != 1:
        return _UNKNOWN
    if values[0].kind == "constant":
        return values[0].literal
    if values[0].kind == "symbol" and values[0].name.startswith("tensorflow.estimator.ModeKeys."):
        return f"symbol {values[0].name}"
    return _UNKNOWN


def _is_fixed(script: Script, function: ast.FunctionDef, name: str) -> bool:
    """Whether a parameter keeps what it is given."""
    return all(b.kind == "parameter" for b in script.names.scopes[function].bindings.get(name, ()))


# -- work for one process --------------------------------------------------------------------------------------


@dataclass(eq=False)
class Alone:
    """What only rank 0 does: `statements` as a whole; `values` are expressions that are None elsewhere."""

    statements: dict[ast.stmt, Script] = field(default_factory=dict)
    values: list[tuple[Script, ast.expr]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


_CHANGES = frozenset("append extend insert add update setdefault pop remove clear write writerow put".split())


def alone(program: Program, calls: list[tuple[Script, ast.expr]]) -> Alone:
    """The statements that hold these expressions, and all that uses what they give."""
    found = Alone()
    todo: list[tuple[Script, ast.AST]] = list(calls)
    seen: set[ast.AST] = set()
    while todo:
        script, node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if any(s in found.statements for s in script.enclosing(node, ast.stmt)):
            continue
        statement = script.statement(node)
        if (problem := _stays(program, script, node, statement)) is not None:
            found.problems.append(problem)
        elif isinstance(statement, ast.Return):
            if statement.value is not None:
                found.values.append((script, statement.value))
            function = script.function_of(statement)
            if isinstance(function, ast.FunctionDef):
                todo += [(other, call) for other, call, _ in program.script.project.calls_of(function, script)]
                if (escaped := _handed_on(script, function)) is not None:
                    reason = f"`{function.name}` gives what rank 0 alone has to a caller that is not seen"
                    found.problems.append(Problem(*escaped, reason))
        else:
            found.statements[statement] = script
            todo += _touched(program, script, statement)
    inner = [
        s for s, script in found.statements.items() if any(o in found.statements for o in script.enclosing(s, ast.stmt))
    ]
    for statement in inner:
        del found.statements[statement]
    return found


def _handed_on(script: Script, function: ast.FunctionDef) -> tuple[Script, ast.expr] | None:
    """Where a function is given to something that may call it, unseen; `main` is called once."""
    for other, mention in mentions(script, function):
        parent = other.parents.get(mention)
        if isinstance(parent, ast.Call) and parent.func is mention:
            continue
        call = other.parents.get(parent) if isinstance(parent, ast.keyword) else parent
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("app.run"):
            continue
        if function.name == "main" and not isinstance(call, ast.Call):
            continue
        return other, mention
    return None


def _stays(program: Program, script: Script, node: ast.AST, statement: ast.stmt) -> Problem | None:
    """Why a statement cannot be left to rank 0."""
    shown = f"`{script.text(node)}`" if isinstance(node, ast.expr) else "this"
    what = f"{shown} is for rank 0 alone, which has the checkpoints"
    if next(script.enclosing(node, ast.Lambda), None) in set(ast.walk(statement)):
        return Problem(script, node, f"{what}, and stands in a lambda")
    if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.Try | ast.AsyncFor | ast.AsyncWith | ast.Raise):
        return Problem(script, node, f"{what}, and cannot be left out on the others here")
    if isinstance(statement, ast.If) and _is_elif(script, statement):
        return Problem(script, node, f"{what}, and decides an `elif`", "write an `if` of its own")
    if any(trains_estimator(owner, call) for owner, call in reached(script, [statement])):
        return Problem(script, node, f"{what}, and training, which all ranks take part in, depends on it")
    if not isinstance(statement, ast.Return) and _leaves(statement):
        return Problem(script, node, f"{what}, and decides how the program goes on")
    if script.is_generator(script.function_of(statement) or script.tree):
        return Problem(script, node, f"{what}, and stands in a generator")
    return None


def _is_elif(script: Script, statement: ast.If) -> bool:
    parent = script.parents.get(statement)
    return (
        isinstance(parent, ast.If)
        and parent.orelse == [statement]
        and script.source.lines[statement.lineno - 1].lstrip().startswith("elif")
    )


def _leaves(statement: ast.stmt) -> bool:
    """Whether it may end the function, or a loop around it."""
    todo: list[tuple[ast.AST, bool]] = [(statement, False)]
    while todo:
        node, looped = todo.pop()
        if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom):
            return True
        if isinstance(node, ast.Break | ast.Continue) and not looped:
            return True
        inside = looped or isinstance(node, ast.For | ast.While)
        if not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            todo += [(child, inside) for child in ast.iter_child_nodes(node)]
    return False


def _touched(program: Program, script: Script, statement: ast.stmt) -> Iterator[tuple[Script, ast.AST]]:
    """What uses a name or an object that this statement gives a value, or changes."""
    inside = set(ast.walk(statement))
    for node in inside:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            for binding in _bindings(script, node):
                yield from ((script, load) for load in script.names.loads(binding) if load not in inside)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            for other in program.scripts:
                for mention in other.mentions(node.attr):
                    own = isinstance(mention, ast.Attribute) and ast.unparse(mention.value) == ast.unparse(node.value)
                    if own and mention not in inside:
                        yield other, mention
        root = _changed(node)
        if root is not None:
            for binding in script.names.reaching(root):
                if binding.kind in ("import", "def", "class"):
                    continue
                for load in script.names.loads(binding):
                    loops = set(script.enclosing(load, ast.For, ast.While))
                    again = loops & set(script.enclosing(statement, ast.For, ast.While))
                    if load not in inside and (load.lineno > statement.lineno or again):
                        yield script, load


def _bindings(script: Script, name: ast.Name) -> list[Binding]:
    scope = script.names.scope_of(name)
    owner = scope.elsewhere.get(name.id, scope)
    return [b for b in owner.bindings.get(name.id, ()) if b.node is name]


def _changed(node: ast.AST) -> ast.Name | None:
    """The name of an object that is changed in place: `history.append(x)`, `best[i] = x`."""
    target: ast.expr | None = None
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        target = node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
        target = node.func.value
    while isinstance(target, ast.Subscript | ast.Attribute):
        target = target.value
    return target if isinstance(target, ast.Name) else None


# -- the same calls on every rank ------------------------------------------------------------------------------

_UNLIKE = re.compile(
    r"(time|random|datetime|numpy\.random)\..*|os\.path\.(exists|isfile|isdir|getsize|getmtime)$|os\.listdir$"
    r"|tensorflow\.(io\.)?gfile\.\w+$|glob\.\w+$|.*(latest_checkpoint|get_checkpoint_state|load_variable)$"
)


def unlike(script: Script, test: ast.AST) -> ast.AST | None:
    """What may make a condition differ from rank to rank: files, chance, the clock."""
    for node in script.behind(test):
        if isinstance(node, ast.Call):
            last = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if last in ("RandomState", "default_rng", "Random") and is_fixed(script, node):
                continue
            if _UNLIKE.match(script.called(node)) or last in ("latest_checkpoint", "exists", "is_file"):
                return node
    return None


def decides(script: Script, call: ast.Call) -> Problem | None:
    """A condition that may let one rank train, or go on, without the others."""
    for owner, node in script.and_callers(call):
        function = owner.function_of(node)
        for block in owner.enclosing(node, ast.If, ast.While, ast.For, ast.IfExp, ast.Try):
            if owner.function_of(block) is not function:
                continue
            tests = [block.test] if isinstance(block, ast.If | ast.While | ast.IfExp) else []
            if isinstance(block, ast.For | ast.While):
                tests += [
                    n.test
                    for end in ast.walk(block)
                    if isinstance(end, ast.Break | ast.Return | ast.Continue)
                    for n in owner.enclosing(end, ast.If)
                    if isinstance(n, ast.If) and block in owner.enclosing(n, ast.For, ast.While)
                ]
            for test in tests:
                if (why := unlike(owner, test)) is not None:
                    reason = f"`{owner.text(why) if isinstance(why, ast.expr) else ''}` may differ from rank to rank"
                    return Problem(owner, test, f"{reason}, and decides about training that all take part in")
            if isinstance(block, ast.Try) and block.handlers and node in [n for s in block.body for n in ast.walk(s)]:
                return Problem(owner, block, "an error that is caught around training may occur on one rank alone")
        if isinstance(function, ast.FunctionDef) and (escaped := _handed_on(owner, function)) is not None:
            return Problem(*escaped, f"how often `{function.name}`, which trains, is called is not seen")
    return None


def in_loop(script: Script, call: ast.Call) -> bool:
    """Whether a call is made again and again, also through the functions around it."""
    repeats = (ast.For, ast.While, ast.comprehension)
    return any(any(owner.enclosing(node, *repeats)) for owner, node in script.and_callers(call))
