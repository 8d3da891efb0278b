"""Programs that build a graph and run it in sessions: TensorFlow 1, and `tf.compat.v1` under TensorFlow 2.

    for made in optimizers(script):     # tf.train.AdamOptimizer(...): made.uses, or made.unseen: why not all are seen
    for start in starts(script):        # tf.Session(...), MonitoredTrainingSession(...), RunConfig(...), Estimator(...)
        start.config                    # the expression that configures it, None where there is none
    v1(script, call)                    # "tf", "tf.compat.v1": how the file reaches TensorFlow 1's names

Questions about a whole program look at every file that belongs to it (`pipelines.related`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..data.pipelines import related
from ..environment import settings
from ..scopes import FUNCTIONS
from ..script import Script
from ..training import graph_mode
from ..values import Value

# -- how the file writes TensorFlow 1's names ------------------------------------------------------------------


def prefix(script: Script, func: ast.expr) -> str:
    """What stands before the public name in `tf.compat.v1.train.AdamOptimizer`: `tf.compat.v1`; "" if nothing does."""
    written = ast.unparse(func)
    for value in script.values(func):
        path = value.name.partition(".")[2]
        if value.kind == "symbol" and path and written.endswith(f".{path}"):
            return written.removesuffix(f".{path}")
    return ""


def v1(script: Script, call: ast.Call | None = None) -> str:
    """How TensorFlow 1's names are reached, as the start of the text of an edit: `tf`, `tf.compat.v1`.

    As `call` has it, which calls a name that only TensorFlow 1 has, or else the first such call of the file.
    """
    for found in (*([call] if call is not None else []), *_v1_calls(script)):
        if written := prefix(script, found.func):
            return written
    names = [b for found in script.names.module.bindings.values() for b in found if b.kind == "import"]
    for binding in names:
        if binding.symbol == "tensorflow.compat.v1":
            return binding.name
    return "{tensorflow}" if script.target.before(2, 0) else "{tensorflow.compat.v1}"


#: Names that TensorFlow 2 has under `compat.v1` only.
_V1_ONLY = frozenset(
    "Session InteractiveSession placeholder placeholder_with_default get_variable variable_scope ConfigProto "
    "GPUOptions global_variables_initializer set_random_seed logging.set_verbosity app.run".split()
)


def _v1_calls(script: Script) -> Iterator[ast.Call]:
    for call in script.calls_into("tensorflow"):
        path = script.called(call).removeprefix("tensorflow.")
        if path in _V1_ONLY or _OPTIMIZER.match(f"tensorflow.{path}"):
            yield call


# -- the program -----------------------------------------------------------------------------------------------


def is_eager(script: Script) -> str:
    """Why the program does not build graphs: TensorFlow 1's eager execution is switched on."""
    for member in related(script):
        for call in member.calls_to("tensorflow.enable_eager_execution", "tensorflow.enable_v2_behavior"):
            return f"`{ast.unparse(call.func)}` ({member.at(call)}) makes operations run at once"
    return ""


def builds_graphs(script: Script) -> bool:
    """Whether sessions of this program may run graphs: under TensorFlow 2 only what asks for them does."""
    if is_eager(script):
        return False
    if script.target.before(2, 0) or graph_mode(script):
        return True
    return any(
        next(member.calls_to("tensorflow.Graph"), None) is not None or any(s.is_estimator for s in starts(member))
        for member in related(script)
    )


def on_cpu(script: Script) -> str:
    """Where the program itself keeps to the CPU; "" where it does not."""
    for member in related(script):
        if "CUDA_VISIBLE_DEVICES" in member.source.text:
            nodes: list[ast.AST] = [*member.all(ast.Assign), *member.calls]
            for node in nodes:
                for variable, given in settings(node):
                    name = variable if isinstance(variable, str) else member.constant(variable)
                    if name == "CUDA_VISIBLE_DEVICES" and member.constant(given) in ("", "-1", -1):
                        return f"CUDA_VISIBLE_DEVICES ({member.at(node)}) hides the GPUs"
        for call in member.calls_to("tensorflow.ConfigProto"):
            devices = member.argument(call, "device_count")
            if isinstance(devices, ast.Dict):
                for key, value in zip(devices.keys, devices.values, strict=True):
                    if key is not None and member.constant(key) == "GPU" and member.constant(value) == 0:
                        return f"`device_count` ({member.at(call)}) asks for no GPU"
    return ""


def on_tpu(script: Script) -> str:
    for member in related(script):
        for call in member.calls_into("tensorflow.contrib.tpu", "tensorflow.tpu", "tensorflow.estimator.tpu"):
            return (
                f"`{ast.unparse(call.func)}` ({member.at(call)}): the program can run on TPUs, which work differently"
            )
        for call in member.calls_to("tensorflow.estimator.TPUEstimator"):
            return (
                f"`{ast.unparse(call.func)}` ({member.at(call)}): the program can run on TPUs, which work differently"
            )
    return ""


def restores(script: Script) -> str:
    """What reads a checkpoint that an earlier run may have written; "" where nothing does."""
    for member in related(script):
        for call in member.calls:
            name = member.called(call)
            last = call.func.attr if isinstance(call.func, ast.Attribute) else name.rpartition(".")[2]
            if last == "restore" and not name.startswith(("os.", "numpy.")) and not _is_own(member, call):
                return f"`{member.text(call.func)}` ({member.at(call)})"
            if last in _RESTORING or name.endswith(("saved_model.load", "saved_model.loader.load")):
                return f"`{member.text(call.func)}` ({member.at(call)})"
            if any(k.arg == "warm_start_from" and not member.is_none(k.value) for k in call.keywords):
                return f"`warm_start_from` ({member.at(call)})"
    return ""


_RESTORING = frozenset(
    "import_meta_graph latest_checkpoint get_checkpoint_state init_from_checkpoint load_checkpoint "
    "assign_from_checkpoint assign_from_checkpoint_fn restore_variables_on_create recover_last_checkpoints "
    "recover_session NewCheckpointReader".split()
)


def _is_own(script: Script, call: ast.Call) -> bool:
    """A method or function of the program's own that is called like one of TensorFlow's."""
    return all(v.kind in ("method", "function") and isinstance(v.node, FUNCTIONS) for v in script.values(call.func))


# -- optimizers --------------------------------------------------------------------------------------------------

#: Optimizers that apply gradients as they come: what wraps them can scale the loss.
_OPTIMIZER = re.compile(
    r"tensorflow\.(train\.(Adam|GradientDescent|Momentum|RMSProp|Adagrad|AdagradDA|Adadelta|Ftrl|"
    r"ProximalGradientDescent|ProximalAdagrad)|contrib\.opt\.(Nadam|LazyAdam|AdaMax|LARS))Optimizer$"
)
#: Library functions that do with an optimizer what the script could: compute gradients and apply them.
_TRAINS = frozenset(
    "tensorflow.contrib.slim.learning.create_train_op tensorflow.contrib.training.create_train_op "
    "tensorflow.contrib.layers.optimize_loss".split()
)
#: Methods that any `tf.train.Optimizer` has and that mean the same on one that wraps it.
METHODS = frozenset({"minimize", "compute_gradients", "apply_gradients", "get_name"})


@dataclass(frozen=True, eq=False)
class Optimizer:
    """A `tf.train.Optimizer` that the program makes, and every call that trains with it."""

    script: Script
    call: ast.Call
    name: str  # canonical name of the class, "" where it is one of several
    uses: tuple[tuple[Script, ast.Call], ...]
    unseen: str = ""  # why not all of what is done with it is seen, or why it is no use to wrap it
    outer: ast.Call | None = None  # what makes a distributed optimizer of it: `hvd.DistributedOptimizer(opt)`

    @property
    def place(self) -> ast.Call:
        """The call that makes what the program trains with."""
        return self.outer or self.call


def optimizers(script: Script) -> list[Optimizer]:
    """Every optimizer of TensorFlow 1 that this file makes and the program trains with."""
    found = script.project.facts.get(f"optimizers of {script.path}")
    if not isinstance(found, list):
        made: list[tuple[ast.Call, set[str]]] = []
        if "ptimizer" in script.source.text or "LAMB" in script.source.text:
            related(script)  # reads the other files: an optimizer may go there
            made = [(call, names) for call in script.calls if (names := _classes(script, call))]
        found = [_followed(script, call, names) for call, names in made]
        script.project.facts[f"optimizers of {script.path}"] = found
    return found


def trains(script: Script) -> bool:
    """Whether the program trains with one of these optimizers, or with an Estimator's own."""
    return any(
        any(o.uses or o.unseen for o in optimizers(member)) or any(s.is_estimator for s in starts(member))
        for member in related(script)
    )


def _classes(script: Script, call: ast.Call) -> set[str]:
    """Names of the optimizer classes that a call may make one of; empty where it makes anything else."""
    func = call.func
    names: set[str] = set()
    for value in script.values(func):
        if (value.kind == "symbol" and _OPTIMIZER.match(value.name)) or (value.kind == "class" and _derives(value)):
            names.add(value.name)
        elif isinstance(func, ast.Subscript) and (inside := _in_mapping(script, func)):
            names |= inside
        elif not (value.kind == "constant" and value.literal is None):
            return set()
    return names


def _in_mapping(script: Script, item: ast.Subscript) -> set[str]:
    """The optimizer classes of a dictionary that one is picked from: `{"adam": tf.train.AdamOptimizer}[name]`."""
    found: set[str] = set()
    for value in script.values(item.value):
        if value.kind != "mapping" or not isinstance(value.node, ast.Dict) or value.script is None:
            return set()
        for entry in value.node.values:
            name = value.script.symbol(entry)
            if not _OPTIMIZER.match(name):
                return set()
            found.add(name)
    return found


def _derives(value: Value) -> bool:
    """A class of the program's own that only says how one variable is updated."""
    return (
        value.script is not None
        and isinstance(value.node, ast.ClassDef)
        and any(
            b == "tensorflow.train.Optimizer" or _OPTIMIZER.match(b) for b in value.script.library_bases(value.node)
        )
    )


def _followed(script: Script, call: ast.Call, names: set[str]) -> Optimizer:
    uses: list[tuple[Script, ast.Call]] = []
    name = next(iter(names)) if len(names) == 1 else ""
    outer = _distributed(script, call)
    for owner, expr in script.flow(call if outer is None else outer):
        if reason := _use(owner, expr, uses):
            return Optimizer(script, call, name, tuple(uses), reason, outer)
    if outer is not None:
        inner: list[tuple[Script, ast.Call]] = []
        for owner, expr in script.flow(call):
            reason = "" if _is_argument(owner, expr, outer) else _use(owner, expr, inner)
            if reason or inner:
                reason = reason or f"it is distributed in some cases only ({script.at(outer)})"
                return Optimizer(script, call, name, tuple(uses), reason, outer)
    elif name and not name.startswith("tensorflow."):
        for value in script.values(call.func):
            if reason := _overrides(value):
                return Optimizer(script, call, name, tuple(uses), reason)
    return Optimizer(script, call, name, tuple(uses), "", outer)


def _distributed(script: Script, call: ast.Call) -> ast.Call | None:
    """The call of Horovod that an optimizer is given to, in the same file."""
    for owner, expr in script.flow(call):
        parent = owner.parents.get(expr)
        outer = owner.parents.get(parent) if isinstance(parent, ast.keyword) else parent
        if owner is script and isinstance(outer, ast.Call) and expr is not outer.func:
            name = owner.called(outer)
            if name.startswith("horovod.") and name.endswith(".DistributedOptimizer"):
                return outer
    return None


def _is_argument(script: Script, expr: ast.expr, call: ast.Call) -> bool:
    parent = script.parents.get(expr)
    return (script.parents.get(parent) if isinstance(parent, ast.keyword) else parent) is call


def _overrides(value: Value) -> str:
    if value.script is not None and isinstance(value.node, ast.ClassDef):
        for method in ("minimize", "compute_gradients", "apply_gradients"):
            if found := value.script.method(value.node, method):
                return f"`{value.name}` has a `{method}` of its own ({found[0].at(found[1])})"
    return ""


def _use(script: Script, expr: ast.expr, uses: list[tuple[Script, ast.Call]]) -> str:
    """Records what is done with an optimizer at one place; returns why that is not one of its usual uses."""
    parent = script.parents.get(expr)
    shown = f"`{script.text(expr, 40)}`"
    match parent:
        case ast.Attribute(attr=attr):
            call = script.parents.get(parent)
            if not (isinstance(call, ast.Call) and call.func is parent) or attr not in METHODS:
                return f"`{script.text(parent, 40)}` is used ({script.at(parent)})"
            if attr != "get_name":
                uses.append((script, call))
        case ast.Call() | ast.keyword():
            call = parent if isinstance(parent, ast.Call) else script.parents.get(parent)
            if not isinstance(call, ast.Call):
                return f"{shown} goes where it is not followed ({script.at(expr)})"
            return _argument(script, expr, call, uses)
        case ast.Return():
            if not _goes_on(script, expr):
                function = getattr(script.function_of(expr), "name", "a function")
                return f"`{function}` returns it to callers that are not seen ({script.at(expr)})"
        case ast.Compare() | ast.Expr() | ast.FormattedValue():
            pass
        case ast.Assign() | ast.AnnAssign() | ast.NamedExpr() | ast.IfExp() | ast.BoolOp() | ast.withitem():
            pass
        case ast.Tuple() | ast.List() | ast.Dict() if _goes_on(script, expr):
            pass
        case ast.Subscript() if parent.value is expr:
            pass  # it is an element of what is subscripted
        case ast.If() | ast.While() | ast.UnaryOp():
            pass
        case _:
            return f"{shown} goes where it is not followed ({script.at(expr)})"
    return ""


def _argument(script: Script, expr: ast.expr, call: ast.Call, uses: list[tuple[Script, ast.Call]]) -> str:
    name = script.called(call)
    if name in _TRAINS:
        uses.append((script, call))
        return ""
    if name.endswith(".enable_mixed_precision_graph_rewrite"):
        if all(use is not call for _, use in uses):
            uses.append((script, call))
            return next((why for owner, expr in script.flow(call) if (why := _use(owner, expr, uses))), "")
        return ""  # `self.opt = rewrite(self.opt)`
    if name in ("builtins.print", "builtins.str", "builtins.type") or _goes_on(script, expr):
        return ""
    return f"`{script.text(call.func, 40)}` is given it ({script.at(call)})"


def _goes_on(script: Script, expr: ast.expr) -> bool:
    return next(iter(script.successors(expr, ())), None) is not None


# -- what starts sessions ------------------------------------------------------------------------------------------

_SESSION = ("target", "graph", "config")
_MONITORED = (
    "master", "is_chief", "checkpoint_dir", "scaffold", "hooks", "chief_only_hooks", "save_checkpoint_secs",
    "save_summaries_steps", "save_summaries_secs", "config",
)  # fmt: skip
#: Names of the positional parameters of what starts a session, and the one that configures it.
_STARTS: dict[str, tuple[tuple[str, ...], str]] = {
    "Session": (_SESSION, "config"),
    "InteractiveSession": (_SESSION, "config"),
    "train.MonitoredTrainingSession": (_MONITORED, "config"),
    "train.SingularMonitoredSession": (("hooks", "scaffold", "master", "config"), "config"),
    "train.ChiefSessionCreator": (("scaffold", "master", "config"), "config"),
    "train.WorkerSessionCreator": (("scaffold", "master", "config"), "config"),
    "contrib.training.train": (
        ("train_op", "logdir", "master", "is_chief", "scaffold", "hooks", "chief_only_hooks", "save_checkpoint_secs",
         "save_summaries_steps", "config"), "config",
    ),
    "contrib.slim.learning.train": (("train_op", "logdir"), "session_config"),
    "estimator.RunConfig": (
        ("model_dir", "tf_random_seed", "save_summary_steps", "save_checkpoints_steps", "save_checkpoints_secs",
         "session_config"), "session_config",
    ),
}  # fmt: skip
#: The same for methods of `tf.train.Supervisor` and `tf.train.SessionManager`.
_METHODS = {
    "managed_session": ("master", "config"),
    "prepare_or_wait_for_session": ("master", "config"),
    "prepare_session": (
        "master", "init_op", "saver", "checkpoint_dir", "checkpoint_filename_with_path", "wait_for_checkpoint",
        "max_wait_secs", "config",
    ),
}  # fmt: skip
_MANAGERS = ("tensorflow.train.Supervisor", "tensorflow.train.SessionManager")
_ESTIMATOR = re.compile(
    r"tensorflow\.(estimator\.(Estimator|\w+(Classifier|Regressor|Estimator))|keras\.estimator\.model_to_estimator)$"
)


@dataclass(frozen=True, eq=False)
class Start:
    """A call that starts sessions, or configures those of an Estimator, and the argument that tells how."""

    script: Script
    call: ast.Call
    kind: str  # "Session", "MonitoredTrainingSession", "RunConfig", "Estimator", ...
    keyword: str  # the parameter for the configuration
    config: ast.expr | None
    open: bool = False  # a splat may hold it

    @property
    def is_estimator(self) -> bool:
        return self.kind in ("Estimator", "RunConfig")


def starts(script: Script) -> list[Start]:
    """Everything in this file that starts a session, in source order."""
    found = script.project.facts.get(f"sessions of {script.path}")
    if not isinstance(found, list):
        found = list(_starts(script)) if re.search(r"[sS]ession|stimator|\.train\(", script.source.text) else []
        script.project.facts[f"sessions of {script.path}"] = found
    return found


def _starts(script: Script) -> Iterator[Start]:
    for call in script.calls:
        name = script.called(call)
        path = name.removeprefix("tensorflow.") if name.startswith("tensorflow.") else ""
        kind = path.rpartition(".")[2]
        if path in _STARTS:
            signature, keyword = _STARTS[path]
        elif _ESTIMATOR.match(name) and "TPU" not in name:
            kind, keyword = "Estimator", "config"
            signature = ("model_fn", "model_dir", "config", "params") if path.endswith(".Estimator") else ()
        elif (
            isinstance(call.func, ast.Attribute)
            and call.func.attr in _METHODS
            and any(v.name in _MANAGERS for v in script.values(call.func.value))
        ):
            kind, signature, keyword = call.func.attr, _METHODS[call.func.attr], "config"
        else:
            continue
        arguments = script.bind(call, signature)
        if kind in ("ChiefSessionCreator", "WorkerSessionCreator") or not _is_test(script, call):
            given = arguments.get(keyword)
            yield Start(script, call, kind, keyword, given, arguments.open)


def _is_test(script: Script, call: ast.Call) -> bool:
    """In a class of unit tests."""
    return any(
        isinstance(c, ast.ClassDef) and any(b.endswith("TestCase") for b in script.library_bases(c))
        for c in script.enclosing(call, ast.ClassDef)
    )


def made_after(made: Optimizer) -> Start | None:
    """A session that is there before the optimizer is made, where every session whose place is known is."""
    places = [
        (start, early)
        for member in related(made.script)
        for start in starts(member)
        if not start.is_estimator and (early := _is_early(start.script, start.call, made, 0)) is not None
    ]
    return places[0][0] if places and all(early for _, early in places) else None


def _is_early(script: Script, start: ast.AST, made: Optimizer, depth: int) -> bool | None:
    """Whether a session starts before the optimizer is made: what is run first in the function where both happen."""
    function = script.function_of(start)
    building = [
        call
        for call in script.calls
        if script.function_of(call) is function
        and call is not start
        and (call is made.call or made.call in _run_by(script, call))
    ]
    if building:
        first = min(building, key=lambda c: (c.lineno, c.col_offset))
        loops = set(script.enclosing(start, ast.For, ast.While)) & set(script.enclosing(first, ast.For, ast.While))
        return not loops and first.lineno > start.lineno  # type: ignore[attr-defined]
    if not isinstance(function, ast.FunctionDef) or depth > 4:
        return None
    callers = script.project.calls_of(function, script)
    if not callers and made.script is script and script.function_of(made.call) is None:
        return False  # a `main` that something else calls, when the whole file has been run
    found = {_is_early(owner, call, made, depth + 1) for owner, call, _ in callers} - {None}
    return found.pop() if len(found) == 1 else None


def _run_by(script: Script, call: ast.Call) -> set[ast.AST]:
    """The calls in the project's functions that a call runs, directly or not."""
    known = script.project.facts.setdefault("calls run by functions", {})
    assert isinstance(known, dict)
    found: set[ast.AST] = set()
    seen: set[ast.AST] = set()
    todo = [(script, call)]
    while todo and len(seen) < 300:
        owner, one = todo.pop()
        for value in owner.values(one.func):
            home, function = value.script, value.node
            if value.kind == "class" and home is not None and isinstance(function, ast.ClassDef):
                home, function = home.method(function, "__init__") or (home, function)
            if home is None or not isinstance(function, FUNCTIONS) or function in seen:
                continue
            seen.add(function)
            if function not in known:
                known[function] = [n for n in ast.walk(function) if isinstance(n, ast.Call)]
            found.update(known[function])
            todo += [(home, inner) for inner in known[function]]
    return found


def configs(start: Start) -> list[Value] | str:
    """The `tf.ConfigProto(...)` calls that a session may be given (none if it has none), or why they are not seen."""
    if start.config is None:
        return f"what `{start.script.text(start.call.func)}` is given is not seen" if start.open else []
    values = start.script.values(start.config)
    present = [v for v in values if not (v.kind == "constant" and v.literal is None)]
    if not present:
        return []
    if len(present) < len(values):
        return f"`{start.script.text(start.config)}` is not always there"
    for value in present:
        if value.name != "tensorflow.ConfigProto" or not isinstance(value.node, ast.Call):
            why = f": {value.name}" if value.kind == "unknown" and value.name else ""
            return f"`{start.script.text(start.config)}` is made where it is not seen{why}"
    return present


def free_name(script: Script, *wanted: str) -> str:
    """The first of these names that the file does not use at all; the last one with a `_` where it uses all."""
    for name in wanted:
        if _is_free(script, name):
            return name
    name = wanted[-1] + "_"
    while not _is_free(script, name):
        name += "_"
    return name


def _is_free(script: Script, name: str) -> bool:
    used = any(isinstance(m, ast.Name) for m in script.mentions(name)) or script.from_star(name) or script.opaque_star
    return not used and all(name not in scope.bindings for scope in script.names.scopes.values())
