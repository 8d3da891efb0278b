"""`mixed-precision`: compute in 16 bits, keep weights and outputs in 32."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from codemods.graph.mixed_precision import graph_rewrites
from codemods.loops.precision import Loops
from codemods.loops.scaling import BFLOAT16, Scaling
from rewriter import catalog
from rewriter.codemod import Finding, Fix, Refusal, codemod
from rewriter.dtypes import FULL, Precision, chooses, has_float32, settings
from rewriter.edits import Edit, Insert, SetKeyword
from rewriter.low_precision import (
    ACTIVATIONS,
    HUGE,
    LOOKUPS,
    NOT_KNOWN,
    RECURRENT,
    SQUASHING,
    TINY,
    grows,
    is_float,
    large_numbers,
    needs_float32,
    parts,
    prepares,
    regularizes_activity,
)
from rewriter.models import Structure, activation_of, is_output, is_passive, is_symbolic, models_in, structure
from rewriter.placement import NoPlace, Place, Placement
from rewriter.reach import reach_of
from rewriter.scopes import FUNCTIONS
from rewriter.script import Script, Site
from rewriter.spelling import tensorflow_imports
from rewriter.training import checks_numerics, distribution, graph_mode, left_behind
from rewriter.values import Value

_TRAIN = ("fit", "fit_generator", "train_on_batch")


@codemod(level=2, phase="precision", hardware="GPU with Tensor Cores, or a CPU with bfloat16")
def mixed_precision(script: Script) -> Iterator[Finding]:
    """Compute layers in 16 bits; weights and outputs stay in float32.

    Why: Tensor Cores multiply 16-bit numbers several times as fast as float32, and activations take half the
    memory. The weights stay float32, Keras scales the loss by itself in `fit`, and the last layer is set to
    `dtype="float32"`, so that predictions, losses and metrics are what they were.
    The policy stands after the imports, before the first layer is made: layers read it when they are
    constructed. A softmax or sigmoid `Activation` at the end is set to float32 alone; layers behind the last
    one that computes (`Flatten`, `Reshape`, `Lambda`, ...) are set together with it, and so are layers that do
    not work in 16 bits (`Normalization`, `UnitNormalization`, those with an `activity_regularizer`; in float16
    recurrent layers with an unbounded activation such as relu, which may grow from step to step). An `Input` of
    word or item numbers that an own layer looks up is given `dtype="int32"`: as floats they would be rounded.
    In TensorFlow 1 sessions and Estimators (from 1.14 on) the optimizer is wrapped in
    `enable_mixed_precision_graph_rewrite`, which has TensorFlow rewrite the graph to float16 on a GPU, and scales the
    loss. Not where something in the graph needs the range of float32 (logarithms, squared errors, small constants),
    where checkpoints are restored, or where not all is seen that is done with the optimizer.
    Not applied: nothing but the output would multiply matrices in 16 bits; the output layers cannot be found; the
    model's own code mixes float32 tensors (`tf.constant`, `tf.random.normal`, casts) with what layers return;
    constants that float16 cannot hold (`1e-8`, `-1e9`); `set_floatx` or explicit dtypes; layers that are called
    outside of models; models that are loaded, or layers of other libraries.
    Training steps of the script's own (`GradientTape` loops, `train_step`) get the loss scaling that float16 needs:
    the optimizer is wrapped in a `LossScaleOptimizer`, the loss is scaled inside the tape, and in Keras 2 the gradients
    are unscaled right behind it, before anything is done with them; Keras 3 unscales them when they are applied.
    Not where gradients are used for something else (penalties, a `clip_by_value` that hides an overflow; in Keras 3
    accumulated or logged), where the optimizer applies others in between, or without an optimizer. A policy has no
    effect on a script's own variables.
    `--amp-dtype bfloat16` has the range of float32 and needs no loss scaling. It is what a CPU gets, where the target
    is known to be one; if that has no instructions for bfloat16, or the model has recurrent layers, only where it is
    named, and by `tune`, which measures.

    Before:
        import tensorflow as tf

        model = tf.keras.Sequential([
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax"),
        ])
        model.compile("adam", "sparse_categorical_crossentropy")
        model.fit(x, y)

    After:
        import tensorflow as tf

        tf.keras.mixed_precision.set_global_policy("mixed_float16")

        model = tf.keras.Sequential([
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax", dtype="float32"),
        ])
        model.compile("adam", "sparse_categorical_crossentropy")
        model.fit(x, y)
    """
    yield from _Plan(script).findings()


#: Functions that stand for a precision that the user has decided on.
_POLICIES = frozenset(
    "mixed_precision.set_global_policy mixed_precision.set_dtype_policy "
    "mixed_precision.experimental.set_policy mixed_precision.Policy mixed_precision.experimental.Policy "
    "mixed_precision.DTypePolicy mixed_precision.LossScaleOptimizer "
    "mixed_precision.experimental.LossScaleOptimizer config.set_dtype_policy DTypePolicy "
    "dtype_policies.DTypePolicy dtype_policies.get optimizers.LossScaleOptimizer".split()
)
_GRAPH_REWRITES = frozenset(
    {
        "tensorflow.train.experimental.enable_mixed_precision_graph_rewrite",
        "tensorflow.train.experimental.MixedPrecisionLossScaleOptimizer",
    }
)

#: Overridden methods of a model that apply gradients themselves.
_OWN_STEPS = ("train_step", "make_train_function")

#: Attributes that a `LossScaleOptimizer` shows as the optimizer in it does.
_OPTIMIZER_ATTRIBUTES = frozenset("lr learning_rate iterations variables apply_gradients minimize build".split())
_OUTPUTS = frozenset(
    "predict predict_on_batch predict_generator predict_classes predict_proba evaluate "
    "evaluate_generator test_on_batch call __call__ export".split()
)
#: Layers that multiply no matrices, beside those that `is_passive`: nothing is gained where only these are left.
_IDLE = LOOKUPS | frozenset(
    "BatchNormalization CategoryCrossing Embedding Input InputLayer LayerNormalization Normalization".split()
)
#: Functions that multiply matrices, and what makes the weights for it.
_PRODUCTS = re.compile(r"(\w*matmul|matvec|einsum|tensordot|\w*dot|dense|\w*conv\w*|\w*attention|add_weight|Variable)$")
TRY_ON_CPU = "`tfboost tune` measures whether it is faster here; `--select mixed-precision` applies it"

_WRAPPERS = frozenset({"layers.TimeDistributed", "layers.Bidirectional", "layers.RNN"})


@dataclass
class _Plan:
    script: Script
    refusals: list[Refusal] = field(default_factory=list)
    pins: dict[ast.Call, Script] = field(default_factory=dict)
    integers: dict[ast.Call, Script] = field(default_factory=dict)  # inputs of ids that a cast would round

    def __post_init__(self) -> None:
        target = self.script.target
        self.reach = reach_of(self.script)
        self.keras2, self.keras3 = target.keras != 3, target.keras != 2
        wanted = self.script.options.amp_dtype
        self.dtype = wanted or ("bfloat16" if target.cpu or target.ampere else "float16")
        self.built: dict[ast.AST | None, Structure] = {}

    @property
    def float16(self) -> bool:
        return self.dtype == "float16"

    def refuse(self, script: Script, node: ast.AST, reason: str, hint: str = "") -> None:
        """Report at the place; where that is in another file, at what is trained here."""
        if script is not self.script:
            reason = reason if script.at(node) in reason else f"{reason} ({script.at(node)})"
            node = self.here
        if all(r.reason != reason or r.node is not node for r in self.refusals):
            self.refusals.append(Refusal(node, reason, hint))

    # -- the whole -------------------------------------------------------------------------------------------

    def findings(self) -> Iterator[Finding]:
        sites = [s for s in self._sites(*_TRAIN) if self._of_keras(s)]
        if self._decided():
            return
        self.loops = Loops(self.reach)
        if not sites and not self.loops.models:
            graphs = list(graph_rewrites(self.script))
            yield from graphs or self._without_fit()
            return
        self.here: ast.AST = self._trained_here(sites)
        if not self._is_program():
            if not self._is_imported():
                yield self._only_defines(self.here)
            return
        self._setting()
        if not self.refusals:
            self._models(sites)
        if not self.refusals:
            self._on_cpu()
        if not self.refusals:
            self._code()
        if not self.refusals:
            self._scale()
        if not self.refusals:
            place = self._place()
            if place is not None and not self.refusals:
                yield self._fix(place)
                return
        yield from self.refusals[:6]

    def _fix(self, place: Place) -> Fix:
        quote = self.script.source.quote
        family = self._family()
        if self.script.target.since(2, 4):
            function = "mixed_precision.set_global_policy"
        else:
            function = "mixed_precision.experimental.set_policy"
        text = f"{{{family}.{function}}}({quote}mixed_{self.dtype}{quote})"
        edits: list[Edit] = [Insert(place.anchor, text, place.after, place.blank_lines)]
        for call, owner in self.pins.items():
            q = owner.source.quote
            edits.append(SetKeyword(call, "dtype", f"{q}float32{q}"))
        for call, owner in self.integers.items():
            q = owner.source.quote
            edits.append(SetKeyword(call, "dtype", f"{q}int32{q}"))
        message = f"layers compute in {self.dtype}; weights and outputs stay float32"
        if self.loops.with_models:
            message += "; " + (
                "the losses of own steps are scaled"
                if self.float16
                else "bfloat16 has the range of float32: no loss scaling is needed"
            )
        return Fix(place.anchor, message, [*edits, *self.scaling])

    def _on_cpu(self) -> None:
        """Where bfloat16 costs a CPU more than it gains; what is named, as by `tune`, is done all the same."""
        target, named = self.script.target, self.script.options.names("mixed-precision")
        if not target.cpu or named:
            return
        if target.slow_bfloat16:
            why = "training runs on a CPU that has no instructions for bfloat16, where it is slower than float32"
            self.refuse(self.script, self.here, why, TRY_ON_CPU)
        for layer in (one for built in self.trained for one in built.layers):
            name = layer.keras.rpartition(".")[2]
            if name in RECURRENT and layer.script is not None and layer.node is not None:
                why = f"`{name}` multiplies small matrices in turn, which bfloat16 makes no faster on a CPU"
                self.refuse(layer.script, layer.node, why, TRY_ON_CPU)
                return

    def _scale(self) -> None:
        """In float16 the losses of own steps are scaled; bfloat16 has the range of float32."""
        self.scaling: list[Edit] = []
        if not self.float16 or not self.loops.with_models:
            return
        scaling = Scaling(self.loops.with_models, keras2=self.keras2, keras3=self.keras3, family=self._family())
        for trouble in scaling.troubles:
            self.refuse(trouble.script, trouble.node, trouble.reason, trouble.hint)
        self.scaling = scaling.edits

    def _is_program(self) -> bool:
        return self.reach.is_program or self.loops.is_program

    def _trained_here(self, sites: list[Site]) -> ast.AST:
        """The place in this file at which the training is reported."""
        own: list[ast.AST] = [s.call for s in sites if s.script is self.script]
        own += [s.node for s in self.loops.with_models if s.script is self.script]
        return own[0] if own else self._mention([*(m for s in sites for m in s.models), *self.loops.models])

    def _is_imported(self) -> bool:
        return any(self.script in reach_of(s).scripts for s in self._others())

    def _only_defines(self, node: ast.AST) -> Refusal:
        return Refusal(
            node,
            "this file only defines what another one runs: that one has to set the policy",
            "rewrite the script that is started, together with this file",
        )

    def _others(self) -> list[Script]:
        project = self.script.project
        return [s for s in list(project.scripts.values()) if s is not self.script and s.path in project.editable]

    def _mention(self, models: Iterable[Value]) -> ast.AST:
        """Something in this file to report at, where another one trains."""
        for value in models:
            if value.script is self.script and isinstance(value.node, ast.Call):
                return value.node
        imports = tensorflow_imports(self.script)
        return imports[0] if imports else self.script.tree.body[0]

    def _sites(self, *methods: str) -> list[Site]:
        return [
            s
            for script in self.reach.scripts
            for s in script.sites(*methods)
            if self.reach.contains(script, s.call) and self._runs(s)
        ]

    def _runs(self, site: Site) -> bool:
        """Called from this program, not only defined in a file that it imports something else from."""
        function = site.script.function_of(site.call)
        return site.script is self.script or function is not None

    def _of_keras(self, site: Site) -> bool:
        """Leave out what merely has a `fit` method: scalers, tokenizers, estimators."""
        if any(v.kind == "model" for v in site.models):
            return True
        return bool(self._sites("compile"))

    def _decided(self) -> bool:
        for script, call in self.reach.calls():
            last = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if (
                "olicy" in last
                or "recision" in last
                or last in ("LossScaleOptimizer", "get")
                or (isinstance(call.func, ast.Name) and script.called(call) not in ("", last))
            ):
                name = script.called(call)
                if catalog.keras_path(name) in _POLICIES or name in _GRAPH_REWRITES:
                    return True
        return False

    def _without_fit(self) -> Iterator[Finding]:
        """Own loops, and scripts that only build: say why nothing is done where a gain could be expected."""
        if not self._is_program():
            sites = [s for s in self.script.sites(*_TRAIN) if any(v.kind == "model" for v in s.models)]
            if sites and not self._is_imported():
                yield self._only_defines(sites[0].call)
            if sites or self._is_imported():
                return
        if self._made_elsewhere():
            yield from self.refusals
            return
        layers = [
            c
            for c in self.script.calls
            if any(v.kind in ("layer", "model") and v.node is c for v in self.script.values(c))
        ]
        if not layers:
            own = [step for step in self.loops.steps if step.script is self.script]
            if own and self._is_program():
                why = "the step computes with variables of the script's own: a policy acts on Keras layers only"
                yield Refusal(own[0].node, why)
            return
        for call in self.script.calls_to("backend.set_floatx", "config.set_floatx"):
            if call.args and self.script.constant(call.args[0]) != "float32":
                yield Refusal(call, f"the script chooses its precision: `{ast.unparse(call)}`")
                return
        for call in self.script.calls_to("tensorflow.GradientTape"):
            yield Refusal(call, "no training step of a Keras model is seen around this `GradientTape`")
            return

    def _made_elsewhere(self) -> bool:
        """A model that comes from a package or file that is not seen is compiled and trained here."""
        if not tensorflow_imports(self.script):
            return False
        compiled = {
            ast.dump(c.func.value)
            for c in self.script.calls
            if isinstance(c.func, ast.Attribute) and c.func.attr == "compile" and (c.args or c.keywords)
        }
        for call in self.script.calls:
            if (
                isinstance(call.func, ast.Attribute)
                and call.func.attr in ("fit", "fit_generator")
                and ast.dump(call.func.value) in compiled
                and self.reach.contains(self.script, call)
            ):
                for value in self.script.values(call.func.value):
                    if value.kind == "object" and "." in value.name:
                        self._unfollowed(self.script, call, f"it is made by `{value.name}`")
                        return True
        return False

    # -- the target and the whole script ---------------------------------------------------------------------

    def _setting(self) -> None:
        target, script, here = self.script.target, self.script, self.here
        for owner in self.reach.scripts:
            for name in owner.all(ast.Constant):
                if name.value in ("jax", "torch") and _is_backend(owner, name):
                    self.refuse(owner, name, f"Keras runs on {name.value}, not on TensorFlow")
        if self.refusals:
            return
        unknown, give = "the TensorFlow version is not known", "give it with --target"
        if target.before(2, 1):
            self.refuse(script, here, "Keras before TensorFlow 2.1 has no precision policies")
        elif not target.since(2, 1):
            self.refuse(script, here, f"{unknown}: before 2.1 there are no precision policies", give)
        elif not target.since(2, 4) and not target.before(2, 4):
            self.refuse(script, here, f"{unknown}: the policy is set differently before 2.4", give)
        if not self.float16 and not target.since(2, 5):
            self.refuse(script, here, "bfloat16 is not complete before TensorFlow 2.5")
        if why := graph_mode(script):
            self.refuse(script, here, why + ": a policy has no effect there")
        if (old := left_behind(script)) and not target.before(2, 6):
            self.refuse(script, here, f"models of {old}, an old copy of Keras, have a policy of their own")
        strategy, shown = distribution(script)
        if strategy == "horovod" and self.keras3 and self.float16:
            self.refuse(script, here, "Horovod does not know the loss scaling of Keras 3")
        if strategy.endswith("MirroredStrategy") and self.keras3 and self.float16:
            self.refuse(script, here, f"{shown}: the loss scaling of Keras 3 looks at one GPU's gradients", BFLOAT16)
        if strategy and self.float16 and self.loops.steps:
            self.refuse(script, here, f"own steps under {shown}: their losses are to be scaled by hand", BFLOAT16)
        if "TPU" in strategy and self.float16:
            self.refuse(script, here, f"{shown}: TPUs compute in bfloat16, not in float16", "--amp-dtype bfloat16")
        for owner, call in self.reach.calls():
            self._call(owner, call)
        for owner in self.reach.scripts:
            for call in owner.calls_into("tensorflow.lite", "tf2onnx", "tensorflowjs", "coremltools", "onnxmltools"):
                if not owner.called(call).startswith("tensorflow.lite.Interpreter"):  # (it runs what is there)
                    why = f"`{ast.unparse(call.func)}` converts the model, which 16-bit operations prevent"
                    self.refuse(owner, call, why)
        if self.float16 and (watched := checks_numerics(script)):
            self.refuse(script, here, f"{watched}: it stops at the infinities that loss scaling makes and skips")
        for owner in self.reach.scripts:
            for text in owner.all(ast.Constant):
                if text.value == "TF_USE_LEGACY_KERAS":
                    self.refuse(
                        owner,
                        text,
                        "TF_USE_LEGACY_KERAS is set: `keras` and `tf.keras` have separate policies",
                    )
                elif text.value in ("KERAS_HOME", "KERAS_FLOATX"):
                    self.refuse(owner, text, f"{text.value} may choose another precision")
            if self.float16:
                self._optimizer_attributes(owner)

    def _call(self, owner: Script, call: ast.Call) -> None:
        func = call.func
        last = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
        if _takes_layer(owner, func):
            reason = f"`{ast.unparse(func)}` calls a layer of the model by itself: it would return {self.dtype}"
            self.refuse(owner, call, reason)
        if last == "add_loss":
            self.refuse(owner, call, "`add_loss` adds what layers return in low precision to a float32 loss")
        name = owner.called(call) if last in _WATCHED or isinstance(func, ast.Name) else ""
        path = catalog.keras_path(name)
        if path in ("backend.set_floatx", "config.set_floatx") and not (
            call.args and owner.constant(call.args[0]) == "float32"
        ):
            self.refuse(owner, call, f"the script chooses its precision: `{ast.unparse(call)}`")
        elif path in ("backend.set_epsilon", "config.set_epsilon") and self.float16:
            number = owner.number(call.args[0]) if call.args else None
            if number is None or number <= TINY:
                self.refuse(owner, call, f"`{ast.unparse(call)}` is zero in float16", "--amp-dtype bfloat16")
        elif name == "tensorflow.GradientTape" and call not in self.loops.tapes:
            self.refuse(
                owner,
                call,
                "what the gradients of this `GradientTape` are used for is not seen: no optimizer applies them",
            )
        elif name == "tensorflow.gradients" or path in ("backend.gradients", "backend.function"):
            self.refuse(
                owner,
                call,
                f"`{ast.unparse(func)}` reads tensors inside the model, which are no longer float32",
            )
        elif name in ("tensorflow.Session", "tensorflow.InteractiveSession"):
            self.refuse(owner, call, "the script runs a TensorFlow 1 session")
        elif name.endswith(("enable_mixed_precision", "auto_mixed_precision")):
            self.refuse(owner, call, "the script sets mixed precision itself")

    def _optimizer_attributes(self, owner: Script) -> None:
        """In float16 `model.optimizer` is a LossScaleOptimizer, which lacks attributes of what it wraps."""
        for node in owner.mentions("optimizer"):
            parent = owner.parents.get(node)
            if not isinstance(node, ast.Attribute) or not isinstance(parent, ast.Attribute):
                continue
            if parent.attr in _OPTIMIZER_ATTRIBUTES or not self.reach.contains(owner, node):
                continue
            values = owner.values(node.value)
            if any(v.kind == "model" for v in values) or (
                isinstance(node.value, ast.Attribute) and node.value.attr == "model"
            ):
                self.refuse(
                    owner,
                    parent,
                    f"`{ast.unparse(parent)}` is read: in float16 Keras wraps the optimizer in one "
                    "that may not have it",
                    "--amp-dtype bfloat16",
                )

    # -- models ----------------------------------------------------------------------------------------------

    def _structure(self, model: Value) -> Structure:
        key = _key(model)
        if key not in self.built:
            self.built[key] = structure(model)
        return self.built[key]

    def _models(self, sites: list[Site]) -> None:
        compiles = [s for s in self._sites("compile") if any(v.kind == "model" for v in s.models)]
        trained: dict[ast.AST | None, Value] = {}
        for site in [*sites, *compiles]:
            loaded = []
            for value in site.models:
                if value.kind != "model":
                    if value.kind in ("parameter", "unknown"):
                        self._unfollowed(site.script, site.call, _why(value))
                elif _is_loaded(value):
                    loaded.append(value)
                else:
                    trained[_key(value)] = value
            if loaded and len(loaded) == len(site.models):
                self.refuse(
                    site.script,
                    site.call,
                    "the model that is trained is loaded: its layers keep the precision they were saved with",
                )
        for script, call, why in self.loops.unseen():
            self.refuse(script, call, why)
        for script, call, model in self.loops.model_calls:
            if _is_loaded(model):
                why = "the model that is trained is loaded: its layers keep the precision they were saved with"
                self.refuse(script, call, why)
            trained[_key(model)] = model
        if self.refusals:
            return
        self.called = {_key(model) for model in self.loops.models}
        self.trained = [self._structure(v) for v in trained.values()]
        for built in self.trained:
            self._own_steps(built)
            self._whole(built)
            if not built.tails and not self.refusals and not self._only_steps(built):
                node = _key(built.model) or self.here
                self.refuse(built.model.script or self.script, node, "the output layers cannot be found")
            for tail in built.tails:
                self._pin_tail(built, tail, whole=True)
        for site in compiles:
            self._compile(site)
        self._other_models(set(trained))
        for owner, call in self.reach.calls():
            self._keep(owner, call)
        for built in self.trained:
            self._layers(built)
        self._alone_in_steps()
        self._alone()
        if not self.refusals and not any(map(self._gains, self.trained)):
            self.refuse(
                self.script, self.here, "what is computed in 16 bits multiplies no matrices: nothing would be gained"
            )

    def _only_steps(self, built: Structure) -> bool:
        """A model that is not called itself: its own `train_step` calls others."""
        cls = built.model.cls
        return (
            cls is not None
            and cls.script is not None
            and isinstance(cls.node, ast.ClassDef)
            and cls.script.method(cls.node, "call") is None
            and (found := cls.script.method(cls.node, "train_step")) is not None
            and found[1] in self.loops.functions
        )

    def _gains(self, built: Structure) -> bool:
        """Is anything left that multiplies matrices in low precision, or may do so?"""
        if any(not self._structure(m).layers for m in built.models):
            return True
        code = [c for c in built.code if c.layer.node not in self.pins]
        if any(c.role != "method" or any(_multiplies(c.script, n) for n in ast.walk(c.node)) for c in code):
            return True
        left = [v for v in built.layers if v.node not in self.pins]
        return any(v.cls is not None or not (is_passive(v) or v.keras.removeprefix("layers.") in _IDLE) for v in left)

    def _keep(self, owner: Script, call: ast.Call) -> None:
        """Layers that stay in float32 by themselves, also outside of models."""
        for value in owner.values(call):
            made = value.node is call and value.cls is None and (value.kind == "layer" or value.keras == "layers.dot")
            if made and needs_float32(
                owner,
                call,
                value.keras.removeprefix("layers."),
                float16=self.float16,
                keras2=self.keras2,
                keras3=self.keras3,
            ):
                given = owner.bind(call)
                if "dtype" not in given and given.open:
                    self.refuse(
                        owner, call, "the arguments of a layer that may have to stay in float32 cannot all be seen"
                    )
                elif "dtype" not in given:
                    self.pins[call] = owner

    def _alone(self) -> None:
        """Layers that the script calls outside of models give it low precision."""
        inside = {v.node for built in self.built.values() for v in built.calls}
        code = {c.node for built in self.built.values() for c in built.code}
        for owner, call in self.reach.calls():
            if call in inside or _looks_only_at_shape(owner, call) or code.intersection(owner.enclosing(call, ast.AST)):
                continue
            for value in owner.values(call.func):
                if (
                    value.kind == "layer"
                    and value.name != "get_layer"
                    and value.node is not None
                    and value.node not in self.pins
                    and not prepares(value)
                    and not (
                        isinstance(value.node, ast.Call) and value.script and has_float32(value.script, value.node)
                    )
                    and not any(is_symbolic(owner, e) for e in [*call.args, *(k.value for k in call.keywords)])
                ):
                    self.refuse(
                        owner,
                        call,
                        f"`{ast.unparse(call.func)}` calls a layer outside of a model: it would return {self.dtype}",
                    )

    def _alone_in_steps(self) -> None:
        """Layers that an own step calls: outside of a `call`, what they return meets float32."""
        classes = [b.model.cls for b in self.trained if b.model.cls is not None]
        methods = [
            found
            for cls in classes
            if cls.script is not None and isinstance(cls.node, ast.ClassDef)
            for name in ("test_step", "predict_step", "compute_loss", "compute_metrics")
            if (found := cls.script.method(cls.node, name)) is not None
        ]
        for script, call, layer in self.loops.alone(methods):
            made, owner = layer.node, layer.script
            if made in self.pins or layer.keras.removeprefix("layers.") in LOOKUPS:
                continue
            stays = prepares(layer) or self._is_simple(layer)
            if stays and isinstance(made, ast.Call) and owner is not None and not owner.bind(made).open:
                self.pins[made] = owner
            elif not (isinstance(made, ast.Call) and owner is not None and has_float32(owner, made)):
                what = f"`{script.text(call.func)}` calls a layer outside of a model"
                self.refuse(script, call, f"{what}: it would return {self.dtype}")

    def _is_simple(self, layer: Value) -> bool:
        """A layer of the script's own that holds no others and can be told its precision: it draws samples, say."""
        cls = layer.cls
        if cls is None or cls.script is None or not isinstance(cls.node, ast.ClassDef):
            return False
        return not self._structure(layer).layers and _takes_dtype(cls.script, cls.node)

    def _unfollowed(self, script: Script, call: ast.Call, why: str) -> None:
        model = call.func.value if isinstance(call.func, ast.Attribute) else call
        self.refuse(script, call, f"which model `{script.text(model)}` is is not known: {why}")

    def _own_steps(self, built: Structure) -> None:
        for model in [built.model, *built.models]:
            if model.cls is None or model.cls.script is None or not isinstance(model.cls.node, ast.ClassDef):
                continue
            for name in _OWN_STEPS:
                found = model.cls.script.method(model.cls.node, name)
                if found is not None and model is built.model and found[1] not in self.loops.functions:
                    self.refuse(*found, f"`{name}` is the script's own, and what it does with its losses is not seen")

    def _whole(self, built: Structure) -> None:
        for unseen in built.unseen:
            self.refuse(unseen.script, unseen.node, unseen.reason[:1].lower() + unseen.reason[1:])
        for model in built.models:
            if _is_loaded(model) and model.script and model.node:
                self.refuse(
                    model.script,
                    model.node,
                    "a loaded model is part of it: its layers keep the precision they were saved with",
                )

    def _other_models(self, trained: set[ast.AST | None]) -> None:
        """Models whose outputs the script uses without training them: encoders, feature extractors."""
        others = [
            v
            for s in self.reach.scripts
            for v in models_in(s)
            if v.node not in trained and v.node is not None and self.reach.contains(s, v.node)
        ]
        seen = {v.node for built in self.trained for v in built.calls if v.node}
        structures = []
        for model in others:
            if model.cls is None and not _is_loaded(model):
                built = self._structure(model)
                structures.append(built)
                seen |= {v.node for v in built.calls if v.node}
        for model in others:
            if _is_loaded(model) or (model.cls is not None and model.cls.node in trained):
                continue
            place = self._used(model, seen)
            if not place:
                continue
            built = self._structure(model)
            for unseen in built.unseen:
                if unseen.output:
                    self.refuse(
                        unseen.script,
                        unseen.node,
                        f"the outputs of another model that is used ({place}) cannot be found: {unseen.reason}",
                    )
            for tail in built.tails:
                self._pin_tail(built, tail, whole=False)

    def _used(self, model: Value, symbolic: set[ast.AST]) -> str:
        """Where the script uses what this model returns, other than inside another model."""
        assert model.script is not None and model.node is not None
        for owner, expr in model.script.flow(model.node):
            parent = owner.parents.get(expr)
            if isinstance(parent, ast.Attribute) and parent.attr in _OUTPUTS:
                return owner.at(parent)
            if (
                isinstance(parent, ast.Call)
                and parent.func is expr
                and parent not in symbolic
                and self.reach.contains(owner, parent)
            ):
                return owner.at(parent)
        return ""

    # -- float32 at the end ----------------------------------------------------------------------------------

    def _pin_tail(self, built: Structure, tail: tuple[Value, ...], *, whole: bool) -> None:
        done = False
        for value in _needed(tail, whole):
            if value.kind == "model" and not done:
                assert value.script is not None and value.node is not None
                self.refuse(
                    value.script,
                    value.node,
                    f"the output of the model is made inside `{value.name.rpartition('.')[2]}`, out of reach",
                    'end the model with Activation("linear", dtype="float32") by hand',
                )
            elif value.kind == "layer" or _is_merge(value):
                self._pin(built, value)
                done = True
        if not done and not any(v.kind == "model" or v.keras == "layers.Input" for v in tail):
            value = tail[0]
            self.refuse(
                value.script or self.script,
                value.node or self.here,
                "an output is computed without a layer that could stay in float32",
            )

    def _pin(self, built: Structure, layer: Value) -> None:
        call, owner = layer.node, layer.script
        if owner is None or not isinstance(call, ast.Call):
            self.refuse(
                owner or self.script,
                call or self.here,
                "an output layer is not constructed where it can be seen",
            )
            return
        if call in built.hidden and not (_key(built.model) in self.called and built in self.trained):
            self.refuse(
                owner,
                call,
                "the layer that makes an output is a hidden layer as well"
                if built in self.trained
                else "a model that is used after training returns what a hidden layer computes",
            )
            return
        if layer.cls is not None:
            self._pin_own(built, layer, owner, call)
            return
        bound = owner.bind(call)
        if bound.open and "dtype" not in bound:
            self.refuse(owner, call, "the arguments of the output layer cannot all be seen")
            return
        name = layer.keras.removeprefix("layers.")
        if name in LOOKUPS:
            mode = owner.argument(call, "output_mode")
            if name == "CategoryEncoding" or (mode is not None and owner.constant(mode) != "int"):
                self.refuse(owner, call, f"what `{name}` returns is an output of the model")
            return
        if "dtype" not in bound and not (name in ("TimeDistributed", "Bidirectional") and not self.keras3):
            self.pins[call] = owner  # (in Keras 2 these two return what the layer in them does)
        if layer.keras in _WRAPPERS and not (name == "TimeDistributed" and not self.keras2):
            for argument in [*call.args, *(k.value for k in call.keywords if k.arg in ("layer", "cell"))][:1]:
                for inner in owner.values(argument):
                    if inner.kind == "layer":
                        self._pin(built, inner)
                    else:
                        what = f"which layer `{owner.text(argument)}` is that makes the output is not known"
                        self.refuse(owner, argument, f"{what}: {_why(inner)}" if _why(inner) else what)

    def _pin_own(self, built: Structure, layer: Value, owner: Script, call: ast.Call) -> None:
        """An output layer whose class is the script's own."""
        cls = layer.cls
        assert cls is not None and cls.script is not None and isinstance(cls.node, ast.ClassDef)
        inner = self._structure(layer)
        if inner.layers:
            for other in built.layers:
                if other.cls is not None and other.cls.node is cls.node and other.node is not call:
                    self.refuse(owner, call, f"`{cls.name}` is used for hidden layers as well as for the output")
                    return
            if not inner.tails:
                self.refuse(owner, call, f"what `{cls.name}` returns cannot be followed")
            for tail in inner.tails:
                self._pin_tail(inner, tail, whole=True)
        elif _takes_dtype(cls.script, cls.node):
            if "dtype" not in owner.bind(call):
                self.pins[call] = owner
        else:
            self.refuse(
                owner,
                call,
                f"the output layer's class `{cls.name}` takes no dtype",
                "pass **kwargs on to super().__init__",
            )

    # -- what is trained with --------------------------------------------------------------------------------

    def _compile(self, site: Site) -> None:
        script, arguments = site.script, site.arguments
        if arguments.open and not any(n in arguments for n in ("optimizer", "loss")):
            self.refuse(script, site.call, "the arguments of `compile` cannot all be seen")
        optimizer = arguments.get("optimizer")
        for value in script.values(optimizer) if self.float16 else ():
            name = value.name.rpartition(".")[2]
            if value.kind == "optimizer" and value.cls is not None:
                why = f"the optimizer `{value.name}` is the script's own: loss scaling may not work with it"
            elif value.kind == "tensor" or (value.kind == "object" and "." in value.name):
                why = f"`{name}` is not one of Keras's optimizers: loss scaling may not work with it"
            elif optimizer is not None and value.kind in ("unknown", "parameter"):
                why = f"which optimizer `{script.text(optimizer)}` is is not known: {_why(value)}"
            else:
                continue
            self.refuse(script, optimizer or site.call, why, "--amp-dtype bfloat16 needs no loss scaling")
        for name in ("loss", "metrics", "weighted_metrics"):
            self._reads_inside(script, arguments.get(name))

    def _reads_inside(self, script: Script, given: ast.expr | None) -> None:
        """Losses and metrics that read tensors of the model other than its outputs: those are not float32."""
        todo = [given] if given is not None else []
        while todo:
            expr = todo.pop()
            if isinstance(expr, ast.List | ast.Tuple):
                todo.extend(expr.elts)
                continue
            if isinstance(expr, ast.Dict):
                todo.extend(expr.values)
                continue
            for value in script.values(expr):
                if value.kind == "tensor":
                    self.refuse(script, expr, "the loss is computed from tensors inside the model")
                if value.kind == "mapping" and isinstance(value.node, ast.Dict):
                    todo.extend(value.node.values)
                if value.cls is not None and value.cls.script and value.cls.node is not None:
                    self._reads_inside_code(value.cls.script, value.cls.node)
                if value.kind in ("function", "method") and isinstance(value.node, FUNCTIONS) and value.script:
                    self._reads_inside_code(value.script, value.node)

    def _reads_inside_code(self, script: Script, code: ast.AST) -> None:
        own = dict.fromkeys(ast.walk(code))
        for node in own:
            if isinstance(node, ast.Call) and any(v.kind in ("layer", "model") for v in script.values(node.func)):
                self.refuse(script, node, "the loss or metric computes with layers, which are no longer float32")
            if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
                continue
            for found in script.values(node):
                inside = found.base is not None or found.keras == "layers.Input" or found.name == "operator"
                if is_output(found) or (found.kind == "tensor" and found.node not in own and inside):
                    self.refuse(
                        script,
                        node,
                        f"the loss or metric reads `{ast.unparse(node)}`, a tensor inside the model that would no "
                        "longer be float32",
                    )

    # -- layers and code -------------------------------------------------------------------------------------

    def _layers(self, built: Structure) -> None:
        for layer in built.layers:
            owner, call = layer.script, layer.node
            if owner is None or not isinstance(call, ast.Call):
                continue
            name = layer.keras.removeprefix("layers.")
            if layer.cls is None and (name not in catalog.LAYERS or name in NOT_KNOWN):
                self.refuse(owner, call, f"what `{layer.name.rpartition('.')[2]}` does in low precision is not known")
            self._explicit(owner, call)
            self._masked(owner, call, name)
            self._registered(owner, call, name)
            if name == "Normalization" and built.model.cls is not None and built.model.kind == "model":
                self.refuse(
                    owner,
                    call,
                    "raw features reach `Normalization` in low precision: a subclassed model casts "
                    "what it is called with",
                )
            if (
                name in ("LSTM", "GRU", "SimpleRNN", "RNN", "Bidirectional")
                and not self.float16
                and not owner.target.since(2, 11)
            ):
                self.refuse(owner, call, f"`{name}` does not work in bfloat16 before TensorFlow 2.11")
            if self.float16 and name in ("SimpleRNNCell", "LSTMCell", "GRUCell") and grows(owner, call, name):
                why = f"`{owner.text(call)}` may exceed float16 from step to step: its activation is not bounded"
                self.refuse(owner, call, why, "--amp-dtype bfloat16 has the range of float32")
            if name == "LayerNormalization" and self.float16 and not owner.target.since(2, 2):
                self.refuse(owner, call, "LayerNormalization does not work in float16 in TensorFlow 2.1")
            if call not in self.pins and layer.cls is not None and regularizes_activity(layer):
                why = "the activity regularization of a low-precision layer may overflow, or not be added to the loss"
                self.refuse(owner, call, why)
        for tensor in built.inputs:
            if tensor.script and isinstance(tensor.node, ast.Call):
                self._explicit(tensor.script, tensor.node)
        self._ids(built)

    def _explicit(self, owner: Script, call: ast.Call) -> None:
        bound = owner.bind(call)
        given = bound.get("dtype")
        if given is not None:
            if chooses(owner, given):
                self.refuse(owner, call, f"the script sets a precision itself: `dtype={ast.unparse(given)}`")
        elif bound.open and (setting := next(settings(self.reach.scripts), None)):
            script, expr = setting
            self.refuse(
                owner,
                call,
                "the script may set a precision itself: not all arguments can be seen, and there is "
                f"`dtype={script.text(expr)}` ({script.at(expr)})",
            )

    def _registered(self, owner: Script, call: ast.Call, name: str) -> None:
        """An activation that the script made known to Keras under a name: which function it is is not seen."""
        given = [k.value for k in call.keywords if k.arg in ("activation", "recurrent_activation")]
        if name == "Activation":
            given += call.args[:1]
        for expr in given:
            value = owner.constant(expr)
            if isinstance(value, str) and value.lower() not in ACTIVATIONS:
                self.refuse(owner, call, f"what the activation `{value}` computes is not seen")

    def _masked(self, owner: Script, call: ast.Call, name: str) -> None:
        if name == "Masking" and self.float16:  # (what is compared is rounded as well: other values do no harm)
            given = owner.argument(call, "mask_value") or (call.args[0] if call.args else None)
            number = 0 if given is None else owner.number(given)
            if number is None or abs(number) > HUGE:
                shown = ast.unparse(given) if given else ""
                self.refuse(owner, call, f"the mask value `{shown}` may be infinite in float16")

    def _ids(self, built: Structure) -> None:
        """Integers above 2048 (256 in bfloat16) do not survive a layer in front of an Embedding."""
        for chain in built.chains:
            for before, layer in pairwise(chain):
                if (
                    layer.keras == "layers.Embedding"
                    and before.kind == "layer"
                    and layer.script
                    and layer.node
                    and before.keras.removeprefix("layers.") not in LOOKUPS | {"InputLayer"}
                ):
                    self.refuse(
                        layer.script,
                        layer.node,
                        f"numbers of words or items pass a layer that rounds them to {self.dtype} before the Embedding",
                    )
        for tensor in built.calls:
            if (
                tensor.base is not None
                and tensor.base.cls is not None
                and isinstance(tensor.node, ast.Call)
                and tensor.script
                and len(tensor.node.args) == 1
                and self._takes_ids(tensor.base)
            ):
                value = tensor.script.value(tensor.node.args[0])
                if (
                    value is not None
                    and value.keras == "layers.Input"
                    and value.script
                    and isinstance(value.node, ast.Call)
                    and not value.script.bind(value.node).may_have("dtype")
                    and self._is_only_ids(value.script, value.node)
                ):
                    self.integers[value.node] = value.script

    def _takes_ids(self, layer: Value) -> bool:
        """Does the layer do nothing with what it is called with but look it up in Embeddings?"""
        if layer.cls is None:
            return layer.keras == "layers.Embedding"
        if layer.cls.script is None or not isinstance(layer.cls.node, ast.ClassDef):
            return False
        found = layer.cls.script.method(layer.cls.node, "call")
        if found is None or len(found[1].args.args) < 2:
            return False
        script, function = found
        (parameter,) = script.names.scopes[function].bindings[function.args.args[1].arg][:1]
        looked_up = False
        for load in script.names.loads(parameter):
            parent = script.parents[load]
            if isinstance(parent, ast.Attribute) and parent.attr == "shape":
                continue
            if not isinstance(parent, ast.Call) or parent.func is load:
                return False
            callees = script.values(parent.func)
            if all(c.keras == "layers.Embedding" and c.kind == "layer" for c in callees):
                looked_up = True
            elif not all(c.name.rpartition(".")[2] in ("shape", "zeros_like", "ones_like") for c in callees):
                return False
        return looked_up

    def _is_only_ids(self, script: Script, call: ast.Call) -> bool:
        """Does everything that an `Input` is given to look it up?"""
        for owner, use in script.flow(call):
            parent = owner.parents[use]
            if isinstance(parent, ast.List | ast.Tuple | ast.Dict):
                parent = owner.parents[parent]
            if isinstance(parent, ast.keyword):
                parent = owner.parents[parent]
            if isinstance(parent, ast.Assign | ast.AnnAssign):
                continue
            if not isinstance(parent, ast.Call):
                return False
            values = owner.values(parent.func)
            if not all(v.keras == "models.Model" or self._takes_ids(v) for v in values):
                return False
        return True

    def _code(self) -> None:
        pinned = set(self.pins)
        checked = [b for b in self.built.values() if b.model.kind == "model"]
        for built in checked:
            precision = Precision(built, pinned, self.keras2, self.keras3, self.integers)
            if self.keras2 and built.model.node is not None and (extra := self.loops.extra_inputs(built.model)):
                precision.given[built.model.node] = dict.fromkeys(extra, FULL)
            for trouble in precision.check():
                if trouble.float16 and not self.float16:
                    continue
                hint = "--amp-dtype bfloat16 has the range of float32" if trouble.float16 else ""
                self.refuse(trouble.script, trouble.node, trouble.reason, hint)
        for site in self._sites(*_TRAIN):
            if (given := site.arguments.get("x") or site.arguments.get("generator")) is not None:
                self._large_inputs(site.script, given, site.models)
        for script, given, model in self.loops.data():
            self._large_inputs(script, given, [model])

    def _large_inputs(self, owner: Script, given: ast.expr, trained: Iterable[Value]) -> None:
        """Features that may exceed what float16 holds: the first layer would see infinity."""
        models = [(m, self.built.get(_key(m))) for m in trained]
        names = [built.layer_names() if built else set() for _, built in models]
        looked_up = all(found & (LOOKUPS | {"Embedding"}) for found in names)
        for script, features in parts(owner, given):
            if is_float(script, features) and any(
                model.cls is not None and "Embedding" in found for (model, _), found in zip(models, names, strict=True)
            ):
                self.refuse(
                    script,
                    features,
                    "the model is called with floats and looks some of them up in an "
                    f"Embedding: numbers of words or items would be rounded to {self.dtype}",
                )
            for expr, number in large_numbers(script, features, integers=not looked_up) if self.float16 else ():
                self.refuse(
                    script,
                    expr,
                    f"the training data may hold numbers like {number:g}, which are infinite in float16",
                    "scale the features, or use --amp-dtype bfloat16",
                )
                return

    # -- where the policy goes -------------------------------------------------------------------------------

    def _family(self) -> str:
        """The Keras that the layers come from: its own policy is the one to set."""
        names: list[str] = []
        for built in self.trained:
            names += [value.name for value in [*built.layers, *built.models, built.model]]
        families = _families(names)
        if not families:  # (all of them are classes of the script's own)
            families = _families(
                {
                    base
                    for built in self.trained
                    for v in [*built.layers, built.model]
                    if v.cls and v.cls.script and isinstance(v.cls.node, ast.ClassDef)
                    for base in v.cls.script.library_bases(v.cls.node)
                }
            )
        if "tf_keras" in families and len(families) > 1:
            self.refuse(
                self.script,
                self.here,
                "layers of tf_keras and of another Keras are mixed: their policies are separate",
            )
        if "keras" in families and not self.script.target.since(2, 6):
            if self.script.target.keras == 2:
                why = "the `keras` package of that time is not TensorFlow's Keras and has no precision policies"
                self.refuse(self.script, self.here, why)
            else:
                why = "which Keras `keras` is depends on the version, which is not known"
                self.refuse(self.script, self.here, why, "give it with --target")
        return max(families, key=lambda f: families[f], default="tensorflow.keras")

    def _place(self) -> Place | None:
        name = f"{self._family()}.mixed_precision.set_global_policy"
        if self.refusals:
            return None
        sites = [s.call for s in self._sites(*_TRAIN) if s.script is self.script]
        sites += [call for script, call in self.loops.calls if script is self.script]
        try:
            # a float16 policy of Keras 2 looks for GPUs: those must have been chosen before
            return Placement(self.reach, sites, name, devices=self.keras2 and self.float16).find()
        except NoPlace as no:
            self.refuse(self.script, no.node or self.here, no.reason)
            return None


# -- helpers -------------------------------------------------------------------------------------------------


def _key(model: Value) -> ast.AST | None:
    """What stands for a model: the call that makes it, or its class."""
    return model.node or (model.cls.node if model.cls else None)


_WATCHED = frozenset("set_floatx set_epsilon GradientTape gradients function Session InteractiveSession".split())


def _needed(tail: tuple[Value, ...], whole: bool) -> Iterator[Value]:
    """The layers at the end of an output that have to compute in float32."""
    for value in tail:
        yield value
        layer = value.kind == "layer" or _is_merge(value)
        if layer and not whole:
            return
        if value.kind == "layer" and (not is_passive(value) or _squashes(value)):
            return


def _multiplies(script: Script, node: ast.AST) -> bool:
    """Whether a method of a model may multiply matrices here without a layer of the model."""
    if not isinstance(node, ast.Call):
        return isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)
    known = all(v.kind in ("symbol", "layer", "class", "method", "function") for v in script.values(node.func))
    return not known or bool(_PRODUCTS.match(script.called(node).rpartition(".")[2]))


def _families(names: Iterable[str]) -> Counter[str]:
    """How often each Keras occurs in names of its objects."""
    found = map(catalog.canonical, names)
    return Counter(f[:-1] for name in found for f in catalog.KERAS_FAMILIES if name.startswith(f))


def _squashes(layer: Value) -> bool:
    if layer.keras == "layers.Softmax":
        return True
    if layer.keras != "layers.Activation" or layer.script is None:
        return False
    given = activation_of(layer)
    names = [v.literal if v.kind == "constant" else v.name.rpartition(".")[2] for v in layer.script.values(given)]
    return bool(names) and all(n in SQUASHING for n in names)


def _is_merge(value: Value) -> bool:
    path = value.keras
    return value.kind == "tensor" and path.startswith("layers.") and path[7:] in catalog.MERGE_FUNCTIONS


def _why(value: Value) -> str:
    """Why it is not known what something is."""
    if value.kind == "parameter":
        return f"`{value.name}` is given by callers that are not seen"
    return value.name if value.kind == "unknown" else ""


def _is_loaded(model: Value) -> bool:
    return (
        model.kind == "model"
        and model.cls is None
        and ("load" in model.name or "_from_" in model.name or "pretrained" in model.name)
    )


def _takes_dtype(script: Script, cls: ast.ClassDef) -> bool:
    """Does the class's constructor pass a dtype on to Keras?"""
    found = script.method(cls, "__init__")
    if found is None:
        return True
    function = found[1]
    splat = function.args.kwarg.arg if function.args.kwarg else None
    named = any(a.arg == "dtype" for a in [*function.args.args, *function.args.kwonlyargs])
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "__init__":
            for keyword in node.keywords:
                if keyword.arg is None and isinstance(keyword.value, ast.Name) and keyword.value.id == splat:
                    return True
                if named and keyword.arg == "dtype":
                    return True
    return False


def _looks_only_at_shape(script: Script, call: ast.Call) -> bool:
    parent = script.parents[call]
    return isinstance(parent, ast.Expr) or (isinstance(parent, ast.Attribute) and parent.attr == "shape")


def _is_backend(script: Script, text: ast.Constant) -> bool:
    """The value in `os.environ["KERAS_BACKEND"] = "jax"`."""
    return any(isinstance(n, ast.Constant) and n.value == "KERAS_BACKEND" for n in ast.walk(script.statement(text)))


def _takes_layer(script: Script, expr: ast.AST | None) -> bool:
    """`model.layers[0]`, `model.get_layer(...)`, or a name for one of them."""
    match expr:
        case ast.Subscript(value=ast.Attribute(attr="layers") as taken):
            return not _is_own(script, taken)
        case ast.Call(func=ast.Attribute(attr="get_layer") as taken):
            return not _is_own(script, taken)
        case ast.Name():
            for binding in script.names.reaching(expr):
                if (
                    binding.kind == "assign"
                    and not isinstance(binding.value, ast.Name)
                    and _takes_layer(script, binding.value)
                ):
                    return True
                over = binding.value.value if isinstance(binding.value, ast.Subscript) else binding.value
                if isinstance(over, ast.Call) and over.args and script.called(over) in _OVER:
                    over = over.args[0].value if isinstance(over.args[0], ast.Subscript) else over.args[0]
                if (
                    binding.kind == "loop"
                    and isinstance(over, ast.Attribute)
                    and over.attr == "layers"
                    and not _is_own(script, over)
                ):
                    return True
    return False


_OVER = ("builtins.enumerate", "builtins.reversed", "builtins.zip", "builtins.list")


def _is_own(script: Script, taken: ast.Attribute) -> bool:
    """`self.layers` where it is a list of the class's own, or in what the model runs when it is called."""
    method = script.function_of(taken)
    cls = script.parents.get(method) if method is not None else None
    if not (
        isinstance(cls, ast.ClassDef)
        and isinstance(method, ast.FunctionDef)
        and isinstance(taken.value, ast.Name)
        and [a.arg for a in method.args.args[:1]] == [taken.value.id]
    ):
        return False
    return taken.attr in script.assigned_attributes(cls) or _is_forward(script, cls, method)


def _is_forward(script: Script, cls: ast.ClassDef, method: ast.FunctionDef) -> bool:
    """`call`, or a method that only `call` uses."""
    todo, seen = [method], {method}
    for current in todo:  # grows: the methods that use it
        if current.name in ("call", "__call__"):
            continue
        uses = [(s, m) for s in script.project.scripts.values() for m in s.mentions(current.name)]
        for owner, use in uses:
            user = owner.function_of(use)
            if not isinstance(user, ast.FunctionDef) or owner.parents.get(user) is not cls:
                return False
            if user not in seen:
                seen.add(user)
                todo.append(user)
        if not uses:
            return False
    return True
