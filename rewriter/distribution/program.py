"""One program of a project: a script that is run with the files that it imports, and the ways in which it trains."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ..data.pipelines import related
from ..reach import Reach, reach_of
from ..script import Script, Site
from ..training import FITS, TESTS, Training, compiles_something_else, trainings
from ..values import Value

WayKind = Literal["fit", "train_step", "train_on_batch", "tape", "session", "monitored", "estimator"]

#: What a way is called in a message.
NAMES: dict[WayKind, str] = {
    "fit": "`fit`",
    "train_step": "a `train_step` of its own",
    "train_on_batch": "`train_on_batch`",
    "tape": "a loop with `GradientTape`",
    "session": "a TensorFlow 1 session",
    "monitored": "a `MonitoredTrainingSession`",
    "estimator": "an Estimator",
}


@dataclass(frozen=True, eq=False)
class Way:
    """One place where the program trains, and how."""

    kind: WayKind
    script: Script
    node: ast.AST


def by_kind(ways: Sequence[Way]) -> Iterator[tuple[WayKind, list[Way]]]:
    """The ways of every kind, in the order in which the kinds first appear."""
    for kind in dict.fromkeys(w.kind for w in ways):
        yield kind, [w for w in ways if w.kind == kind]


@dataclass(eq=False)
class Program:
    """What runs when `script` does."""

    script: Script
    reach: Reach

    @property
    def scripts(self) -> list[Script]:
        return self.reach.scripts

    def calls(self) -> Iterator[tuple[Script, ast.Call]]:
        return self.reach.calls()

    def sites(self, *methods: str) -> list[Site]:
        """Calls of these methods of Keras models that may run."""
        return [s for o in self.scripts for s in o.sites(*methods) if self.reach.contains(o, s.call)]

    @cached_property
    def trainings(self) -> list[Training]:
        """Every `compile` of the program, with the `fit` calls that are seen to belong to it."""
        found: dict[ast.Call, Training] = {}
        for script in self.scripts:
            for training in trainings(script):
                if self.reach.contains(training.script, training.compile.call):
                    found.setdefault(training.compile.call, training)
        return list(found.values())

    @cached_property
    def ways(self) -> list[Way]:
        """Every place where it trains, in source order."""
        found = [Way("fit", s.script, s.call) for s in self.sites(*FITS) if _trains_a_model(s)]
        found += [Way("train_on_batch", s.script, s.call) for s in self.sites("train_on_batch")]
        for script in self.scripts:
            for cls in script.all(ast.ClassDef):
                own = [s for s in cls.body if isinstance(s, ast.FunctionDef) and s.name == "train_step"]
                if own and cls in self.reach.defined and script.kind_of_class(cls) in ("model", "unknown"):
                    found.append(Way("train_step", script, own[0]))
        steps = [w.node for w in found if w.kind == "train_step"]
        for script, call in self.calls():
            kind = _by_what_is_called(script, call)
            if kind and not any(step in script.enclosing(call, ast.FunctionDef) for step in steps):
                found.append(Way(kind, script, call))
        order = {s: i for i, s in enumerate(self.scripts)}
        return sorted(found, key=lambda w: (order[w.script], getattr(w.node, "lineno", 0)))

    def shares(self, script: Script) -> Script | None:
        """Another program of the project that uses this file too."""
        if script is self.script:
            return None
        for other in list(self.script.project.scripts.values()):
            if other not in (self.script, script) and is_program(other) and script in reach_of(other).scripts:
                return other
        return None


def program_of(script: Script) -> Program | None:
    """The program that a file is, None for one that another file of the project imports and that runs nothing."""
    if not is_program(script) and _is_imported(script):
        return None
    return Program(script, reach_of(script))


def is_program(script: Script) -> bool:
    return reach_of(script).is_program and (not _is_imported(script) or _has_main_guard(script))


def _is_imported(script: Script) -> bool:
    return any(script in reach_of(other).scripts for other in related(script) if other is not script)


def _has_main_guard(script: Script) -> bool:
    from ..scopes import is_main_guard

    return any(isinstance(s, ast.If) and is_main_guard(s) for s in script.tree.body)


def _trains_a_model(site: Site) -> bool:
    """Not the `fit` of a scaler or a classifier of another library, as far as that can be told."""
    if any(m.kind == "model" for m in site.models):
        return True
    keras = ("epochs", "batch_size", "validation_data", "callbacks", "steps_per_epoch", "verbose", "validation_split")
    return site.method != "fit" or any(name in site.arguments.keywords for name in keras)


_MONITORED = frozenset(
    f"tensorflow.train.{name}"
    for name in ("MonitoredTrainingSession", "MonitoredSession", "SingularMonitoredSession", "Supervisor")
)


#: What makes an Estimator, also those that are not converted.
ESTIMATORS = re.compile(
    r"tensorflow\.((contrib\.(learn|tpu|estimator)|estimator(\.(tpu|experimental))?)"
    r"\.(Estimator|SVM|KMeans|\w+(Estimator|Classifier|Regressor))|keras\.estimator\.model_to_estimator)$"
)


def is_estimator(value: Value) -> bool:
    """What makes an Estimator, or `est.train(...)`, which gives it back."""
    call, script = value.node, value.script
    if not isinstance(call, ast.Call):
        return False
    if value.name == "train" and isinstance(call.func, ast.Attribute) and script is not None:
        return any(map(is_estimator, script.values(call.func.value)))
    return bool(ESTIMATORS.match(value.name))


def trains_estimator(script: Script, call: ast.Call) -> bool:
    """`est.train(...)` of an Estimator, or `train_and_evaluate(...)`."""
    if script.called(call) == "tensorflow.estimator.train_and_evaluate":
        return True
    func = call.func
    named = isinstance(func, ast.Attribute) and func.attr == "train"
    return named and any(map(is_estimator, script.values(func.value)))  # type: ignore[attr-defined]


def _by_what_is_called(script: Script, call: ast.Call) -> WayKind | None:
    name = script.called(call)
    if name == "tensorflow.GradientTape":
        return "tape"
    if name in ("tensorflow.Session", "tensorflow.InteractiveSession"):
        return "session"
    if name in _MONITORED:
        return "monitored"
    if ESTIMATORS.match(name) or trains_estimator(script, call):
        return "estimator"
    match call.func:
        case ast.Attribute(value=receiver, attr="minimize" | "apply_gradients"):
            return "tape" if any(v.kind == "optimizer" for v in script.values(receiver)) else None
    return None


def unproven_compiles(program: Program) -> Iterator[tuple[Script, ast.AST, str]]:
    """Uses of `compile` and `fit` that cannot be followed: what is called there may train, unseen."""
    for site in program.sites("compile"):
        if compiles_something_else(site):
            continue
        strange = [m for m in site.models if m.kind not in ("model", "constant")]
        if strange:
            why = f": {strange[0].name}" if strange[0].kind == "unknown" else ""
            yield site.script, site.call, f"which model is compiled here is not known{why}"
    for script in program.scripts:
        for attribute in script.all(ast.Attribute):
            if attribute.attr not in ("compile", *FITS, "train_on_batch") or not isinstance(attribute.ctx, ast.Load):
                continue
            parent = script.parents.get(attribute)
            if isinstance(parent, ast.Call) and parent.func is attribute:
                continue
            if any(v.kind in ("model", "unknown", "parameter") for v in script.values(attribute.value)):
                yield script, attribute, f"`{script.text(attribute)}` is passed on, to be called where it is not seen"
        for call in script.calls_to("builtins.getattr"):
            name = script.constant(call.args[1]) if len(call.args) > 1 else ""
            if name in ("compile", *FITS, *TESTS, "train_on_batch") and call.args:
                yield script, call, f"`{script.text(call)}` may train where it is not seen"
