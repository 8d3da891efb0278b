"""How a Keras model is put together: its layers, and the layers at the end of each output.

    built = structure(model)    # a Value of kind "model", or "layer" for a class of the script's own
    built.layers                # every layer in it, those of nested models and wrapped ones included
    built.tails                 # per output the last layers, last first
    built.unseen                # what of it cannot be seen, and why

Nothing is guessed: what is not listed in `layers` or `operators` has a reason in `unseen`. Where a branch or
several callers give alternatives, all of them are listed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from . import catalog
from .script import Script, own_nodes
from .values import Value, Values

#: Layers that change shape, apply a function without weights, or merge: what they return was computed before
#: them.
PASSIVE = frozenset(
    "Activation Softmax ReLU LeakyReLU ELU ThresholdedReLU PReLU Flatten Reshape Permute RepeatVector "
    "Dropout SpatialDropout1D SpatialDropout2D SpatialDropout3D GaussianDropout AlphaDropout GaussianNoise "
    "Lambda Masking Cropping1D Cropping2D Cropping3D ZeroPadding1D ZeroPadding2D ZeroPadding3D UpSampling1D "
    "UpSampling2D UpSampling3D Add Subtract Multiply Average Maximum Minimum Concatenate Identity Rescaling "
    "Resizing UnitNormalization GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D "
    "GlobalAvgPool1D GlobalAvgPool2D GlobalAvgPool3D GlobalMaxPooling1D GlobalMaxPooling2D "
    "GlobalMaxPooling3D GlobalMaxPool1D GlobalMaxPool2D GlobalMaxPool3D AveragePooling1D AveragePooling2D "
    "AveragePooling3D AvgPool1D AvgPool2D AvgPool3D MaxPooling1D MaxPooling2D MaxPooling3D MaxPool1D "
    "MaxPool2D MaxPool3D ActivityRegularization".split()
)

#: Arguments of a layer's call that are no tensors it computes with.
_NOT_TENSORS = frozenset({"training", "mask", "return_attention_scores", "use_causal_mask"})
_MAX_PATHS = 64
_MAX_TAIL = 200
#: Tensors that are looked at on the way back from the outputs: residual connections double the ways at every one.
_MAX_LOOKS = 5000

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, eq=False)
class Unseen:
    """A part of a model that cannot be followed.

    output: it makes an output, or may. inside: layers may be hidden in it (False: only which output it is is
    unknown).
    """

    what: str
    node: ast.AST
    script: Script
    output: bool = False
    inside: bool = True

    @property
    def reason(self) -> str:
        return f"{self.what} ({self.script.at(self.node)})"


@dataclass(frozen=True, eq=False)
class Code:
    """A function of the project that runs as part of a model.

    role: "activation" (given to a layer), "lambda" (body of a `Lambda` layer), "method" (of a class that is a
    layer or a model; `owner` is the class). `layer` is the layer or model that it runs in.
    """

    script: Script
    node: Function
    role: str
    layer: Value
    owner: ast.ClassDef | None = None


@dataclass(eq=False)
class Structure:
    """What is known of one model.

    layers: every layer, as the Value of the call that constructs it (`node`, `script`); classes of the
    script's own
        have `cls`. Layers that a class constructs for itself are included.
    models: nested models, the same way; also `applications.*` and what is loaded or cloned.
    operators: symbolic tensors that are made without a layer: `a + b`, `tf.concat(...)`, `x[:, 0]`.
    calls: the symbolic tensors that layers and nested models return (`base` is the layer).
    chains: the possible lists of layers of a Sequential, first layer first.
    hidden: the nodes of layers that a later computing layer or operator of the same model takes its input
    from. inputs: the `Input(...)` calls it was followed back to.
    code: the project's own functions that run inside it.
    tails: for every output (and alternative) the last values, last first, back to and including the one that
    last
        computed something: layers, operators (kind "tensor"), or a nested model that cannot be looked into.
    """

    model: Value
    layers: list[Value] = field(default_factory=list)
    models: list[Value] = field(default_factory=list)
    operators: list[Value] = field(default_factory=list)
    calls: list[Value] = field(default_factory=list)
    chains: list[tuple[Value, ...]] = field(default_factory=list)
    hidden: set[ast.AST] = field(default_factory=set)
    inputs: list[Value] = field(default_factory=list)
    code: list[Code] = field(default_factory=list)
    tails: list[tuple[Value, ...]] = field(default_factory=list)
    unseen: list[Unseen] = field(default_factory=list)

    def layer_names(self) -> set[str]:
        """Names (`Dense`) of Keras's layers in it, and of those that its own classes derive from."""
        found = {layer.keras.removeprefix("layers.") for layer in self.layers if layer.keras}
        for layer in [*self.layers, self.model]:
            if layer.cls and layer.cls.script and isinstance(layer.cls.node, ast.ClassDef):
                bases = layer.cls.script.library_bases(layer.cls.node)
                found |= {catalog.keras_path(b).removeprefix("layers.") for b in bases}
        return found - {""}


def structure(model: Value) -> Structure:
    """The structure of a model, or of a layer whose class the project defines."""
    return _Reader().read(model)


def is_passive(layer: Value) -> bool:
    """A layer that only reshapes, merges or applies a function to what was computed before it."""
    path = layer.keras
    return path.startswith("layers.") and path[7:] in PASSIVE


def activation_of(layer: Value) -> ast.expr | None:
    """The expression given as a layer's activation, by keyword or position."""
    if layer.script is None or not isinstance(layer.node, ast.Call):
        return None
    name = layer.keras
    signature = catalog.SIGNATURES.get(name)
    if signature is None and name.startswith("layers.") and ("Conv" in name or name.endswith("LSTM")):
        signature = ()
    return layer.script.bind(layer.node, signature or ()).get("activation")


def models_in(script: Script) -> list[Value]:
    """Every model that a script's own calls construct, load or clone, in source order of the calls."""
    found: dict[ast.AST, Value] = {}
    for call in script.calls:
        for value in script.values(call):
            if value.kind == "model" and value.node is call:
                found[call] = value
    return list(found.values())


class _Reader:
    """Walks one model. Nested models share the reader, so that recursion ends."""

    def __init__(self) -> None:
        self.done: dict[ast.AST, Structure] = {}
        self.looks = 0

    def read(self, model: Value) -> Structure:
        key = model.node if model.node is not None else model.cls.node if model.cls else None
        built = Structure(model)
        if key is None or model.script is None:
            return built
        if key in self.done:
            return self.done[key]
        self.done[key] = built
        if model.cls is not None:
            self._of_class(built, model)
        elif isinstance(model.node, ast.Call):
            self._of_call(built, model, model.node)
        return _unique(built)

    def _of_call(self, built: Structure, model: Value, call: ast.Call) -> None:
        script, path = model.script, model.keras
        assert script is not None
        if path == "models.Sequential":
            self._sequential(built, script, call)
        elif path == "models.Model":
            arguments = script.bind(call, "Model")
            self._functional(built, script, call, arguments.get("outputs"))
        elif path.startswith("applications."):
            built.models.append(model)
            built.tails.append((model,))
        elif path == "models.clone_model" and call.args:
            for value in script.values(call.args[0]):
                if value.kind == "model":
                    _merge(built, self.read(value), tails=True)
                else:
                    what = f"which model `{script.text(call.args[0])}` is that is cloned is not known"
                    built.unseen.append(Unseen(what, call, script, True))
        elif path == "layers." + path[7:] and model.kind == "layer":
            built.layers.append(model)
            built.tails.append((model,))
        else:
            loaded = "load" in path or "json" in path
            how = "loaded from a file" if loaded else f"made by `{model.name}`, whose layers are not seen"
            built.models.append(model)
            built.unseen.append(Unseen(f"the model is {how}", call, script, True))

    # -- functional models -----------------------------------------------------------------------------------

    def _functional(self, built: Structure, script: Script, call: ast.AST, outputs: ast.expr | None) -> None:
        if outputs is None:
            built.unseen.append(
                Unseen("the outputs of the model are not written out where it is made", call, script, True)
            )
            return
        self._graph(built, script, outputs)
        built.tails.extend(self._tails(built, script, outputs, ()))

    def _graph(self, built: Structure, script: Script, start: ast.expr) -> None:
        """Everything that a symbolic tensor was computed with."""
        todo: list[tuple[Script, ast.expr, bool]] = [(script, start, False)]
        seen: set[tuple[ast.AST, bool]] = set()
        while todo:
            owner, expr, hidden = todo.pop()
            if (expr, hidden) in seen or (expr, True) in seen:
                continue
            seen.add((expr, hidden))
            for value in _tensors(owner, expr):
                if value.kind == "tensor" and value.node is not None:
                    if value.node is not expr and (value.node, hidden) in seen:
                        continue
                    seen.add((value.node, hidden))
                    todo.extend(self._made(built, value, hidden))
                elif is_output(value) and value.base is not None:
                    self._part(built, value.base, value.node, value.script or owner)
                elif value.kind == "unknown":
                    if not _is_own_layer(value):
                        built.unseen.append(
                            Unseen(
                                f"what makes the tensor `{_text(value, owner, expr)}` is not known: {value.name}",
                                value.node or expr,
                                value.script or owner,
                            )
                        )
                elif value.kind == "parameter" and not _is_input_of_call(value):
                    built.unseen.append(
                        Unseen(
                            f"`{value.name}` is given by callers that are not seen",
                            value.node or expr,
                            value.script or owner,
                        )
                    )

    def _made(self, built: Structure, tensor: Value, hidden: bool) -> list[tuple[Script, ast.expr, bool]]:
        """Note what made a tensor; give the expressions that it was made from."""
        script, node = tensor.script, tensor.node
        assert script is not None
        if tensor.base is not None and tensor.base.kind in ("layer", "model"):
            built.calls.append(tensor)
            self._part(built, tensor.base, node, script)
            if hidden and tensor.base.node is not None:
                built.hidden.add(tensor.base.node)
            hidden = hidden or not is_passive(tensor.base)
        elif tensor.keras == "layers.Input":
            built.inputs.append(tensor)
            return []
        else:
            built.operators.append(tensor)
        return [(script, e, hidden) for e in operands(tensor)]

    def _part(self, built: Structure, part: Value, node: ast.AST | None, script: Script) -> None:
        """A layer or model that is used in a model."""
        if part.name == "get_layer" and part.base is not None and part.base.kind == "model":
            self._part(built, part.base, node, script)
        elif part.kind not in ("layer", "model") or (part.node is None and part.cls is None):
            built.unseen.append(
                Unseen("a layer is taken out of another model", node or part.node or script.tree, script)
            )
        elif part.kind == "model":
            inner = self.read(part)
            built.models.append(part)
            _merge(built, inner, tails=False)
            if part.node is not None and part.node in built.hidden:
                built.hidden |= {v.node for v in inner.layers if v.node}
        else:
            built.layers.append(part)
            if part.cls is not None:
                _merge(built, self.read(part), tails=False)
            self._arguments(built, part)

    def _arguments(self, built: Structure, layer: Value) -> None:
        """Layers that a layer wraps, and functions that it is given."""
        script, call = layer.script, layer.node
        if script is None or not isinstance(call, ast.Call):
            return
        given: list[tuple[str, ast.expr]] = [("", a) for a in call.args]
        given += [(k.arg or "", k.value) for k in call.keywords]
        for name, expr in given:
            if isinstance(expr, ast.Starred):
                expr = expr.value
            for value in script.values(expr):
                for v in _flat(value):
                    if v.kind in ("layer", "model") and v.node is not call:
                        self._part(built, v, expr, script)
                    elif v.kind in ("function", "method") and isinstance(v.node, Function) and v.script:
                        role = "lambda" if layer.keras == "layers.Lambda" else "activation"
                        if not name.endswith(("initializer", "constraint", "kernel_regularizer", "bias_regularizer")):
                            built.code.append(Code(v.script, v.node, role, layer))
                    elif v.kind == "unknown" and layer.keras in _WRAPPERS and (not name or name in ("layer", "cell")):
                        wrapper = layer.keras.removeprefix("layers.")
                        what = f"what `{script.text(expr)}` is that `{wrapper}` wraps is not known: {v.name}"
                        built.unseen.append(Unseen(what, expr, script))

    # -- where outputs are made ------------------------------------------------------------------------------

    def _tails(
        self, built: Structure, script: Script, expr: ast.expr, above: tuple[ast.AST, ...]
    ) -> list[tuple[Value, ...]]:
        found: dict[tuple[int, ...], tuple[Value, ...]] = {}
        for value in _tensors(script, expr):
            self.looks += 1
            if self.looks <= _MAX_LOOKS and len(found) <= _MAX_PATHS:
                found |= {tuple(id(v) for v in t): t for t in self._tail(built, value, script, expr, above)}
        if not above and (self.looks > _MAX_LOOKS or len(found) > _MAX_PATHS):
            what = f"there are too many ways from layers to the output `{script.text(expr)}`"
            built.unseen.append(Unseen(what, expr, script, True, False))
        return list(found.values())

    def _tail(
        self, built: Structure, value: Value, script: Script, expr: ast.expr, above: tuple[ast.AST, ...]
    ) -> list[tuple[Value, ...]]:
        node = value.node
        if (
            is_output(value)
            and value.base is not None
            and value.base.kind == "model"
            and value.base.name != "get_layer"
        ):
            value = Value("tensor", node, value.script, value.base.name, base=value.base)
        if value.kind == "tensor" and node is not None and value.script is not None:
            if node in above or len(above) > _MAX_TAIL:
                return []
            base = value.base
            if base is not None and base.kind == "model":
                inner = self.read(base)
                built.unseen += [u for u in inner.unseen if u.output]
                return inner.tails or ([] if any(u.output for u in inner.unseen) else [(base,)])
            if base is not None and base.name == "get_layer":
                built.unseen.append(
                    Unseen(
                        "the output is that of a layer taken out of another model",
                        node,
                        value.script,
                        True,
                        False,
                    )
                )
                return []
            this = base if base is not None and base.kind == "layer" else value
            if (this is base and not is_passive(this)) or value.keras == "layers.Input":
                return [(this,)]
            before = [t for e in operands(value) for t in self._tails(built, value.script, e, (*above, node))]
            return [(this, *t) for t in before] or [(this,)]
        if value.kind == "constant" or (value.kind == "parameter" and above):
            return []
        if value.kind in ("unknown", "parameter", "object", "method", "array"):
            why = value.name if value.kind == "unknown" else "it is not what a layer returns"
            if not above:
                built.unseen.append(
                    Unseen(
                        f"which layer makes the output `{_text(value, script, expr)}` is not known: {why}",
                        value.node or expr,
                        value.script or script,
                        True,
                        False,
                    )
                )
        return []

    # -- Sequential ------------------------------------------------------------------------------------------

    def _sequential(self, built: Structure, script: Script, call: ast.Call) -> None:
        start: _Path = ()
        what = ""
        arguments = script.bind(call, "Sequential")
        layers = arguments.get("layers")
        if layers is not None:
            items = elements(script, layers)
            if items is None:
                what = f"which layers `{script.text(layers)}` holds is not known"
            else:
                start = tuple(items)
        elif arguments.open:
            what = "which layers the model is given through `*` or `**` is not known"
        paths = [p for p in _Additions(script, call, start).paths() if p]  # (without a layer it could not be trained)
        if not paths and not what:
            what = _no_layer(script, call)
        if what:
            built.unseen.append(Unseen(what, layers or call, script, True))
        for item in {id(i): i for p in paths for i in (*start, *p)}.values():
            for value in item.values:
                if value.kind in ("layer", "model"):
                    self._part(built, value, item.node, item.script)
                elif value.kind == "tensor" and value.keras == "layers.Input":
                    built.inputs.append(value)
                elif not (value.kind == "constant" and value.literal is None):
                    built.unseen.append(Unseen(_not_a_layer(value, item), item.node, item.script))
        for path in paths:
            chain = tuple(v for item in path for v in item.values)
            built.chains.append(chain)
            tails = self._path_tails(built, path[::-1], call, script)
            built.tails.extend(tails)
            ends = max((len(t) for t in tails), default=0)
            built.hidden |= {v.node for item in path[: max(0, len(path) - ends)] for v in item.values if v.node}

    def _path_tails(self, built: Structure, path: _Path, call: ast.AST, script: Script) -> list[tuple[Value, ...]]:
        """Last values of a chain of layers that is given last layer first."""
        found: list[tuple[Value, ...]] = []
        for value in path[0].values:
            if value.kind == "model":
                inner = self.read(value)
                built.unseen += [u for u in inner.unseen if u.output]
                found += inner.tails or ([] if any(u.output for u in inner.unseen) else [(value,)])
            elif value.kind == "layer" and value.name != "get_layer":
                if is_passive(value) and len(path) > 1:
                    rest = self._path_tails(built, path[1:], call, script)
                    found += [(value, *t) for t in rest] or [(value,)]
                else:
                    found.append((value,))
            elif value.kind == "tensor":
                found.append((value,))
            elif not (value.kind == "constant" and value.literal is None):
                what = _not_a_layer(value, path[0], "the last layer")
                built.unseen.append(Unseen(what, path[0].node, path[0].script, True))
        return list({tuple(id(v) for v in t): t for t in found}.values())[:_MAX_PATHS]

    # -- classes ---------------------------------------------------------------------------------------------

    def _of_class(self, built: Structure, model: Value) -> None:
        cls = model.cls
        assert cls is not None and cls.script is not None and isinstance(cls.node, ast.ClassDef)
        owner = cls.script
        own = {id(f): (s, f) for s, f in owner.methods(cls.node).values()}
        for script, definition in owner.ancestry(cls.node):
            for statement in definition.body:
                if isinstance(statement, ast.FunctionDef):
                    built.code.append(Code(script, statement, "method", model, definition))
            for call in (c for c in script.calls if definition in script.enclosing(c, ast.ClassDef)):
                for value in script.values(call):
                    if value.kind in ("layer", "model") and value.node is call and value.name != "get_layer":
                        self._part(built, value, call, script)
        call_method = owner.method(cls.node, "call") or owner.method(cls.node, "__call__")
        for base in owner.bases(cls.node):
            if base.kind == "symbol" and not (base.keras or base.name in ("builtins.object", "tensorflow.Module")):
                what = f"`{cls.name}` derives from `{base.name}`, whose code is not seen"
                built.unseen.append(Unseen(what, cls.node, owner, call_method is None))
            elif base.kind == "unknown":
                built.unseen.append(
                    Unseen(
                        f"what `{cls.name}` derives from is not known: {base.name}",
                        cls.node,
                        owner,
                        call_method is None,
                    )
                )
        if call_method is not None:
            script, function = call_method
            for expr in script.returns(function):
                self._graph(built, script, expr)
                built.tails.extend(self._tails(built, script, expr, ()))
            return
        bases = {b.keras for b in owner.bases(cls.node)}
        initializer = owner.method(cls.node, "__init__")
        if initializer is not None and bases & {"models.Model", "models.Sequential"}:
            script, function = initializer
            for node in own_nodes(function):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "__init__":
                    if "models.Sequential" in bases:
                        self._sequential(built, script, node)
                        return
                    outputs = script.bind(node, "Model").get("outputs")
                    if outputs is not None:
                        self._functional(built, script, node, outputs)
                        return
        elif any(
            b.kind == "symbol" and b.keras.startswith("layers.") and b.keras != "layers.Layer"
            for b in owner.bases(cls.node)
        ):
            built.tails.append((model,))
            return
        elif isinstance(model.node, ast.Call) and model.script is not None and initializer is None:
            if "models.Sequential" in bases:  # the layers, or inputs and outputs, are given to Keras as they are
                self._sequential(built, model.script, model.node)
                return
            outputs = model.script.bind(model.node, "Model").get("outputs") if "models.Model" in bases else None
            if outputs is not None:
                self._functional(built, model.script, model.node, outputs)
                return
        if (
            model.kind == "model"
            and id(call_method) not in own
            and not any(name in owner.methods(cls.node) for name in ("train_step", "compute_loss"))
        ):
            built.unseen.append(Unseen(f"`{cls.name}` has no `call` method that can be read", cls.node, owner, True))


_WRAPPERS = frozenset(
    {
        "layers.TimeDistributed",
        "layers.Bidirectional",
        "layers.RNN",
        "layers.Wrapper",
        "layers.SpectralNormalization",
        "layers.StackedRNNCells",
    }
)


@dataclass(frozen=True, eq=False)
class Item:
    """One position in a list of layers, with the alternatives of what may stand there."""

    values: Values
    node: ast.expr
    script: Script


_Path: TypeAlias = tuple[Item, ...]


def elements(script: Script, node: ast.expr, depth: int = 0) -> list[Item] | None:
    """The elements of a list in order, a comprehension as its element twice; None where it is open."""
    if depth > 8:
        return None
    match node:
        case ast.List() | ast.Tuple():
            found: list[Item] = []
            for element in node.elts:
                if isinstance(element, ast.Starred):
                    inner = elements(script, element.value, depth + 1)
                    if inner is None:
                        return None
                    found += inner
                else:
                    found.append(Item(script.values(element), element, script))
            return found
        case ast.BinOp(op=ast.Add()):
            left, right = elements(script, node.left, depth + 1), elements(script, node.right, depth + 1)
            return None if left is None or right is None else left + right
        case ast.BinOp(op=ast.Mult()):
            return elements(script, node.left, depth + 1) or elements(script, node.right, depth + 1)
        case ast.ListComp() | ast.GeneratorExp():
            return [Item(script.values(node.elt), node.elt, script)] * 2
        case ast.Call() if script.called(node) in ("builtins.list", "builtins.tuple", "builtins.filter") and node.args:
            return elements(script, node.args[-1], depth + 1)
        case ast.Constant(value=None):
            return []
    value = script.value(node)
    if value is None or value.script is None or value.node is node or not isinstance(value.node, ast.expr):
        return None
    items = elements(value.script, value.node, depth + 1)
    if items is None:
        return None
    for owner, use in value.script.flow(value.node):  # layers.append(...)
        parent = owner.parents.get(use)
        if isinstance(parent, ast.Attribute) and parent.attr in (
            "append",
            "extend",
            "insert",
            "remove",
            "pop",
        ):
            call = owner.parents.get(parent)
            if not isinstance(call, ast.Call) or not call.args or parent.attr not in ("append", "extend"):
                return None
            if parent.attr == "append":
                items.append(Item(owner.values(call.args[0]), call.args[0], owner))
            else:
                more = elements(owner, call.args[0], depth + 1)
                if more is None:
                    return None
                items += more
        elif isinstance(parent, ast.AugAssign) or (
            isinstance(parent, ast.Subscript) and not isinstance(parent.ctx, ast.Load)
        ):
            return None
    return items


class _Additions:
    """What `.add` and `.pop` leave in a Sequential: the possible chains of its last layers."""

    def __init__(self, script: Script, call: ast.Call, start: _Path) -> None:
        self.script, self.call, self.start = script, call, start[-_MAX_TAIL:]
        self.uses = {e: s for s, e in script.flow(call)}
        if isinstance(call.func, ast.Attribute) and call.func.attr == "__init__":  # `super().__init__()` of a subclass
            function = script.function_of(call)
            if isinstance(function, ast.FunctionDef) and function.args.args:
                name = function.args.args[0].arg
                self.uses |= {
                    n: script
                    for n in ast.walk(function)
                    if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)
                }
        #: Calls of functions that add to it without being given it, and where each function stands.
        self.helpers: dict[ast.AST, tuple[Script, ast.FunctionDef]] = {}
        self.above: set[ast.AST] = set()  # what holds a use
        for use, owner in [*self.uses.items(), *self._find_helpers()]:
            self.above.update((use, *owner.enclosing(use, ast.AST)))
        self.active: list[ast.AST] = []
        self.reached: set[ast.AST] = set()
        self.built: set[_Path] = set()

    def _find_helpers(self) -> list[tuple[ast.AST, Script]]:
        """`self.add_head()`, where it adds to `self.model`; and what calls such a function in turn."""
        todo = [(s, s.function_of(u)) for u, s in self.uses.items() if self._change(s, u)]
        seen: set[ast.AST | None] = {self.script.function_of(self.call)}
        found: list[tuple[ast.AST, Script]] = []
        for owner, function in todo:  # grows
            if function in seen or not isinstance(function, ast.FunctionDef):
                continue
            seen.add(function)
            for script, call, _ in owner.project.calls_of(function, owner):
                given = [*call.args, *(k.value for k in call.keywords)]
                if call not in self.uses and not any(a in self.uses for a in given):
                    self.helpers[call] = (owner, function)
                    found.append((call, script))
                    todo.append((script, script.function_of(call)))
        return found

    def paths(self) -> list[_Path]:
        home = self.script.function_of(self.call) or self.script.tree
        ends = self._function(self.script, home, set())
        self.built = ends
        others: dict[ast.AST, Script] = {}
        for use, script in self.uses.items():
            if self._change(script, use) and use not in self.reached:
                others |= self._outermost(script, script.function_of(use) or script.tree)
        if not others:
            return sorted(ends, key=_order)
        callers = dict(others)
        for use, script in self.uses.items():
            if isinstance(use, ast.Call) and use is not self.call:
                callers.setdefault(script.function_of(use) or script.tree, script)
        found: set[_Path] = set()
        for function, script in callers.items():
            found |= self._function(script, function, set(ends))
        return sorted(found, key=_order)

    def _outermost(self, script: Script, function: ast.AST) -> dict[ast.AST, Script]:
        """The functions, or the file, from which calls of others lead to a function that adds layers."""
        todo, seen = [(script, function)], {function}
        found: dict[ast.AST, Script] = {}
        for owner, inner in todo:  # grows
            calls = [c for c, (_, f) in self.helpers.items() if f is inner]
            if not calls:
                found[inner] = owner
            for call in calls:
                caller = owner.project.owner(call)
                outer = caller.function_of(call) or caller.tree
                if outer not in seen:
                    seen.add(outer)
                    todo.append((caller, outer))
        return found or {function: script}

    def _function(self, script: Script, function: ast.AST, states: set[_Path]) -> set[_Path]:
        if function in self.active or isinstance(function, ast.Lambda):
            return states or {self.start}
        self.active.append(function)
        ends: set[_Path] = set()
        body = getattr(function, "body", [])
        ends |= self._block(script, body, states, ends)
        self.active.pop()
        return ends

    def _block(self, script: Script, body: list[ast.stmt], states: set[_Path], ends: set[_Path]) -> set[_Path]:
        for statement in body:
            states = self._statement(script, statement, states, ends)
            if len(states) > _MAX_PATHS:
                states = set(sorted(states, key=_order)[-_MAX_PATHS:])
        return states

    def _statement(self, script: Script, node: ast.stmt, states: set[_Path], ends: set[_Path]) -> set[_Path]:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return states
            case ast.If():
                return self._block(script, node.body, states, ends) | self._block(script, node.orelse, states, ends)
            case ast.For() | ast.AsyncFor() | ast.While():
                once = self._block(script, node.body, states, ends)
                twice = self._block(script, node.body, once, ends)
                return self._block(script, node.orelse, states | once | twice, ends)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    states = self._events(script, item, states)
                return self._block(script, node.body, states, ends)
            case ast.Try():
                states = self._block(script, node.body, states, ends)
                failed = [self._block(script, h.body, states, ends) for h in node.handlers]
                states = states.union(*failed)
                return self._block(script, node.finalbody, self._block(script, node.orelse, states, ends), ends)
            case ast.Match():
                return states.union(*(self._block(script, c.body, states, ends) for c in node.cases))
        states = self._events(script, node, states)
        if isinstance(node, ast.Return):
            ends |= states
            return set()
        return states

    def _events(self, script: Script, node: ast.AST, states: set[_Path]) -> set[_Path]:
        if node not in self.above:
            return states
        inside = [n for n in ast.walk(node) if n in self.uses or n in self.helpers]
        inside.sort(key=lambda n: (getattr(n, "end_lineno", 0), getattr(n, "end_col_offset", 0)))
        for use in inside:
            if use in self.helpers:
                states = self._function(*self.helpers[use], states)
                continue
            if use is self.call:
                states = {self.start}
            elif isinstance(use, ast.Call):
                states = set(self.built) or states
            if change := self._change(script, use):
                self.reached.add(use)
                states = {change(path) for path in states}
            else:
                states = self._passed(script, use, states)
        return states

    def _change(self, script: Script, use: ast.AST) -> _Change | None:
        attribute = script.parents.get(use)
        call = script.parents.get(attribute) if isinstance(attribute, ast.Attribute) else None
        if not isinstance(attribute, ast.Attribute) or not isinstance(call, ast.Call) or call.func is not attribute:
            return None
        if attribute.attr == "add":
            argument = call.args[0] if call.args else script.argument(call, "layer")
            if argument is not None:
                return _Change(Item(script.values(argument), argument, script))
        if attribute.attr == "pop":
            return _Change(None)
        return None

    def _passed(self, script: Script, use: ast.AST, states: set[_Path]) -> set[_Path]:
        """Into a function of the project that is given the model."""
        call = script.parents.get(use)
        if isinstance(call, ast.keyword):
            call = script.parents.get(call)
        if not isinstance(call, ast.Call) or call.func is use or call in self.active:
            return states
        for callee in script.values(call.func):
            if (
                callee.kind in ("function", "method")
                and callee.script
                and isinstance(callee.node, ast.FunctionDef)
                and callee.node not in self.active
            ):
                states = self._function(callee.script, callee.node, states)
        return states


def _order(path: _Path) -> tuple[int, list[tuple[int, int]]]:
    """The same order of alternatives in every run."""
    return len(path), [(item.node.lineno, item.node.col_offset) for item in path]


@dataclass(frozen=True)
class _Change:
    added: Item | None  # None: the last layer is taken off

    def __call__(self, path: _Path) -> _Path:
        return path[:-1] if self.added is None else (*path, self.added)[-_MAX_TAIL:]

    def __bool__(self) -> bool:
        return True


# -- small helpers -------------------------------------------------------------------------------------------


def operands(tensor: Value) -> list[ast.expr]:
    """The expressions of tensors that a tensor is computed from."""
    match tensor.node:
        case ast.Call() as call:
            given = [a.value if isinstance(a, ast.Starred) else a for a in call.args]
            given += [k.value for k in call.keywords if k.arg not in _NOT_TENSORS]
            if (
                isinstance(call.func, ast.Attribute)
                and tensor.base is None
                and tensor.kind == "tensor"
                and tensor.name == "method"
            ):
                given.append(call.func.value)
            return given
        case ast.BinOp() as operation:
            return [operation.left, operation.right]
        case ast.UnaryOp() as operation:
            return [operation.operand]
        case ast.Subscript() as item:
            return [item.value]
        case ast.AugAssign() as change:  # what was there before is an alternative of the name already
            return [change.value]
        case ast.Compare() as comparison:
            return [comparison.left, *comparison.comparators]
    return []


def _tensors(script: Script, expr: ast.expr) -> Iterator[Value]:
    """The alternatives of an expression, with the elements of lists and dicts in their place."""
    for found in script.values(expr):
        value = _operation(found)
        if value.kind == "sequence":
            for item in value.items:
                for v in item:
                    yield from _flat(v)
        elif value.kind == "mapping" and isinstance(value.node, ast.Dict) and value.script:
            for entry in value.node.values:
                yield from _tensors(value.script, entry)
        elif (
            value.kind == "object"
            and value.name in ("list", "operator")
            and value.script
            and isinstance(value.node, ast.expr)
        ):
            items = elements(value.script, value.node)
            if items is None:
                yield value
            else:
                for element in items:
                    for v in element.values:
                        yield from _flat(v)
        else:
            yield value
        if value.kind == "sequence" and isinstance(value.node, ast.List) and value.script:
            for owner, use in value.script.flow(value.node):
                parent = owner.parents.get(use)
                call = owner.parents.get(parent) if isinstance(parent, ast.Attribute) else None
                if (
                    isinstance(parent, ast.Attribute)
                    and parent.attr == "append"
                    and isinstance(call, ast.Call)
                    and call.args
                ):
                    yield from _tensors(owner, call.args[0])


def _flat(value: Value) -> Iterator[Value]:
    if value.kind == "sequence":
        for item in value.items:
            for v in item:
                yield from _flat(v)
    else:
        yield _operation(value)


def _operation(value: Value) -> Value:
    """In a model, what an operator makes of something unknown is a tensor."""
    if value.kind != "unknown" or value.script is None or value.node is None:
        return value
    parent = value.script.parents.get(value.node)
    if isinstance(parent, ast.AugAssign) and parent.target is value.node:
        return Value("tensor", parent, value.script, "operator")
    if isinstance(value.node, ast.BinOp | ast.UnaryOp | ast.Subscript | ast.Compare):
        return Value("tensor", value.node, value.script, "operator")
    return value


def _not_a_layer(value: Value, item: Item, which: str = "the layer") -> str:
    if value.kind in ("object", "symbol") and "." in value.name and not value.name.startswith("builtins."):
        return f"`{value.name}` is not a layer that is known"
    why = {"unknown": f": {value.name}", "parameter": ": it is given by callers that are not seen"}.get(value.kind, "")
    return f"what {which} `{item.script.text(item.node)}` is is not known{why}"


def _no_layer(script: Script, call: ast.Call) -> str:
    """Why no layer is seen in a Sequential: what it is given to may add them."""
    for owner, use in script.flow(call):
        parent = owner.parents.get(use)
        if isinstance(parent, ast.keyword):
            parent = owner.parents.get(parent)
        if isinstance(parent, ast.Call) and parent.func is not use:
            return f"which layers `{owner.text(parent.func)}` ({owner.at(parent)}) adds to the model is not seen"
    return "no layer is added to the model where it can be seen"


def _text(value: Value, script: Script, expr: ast.expr) -> str:
    """How what is unknown is written."""
    known = value.script is not None and isinstance(value.node, ast.expr)
    return value.script.text(value.node) if known else script.text(expr)  # type: ignore[union-attr, arg-type]


def is_output(value: Value) -> bool:
    """`model.output`, `layer.output`: a tensor that an existing model or layer made."""
    return value.kind == "method" and value.name in ("output", "outputs")


def is_symbolic(script: Script, expr: ast.expr, seen: set[ast.AST] | None = None) -> bool:
    """Does a tensor come from an `Input`, or from where that is not known?"""
    seen = set() if seen is None else seen
    if expr in seen:
        return False
    seen.add(expr)
    for value in script.values(expr):
        if value.keras == "layers.Input" or value.kind == "parameter" or is_output(value):
            return True
        if value.kind == "method" and value.name in ("input", "inputs"):
            return True
        if value.kind == "tensor" and value.script and any(is_symbolic(value.script, e, seen) for e in operands(value)):
            return True
        if value.kind == "sequence" and any(
            v.node is not expr and isinstance(v.node, ast.expr) and v.script and is_symbolic(v.script, v.node, seen)
            for item in value.items
            for v in item
        ):
            return True
    return False


def _is_own_layer(value: Value) -> bool:
    """A call of a layer that the class itself made and keeps in a list or dict: `self.blocks[i](x)`."""
    script, call = value.script, value.node
    if script is None or not isinstance(call, ast.Call):
        return False
    target: ast.expr = call.func
    if isinstance(target, ast.Name):
        for binding in script.names.reaching(target):
            if binding.kind != "loop" or binding.value is None:
                return False
            if not any(_made_by_class(script, n) for n in ast.walk(binding.value)):
                return False
        return True
    while isinstance(target, ast.Subscript):
        target = target.value
    return _made_by_class(script, target)


def _made_by_class(script: Script, node: ast.AST) -> bool:
    """`self.name`, where everything assigned to it is made in the class."""
    if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
        return False
    owner = next(script.enclosing(node, ast.ClassDef), None)
    if not isinstance(owner, ast.ClassDef):
        return False
    assigned = script.assigned_attributes(owner).get(node.attr, [])
    return bool(assigned) and all(
        v.kind in ("layer", "model", "sequence", "object", "mapping", "constant")
        for s, e in assigned
        for v in s.values(e)
    )


def _is_input_of_call(value: Value) -> bool:
    """A parameter of a `call` method, or of a function inside a class: what the model is called with."""
    if value.script is None or value.node is None:
        return False
    function = value.script.function_of(value.node)
    return isinstance(function, ast.FunctionDef | ast.Lambda)


def _merge(into: Structure, inner: Structure, *, tails: bool) -> None:
    into.layers += inner.layers
    into.models += inner.models
    into.operators += inner.operators
    into.calls += inner.calls
    into.chains += inner.chains
    into.inputs += inner.inputs
    into.code += inner.code
    if tails:
        into.tails += inner.tails
        into.hidden |= inner.hidden
        into.unseen += inner.unseen
    else:
        into.unseen += [Unseen(u.what, u.node, u.script) for u in inner.unseen if u.inside]


def _unique(built: Structure) -> Structure:
    built.layers = _distinct(built.layers)
    built.models = _distinct(built.models)
    built.operators = _distinct(built.operators)
    built.calls = _distinct(built.calls)
    built.chains = list({tuple(v.node or v for v in c): c for c in built.chains}.values())
    built.inputs = _distinct(built.inputs)
    built.code = list({(c.node, c.layer.node or c.owner): c for c in built.code}.values())
    built.tails = list({tuple(v.node or v for v in t): t for t in built.tails}.values())
    built.unseen = list({(u.what, u.node, u.output): u for u in built.unseen}.values())
    return built


def _distinct(values: list[Value]) -> list[Value]:
    return list({v.node or v: v for v in values}.values())
