"""Batches that a TensorFlow 1 loop makes in Python and feeds, from a `tf.data` pipeline."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator

from rewriter.codemod import Finding, Fix, Refusal, codemod
from rewriter.data.pipelines import related
from rewriter.data.purity import seeds
from rewriter.edits import Delete, DropKeyword, Edit, Insert, Replace
from rewriter.graphs.dataflow import LOOPS
from rewriter.graphs.sessions import INVISIBLE, TWICE, Entry, Plan, Stays, around, plan, runs, trains
from rewriter.scopes import FUNCTIONS
from rewriter.script import Script

#: What a pipeline costs more per batch than feeding does, in microseconds: preparing the batch has to take longer.
PIPELINE = 200
#: Lines longer than this are broken.
WIDTH = 110
#: Fetching a batch back for a second use of it costs as well; a loop that does not train is seldom long.
FETCHING = EVALUATING = 600

_EXPORTS = frozenset(
    "SavedModelBuilder simple_save write_graph freeze_graph convert_variables_to_constants export_meta_graph "
    "extract_sub_graph as_graph_def TFLiteConverter".split()
)
_DISTRIBUTED = ("tensorflow.train.Server", "tensorflow.train.ClusterSpec", "tensorflow.distribute.Server")

#: What draws initial weights or masks; without a seed of its own it takes one from the number of operations before it.
_DRAWS = re.compile(
    r"tensorflow\.(random\.(?!set_)\w+|random_\w+|truncated_normal|multinomial|nn\.dropout|nn\.rnn_cell\.\w+"
    r"|layers\.(?!flatten|max_pool|average_pool|batch_norm|Flatten)\w+|contrib\.\w+\.\w+|(\w+\.)*(?!\w+_variables_|variables_|tables_)\w+_initializer"
    r"|initializers\.\w+|keras\.(initializers|layers)\.\w+|nn\.\w+_cell|get_variable)$|keras\.layers\."
)
#: What draws whenever the graph is run.
_IN_RUNS = re.compile(r"tensorflow\.(random\.\w+|random_\w+|nn\.dropout|layers\.dropout|keras\.layers\.\w*[dD]ropout)$")
_CHANGES_STATE = re.compile(r"assign|scatter_|count_up_to|enqueue|dequeue")
_CONSTANT = re.compile(r"(zeros|ones|constant|identity|Zeros|Ones|Constant)\w*$")


@codemod(level=1, phase="loop")
def feed_dict(script: Script) -> Iterator[Finding]:
    """Let `tf.data` prepare the batches that a TensorFlow 1 loop makes in Python and feeds.

    Why: `feed_dict` makes every step wait for the Python code that prepares its batch. The same code in a generator,
    read by a `tf.data` pipeline with `prefetch`, runs in a thread while the step before is computed. The placeholder
    becomes a `placeholder_with_default`: evaluation may still feed it, and feeding it does not advance the pipeline.
    Where `if step % 100 == 0:` feeds the batch once more, the step of such a turn gives it back.
    The graph sees the same batches in the same order. On a machine that is known to have no GPU this is done only where
    Python works for the batch: slices of arrays cost next to nothing to feed, a pipeline would compete for the cores
    (`--select feed-dict` converts them too, and `tune` measures it).

    Not applied: the next batch depends on results of the step; two run calls use one batch; something else in the
    loop uses the same random numbers, iterator or reader; the graph is built elsewhere than the loop's data is
    visible. Learning rates, dropout rates and flags stay fed. A graph seed gives other initial weights once the graph
    has more operations: with one, and operations without seeds of their own, it is applied at -O2.

    Before (TensorFlow 1.15):
        import numpy as np
        import tensorflow as tf

        x = tf.placeholder(tf.float32, [None, 784])
        loss = tf.reduce_mean(tf.square(tf.layers.dense(x, 1)))
        train_op = tf.train.AdamOptimizer().minimize(loss)

        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            for i in range(len(files) // 32):
                batch = np.stack([np.load(f) for f in files[i * 32 : (i + 1) * 32]])
                sess.run(train_op, feed_dict={x: batch})
    After:
        import numpy as np
        import tensorflow as tf


        def batches():
            for i in range(len(files) // 32):
                batch = np.stack([np.load(f) for f in files[i * 32 : (i + 1) * 32]])
                yield batch


        dataset = tf.data.Dataset.from_generator(batches, tf.float32, [None, 784]).prefetch(2)
        next_x = tf.data.make_one_shot_iterator(dataset).get_next()
        x = tf.placeholder_with_default(next_x, [None, 784])
        loss = tf.reduce_mean(tf.square(tf.layers.dense(x, 1)))
        train_op = tf.train.AdamOptimizer().minimize(loss)

        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            for i in range(len(files) // 32):
                sess.run(train_op)
    """
    if not any(script.calls_to("tensorflow.placeholder")):
        return
    found = [r for r in runs(script) if any(isinstance(b, ast.For | ast.While) for b in around(script, r))]
    decided: set[ast.Call] = set()
    chosen: set[str] = set()  # names of pipelines that this very pass adds
    for run in sorted(found, key=lambda r: (not trains(script, r), r.call.lineno)):
        if decided & {e.placeholder for e in run.entries}:
            continue  # the loop that trains has the say; others go on feeding
        try:
            moved = plan(script, run)
            if moved is None:
                continue
            decided |= {e.placeholder for e in moved.entries}
            yield _fix(script, moved, chosen)
        except Stays as stays:
            decided |= {e.placeholder for e in run.entries}
            yield Refusal(stays.node, stays.reason, stays.hint)


def _fix(script: Script, moved: Plan, chosen: set[str]) -> Fix:
    try:
        return _Rewriter(script, moved, chosen).fix()
    except Stays as stays:
        if stays.hint != INVISIBLE:
            raise
        try:  # how often the loop turns may be all that cannot be seen
            if (again := plan(script, moved.run, endless=True)) is not None:
                return _Rewriter(script, again, chosen).fix()
        except Stays:
            pass
        raise


class _Rewriter:
    def __init__(self, script: Script, moved: Plan, chosen: set[str]) -> None:
        self.script, self.plan, self.run, self.chosen = script, moved, moved.run, chosen
        self.calls = [e.placeholder for e in moved.entries]
        for call in self.calls:
            if call not in script.parents:
                raise Stays(self.run.call, "the placeholder is made in another file")
        self.first = min(self.calls, key=lambda c: (c.lineno, c.col_offset))
        self.anchor = script.statement(self.first)
        self.home = script.function_of(self.anchor)  # where the graph is built
        self.loop = script.function_of(self.plan.outer)

    def fix(self) -> Fix:
        self._check_worth()
        self._check_graph()
        self._check_names()
        generator, pipeline = self._pipeline()
        lines = 2 if self.script.parents[self.anchor] is self.script.tree else 1
        edits: list[Edit] = [
            Insert(self.anchor, generator, after=False, blank_lines=self._gap(), own_indent=True),
            Insert(self.anchor, pipeline, after=False, blank_lines=lines, own_indent=True),
        ]
        edits += [Replace(e.placeholder, self._with_default(e)) for e in self.plan.entries]
        if self.plan.drained is not None:
            edits += self._drained(self.plan.drained)
        else:
            edits += [Delete(s) for s in self.plan.removed]
            edits += [Replace(call, text) for call, text in self.plan.lengths.items()]
            edits += self._feeds()
        message = "a tf.data pipeline prepares the next batches while a step is computed"
        level = None
        if seeds(self.script) and (draw := self._unseeded()) is not None:
            where = self.script.at(draw) if draw in self.script.parents else "in another file"
            message += (
                f" (other initial weights: with the graph's seed they depend on the number of operations, {where})"
            )
            level = 2
        if self.plan.drained is not None and level is None and (draw := self._seeded_draw()) is not None:
            message += f" (the run that ends an epoch draws random numbers once more, {self.script.at(draw)})"
            level = 2
        return Fix(self.run.call, message, edits, level)

    def _seeded_draw(self) -> ast.Call | None:
        """What draws in every run and would be repeatable: the run that finds the pipeline empty may draw as well."""
        for call in self.script.calls:
            name = self.script.called(call)
            if _IN_RUNS.match(name) and (seeds(self.script) or self.script.argument(call, "seed") is not None):
                return call
        return None

    # -- whether ---------------------------------------------------------------------------------------------------

    def _check_worth(self) -> None:
        if self.script.options.names("feed-dict"):
            return
        cost = self.plan.cost.microseconds(self.plan.samples, self.plan.samples * self._numbers())
        if self.plan.fetched and self.plan.shown is None and cost < FETCHING:
            raise Stays(
                self.run.call,
                "the batch is used again after the step: fetching it back costs about as much as preparing it",
                "`--select feed-dict` converts the loop all the same; measure it",
            )
        if cost < FETCHING and (other := self._again()) is not None:
            raise Stays(self.run.call, f"one batch is used by two `run` calls ({self.script.at(other)})", TWICE)
        if cost >= (PIPELINE if (training := trains(self.script, self.run)) else EVALUATING):
            return
        if not training:
            raise Stays(self.run.call, "the loop does not train: it is seldom long, and feeding it costs little")
        if not self.script.target.cpu:
            return
        if (reader := self.plan.reader) is not None:
            what = self.script.text(reader.func) if isinstance(reader, ast.Call) else "the reader"
            raise Stays(
                self.run.call,
                f"what `{what}` does for a batch cannot be seen ({self.script.at(reader)}): a pipeline pays only "
                "where Python works for it",
                "`--select feed-dict` converts the loop; measure it",
            )
        does = "little is done to prepare a batch" if self.plan.cost.passes else "the batches are slices of arrays"
        raise Stays(
            self.run.call,
            f"{does}: a pipeline costs more than feeding them on a CPU",
            "`--select feed-dict` converts the loop all the same; measure it",
        )

    def _again(self) -> ast.Call | None:
        """Another call of the loop that is fed the same in every step."""
        fed = {(e.placeholder, ast.dump(e.value)) for e in self.plan.entries}
        for run in runs(self.script):
            same = any((e.placeholder, ast.dump(e.value)) in fed for e in run.entries)
            if not same or run.call is self.run.call or self.plan.outer not in around(self.script, run):
                continue
            if all(b in around(self.script, self.run) for b in around(self.script, run) if isinstance(b, ast.If)):
                return run.call  # in every step
        return None

    def _numbers(self) -> int:
        """How many numbers a sample has, from the shapes of the placeholders."""
        total = 0
        for entry in self.plan.entries:
            shape = self.script.bind(entry.placeholder, ("dtype", "shape", "name")).get("shape")
            if isinstance(shape, ast.List | ast.Tuple):
                sizes = [self.script.integer(e) for e in shape.elts[1:]]
                total += math.prod(s if s is not None else 30 for s in sizes)
            else:
                total += 100
        return total

    def _check_graph(self) -> None:
        script = self.script
        for call in self.calls:
            if script.function_of(call) is not self.home:
                raise Stays(self.run.call, f"the placeholders are made in several functions ({script.at(call)})")
            statement = script.statement(call)
            block = script.parents[self.anchor]
            if block not in script.enclosing(statement, ast.AST) and not isinstance(block, ast.With):
                raise Stays(self.run.call, f"the placeholders are made in several blocks ({script.at(call)})")
            for held in script.enclosing(call, ast.With, ast.Lambda, ast.comprehension, ast.ListComp):
                if not isinstance(held, ast.With):
                    raise Stays(self.run.call, f"the placeholder is made in a comprehension ({script.at(call)})")
                for item in held.items:
                    made = item.context_expr
                    if (
                        isinstance(made, ast.Call)
                        and script.called(made) == "tensorflow.device"
                        and not (made.args and "cpu" in str(script.constant(made.args[0])).lower())
                    ):
                        raise Stays(
                            self.run.call,
                            f"the placeholder is placed on a device, a pipeline cannot be ({script.at(held)})",
                        )
        for name in _DISTRIBUTED:
            for call in script.calls_to(name):
                raise Stays(self.run.call, f"the session may run in another process ({script.at(call)})")
        for call in script.calls_to("tensorflow.Session", "tensorflow.train.MonitoredTrainingSession"):
            if call.args or any(k.arg in ("target", "master") for k in call.keywords):
                raise Stays(self.run.call, f"the session may run in another process ({script.at(call)})")
        for name in _EXPORTS:
            for mention in script.mentions(name):
                raise Stays(
                    self.run.call, f"the graph is exported ({script.at(mention)}), and would have the pipeline in it"
                )
        for node in script.all(ast.Constant):
            if isinstance(node.value, str) and re.fullmatch(r"(.*/)?Placeholder(_\d+)?(:0)?", node.value):
                raise Stays(self.run.call, f"the placeholder is looked up by its name ({script.at(node)})")

    def _check_names(self) -> None:
        """The generator stands where the graph is built: it must see what the loop sees."""
        script, names = self.script, self.script.names
        if self.loop is self.home:
            return
        self._check_one_graph()
        if self.plan.drained is not None and self.home is not None:
            raise Stays(
                self.run.call,
                f"the graph is built in another function ({script.at(self.first)}), the loop cannot start its iterator",
                INVISIBLE,
            )
        if self.plan.rebound and self.loop is not None:
            raise Stays(self.run.call, f"`{self.plan.rebound[0]}` is a variable of the loop's function")
        chain = set()
        inner = self.home
        while inner is not None:
            chain.add(names.scopes[inner])
            inner = script.function_of(inner)
        for name in self.plan.uses:
            found = names.scope_of(name).lookup(name.id)
            if found is None:
                continue
            if found[0] is not names.module:
                if self._same_self(name):
                    continue
                place = script.at(self.first)
                raise Stays(
                    self.run.call,
                    f"the graph is built in another function ({place}), where `{name.id}` is not visible",
                    INVISIBLE,
                )
            if any(name.id in scope.bindings for scope in chain):
                raise Stays(
                    self.run.call, f"`{name.id}` is something else where the graph is built ({script.at(self.first)})"
                )
        if self.loop is not None:
            self._check_once()

    def _same_self(self, name: ast.Name) -> bool:
        """Both functions are methods of one class, and the name is its instance."""
        script = self.script
        if not isinstance(self.home, ast.FunctionDef) or not isinstance(self.loop, ast.FunctionDef):
            return False
        owner = script.parents.get(self.home)
        return (
            isinstance(owner, ast.ClassDef)
            and script.parents.get(self.loop) is owner
            and bool(self.home.args.args and self.loop.args.args)
            and self.home.args.args[0].arg == self.loop.args.args[0].arg == name.id
        )

    def _check_once(self) -> None:
        """A pipeline gives its batches once: so must the function with the loop be called."""
        script = self.script
        if not isinstance(self.loop, ast.FunctionDef):
            raise Stays(self.run.call, "where the loop's function is called is not seen")
        if self.plan.goes_on and script.project.calls_of(self.loop, script) and not self._opens_session():
            return
        owner, function = script, self.loop
        seen: set[ast.AST] = set()
        while function is not self.home and function not in seen:  # the function, and those that call it
            seen.add(function)
            calls = owner.project.calls_of(function, owner)
            if function.name == "main" and not calls:
                return
            unsure = self._unsure_call(owner, function)
            if len(calls) != 1 or unsure:
                number = "several" if unsure and calls else len(calls) or "unknown"
                raise Stays(
                    self.run.call,
                    f"`{function.name}` is called in {number} places, each would need its own pipeline",
                    INVISIBLE,
                )
            owner, call, _ = calls[0]
            if next(owner.enclosing(call, ast.For, ast.While, ast.comprehension), None) is not None:
                raise Stays(self.run.call, f"`{function.name}` is called in a loop ({owner.at(call)})", INVISIBLE)
            caller = owner.function_of(call)
            if caller is None:
                return
            if not isinstance(caller, ast.FunctionDef):
                raise Stays(self.run.call, f"`{function.name}` is called by a lambda ({owner.at(call)})", INVISIBLE)
            function = caller

    def _unsure_call(self, owner: Script, function: ast.FunctionDef) -> bool:
        """Whether something that is not known may be an object whose method this is."""
        return isinstance(owner.parents.get(function), ast.ClassDef) and any(
            isinstance(other.parents.get(name), ast.Call)
            and other.parents[name].func is name  # type: ignore[attr-defined]
            and isinstance(name, ast.Attribute)
            and all(v.kind == "unknown" for v in other.values(name))
            for other in owner.project.scripts.values()
            for name in other.mentions(function.name)
        )

    def _check_one_graph(self) -> None:
        """The function that makes the placeholders is called once: each of its graphs would read all batches."""
        script = self.script
        if not isinstance(self.home, ast.FunctionDef) or all(self._is_own(e.key) for e in self.plan.entries):
            return
        outer = self.loop
        while outer is not None:
            if outer is self.home:
                return  # the loop is in a function within it
            outer = script.function_of(outer)
        calls = script.project.calls_of(self.home, script)
        if len(calls) != 1 or next(calls[0][0].enclosing(calls[0][1], *LOOPS, ast.comprehension), None) is not None:
            raise Stays(
                self.run.call,
                f"the placeholders may be made several times ({script.at(self.first)}), each with its own batches",
            )

    def _is_own(self, key: ast.expr) -> bool:
        """`self.x` in a method of the class whose other method makes it."""
        return (
            isinstance(key, ast.Attribute)
            and isinstance(key.value, ast.Name)
            and self._same_self(key.value)
            and isinstance(self.loop, ast.FunctionDef)
            and key.value.id == self.loop.args.args[0].arg
        )

    def _opens_session(self) -> bool:
        """A new session reads the pipeline from its beginning."""
        return any(
            self.script.called(call).rpartition(".")[2].endswith("Session")
            and any(f is self.loop for f in self.script.enclosing(call, *FUNCTIONS))
            for call in self.script.calls
        )

    def _unseeded(self) -> ast.Call | None:
        """What draws from the graph's seed."""
        for member in related(self.script):
            for call in member.calls:
                name = member.called(call)
                if not _DRAWS.match(name) or _CONSTANT.search(name):
                    continue
                if any(k.arg == "seed" for k in call.keywords) or _initialized(member, call, name):
                    continue
                return call
        return None

    # -- the text --------------------------------------------------------------------------------------------------

    def _free(self, wanted: str) -> str:
        script = self.script
        name, number = wanted, 1
        while name in self.chosen or not script.is_free(name):
            number += 1
            name = f"{wanted}_{number}" if number > 2 else f"train_{wanted}"
        self.chosen.add(name)
        return name

    def _prefix(self, call: ast.Call) -> str:
        """`tf` of `tf.placeholder`: the module that has the rest of TensorFlow 1 as well."""
        if not isinstance(call.func, ast.Attribute):
            raise Stays(self.run.call, f"`placeholder` is imported by itself ({self.script.at(call)})")
        return self.script.source.snippet(call.func.value)

    def _signature(self, entry: Entry) -> tuple[str, str, str]:
        script = self.script
        made = script.bind(entry.placeholder, ("dtype", "shape", "name"))
        dtype, shape, name = (made.get(n) for n in ("dtype", "shape", "name"))
        if made.open or dtype is None:
            raise Stays(self.run.call, f"how the placeholder is made is not seen ({script.at(entry.placeholder)})")

        def text(node: ast.expr | None) -> str:
            if node is None:
                return "None"
            written = script.source.snippet(node)
            return ast.unparse(node) if "\n" in written else written

        return text(dtype), text(shape), text(name) if name is not None else ""

    def _next(self, entry: Entry) -> str:
        if entry not in self._names:
            target = self.script.parents.get(entry.placeholder)
            written = ast.unparse(target.targets[0]) if isinstance(target, ast.Assign) else ast.unparse(entry.key)
            last = re.findall(r"\w+", written)
            name = self._free(f"next_{last[-1] if last else 'batch'}")
            self._names[entry] = name
        return self._names[entry]

    @property
    def _names(self) -> dict[Entry, str]:
        if not hasattr(self, "_chosen"):
            self._chosen: dict[Entry, str] = {}
        return self._chosen

    def _pipeline(self) -> tuple[str, str]:
        generator, dataset = self._free("batches"), self._free("dataset")
        prefix = self._prefix(self.first)
        entries = self.plan.entries
        signatures = [self._signature(e) for e in entries]
        dtypes, shapes = ", ".join(s[0] for s in signatures), ", ".join(s[1] for s in signatures)
        if len(entries) > 1:
            dtypes, shapes = f"({dtypes})", f"({shapes})"
        arguments = f"{generator}, {dtypes}"
        if any(s[1] != "None" for s in signatures):
            arguments += f", {shapes}"
        names = ", ".join(self._next(e) for e in entries)
        body = list(self.plan.body)
        if self.plan.rebound:
            keyword = "global" if self.loop is None else "nonlocal"
            body.insert(0, f"{keyword} {', '.join(self.plan.rebound)}")
        lines = "\n".join(f"{self.plan.unit}{line}" if line else line for line in body)
        made = f"{dataset} = {prefix}.data.Dataset.from_generator({arguments}).prefetch(2)\n"
        if len(made) + self.anchor.col_offset > WIDTH:
            made = f"{dataset} = {prefix}.data.Dataset.from_generator(\n{self.plan.unit}{arguments}\n).prefetch(2)\n"
        if self.plan.drained is None:
            made += f"{names} = {prefix}.data.make_one_shot_iterator({dataset}).get_next()"
        else:
            self._iterator = self._free("iterator")
            made += (
                f"{self._iterator} = {prefix}.data.make_initializable_iterator({dataset})\n"
                f"{names} = {self._iterator}.get_next()"
            )
        return f"def {generator}():\n{lines}", made

    def _gap(self) -> int:
        """Blank lines that are missing above the generator: at the top level there are two as a rule."""
        script = self.script
        body = getattr(script.parents[self.anchor], "body", [])
        if not body or body[0] is self.anchor:
            return 0
        wanted = 2 if script.parents[self.anchor] is script.tree else 1
        blank, number = 0, self.anchor.lineno - 2
        while number >= 0 and script.source.lines[number].strip().startswith("#"):
            number -= 1
        while number >= 0 and not script.source.lines[number].strip():
            blank, number = blank + 1, number - 1
        return max(wanted - blank, 0)

    def _with_default(self, entry: Entry) -> str:
        _, shape, name = self._signature(entry)
        label = ""
        if name:
            keyword = any(k.arg == "name" for k in entry.placeholder.keywords)
            label = f", name={name}" if keyword else f", {name}"
        return f"{self._prefix(entry.placeholder)}.placeholder_with_default({self._next(entry)}, {shape}{label})"

    def _feeds(self) -> list[Edit]:
        run, script = self.run, self.script
        rest = [
            (k, v)
            for k, v in zip(run.feed.keys, run.feed.values, strict=True)
            if not any(k is e.key for e in self.plan.entries)
        ]
        if self.plan.fetched:
            return self._fetching(rest)
        if rest:
            return [Replace(run.feed, self._dict(rest))]
        if any(k.value is run.argument for k in run.call.keywords):
            return [DropKeyword(run.call, "feed_dict")]
        if run.argument in run.call.args[:-1]:  # what follows it keeps its place
            return [Replace(run.argument, "None")]
        others = [*run.call.args, *run.call.keywords]
        texts = [script.source.snippet(a) for a in others if a is not run.argument]  # type: ignore[arg-type]
        return [Replace(run.call, f"{script.source.snippet(run.call.func)}({', '.join(texts)})")]

    def _drained(self, loop: ast.For) -> list[Edit]:
        """`while True:` around the step until the pipeline has no more, in place of a loop over an iterator."""
        script, run = self.script, self.run
        source, step = script.source, script.statement(run.call)
        if self.plan.fetched:
            raise Stays(run.call, "one batch is used by two `run` calls", TWICE)
        for node in ast.walk(run.call):
            for value in script.values(node) if isinstance(node, ast.Name | ast.Attribute | ast.Call) else ():
                made = value.node.func if isinstance(value.node, ast.Call) else None
                name = made.attr if isinstance(made, ast.Attribute) else value.name.rpartition(".")[2]
                if node is not run.call and made is not None and _CHANGES_STATE.match(name):
                    raise Stays(
                        run.call, f"the run that finds no more batches would change a variable ({script.at(node)})"
                    )
        if (
            any(isinstance(n, ast.Constant | ast.JoinedStr) and n.end_lineno != n.lineno for n in ast.walk(loop))
            or loop.body[0].lineno == loop.lineno
        ):
            raise Stays(run.call, f"the loop cannot be laid out anew ({script.at(loop)})")
        start, _ = source.span(step)
        text = source.snippet(step)
        for edit in self._feeds():
            assert isinstance(edit, Replace | DropKeyword)
            if isinstance(edit, DropKeyword):
                rest = [a for a in run.call.args] + [k for k in run.call.keywords if k.arg != edit.name]
                new = f"{source.snippet(run.call.func)}({', '.join(source.snippet(a) for a in rest)})"  # type: ignore[arg-type]
            else:
                new = edit.text
            first, last = source.span(run.call if isinstance(edit, DropKeyword) else edit.node)
            text = text[: first - start] + new + text[last - start :]
        gone, unit = set(self.plan.removed), self.plan.unit
        lines = [f"{source.snippet(run.call.func.value)}.run({self._iterator}.initializer)", "while True:"]  # type: ignore[attr-defined]
        above: list[str] = []
        while (line := source.lines[step.lineno - 2 - len(above)].strip()).startswith("#"):
            above.insert(0, f"{unit}{line}")
        lines += [*above, f"{unit}try:"]
        lines += [f"{unit}{unit}{line}" for line in _dedented(text, step.col_offset)]
        lines += [f"{unit}except {self._prefix(self.first)}.errors.OutOfRangeError:", f"{unit}{unit}break"]
        after = step.end_lineno or step.lineno
        behind = [s for s in loop.body if s.lineno > after]
        if behind:
            deeper = behind[0].col_offset
            taken = {n for s in gone for n in range(s.lineno, (s.end_lineno or s.lineno) + 1)}
            for number in range(after + 1, (loop.end_lineno or after) + 1):
                if number not in taken:
                    lines += [unit + line if line else "" for line in _dedented(source.lines[number - 1], deeper)]
        return [Insert(loop, "\n".join(lines), after=False, own_indent=True), Delete(loop)]

    def _dict(self, rest: Iterable[tuple[ast.expr | None, ast.expr]]) -> str:
        snippet = self.script.source.snippet
        return "{" + ", ".join(f"{snippet(k)}: {snippet(v)}" if k else f"**{snippet(v)}" for k, v in rest) + "}"

    def _fetching(self, rest: list[tuple[ast.expr | None, ast.expr]]) -> list[Edit]:
        """`_, batch_x = sess.run([train_op, x])`: the run call gives the batch back, for the second use of it."""
        run, script = self.run, self.script
        snippet = script.source.snippet
        statement = script.statement(run.call)
        fetches = run.call.args[0] if run.call.args and run.call.args[0] is not run.argument else None
        if (
            fetches is None
            or any(a is not fetches and a is not run.argument for a in run.call.args)
            or not isinstance(run.call.func, ast.Attribute)
            or (run.holder is not None and run.holder in self.plan.removed)
        ):
            raise Stays(run.call, "one batch is used by two `run` calls", TWICE)
        names = [snippet(e.value) for e in self.plan.fetched]
        keys = [snippet(e.key) for e in self.plan.fetched]
        listed = isinstance(fetches, ast.List | ast.Tuple)
        inner = ", ".join(snippet(e) for e in fetches.elts) if isinstance(fetches, ast.List | ast.Tuple) else ""
        feed = f", feed_dict={self._dict(rest)}" if rest else ""
        feed += "".join(f", {snippet(k)}" for k in run.call.keywords if k.value is not run.argument)  # type: ignore[arg-type]
        match statement:
            case ast.Expr() if statement.value is run.call:
                before = ["_"] * len(fetches.elts) if isinstance(fetches, ast.List | ast.Tuple) else ["_"]
            case ast.Assign(targets=[ast.Tuple() as target]) if statement.value is run.call and listed:
                before = [snippet(e) for e in target.elts]
            case ast.Assign(targets=[ast.Name() as target]) if statement.value is run.call and not listed:
                before = [target.id]
            case _:
                raise Stays(run.call, "one batch is used by two `run` calls", TWICE)
        fetched = f"[{inner if listed else snippet(fetches)}, {', '.join(keys)}]"
        call = f"{snippet(run.call.func)}({fetched}{feed})"
        text = f"{', '.join([*before, *names])} = {call}"
        if (shown := self.plan.shown) is not None:
            alone = snippet(fetches)
            plain = f"{snippet(run.call.func)}({ast.unparse(fetches) if chr(10) in alone else alone}{feed})"
            if isinstance(statement, ast.Assign):
                plain = f"{snippet(statement.targets[0])} = {plain}"
            lines = [*self._comments(statement), *self._comments(shown), *self._branches(shown, text, plain)]
            return [
                Insert(shown, "\n".join(lines), after=False, own_indent=True),
                Delete(shown),
                Delete(statement),
            ]
        text = "\n".join([*self._comments(statement), text])
        if run.holder is None:
            return [Insert(statement, text), Delete(statement)]
        feed_dict = [*self._comments(run.holder), *_dedented(snippet(run.holder), run.holder.col_offset)]
        text = "\n".join([text, *feed_dict])  # for the calls that follow
        return [Insert(statement, text), Delete(statement), Delete(run.holder)]

    def _branches(self, shown: ast.If, first: str, otherwise: str) -> list[str]:
        """The `if` after the step with a statement above its body, and another one in an `else`."""
        source, unit = self.script.source, self.plan.unit
        written = source.lines[shown.lineno - 1 : shown.end_lineno]
        lines = _dedented("\n".join(written), shown.col_offset)
        for number in range(1, len(lines)):
            if written[number - 1].rstrip().endswith("\\"):  # what follows a backslash is not indented anew
                lines[number] = written[number].rstrip()
        place = shown.body[0].lineno - shown.lineno
        while not lines[place - 1].strip() or lines[place - 1].lstrip().startswith("#"):
            place -= 1
        return [*lines[:place], unit + first, *lines[place:], "else:", unit + otherwise]

    def _comments(self, statement: ast.stmt) -> list[str]:
        """The comments directly above a statement."""
        found: list[str] = []
        for number in range(statement.lineno - 2, -1, -1):
            if not (comment := self.script.source.lines[number].strip()).startswith("#"):
                break
            found.insert(0, comment)
        return found


def _initialized(script: Script, call: ast.Call, name: str) -> bool:
    """A layer or variable whose initializer is given: that one is looked at by itself."""
    given = {k.arg for k in call.keywords}
    if name.endswith("get_variable"):
        return "initializer" in given or len(call.args) > 3
    return bool(given & {"kernel_initializer", "weights_initializer"})


def _dedented(text: str, column: int) -> list[str]:
    """Lines without the indentation of the block that they stand in."""
    own = " " * column
    found = []
    for line in text.rstrip().split("\n"):
        line = line.rstrip().expandtabs(column or 8)
        found.append(line[column:] if line.startswith(own) else line.lstrip())
    return found
