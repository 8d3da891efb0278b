"""`loader-workers`: prepare batches in several threads."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rewriter import catalog
from rewriter.codemod import Finding, Fix, Refusal, codemod
from rewriter.edits import DropKeyword, Edit, NameArgument, Rename, SetKeyword
from rewriter.script import Script, Site
from rewriter.values import Value

#: Threads per loader. Enough to hide reading and decoding behind a step; more only compete for Python's lock.
WORKERS = 4

#: What Keras 3 took away from `fit`, `evaluate` and `predict`: it belongs to the `PyDataset` there.
MOVED = ("workers", "use_multiprocessing", "max_queue_size")

#: Names of Keras 1, which no Keras 2 or 3 takes.
KERAS_1 = ("samples_per_epoch", "nb_val_samples", "val_samples", "nb_worker", "pickle_safe", "max_q_size")


@codemod(level=1, phase="input")
def loader_workers(script: Script) -> Iterator[Finding]:
    """Prepare the batches of a `Sequence` or `PyDataset` in several threads.

    Why: with one thread, reading and decoding a batch takes turns with training on it. For Keras 3, which has
    neither `fit_generator` nor `fit(workers=...)`, calls are moved to `fit` and the workers to the loader.
    Not applied: a plain generator (several workers would each replay it), a loader that keeps state or draws random
    numbers in `__getitem__`, TensorFlow 2.11 to 2.15 (more than one worker costs 5 s at the end of every epoch there).
    How many: 4 threads, written as a number, so that the script does the same on every machine.

    Before:
        import numpy as np
        import tensorflow as tf

        class Rows(tf.keras.utils.Sequence):
            def __len__(self):
                return 100

            def __getitem__(self, i):
                return np.load(f"x{i}.npy"), np.load(f"y{i}.npy")

        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(Rows(), epochs=3)

    After (TensorFlow 2.10):
        import numpy as np
        import tensorflow as tf

        class Rows(tf.keras.utils.Sequence):
            def __len__(self):
                return 100

            def __getitem__(self, i):
                return np.load(f"x{i}.npy"), np.load(f"y{i}.npy")

        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(Rows(), epochs=3, workers=4)
    """
    for site in script.sites("fit", "fit_generator", "evaluate", "evaluate_generator", "predict", "predict_generator"):
        if not any(v.kind == "model" for v in site.models):
            continue
        if script.target.keras == 3:
            yield from _port(site)
        if site.method in ("fit", "fit_generator"):
            yield from _speed_up(site)


# -- Keras 3 took fit_generator and its arguments away ---------------------------------------------------------------


def _port(site: Site) -> Iterator[Finding]:
    call, arguments = site.call, site.arguments
    old = site.method.endswith("_generator")
    gone = [name for name in MOVED if name in arguments.keywords]
    positional = catalog.SIGNATURES[f"Model.{site.method}"][: len(call.args)]
    if not old and not gone and not set(positional) & set(MOVED):
        return
    new_name = site.method.removesuffix("_generator")
    what = f"Keras 3 has no {site.method}" if old else f"Keras 3's {site.method} takes no {' or '.join(gone)}"
    if arguments.open:
        yield Refusal(call, f"{what}, and what is given through `*` or `**` is not seen")
        return
    if any(k.arg in KERAS_1 for k in call.keywords):
        names = ", ".join(k.arg for k in call.keywords if k.arg in KERAS_1)
        yield Refusal(
            call, f"{what}, and {names} are names of Keras 1", "steps_per_epoch = samples_per_epoch // batch_size"
        )
        return
    if set(positional) & set(MOVED):
        yield Refusal(call, f"{what}: an argument given by position belongs to the loader now")
        return
    edits: list[Edit] = [DropKeyword(call, name) for name in gone]
    if old:
        assert isinstance(call.func, ast.Attribute)
        edits.append(Rename(call.func, new_name))
        edits += [NameArgument(call, i, name) for i, name in enumerate(positional) if i]
        if "generator" in arguments.keywords:
            edits.append(NameArgument(call, "generator", "x"))
    yield Fix(call, what + (f": {new_name} does the same" if old else ": the loader has them"), edits)


# -- more workers ---------------------------------------------------------------------------------------------------


def _speed_up(site: Site) -> Iterator[Finding]:
    script, call = site.script, site.call
    for name in ("x", "generator", "validation_data"):
        argument = site.arguments.get(name)
        loaders = [v for v in script.values(argument) if v.kind in ("loader", "generator")] if argument else []
        for loader in loaders:
            if loader.kind == "generator":
                continue  # Keras reads it ahead in a thread of its own; more than one would replay it
            assert argument is not None
            if reason := _state(loader):
                yield Refusal(argument, f"more workers would change what the loader gives: {reason}")
            elif script.target.keras == 3:
                yield from _on_loader(script, argument, loader, name != "validation_data")
            elif name != "validation_data":
                yield from _on_fit(script, site, call)


def _on_fit(script: Script, site: Site, call: ast.Call) -> Iterator[Finding]:
    if any(site.arguments.may_have(n) for n in ("workers", "use_multiprocessing")):
        return
    if not script.target.since(2, 1):
        return  # the Keras of its own that TensorFlow 1 is used with takes workers in fit_generator alone
    if script.target.keras is None:
        yield Refusal(
            call,
            "Keras 2 takes workers in fit, Keras 3 on the loader: which one will run this is not known",
            "give --target",
        )
    elif script.target.before(2, 11):
        yield Fix(call, f"batches are prepared in {WORKERS} threads", [SetKeyword(call, "workers", str(WORKERS))])
    else:
        yield Refusal(
            call,
            "TensorFlow 2.11 to 2.15 waits 5 s at the end of every epoch when workers > 1",
            f"workers={WORKERS} pays where preparing one epoch's batches takes well over 5 s; measure it",
        )


def _on_loader(script: Script, argument: ast.expr, loader: Value, trains: bool) -> Iterator[Finding]:
    call, owner = loader.node, loader.script
    if loader.cls is None:
        if trains:
            yield Refusal(
                argument,
                "Keras 3 reads an ImageDataGenerator in one thread",
                "image_dataset_from_directory with augmentation layers is faster",
            )
        return
    if not isinstance(call, ast.Call) or owner is None:
        yield Refusal(argument, "workers belong to the PyDataset, and where this one is made cannot be seen")
        return
    assert isinstance(loader.cls.node, ast.ClassDef) and loader.cls.script is not None
    if owner.bind(call).may_have("workers"):
        return
    flow = owner.flow(call)
    if any(isinstance(p := s.parents.get(e), ast.Attribute) and p.attr == "workers" for s, e in flow):
        return
    init = loader.cls.script.method(loader.cls.node, "__init__")
    if init is not None:
        if "workers" in {a.arg for a in [*init[1].args.args, *init[1].args.kwonlyargs]}:
            return
        if not _forwards(init[1]):
            yield Refusal(
                call,
                f"`{loader.cls.name}.__init__` does not pass `**kwargs` on to PyDataset",
                f"call super().__init__(workers={WORKERS}) there",
            )
            return
    yield Fix(
        call,
        f"batches are prepared in {WORKERS} threads, in the same order",
        [SetKeyword(call, "workers", str(WORKERS))],
    )


def _forwards(init: ast.FunctionDef) -> bool:
    """`def __init__(self, ..., **kwargs): super().__init__(**kwargs)`."""
    if init.args.kwarg is None:
        return False
    name = init.args.kwarg.arg
    return any(
        isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr == "__init__"
        and any(k.arg is None and isinstance(k.value, ast.Name) and k.value.id == name for k in n.keywords)
        for n in ast.walk(init)
    )


# -- what __getitem__ does besides returning a batch -----------------------------------------------------------------


def _state(loader: Value) -> str:
    """Why batches must be made one after another; empty where each depends on its index alone."""
    if loader.cls is None:
        return _flow_state(loader)
    cls, script = loader.cls.node, loader.cls.script
    assert isinstance(cls, ast.ClassDef) and script is not None
    start = script.method(cls, "__getitem__")
    if start is None:
        return "its __getitem__ cannot be seen"
    opened = {
        name
        for name, values in script.assigned_attributes(cls).items()
        for owner, value in values
        if _is_handle(owner, value)
    }
    todo, seen = [start], set()
    while todo:
        owner, function = todo.pop()
        if function in seen:
            continue
        seen.add(function)
        for node in ast.walk(function):
            line = f"({owner.at(node)})"
            match node:
                case ast.Global() | ast.Nonlocal():
                    return f"{function.name} writes {', '.join(node.names)} {line}"
                case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()) if (
                    root := _root(node)
                ) and _is_shared(owner, function, root):
                    return f"{function.name} writes {ast.unparse(node)} {line}"
                case ast.Attribute(attr=attr, value=ast.Name(id="self")) if attr in opened:
                    return f"{function.name} reads the open file self.{attr} {line}"
                case ast.Yield() | ast.YieldFrom():
                    return f"{function.name} is a generator {line}"
                case ast.Call():
                    if reason := _call_state(owner, function, node):
                        return f"{function.name} {reason} {line}"
                    for callee in owner.values(node.func):
                        if (
                            callee.kind in ("function", "method")
                            and callee.script
                            and isinstance(callee.node, ast.FunctionDef)
                        ):
                            todo.append((callee.script, callee.node))
    return ""


def _flow_state(loader: Value) -> str:
    """`ImageDataGenerator.flow`: what it draws depends on the order as soon as a seed is set."""
    if not loader.name.startswith(tuple(f"{f}preprocessing.image" for f in catalog.KERAS_FAMILIES)):
        return "it is not a class of this script"
    script = loader.script
    assert script is not None
    seeded = any(script.calls_to("numpy.random.seed", "utils.set_random_seed", "random.seed"))
    return "the script sets a seed, and its random augmentation is drawn in the order of the batches" if seeded else ""


def _call_state(owner: Script, function: ast.FunctionDef, call: ast.Call) -> str:
    name = owner.called(call)
    if catalog.in_module(name, "numpy.random") or catalog.in_module(name, "random"):
        return "draws random numbers"
    if catalog.in_module(name, "tensorflow") or catalog.keras_path(name):
        return "calls TensorFlow"
    if name == "builtins.next":
        return "takes the next item of an iterator"
    if isinstance(call.func, ast.Attribute):
        root = _root(call.func)
        mutates = call.func.attr in (
            "append",
            "extend",
            "pop",
            "popleft",
            "insert",
            "remove",
            "clear",
            "update",
            "setdefault",
            "add",
            "seek",
            "read",
            "readline",
            "write",
            "shuffle",
            "choice",
            "randint",
            "uniform",
            "normal",
            "random",
            "permutation",
            "integers",
        )
        if mutates and root and _is_shared(owner, function, root):
            return f"calls {ast.unparse(call.func)}, which changes it"
    return ""


def _root(node: ast.expr) -> ast.Name | None:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node if isinstance(node, ast.Name) else None


def _is_shared(owner: Script, function: ast.FunctionDef, name: ast.Name) -> bool:
    """`self`, or something from outside the function; not what the function made itself."""
    if name.id == "self":
        return True
    bindings = owner.names.reaching(name)
    return bool(bindings) and all(b.kind not in ("import",) and b.scope.node is not function for b in bindings)


def _is_handle(owner: Script, value: ast.expr) -> bool:
    """An open file, archive, database or generator: its position or state is shared by all who read it."""
    for v in owner.values(value):
        if v.kind in ("generator", "iterator"):
            return True
        last = v.name.rpartition(".")[2]
        if (
            v.kind in ("object", "unknown")
            and isinstance(value, ast.Call)
            and (
                owner.called(value)
                in (
                    "builtins.open",
                    "builtins.iter",
                    "builtins.zip",
                    "builtins.map",
                    "h5py.File",
                    "zipfile.ZipFile",
                    "tarfile.open",
                    "sqlite3.connect",
                    "lmdb.open",
                    "pandas.HDFStore",
                    "tables.open_file",
                    "io.open",
                    "gzip.open",
                    "random.Random",
                    "cv2.VideoCapture",
                )
                or last in ("File", "ZipFile", "VideoCapture")
            )
        ):
            return True
        if (
            owner.symbol(value.func) in ("numpy.random.RandomState", "numpy.random.default_rng")
            if isinstance(value, ast.Call)
            else False
        ):
            return True
    return False
