"""`tf-function`: training and evaluation steps that are written by hand run as graphs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from rewriter.codemod import Finding, Fix, Refusal, codemod
from rewriter.data.purity import effects, seeds
from rewriter.edits import Decorate, Edit, Wrap
from rewriter.loops.asides import asides
from rewriter.loops.batches import Given, array_dtype, given, varies
from rewriter.loops.changes import holds_variables, setattr_name
from rewriter.loops.lifting import Anchor, Lift
from rewriter.loops.steps import CallSite, Function, Step, block_of, call_sites, compiled, loops_around, steps
from rewriter.loops.tracing import FLOATS, LIST, OBJECT, PYTHON, RAW, TENSOR, Kind, Tracer, anew, worst
from rewriter.scopes import FUNCTIONS
from rewriter.script import Script
from rewriter.training import distribution, graph_mode
from rewriter.values import default_of


@codemod(level=1, phase="loop")
def tf_function(script: Script) -> Iterator[Finding]:
    """Run hand-written training and evaluation steps as graphs.

    Why: a step in Python starts every operation by itself. `tf.function` records the step once and then runs it
    as one graph: several times as fast for small models, with the same numbers up to rounding.
    A step that is a function gets the decorator, below those that it has. A step that stands in the loop is moved,
    as it is, into a function in front of the loop, with what the loop changes as its parameters; in front of the
    function around the loop where that is called for every epoch. What stands between its lines and only looks at
    it (`losses.append(float(loss))`, `total += loss`, `print`) then runs behind it. A Python number that changes
    from call to call is handed over as a tensor: the step would be traced anew for each. `reduce_retracing` is added
    where batches differ in length.
    Random numbers: TensorFlow draws others in a graph than eagerly. Where a seed makes them repeatable, it is -O2
    that applies it; layers of Keras 3 draw the same in both.
    Not applied: the step changes Python state (counters, lists, attributes), prints, or writes files and summaries;
    draws with NumPy or `random`; needs the value of a tensor (`.numpy()`, `float()`, NumPy, `if`), or a static shape
    that depends on values; reads what the script changes later (a rate, a flag, a dictionary, `trainable`, a setting
    of an optimizer, a model that grows or is built anew); gives back variables; makes layers, optimizers or variables;
    calls what is not seen; gets several models or optimizers, or arguments that are not known; stands in a generator;
    is handed on; has decorators that are not seen; is distributed otherwise than by `strategy.run`, whose caller gets
    the decorator; or `run_functions_eagerly` is on.

    Before:
        import tensorflow as tf

        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(8,))])
        optimizer = tf.keras.optimizers.Adam()
        data = tf.data.Dataset.from_tensor_slices((tf.ones((320, 8)), tf.ones((320, 1)))).batch(32)


        def train_step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x) - y))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            return loss


        for x, y in data:
            print(float(train_step(x, y)))

    After:
        import tensorflow as tf

        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(8,))])
        optimizer = tf.keras.optimizers.Adam()
        data = tf.data.Dataset.from_tensor_slices((tf.ones((320, 8)), tf.ones((320, 1)))).batch(32)


        @tf.function
        def train_step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x) - y))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            return loss


        for x, y in data:
            print(float(train_step(x, y)))
    """
    if script.target.before(2, 0) or graph_mode(script):
        return
    taken: set[str] = set()
    anchors: set[Anchor] = set()
    for step in steps(script):
        if step.compiled:
            continue
        if step.inline and step.function is not None and compiled(script, step.function):
            continue
        if not step.inline and not _is_repeated(script, step):
            continue
        outer = _run_by_strategy(step)
        if reason := _unfit_program(script, outer is not None):
            yield Refusal(step.node, reason)
        elif outer is not None:
            yield decorated(outer.script, outer)
        elif step.inline:
            yield lifted(script, step, taken, anchors)
        else:
            yield decorated(script, step)


def _unfit_program(script: Script, by_strategy: bool) -> str:
    """Why no step of the program may be compiled."""
    for other in list(script.project.scripts.values()):
        for call in other.calls_to(
            "tensorflow.config.run_functions_eagerly", "tensorflow.config.experimental_run_functions_eagerly"
        ):
            if not call.args or other.constant(call.args[0]) is not False:
                return f"`{other.text(call.func)}` ({other.at(call)}) runs every `tf.function` as Python"
    name, shown = distribution(script)
    if not name or (by_strategy and name.startswith("tensorflow.distribute.")):
        return ""
    return f"training is distributed with {shown}, and no function calls `strategy.run` with the step"


def _run_by_strategy(step: Step) -> Step | None:
    """The function that runs a step on all replicas, `strategy.run(step, args=...)`: it is what a graph is made of."""
    around: list[tuple[Script, Function]] = []
    for other, use in step.other_uses:
        call = other.parents.get(use)
        if isinstance(call, ast.ImportFrom | ast.alias):
            continue
        function = other.function_of(use)
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in ("run", "experimental_run_v2")
            and all(v.name.startswith("tensorflow.distribute.") for v in other.values(call.func.value))
            and isinstance(function, ast.FunctionDef)
            and not loops_around(other, use)
        ):
            around.append((other, function))
        else:
            return None
    if len({f for _, f in around}) != 1 or step.sites:
        return None
    script, function = around[0]
    sites, uses = call_sites(script, function)
    return Step(script, step.role, function, function.body, False, sites=sites, other_uses=uses)


def _is_repeated(script: Script, step: Step) -> bool:
    """Is the step's function called in a loop, directly or by its callers?"""
    return any(_in_loop(s.script, s.call, 0) for s in step.sites) or bool(step.other_uses and not step.sites)


def _in_loop(script: Script, node: ast.AST, depth: int) -> bool:
    if loops_around(script, node) or any(True for _ in script.enclosing(node, ast.ListComp, ast.GeneratorExp)):
        return True
    function = next((f for f in script.enclosing(node, *FUNCTIONS) if not isinstance(f, ast.Lambda)), None)
    if depth > 4 or not isinstance(function, ast.FunctionDef):
        return False
    return any(_in_loop(s.script, s.call, depth + 1) for s in call_sites(script, function)[0])


# -- a step that is a function ------------------------------------------------------------------------------


@dataclass
class _Arguments:
    """What the calls of a step hand to it."""

    kinds: dict[str, Kind] = field(default_factory=dict)
    edits: list[Edit] = field(default_factory=list)
    reason: str = ""
    node: ast.AST | None = None
    varying: str = ""
    flags: list[str] = field(default_factory=list)  # parameters that get several Python values
    objects: dict[str, list[Given]] = field(default_factory=dict)


def decorated(script: Script, step: Step) -> Finding:
    function = step.function
    assert function is not None
    if reason := _decorators(script, function) or _other_uses(step):
        return Refusal(function, reason)
    if not isinstance(function, ast.FunctionDef):
        return Refusal(function, "a coroutine cannot be traced")
    arguments = _arguments(script, step, function)
    if arguments.reason:
        return Refusal(function, arguments.reason)
    tracer = Tracer([(s.script, s.call) for s in step.sites], _anew(script, function))
    tracer.function(script, function, arguments.kinds)
    if tracer.hazards:
        return Refusal(function, tracer.hazards[0].reason)
    if reason := _objects(tracer, arguments) or _flags(script, step, function, arguments) or _settings(script, tracer):
        return Refusal(function, reason)
    if tracer.open_shape:
        return Refusal(function, tracer.open_shape)
    options = ""
    if arguments.varying:
        if tracer.shapes:
            place = tracer.shapes[0][0].at(tracer.shapes[0][1])
            return Refusal(
                function,
                f"batches differ in length ({arguments.varying}), and the step reads a static shape ({place}): it "
                "would be traced for every length",
            )
        options = _relaxed(script)
    what = "the training step" if step.role == "train" else "the evaluation step"
    message = f"{what} runs as a graph"
    if arguments.edits:
        message += "; a Python number that changes is handed to it as a tensor"
    if options:
        message += f"; batches differ in length ({arguments.varying}), which `{options.partition('=')[0]}` allows for"
    level, note = _random(script, function)
    edits = [Decorate(function, "{tensorflow.function}" + (f"({options})" if options else "")), *arguments.edits]
    return Fix(function, message + note, edits, level)


def _anew(script: Script, node: ast.stmt) -> list[ast.AST]:
    """The loops and functions around a function: they make it anew every time that they run."""
    return list(script.enclosing(node, ast.For, ast.While, ast.FunctionDef))


def _relaxed(script: Script) -> str:
    return "reduce_retracing=True" if script.target.since(2, 10) else "experimental_relax_shapes=True"


_HARMLESS = frozenset(
    "builtins.staticmethod builtins.classmethod tensorflow.Module.with_name_scope typing.override".split()
)


def _decorators(script: Script, function: Function) -> str:
    """Why a decorator of the function is in the way: it must only call the function that it wraps."""
    for decorator in function.decorator_list:
        if script.symbol(decorator) in _HARMLESS:
            continue
        found = script.values(decorator)
        if not found or not all(
            v.kind == "function" and v.script and isinstance(v.node, ast.FunctionDef) and _only_wraps(v.script, v.node)
            for v in found
        ):
            return f"what its decorator `@{script.text(decorator)}` does with it is not known ({script.at(decorator)})"
    return ""


def _only_wraps(script: Script, decorator: ast.FunctionDef) -> bool:
    """A decorator whose inner function calls the function with what it gets itself."""
    if len(decorator.args.args) != 1:
        return False
    name = decorator.args.args[0].arg
    inner = [n for n in decorator.body if isinstance(n, ast.FunctionDef)]
    calls = [n for n in ast.walk(decorator) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == name]
    uses = [n for n in ast.walk(decorator) if isinstance(n, ast.Name) and n.id == name]
    wraps = [n for n in ast.walk(decorator) if isinstance(n, ast.Call) and script.called(n) == "functools.wraps"]
    passes = all(
        all(isinstance(a, ast.Starred) for a in c.args) and all(k.arg is None for k in c.keywords) for c in calls
    )
    return len(inner) == 1 and bool(calls) and passes and len(uses) == len(calls) + len(wraps)


def _other_uses(step: Step) -> str:
    for other, use in step.other_uses:
        if not isinstance(other.parents.get(use), ast.ImportFrom | ast.alias):
            return f"it is handed on ({other.at(use)}): what calls it is not seen"
    return ""


def _arguments(script: Script, step: Step, function: ast.FunctionDef) -> _Arguments:
    found = _Arguments()
    a = function.args
    positional = [p.arg for p in [*a.posonlyargs, *a.args]]
    offset = max((s.offset for s in step.sites), default=0)
    for name in positional[:offset]:
        found.kinds[name] = OBJECT
    if a.vararg or a.kwarg:
        extra = a.vararg or a.kwarg
        found.reason = f"it takes any arguments (`*{extra.arg}`)" if extra else ""
        return found
    for name in [*positional[offset:], *(p.arg for p in a.kwonlyargs)]:
        _parameter(script, step, function, name, tuple(positional), found)
        if found.reason:
            return found
    return found


def _parameter(
    script: Script, step: Step, function: ast.FunctionDef, name: str, names: tuple[str, ...], found: _Arguments
) -> None:
    sites: list[tuple[CallSite, ast.expr | None]] = []
    for site in step.sites:
        if function in site.script.enclosing(site.call, ast.FunctionDef):
            continue  # it calls itself, which is told
        bound = site.script.bind(site.call, names[site.offset :])
        if bound.open:
            found.reason = f"what its call ({site.script.at(site.call)}) hands to it is not seen"
            return
        sites.append((site, bound.get(name)))
    alternatives: list[Given] = []
    numbers: list[tuple[CallSite, ast.expr]] = []
    for site, argument in sites:
        here = given(site.script, argument) if argument is not None else given(script, default_of(function, name))
        alternatives += here
        if argument is not None:
            found.varying = found.varying or varies(site.script, argument)
            if all(_is_number(g) for g in here):
                numbers.append((site, argument))
        if any(g.kind == "unknown" for g in here):
            shown = site.script.text(argument) if argument is not None else name
            found.reason = f"what `{shown}` is, which it is called with ({site.script.at(site.call)}), is not known"
            return
    kinds = {g.kind for g in alternatives}
    if kinds & {"int", "float"}:
        _number(script, function, name, kinds, sites, numbers, found)
        return
    literals = {repr(g.literal) for g in alternatives if g.kind == "constant"}
    if len(literals) > 1:
        found.flags.append(name)
    found.objects[name] = [g for g in alternatives if g.value is not None]
    found.kinds[name] = worst(_kind(g) for g in alternatives)


def _is_number(g: Given) -> bool:
    return g.kind in ("int", "float") or (
        g.kind == "constant" and isinstance(g.literal, int | float) and not isinstance(g.literal, bool)
    )


def _kind(g: Given) -> Kind:
    if g.kind == "array":
        return FLOATS if g.dtype == "float32" else RAW
    return {"tensor": TENSOR, "constant": PYTHON, "list": LIST, "object": OBJECT}[g.kind]


_PRECISIONS = re.compile(r"float64|float16|double|half|set_floatx|mixed_precision")


def _mixes_precisions(script: Script) -> bool:
    """Does the file compute with anything but float32, so that a number may become another type than that?"""
    made = script.calls_to("tensorflow.Variable", "tensorflow.constant", "tensorflow.convert_to_tensor")
    return bool(_PRECISIONS.search(script.source.text)) or any(
        array_dtype(script, c.args[0]) == "float64" and any(v.kind == "array" for v in script.values(c.args[0]))
        for c in made
        if c.args and script.argument(c, "dtype") is None
    )


def _number(
    script: Script,
    function: ast.FunctionDef,
    name: str,
    kinds: AbstractSet[str],
    sites: Sequence[tuple[CallSite, ast.expr | None]],
    numbers: Sequence[tuple[CallSite, ast.expr]],
    found: _Arguments,
) -> None:
    """A Python number that differs from call to call: handed over as a tensor."""
    site = next(s for s, a in sites if a is not None)
    shown = next(s.script.text(a) for s, a in sites if a is not None and any(_is_number(g) for g in given(s.script, a)))
    reason = (
        f"`{shown}` ({site.script.at(site.call)}) is a Python number that changes: the step would be traced for each"
    )
    loads = [
        m for m in script.mentions(name) if isinstance(m, ast.Name) and function in script.enclosing(m, ast.FunctionDef)
    ]
    if not loads:
        found.reason = f"{reason}, and it makes no use of it"
        return
    if kinds & {"tensor", "array", "object", "list", "unknown"} or len(numbers) != len(sites):
        found.reason = reason
    elif "int" in kinds and not all(_is_cast(script, m) for m in loads):
        found.reason = f"{reason}; as a tensor, an integer computes in another type"
    elif _mixes_precisions(script):
        found.reason = f"{reason}; which type it must have as a tensor is not known"
    else:
        found.kinds[name] = TENSOR
        found.edits += [Wrap(argument, "{tensorflow.constant}(...)") for _, argument in numbers]


def _is_cast(script: Script, load: ast.expr) -> bool:
    parent = script.parents[load]
    return isinstance(parent, ast.Call) and script.called(parent) == "tensorflow.cast" and parent.args[:1] == [load]


#: What may make variables when it is first used.
_BUILT = frozenset({"optimizer", "model", "metric", "layer"})


def _objects(tracer: Tracer, arguments: _Arguments) -> str:
    """Several models or optimizers for one function: the second would have to make variables."""
    made = [[g for g in gs if g.value is not None and g.value.kind in _BUILT] for gs in arguments.objects.values()]
    for kind in ("optimizer", "model"):
        for alternatives in made:
            different = {g.origin for g in alternatives if g.value is not None and g.value.kind == kind}
            if len(different) > 1:
                return f"it is called with several {kind}s: only the first call may make variables"
    for g in [g for alternatives in made for g in alternatives]:
        if isinstance(g.origin, ast.expr):
            script = tracer.first[0][0].project.owner(g.origin)
            if not tracer.is_fixed(script, g.origin):
                return (
                    f"the {g.value.kind if g.value else 'object'} that it is called with is made anew "
                    f"({script.at(g.origin)}): only the first call may make variables"
                )
    return ""


def _flags(script: Script, step: Step, function: ast.FunctionDef, arguments: _Arguments) -> str:
    """A flag with several values chooses what a trace holds: variables that only the second makes are an error."""
    for name in arguments.flags if step.role == "train" else ():
        for node in ast.walk(function):
            test = node.test if isinstance(node, ast.If | ast.IfExp) else None
            if test is not None and any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(test)):
                return f"it branches on `{name}` ({script.at(node)}), which differs from call to call"
    return ""


#: Settings of layers, optimizers and losses that are plain Python: a graph keeps what they were.
_SETTINGS = frozenset(
    "momentum nesterov beta_1 beta_2 rho epsilon amsgrad centered clipnorm clipvalue global_clipnorm weight_decay "
    "ema_momentum use_ema rate stddev dropout recurrent_dropout activation noise_shape kernel_regularizer "
    "bias_regularizer activity_regularizer kernel_constraint bias_constraint from_logits label_smoothing reduction "
    "gamma alpha negative_slope supports_masking stateful return_sequences axis padding strides".split()
)
#: What may be set at any time: a variable, or nothing that a step reads.
_FREE = frozenset("learning_rate lr iterations stop_training history optimizer loss name _name".split())
_CONFIGURED = _BUILT | {"loss", "schedule"}


def _settings(script: Script, tracer: Tracer) -> str:
    """A layer that is frozen, a rate of dropout that is set, or a model that grows: a traced step does not notice."""
    for other in list(script.project.scripts.values()):
        for place, owner, attr in _sets(other):
            made = [v for v in other.values(owner) if v.kind in _CONFIGURED]
            library = any(v.cls is None for v in made) and attr not in _FREE
            own = isinstance(owner, ast.Name) and owner.id == "self"
            is_read = attr == "trainable" or (not own and (library or attr in _SETTINGS))
            if is_read and not tracer.is_fixed(other, place):
                return f"`{attr}` is set ({other.at(place)}) after the step was traced: it would have no effect"
        for call in other.calls:
            if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("add", "pop"):
                continue
            if any(v.kind == "model" for v in other.values(call.func.value)) and not tracer.is_fixed(other, call):
                shown = other.text(call.func)
                return f"`{shown}` ({other.at(call)}) changes the model after the step was traced: it has no effect"
    return ""


def _sets(script: Script) -> Iterator[tuple[ast.AST, ast.expr, str]]:
    """What sets an attribute: the place, the object and the attribute."""
    for node in script.all(ast.Attribute):
        if not isinstance(node.ctx, ast.Load):
            yield node, node.value, node.attr
    for call in script.calls:
        if name := setattr_name(script, call):
            yield call, call.args[0], name


# -- a step that stands in the loop -------------------------------------------------------------------------

_NAMES = {
    "train": ("train_step", "training_step", "run_train_step"),
    "eval": ("test_step", "eval_step", "evaluation_step"),
}


def lifted(script: Script, step: Step, taken: set[str], anchors: set[Anchor]) -> Finding:
    if step.function is not None and script.is_generator(step.function):
        return Refusal(step.node, "it stands in a generator, which cannot be traced")
    if any(True for _ in script.enclosing(step.node, ast.AsyncFunctionDef, ast.AsyncFor)):
        return Refusal(step.node, "it stands in a coroutine, which cannot be traced")
    variants = _variants(script, step)
    refusal: Refusal | None = None
    around = _called_often(script, step.function)
    for statements in variants if around else ():
        assert around is not None
        found, _ = _lift(script, step, statements, around, taken, anchors)
        if isinstance(found, Fix):
            return found
    for loop in reversed(step.loops):
        begins = False
        for statements in variants:
            found, is_anew = _lift(script, step, statements, loop, taken, anchors)
            if isinstance(found, Fix):
                return found
            begins = begins or is_anew
            if statements == step.statements:
                refusal = found
        if not begins:  # what a further loop makes anew, such as the model of each fold, asks for a function in it
            break
    assert refusal is not None
    return refusal


def _variants(script: Script, step: Step) -> list[list[ast.stmt]]:
    """What may be moved: with what stands beside the step and belongs to it, or without what only looks at it."""
    variants = [step.statements]
    if (longer := _with_metrics(script, step)) != step.statements:
        variants.insert(0, longer)
    if (summed := _with_start_of_sums(script, step)) != step.statements:
        variants.insert(0, summed)
    for statements in list(variants):
        if looking := asides(script, statements):
            variants.append([s for s in statements if s not in looking])
    return variants


def _called_often(script: Script, function: Function | None) -> ast.FunctionDef | None:
    """The function if it is called in a loop, as once per epoch: a step in it would be traced anew each time."""
    if not isinstance(function, ast.FunctionDef) or script.parents[function] is not script.tree:
        return None
    sites, uses = call_sites(script, function)
    if not sites or uses or _decorators(script, function):
        return None
    return function if any(_in_loop(s.script, s.call, 0) for s in sites) else None


def _with_start_of_sums(script: Script, step: Step) -> list[ast.stmt]:
    """The step from `loss = 0` on, where the step adds to it."""
    added = {
        n.target.id
        for s in step.statements
        for n in ast.walk(s)
        if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)
    }
    block = block_of(script, step.statements[0])
    at = block.index(step.statements[0])
    for index, statement in enumerate(block[:at]):
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=int() | float())) if name in added:
                return [*block[index:at], *step.statements]
    return step.statements


def _with_metrics(script: Script, step: Step) -> list[ast.stmt]:
    """The step with the updates of metrics directly behind it."""
    statements = list(step.statements)
    block = block_of(script, statements[0])
    rest = block[block.index(statements[-1]) + 1 :]
    for statement in rest:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call):
            break
        receiver = (
            call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "update_state" else call.func
        )
        if not script.values(receiver) or any(v.kind != "metric" for v in script.values(receiver)):
            break
        statements.append(statement)
    return statements


def _lift(
    script: Script, step: Step, statements: list[ast.stmt], anchor: Anchor, taken: set[str], anchors: set[Anchor]
) -> tuple[Fix | Refusal, bool]:
    """The step as a function in front of a loop, or of the function around it; else why not, and whether that is for
    what the loop makes anew."""
    node = step.node
    lift = Lift(script, statements, anchor)
    if lift.obstacle:
        return Refusal(node, lift.obstacle), False
    kinds: dict[str, Kind] = {}
    converted: dict[str, str] = {}
    varying = ""
    handed = _Arguments()
    made: list[tuple[Refusal, str]] = []
    for name, load in lift.inputs.items():
        alternatives = given(script, load)
        found = {g.kind for g in alternatives}
        varying = varying or varies(script, load)
        where = f"`{name}` ({script.at(load)})"
        if found <= {"tensor", "array", "list"}:
            kinds[name] = worst(_kind(g) for g in alternatives)
        elif found == {"constant"} and len({repr(g.literal) for g in alternatives}) == 1:
            kinds[name] = PYTHON
        elif all(_is_number(g) for g in alternatives):
            if "int" in found and not all(
                _is_cast(script, m) for m in script.mentions(name) if m in lift.nodes and isinstance(m, ast.Name)
            ):
                return Refusal(
                    node, f"it computes with {where}, a Python number that changes from round to round"
                ), False
            if _mixes_precisions(script):
                return Refusal(node, f"which type {where} must have as a tensor is not known"), False
            kinds[name] = TENSOR
            converted[name] = f"{{tensorflow.constant}}({name})"
        elif found == {"object"} and {b.kind for b in script.names.reaching(load)} == {"parameter"}:
            kinds[name] = OBJECT
            handed.objects[name] = [g for g in alternatives if g.value is not None]
        elif found & {"object"}:
            values = [g.value for g in alternatives if g.value is not None]
            metric = {v.kind for v in values} == {"metric"}
            hint = f"make `{name}` once, in front of the loop, and call its `reset_state`" if metric else ""
            made.append((Refusal(node, f"{where} is made anew in the loop", hint), anew(values)))
        else:
            return Refusal(node, f"what {where} is, is not known"), False
    if made:
        return made[0][0], _begins(k for _, k in made)
    tracer = Tracer([(script, node if anchor is step.function else anchor)], _anew(script, anchor))
    after = tracer.statements(script, statements, kinds)
    if tracer.hazards:
        return Refusal(node, tracer.hazards[0].reason), _begins(h.anew for h in tracer.hazards)
    for name in lift.outputs:
        if after.get(name) not in (TENSOR, FLOATS, RAW, LIST):
            return Refusal(node, f"`{name}` is read behind the step and is not surely a tensor"), False
        if any(holds_variables(script, b.value) for b in lift.bindings(name)):
            return Refusal(node, f"`{name}` is read behind the step and holds variables: a graph returns values"), False
    if lift.unsure:
        return Refusal(node, f"`{lift.unsure[0]}` is read behind the step, which may leave it without a value"), False
    if reason := _objects(tracer, handed) or _settings(script, tracer) or tracer.open_shape:
        return Refusal(node, reason), False
    options = ""
    if varying:
        if tracer.shapes:
            return Refusal(node, f"batches differ in length ({varying}), and the step reads a static shape"), False
        options = f"({_relaxed(script)})"
    name = script.free_name(*(n for n in _NAMES[step.role] if n not in taken))
    taken.add(name)
    body = ast.FunctionDef(
        name=name,
        args=ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[]),
        body=statements,
        decorator_list=[],
        lineno=node.lineno,
        col_offset=0,
    )
    level, note = _random(script, body)
    what = "training" if step.role == "train" else "evaluation"
    message = f"the {what} step moves into `{name}`, which runs as a graph"
    if converted:
        message += "; a Python number that changes is handed to it as a tensor"
    edits = lift.edits(name, "@{tensorflow.function}" + options, converted, follows=anchor in anchors)
    anchors.add(anchor)
    return Fix(node, message + note, edits, level), False


def _begins(made: Iterable[str]) -> bool:
    """Does training begin anew with what is made anew (`Hazard.anew`)? A metric alone may be one for every epoch."""
    found = set(made)
    return "begins" in found and "" not in found


# -- random numbers -----------------------------------------------------------------------------------------


def _random(script: Script, function: ast.AST) -> tuple[int | None, str]:
    """The level from which a step that draws random numbers is compiled, and what to say about it."""
    drawn = [e for e in effects(script, function) if e.kind in ("random", "seeded")]  # type: ignore[arg-type]
    seeded = seeds(script)
    for effect in drawn:
        layer = effect.what[:1].isupper()
        if layer and (script.target.keras == 3 or not re.search(r"Dropout|Noise", effect.what)):
            continue  # these draw from a seed of their own, in a graph as eagerly
        if "keras.random" in effect.what or (not layer and effect.kind == "seeded"):
            continue
        if effect.kind == "seeded" or seeded:
            where = f"`{effect.what}` ({effect.script.at(effect.node)})"
            return 2, f"; {where} draws other random numbers in a graph than eagerly, also from a seed"
    return None, ""
