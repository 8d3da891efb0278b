"""What `mirrored` and `multiworker` have in common: the strategy, and the scope under which variables are made."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rewriter.codemod import Finding, Refusal
from rewriter.distribution.existing import distributed, missing
from rewriter.distribution.program import NAMES, Way, WayKind, by_kind, program_of
from rewriter.edits import Insert, Wrap
from rewriter.environment import settings
from rewriter.placement import Place, chooses_devices
from rewriter.script import Script, import_bindings
from rewriter.spelling import outermost
from rewriter.training import other_backend

from . import start
from .conversion import Conversion, untrained
from .scope import Scope

CLASSES = {"mirrored": "MirroredStrategy", "multiworker": "MultiWorkerMirroredStrategy"}

_LOOPS = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)
#: Calls after which devices cannot be configured otherwise, so that the strategy is made behind them.
_CONFIGURES = re.compile(
    r"tensorflow\.config\.(experimental\.)?(set_memory_growth|set_visible_devices|set_logical_device_configuration"
    r"|set_virtual_device_configuration|set_device_policy|set_synchronous_execution|enable_\w+)$"
    r"|tensorflow\.config\.threading\.set_\w+$|(tensorflow\.)?keras\.backend\.set_session$"
    r"|tensorflow\.(enable|disable)_(v2|eager)\w*$"
)


@dataclass(eq=False)
class ByStrategy(Conversion):
    """The conversion of a program to a strategy of `tf.distribute`.

    kind: "mirrored" or "multiworker". strategy: the name of the strategy. home: the function in which it is made (None:
    in the module). start: where it is made.

    For several workers, the names of what stands below it where something needs that, and what has been put aside:
    seeded: what seeds the order of the data. options: of datasets. chief: whether this worker is it. path: the function
    that gives workers paths of their own. aside: the paths that have been given to it.
    """

    kind: str = "mirrored"
    strategy: str = ""
    home: ast.AST | None = None
    seeded: str = ""
    options: str = ""
    chief: str = ""
    path: str = ""
    aside: set[str] = field(default_factory=set)
    start: Place | None = None
    message: str = ""  # of a change that comes first, after which the program is read again
    together: set[ast.AST] = field(default_factory=set)  # calls in which all workers have to take part
    wraps: dict[ast.expr, list[str]] = field(default_factory=dict)  # the first one innermost
    scope: Scope = field(init=False)

    def __post_init__(self) -> None:
        self.scope = Scope(self)

    @property
    def several_hosts(self) -> bool:
        return self.kind == "multiworker"

    @property
    def called(self) -> str:
        """What the strategy is called in a message."""
        return f"`{CLASSES[self.kind]}`"

    def wrap(self, node: ast.expr, template: str) -> None:
        """Put an expression into another one, and that into what is asked for later."""
        found = self.wraps.setdefault(node, [])
        if template in found:
            return
        found.append(template)
        whole = "..."
        for part in found:
            whole = part.replace("...", whole)
        self.edits = [e for e in self.edits if not (isinstance(e, Wrap) and e.node is node)]
        self.add(Wrap(node, whole))

    def refuse(self, script: Script, node: ast.AST, reason: str, hint: str = "") -> None:
        super().refuse(script, node, _of_workers(reason), _of_workers(hint))

    def note(self, text: str) -> None:
        super().note(_of_workers(text))

    def define(self, script: Script, node: ast.AST, text: str) -> None:
        """Put a function above the outermost statement around a node, and above what needed it before."""
        first = outermost(script, node, script.tree)
        for edit in self.edits:
            if isinstance(edit, Insert) and edit.text == text:
                if getattr(edit.node, "lineno", 0) <= first.lineno:
                    return
                self.edits.remove(edit)
                break
        neighbours = [*[s for s in script.tree.body if s.lineno < first.lineno][-1:], first]
        others = any(isinstance(e, Insert) and "def " in e.text and e.node in neighbours for e in self.edits)
        blank_lines = 2 if others else max(0, 2 - script.blank_lines_above(first)) if len(neighbours) > 1 else 0
        self.add(Insert(first, text, after=False, blank_lines=blank_lines, below=2))

    def knows(self, script: Script, node: ast.AST) -> bool:
        """Whether the name of the strategy has its value where a node stands."""
        if script is not self.script:
            return False
        if self.home is not None:
            return self.home in script.enclosing(node, ast.FunctionDef)
        return script.function_of(node) is not None or getattr(node, "lineno", 0) > self.started


def _of_workers(text: str) -> str:
    """What is said of ranks, of the workers of a strategy."""
    return re.sub(r"\brank(s?)\b", r"worker\1", re.sub(r"\brank 0\b", "the chief", text))


Shape = Callable[[ByStrategy, list[Way]], None]


def shapes() -> dict[WayKind, Shape]:
    """What converts each way of training that can be converted."""
    from . import strategy_fit, strategy_tape  # which use what stands here

    return {"fit": strategy_fit.convert, "train_step": strategy_fit.steps, "tape": strategy_tape.convert}


def convert(script: Script, kind: str) -> Iterator[Finding]:
    """Every finding of the codemod for one kind of strategy."""
    program = program_of(script)
    if program is None:
        return
    ways = program.ways
    if (already := distributed(program)) is not None:
        lacking = "; ".join(missing(program))
        by = f"the program is distributed already, by {already[2]}"
        yield Refusal(already[1], f"{by}, but {lacking}" if lacking else by)
        return
    if not ways:
        yield from untrained(program)
        return
    conversion = ByStrategy(program, kind=kind)
    if (reason := _impossible(conversion, ways)) is not None:
        yield Refusal(ways[0].node, *reason)
        return
    _find_place(conversion)
    if not conversion.refusals:
        converts = shapes()
        for way_kind, mine in by_kind(ways):
            if way_kind in converts:
                converts[way_kind](conversion, mine)
            else:
                reason_ = f"{NAMES[way_kind]} is not converted to {conversion.called}"
                conversion.refuse(mine[0].script, mine[0].node, reason_, "--distribute horovod")
    if not conversion.refusals and not conversion.message:
        if conversion.several_hosts:
            from . import strategy_workers

            strategy_workers.by_chief(conversion)
        conversion.scope.edit()
        _make(conversion)
        for note in _START[kind]:
            conversion.note(note)
    yield from conversion.result(conversion.message or _MESSAGES[kind])


_MESSAGES = {
    "mirrored": "trains on all GPUs of the host, each with a part of every batch",
    "multiworker": "trains on all GPUs of several hosts, each with a part of every batch",
}

_CLUSTER = '{"cluster": {"worker": ["host1:12345", "host2:12345"]}, "task": {"type": "worker", "index": 0}}'
_START = {
    "mirrored": ("start it: python {script}",),
    "multiworker": (
        f"start it on every host, each with its index: TF_CONFIG='{_CLUSTER}' python {{script}}",
        "when a worker is lost, the others end with an error",
    ),
}


def _impossible(conversion: ByStrategy, ways: list[Way]) -> tuple[str, str] | None:
    """Why a strategy cannot train with the TensorFlow of the script, and what can."""
    script, target = conversion.script, conversion.target
    if not target.since(2, 4):
        return f"programs are converted to {conversion.called} for TensorFlow 2.4 and later, not for {target}", (
            "--distribute horovod" if target.since(1, 15) else ""
        )
    if not target.since(2, 6) and any(b.symbol.split(".")[0] == "keras" for b in import_bindings(script)):
        return f"`keras` is another package than `tf.keras` in {target}: it knows no strategies", ""
    if backend := other_backend(script):
        return f"Keras computes with {backend}", ""
    if conversion.several_hosts and target.keras != 2 and any(w.kind in ("fit", "train_step") for w in ways):
        hint = "--distribute mirrored on one host; or TF_USE_LEGACY_KERAS=1 with `tf_keras`"
        if target.keras == 3:
            return "`fit` of Keras 3 fails under a `MultiWorkerMirroredStrategy`", hint
        return f"`fit` of Keras 3 fails under a `MultiWorkerMirroredStrategy`, and {target} may have Keras 3", (
            "--target tf2.15, or --python with the interpreter that will run it"
        )
    return None


# -- the strategy itself -------------------------------------------------------------------------------------


def _find_place(conversion: ByStrategy) -> None:
    """Where the strategy is made, and what it is called."""
    script = conversion.script
    for owner in conversion.program.scripts:
        _check_devices(conversion, owner)
    conversion.strategy = script.free_name("strategy", "distribution_strategy")

    def configures(node: ast.AST) -> bool:
        return chooses_devices(node) or (isinstance(node, ast.Call) and bool(_CONFIGURES.match(script.called(node))))

    name = f"tensorflow.distribute.{CLASSES[conversion.kind]}"
    place = start.find(conversion, conversion.called, name, configures)
    if place is None:
        return
    conversion.place = place.anchor
    conversion.start = place
    conversion.home = script.function_of(place.anchor)
    _check_once(conversion, place.anchor)
    conversion.started = place.anchor.lineno - (not place.after)


def _check_once(conversion: ByStrategy, anchor: ast.stmt) -> None:
    """A process has one strategy: a second one counts what the GPUs tell each other from the start again."""
    script, seen = conversion.script, set[ast.AST]()
    todo: list[ast.AST] = [anchor]
    while todo:
        node = todo.pop()
        function = script.function_of(node)
        repeated = any(isinstance(n, _LOOPS) for n in script.enclosing(node, *_LOOPS))
        calls = script.project.calls_of(function, script) if isinstance(function, ast.FunctionDef) else []
        if repeated or len(calls) > 1 or function in seen:
            reason = f"the strategy would be made here, more than once ({script.at(node)})"
            hint = "configure the devices once, at the top of the script"
            conversion.refuse(script, anchor, reason, hint)
            return
        if function is not None:
            seen.add(function)
        todo += [c for o, c, _ in calls if o is script]


def _make(conversion: ByStrategy) -> None:
    """Make the strategy below the imports, and behind what configures the devices."""
    place = conversion.start
    assert place is not None
    text = f"{conversion.strategy} = {{tensorflow.distribute.{CLASSES[conversion.kind]}}}()"
    if conversion.several_hosts:
        from . import strategy_workers

        text += strategy_workers.below(conversion)
        for seed in conversion.seeds:
            if (late := start.imported_below(conversion.script, place.anchor, seed)) is not None:
                reason = "what orders the data is imported too late to be seeded below the strategy"
                conversion.refuse(conversion.script, late, reason, "import it further up, or set a seed")
    conversion.add(Insert(place.anchor, text, after=place.after, blank_lines=1))


def _check_devices(conversion: ByStrategy, script: Script) -> None:
    """What chooses one device, where the strategy takes all that there are."""
    for node in script.names.parents:
        for key, value in settings(node) if isinstance(node, ast.Assign | ast.Call | ast.AugAssign) else ():
            name = key if isinstance(key, str) else script.constant(key)
            given = script.constant(value)
            if name == "CUDA_VISIBLE_DEVICES" and not (isinstance(given, str) and "," in given):
                reason = (
                    "`CUDA_VISIBLE_DEVICES` leaves one GPU, or none"
                    if given is not None
                    else ("which GPUs `CUDA_VISIBLE_DEVICES` leaves is not known")
                )
                conversion.refuse(script, node, reason, "leave it out, or name all GPUs that are to train")
            elif name == "TF_CONFIG":
                conversion.refuse(script, node, "`TF_CONFIG` is set: the program is started on several hosts already")
    for call in script.calls_into("tensorflow"):
        name = script.called(call)
        if name.endswith(("config.set_visible_devices", "experimental.set_visible_devices")) and start.of_gpus(
            script, call
        ):
            conversion.refuse(script, call, "it chooses the GPUs itself", "leave that out")
        elif name.endswith("set_memory_growth") and _is_one(script, call):
            reason = "memory grows on one GPU only, and TensorFlow does not start where GPUs differ in that"
            conversion.refuse(script, call, reason, "set it for all GPUs: `for gpu in gpus: ...`")
        elif name == "tensorflow.device":
            device = script.constant(call.args[0]) if call.args else None
            if not isinstance(device, str) or "cpu" not in device.lower():
                what = repr(device) if isinstance(device, str) else "a device"
                conversion.refuse(script, call, f"it computes on {what}, where a strategy uses all", "leave that out")


def _is_one(script: Script, call: ast.Call) -> bool:
    """`set_memory_growth(gpus[0], True)`."""
    device = call.args[0] if call.args else None
    if isinstance(device, ast.Name):
        bindings = script.names.reaching(device)
        device = bindings[0].part if len(bindings) == 1 and bindings[0].kind != "loop" else None
    return isinstance(device, ast.Subscript) and script.integer(device.slice) is not None
