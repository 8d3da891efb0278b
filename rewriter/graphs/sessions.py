"""TensorFlow 1 loops around `session.run`: what they feed, and the statements that prepare a batch.

for run in runs(script):          # every call with a feed dict whose keys are placeholders
    plan(script, run)             # how its data statements can run apart from the loop, or raises `Stays`
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..scopes import Binding
from ..script import Script
from ..source import children
from ..values import Value
from .dataflow import (
    CALL,
    CLOCK,
    LOOPS,
    MAY_DRAW,
    NUMPY_DRAWS,
    PURE_METHODS,
    PYTHON_DRAWS,
    VIEWS,
    Cost,
    Facts,
    Walk,
    facts_of,
    header_facts,
    is_project,
    meets,
    path_of,
    touches,
)

# -- run calls and their feeds -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Entry:
    """`x: batch_x` in a feed dict."""

    key: ast.expr
    value: ast.expr
    placeholder: ast.Call


@dataclass(frozen=True, eq=False)
class Run:
    """A call that runs the graph with a feed dict: `sess.run(train, feed_dict={...})`, `step.run({...})`."""

    script: Script
    call: ast.Call
    argument: ast.expr  # as it stands in the call
    feed: ast.Dict
    entries: tuple[Entry, ...]  # those whose keys are known to be placeholders

    @property
    def holder(self) -> ast.stmt | None:
        """The statement that gives the feed dict a name, where one does."""
        return None if self.argument is self.feed else self.script.statement(self.feed)


def runs(script: Script) -> list[Run]:
    """Every call of `run` or `eval` whose feed dict is written out, in source order."""
    found = []
    for call in script.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("run", "eval") and _of_graph(script, call.func):
            for argument in [*call.args, *(k.value for k in call.keywords if k.arg == "feed_dict")]:
                feed = _dict(script, argument)
                if feed is not None and (entries := _entries(script, feed)):
                    found.append(Run(script, call, argument, feed, tuple(entries)))
    return found


def _of_graph(script: Script, func: ast.Attribute) -> bool:
    """Is it a method of a session, tensor or operation, as far as is known, and not one of some other class?"""
    return not any(
        value.cls is not None or (value.kind == "object" and _OTHER_CLASS.match(value.name))
        for value in script.values(func.value)
    )


def _dict(script: Script, node: ast.expr) -> ast.Dict | None:
    if isinstance(node, ast.Dict):
        return node
    if not isinstance(node, ast.Name):
        return None
    values = script.values(node)
    if len(values) == 1 and isinstance(values[0].node, ast.Dict) and values[0].script is script:
        return values[0].node
    return None


def _entries(script: Script, feed: ast.Dict) -> Iterator[Entry]:
    for key, value in zip(feed.keys, feed.values, strict=True):
        if key is not None and (made := placeholder_of(script, key)) is not None:
            yield Entry(key, value, made)


def placeholder_of(script: Script, node: ast.expr) -> ast.Call | None:
    """The call of `tf.placeholder` that an expression certainly is."""
    values = script.values(node)
    if len(values) != 1 or values[0].name != "tensorflow.placeholder":
        return None
    return values[0].node if isinstance(values[0].node, ast.Call) else None


#: What a placeholder of a rate or flag is called, whose shape is not given.
_RATES = re.compile(r"rate|\blr\b|_lr\b|keep|prob|drop|phase|training|is_train|momentum|temperature|epsilon")
#: A class of another library that makes no sessions.
_OTHER_CLASS = re.compile(r"(?!tensorflow\.|keras\.|tf_keras\.)(\w+\.)+[A-Z]\w*(?<!Session)$")
_TRAINS = re.compile(r"train|optim|minimi[sz]|solver|update_op|apply_grad", re.IGNORECASE)


def trains(script: Script, run: Run) -> bool:
    """Does the call run an optimizer's step?"""
    todo = [run.call.args[0]] if run.call.args else []
    if isinstance(run.call.func, ast.Attribute):
        todo.append(run.call.func.value)
    todo += [k.value for k in run.call.keywords if k.arg == "fetches"]
    if any(_TRAINS.search(ast.unparse(node)) for node in todo):
        return True
    for node in todo:
        for value in script.values(node):
            parts = [v for item in value.items for v in item] if value.kind == "sequence" else [value]
            for part in parts:
                if part.kind == "method" and part.name == "run" and part.base:
                    part = part.base
                if isinstance(part.node, ast.Call):
                    attr = part.node.func.attr if isinstance(part.node.func, ast.Attribute) else ""
                    if attr in ("minimize", "apply_gradients"):
                        return True
    return False


# -- moving what prepares a batch ------------------------------------------------------------------------------------


class Stays(Exception):
    """The feed has to stay, and why."""

    def __init__(self, node: ast.AST, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.node, self.reason, self.hint = node, reason, hint


@dataclass
class Plan:
    """What becomes of one loop: `body` is the text of a generator that yields the batches in order."""

    run: Run
    entries: list[Entry]  # what the pipeline supplies
    outer: ast.stmt
    body: list[str] = field(default_factory=list)
    unit: str = "    "  # one level of indentation
    removed: list[ast.stmt] = field(default_factory=list)
    fetched: list[Entry] = field(default_factory=list)  # used again after the run: it gives them back
    shown: ast.If | None = None  # what is done in some steps only, and alone uses the batch again
    endless: bool = False
    goes_on: bool = False  # a second call of the loop's function goes on where the first stopped
    lengths: dict[ast.Call, str] = field(default_factory=dict)  # `len(order)`, and what says the same without it
    drained: ast.For | None = None  # the loop that becomes one over the pipeline
    cost: Cost = field(default_factory=Cost)
    samples: int = 64  # in a batch, where that is known
    reader: ast.AST | None = None
    rebound: list[str] = field(default_factory=list)  # names of the outer scope that the generator rebinds
    uses: list[ast.Name] = field(default_factory=list)  # names that the generator reads and does not bind


def around(script: Script, run: Run) -> list[ast.stmt]:
    """The compound statements around a run call in its function, innermost first."""
    found: list[ast.stmt] = []
    for node in script.enclosing(run.call, ast.stmt, ast.Lambda, ast.comprehension):
        if isinstance(node, ast.Lambda | ast.comprehension | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            break
        if isinstance(node, ast.For | ast.While | ast.If | ast.With | ast.Try):
            found.append(node)
    return found


def plan(script: Script, run: Run, *, endless: bool = False) -> Plan | None:
    """How the batches of a run call can be prepared apart from its loop; None where it is fed no batches.

    endless: without counting the turns of the outermost loop. Raises `Stays` where they cannot.
    """
    if script.function_of(run.call) is not None and isinstance(script.function_of(run.call), ast.Lambda):
        return None
    blocks = around(script, run)
    made = [e.placeholder for e in run.entries]
    loops = [b for b in blocks if isinstance(b, LOOPS) and not any(b in script.enclosing(m, *LOOPS) for m in made)]
    if not loops:
        return None
    try:
        return _Mover(script, run, loops[-1], blocks[: blocks.index(loops[-1]) + 1], endless=endless).plan()
    except Stays as stays:
        inner = loops[0]
        if endless or stays.hint != DRAINS or not isinstance(inner, ast.For):
            raise
        return _Mover(script, run, inner, blocks[: blocks.index(inner) + 1], drains=True).plan()


class _Mover:
    """Finds what prepares the batches of a run call in the loop `outer`, which the generator repeats.

    drains: the loop itself takes them from an iterator; it becomes one that runs the pipeline down.
    endless: the generator goes on for as long as it is asked, and does not count the turns of the loop.
    """

    def __init__(
        self,
        script: Script,
        run: Run,
        outer: ast.stmt,
        blocks: list[ast.stmt],
        *,
        drains: bool = False,
        endless: bool = False,
    ) -> None:
        self.script, self.run, self.outer, self.blocks, self.drains = script, run, outer, blocks, drains
        self.endless = endless
        self.reused = False  # the feed dict has a name, and another run call uses it later on
        self.step = script.statement(run.call)
        self.inner = next(b for b in blocks if isinstance(b, LOOPS))
        self.statements = [s for s in _inside(outer) if s is not outer]
        self.facts = {s: self._facts(s) for s in [outer, *self.statements]}
        self.unit = self._indentation()
        self.batch: list[Entry] = []
        self.kept: set[ast.stmt] = set()  # simple statements that the batches need
        self.frames: set[ast.stmt] = set()  # compound ones, whose headers they need
        self.needed: dict[str, ast.AST] = {}

    def _indentation(self) -> str:
        """One level of it, as the file has it."""
        lines, body = self.script.source.lines, self.outer.body  # type: ignore[attr-defined]
        here, inside = (
            line[: len(line) - len(line.lstrip())] for line in (lines[self.outer.lineno - 1], lines[body[0].lineno - 1])
        )
        return inside[len(here) :] or "    "

    def _facts(self, statement: ast.stmt) -> Facts:
        """Of the statement itself; without the feed dict's values, which are looked at one by one."""
        if statement in (self.run_statement, self.run.holder):
            return self._without_feed(statement)
        if self.drains and statement is self.outer:
            assert isinstance(statement, ast.For)
            facts = facts_of(self.script, statement.iter)
            facts.add(header_facts(self.script, statement))
            return facts
        if isinstance(statement, _COMPOUND):
            return header_facts(self.script, statement)
        return facts_of(self.script, statement)

    @property
    def run_statement(self) -> ast.stmt:
        return self.step

    def _without_feed(self, statement: ast.stmt) -> Facts:
        walk = Walk(self.script)
        feed = self.run.feed

        def visit(node: ast.AST) -> None:
            if node is feed or node is self.run.argument or getattr(node, "value", None) is self.run.argument:
                return
            if node is self.run.call:
                for child in [*self.run.call.args, *self.run.call.keywords]:
                    visit(child)
                if isinstance(self.run.call.func, ast.Attribute):
                    visit(self.run.call.func.value)
                walk.facts.graph = self.run.call
                return
            if any(n is self.run.call for n in ast.walk(node)):
                for child in children(node):
                    visit(child)
                return
            walk.visit(node)

        for target in statement.targets if isinstance(statement, ast.Assign) else []:
            walk.store(target)
        if isinstance(statement, ast.AugAssign | ast.AnnAssign):
            walk.store(statement.target)
        value = getattr(statement, "value", None)
        if value is not None:
            visit(value)
        return walk.facts

    # -- what is a batch -------------------------------------------------------------------------------------------

    def plan(self) -> Plan | None:
        for node in ast.walk(self.outer):
            if isinstance(node, _UNFOLLOWED):
                raise Stays(self.run.call, f"the loop is not understood ({self.script.at(node)})")
        self.batch = [e for e in self.run.entries if self._is_batch(e)]
        if not self.batch:
            return None
        self._check_place()
        self._slice([e.value for e in self.batch])
        for entry in self.run.entries:  # what is made together with the batch is supplied with it
            if entry not in self.batch and self._reads_moved(entry):
                self.batch.append(entry)
                self._slice([e.value for e in self.batch])
        result = Plan(self.run, [e for e in self.run.entries if e in self.batch], self.outer)
        for loop in self.frames:
            if isinstance(loop, ast.For) and not self._is_endless(loop):
                self._check_header(loop)
        self._check_moved(result)
        self._remove(result)
        if self.endless:
            self._check_endless(result)
        self._check_shared(result)
        self._check_ends(result)
        if self.drains:
            self._check_drained(result)
        result.unit = self.unit
        result.body = self._written(result)
        self._check_rebound(result)
        return result

    def _is_batch(self, entry: Entry) -> bool:
        """Rows that change from step to step; not a rate, a flag or the same array every time."""
        made = self.script.bind(entry.placeholder, ("dtype", "shape", "name"))
        shape, dtype = made.get("shape"), made.get("dtype")
        if isinstance(shape, ast.List | ast.Tuple) and not shape.elts:
            return False
        if dtype is not None and self.script.symbol(dtype) == "tensorflow.bool":
            return False
        if _RATES.search(ast.unparse(entry.key).lower()) and not isinstance(shape, ast.List | ast.Tuple):
            return False
        kept, frames, _ = self._sliced([entry.value], control=False)
        own = facts_of(self.script, entry.value)
        if not kept and not frames and not own.changes and own.graph is None:
            bound = {p for s in [self.outer, *self.statements] for p in self.facts[s].binds}
            if not any(meets(p, q) for p in own.reads for q in bound):
                return False
        nodes: list[ast.AST] = [entry.value, *kept]
        if any(isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Load) for m in nodes for n in ast.walk(m)):
            return True
        if any(f is self.inner and isinstance(f, ast.For) and not self._counts(f) for f in frames):
            return True
        found = Facts()
        for statement in kept:
            found.add(self.facts[statement])
        found.add(own)
        return bool(
            found.cost.passes
            or found.cost.sample
            or found.changes
            or found.reader
            or found.unseen
            or found.graph
            or self._calls_project(nodes)
        )

    def _calls_project(self, nodes: list[ast.AST]) -> bool:
        return any(
            is_project(v) and v.kind != "class"
            for m in nodes
            for n in ast.walk(m)
            if isinstance(n, ast.Call)
            for v in self.script.values(n.func)
        )

    def _counts(self, loop: ast.For) -> bool:
        return isinstance(loop.iter, ast.Tuple | ast.List | ast.Constant) or (
            isinstance(loop.iter, ast.Call) and self.script.called(loop.iter).rpartition(".")[2] in ("range", "xrange")
        )

    def _reads_moved(self, entry: Entry) -> bool:
        reads = facts_of(self.script, entry.value).reads
        return any(
            meets(p, q)
            for s in self.kept
            if not self._replayable(s)
            for p in [*self.facts[s].binds, *self.facts[s].changes]
            for q in reads
        )

    # -- where it may stand ----------------------------------------------------------------------------------------

    def _check_place(self) -> None:
        script, run = self.script, self.run
        if isinstance(self.step, _COMPOUND):
            raise Stays(run.call, "the run call is part of a condition")
        if any(
            isinstance(n, ast.Lambda | ast.comprehension)
            for n in script.enclosing(run.call, ast.AST)
            if n in set(ast.walk(self.step))
        ):
            raise Stays(run.call, "the run call stands in a comprehension or lambda")
        for block in self.blocks:
            if isinstance(block, ast.Try) and block.handlers:
                raise Stays(run.call, f"the run call may be tried again ({script.at(block)})")
            if isinstance(block, LOOPS) and block.orelse:
                raise Stays(run.call, f"the loop has an `else` ({script.at(block)})")
        for attempt in script.enclosing(self.outer, ast.Try):
            assert isinstance(attempt, ast.Try)
            if script.function_of(attempt) is script.function_of(run.call) and self.outer in _inside(attempt):
                for handler in attempt.handlers:
                    if not self._lets_pass(handler):
                        raise Stays(run.call, f"what prepares the batch may end the loop ({script.at(handler)})")
        if not self.drains:
            for node in ast.walk(self.outer):
                if isinstance(node, ast.Call) and script.called(node).rpartition(".")[2].endswith("Session"):
                    raise Stays(run.call, f"every session would begin with the first batch ({script.at(node)})")
        self._check_session()
        if any(k is None for k in run.feed.keys):
            raise Stays(run.call, f"the feed dict holds what is not seen ({script.at(run.feed)})")
        if len({e.placeholder for e in self.batch}) < len(self.batch):
            raise Stays(run.call, f"one placeholder is fed twice ({script.at(run.feed)})")
        holder = run.holder
        if holder is not None:
            if holder not in self.statements:
                raise Stays(run.call, f"the feed dict is made outside of the loop ({script.at(run.feed)})")
            uses = [n for s, n in script.flow(run.feed) if isinstance(n, ast.Name)]
            for other in uses:
                if isinstance(script.parents.get(other), ast.Subscript | ast.Attribute):
                    raise Stays(run.call, f"the feed dict is changed after it is made ({script.at(other)})")
            others = [n for n in uses if n is not run.argument]
            self.reused = bool(others)
            if others and not all(self._follows(n) for n in others):
                raise Stays(run.call, f"one batch is used by two `run` calls ({script.at(others[0])})", TWICE)

    def _check_session(self) -> None:
        """One session runs the whole loop: another would begin with the first batch."""
        walk, call = Walk(self.script), self.run.call
        sessions = [k.value for k in call.keywords if k.arg == "session"]
        if call.args[:1] == [self.run.argument]:
            sessions += call.args[1:2]  # `train.run({x: batch}, sess)`
        if isinstance(call.func, ast.Attribute):
            sessions.append(call.func.value)
        paths = [p for s in sessions if s is not self.run.argument and (p := walk.path(s))]
        for statement in [self.outer, *self.statements]:
            facts = self.facts[statement]
            for path, node in [*facts.binds.items(), *facts.changes.items()]:
                if any(path == p or p.startswith(f"{path}.") for p in paths):
                    raise Stays(call, f"every session would begin with the first batch ({self.script.at(node)})")

    def _lets_pass(self, handler: ast.ExceptHandler) -> bool:
        """Is it for errors of the graph, for all of them, or for being stopped, rather than for the end of the data?"""
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        names = [self.script.symbol(k) for k in kinds if k is not None]
        return all(
            n.startswith("tensorflow.")
            or n
            in ("builtins.KeyboardInterrupt", "builtins.SystemExit", "builtins.Exception", "builtins.BaseException")
            for n in names
        )

    def _follows(self, use: ast.Name) -> bool:
        """Does the feed dict go to another run call, after this one and in the same turn of the loop?"""
        call = self.script.parents.get(use)
        if isinstance(call, ast.keyword):
            call = self.script.parents.get(call)
        return (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in ("run", "eval")
            and self._same_block()
            and _position(call) > _position(self.run.call)
            and _innermost(self.script, call) is self.inner
            and not self.drains
        )

    # -- the slice -------------------------------------------------------------------------------------------------

    def _slice(self, values: list[ast.expr]) -> None:
        self.kept, self.frames, self.needed = self._sliced(values)

    def _sliced(
        self, values: list[ast.expr], control: bool = True
    ) -> tuple[set[ast.stmt], set[ast.stmt], dict[str, ast.AST]]:
        """The statements that values depend on: those that bind or change what they read, and so on."""
        kept: set[ast.stmt] = set()
        frames: set[ast.stmt] = set()
        needed = dict(facts_of(self.script, *values).reads)

        def enter(statement: ast.stmt) -> None:
            for block in [statement, *self.script.enclosing(statement, ast.stmt)]:
                if isinstance(block, _COMPOUND) and block not in frames and isinstance(block, ast.stmt):
                    if isinstance(block, ast.With) and block in self.blocks:
                        continue  # a `with` around the run call: it is entered by the loop itself
                    frames.add(block)
                    if not self._is_endless(block):
                        for path, node in self.facts[block].reads.items():
                            needed.setdefault(path, node)
                if block is self.outer:
                    return

        if control:
            enter(self.step)
        skip = {self.step, self.run.holder}
        while True:
            size = len(kept) + len(frames)
            for statement in [self.outer, *self.statements]:
                if statement in kept or statement in skip or (statement in frames and isinstance(statement, _COMPOUND)):
                    continue
                facts = self.facts[statement]
                if any(meets(p, q) for p in facts.binds for q in needed) or any(
                    touches(p, q) for p in facts.changes for q in needed
                ):
                    if isinstance(statement, _COMPOUND):
                        if control or statement is not self.outer:
                            enter(statement)
                        else:
                            frames.add(statement)
                            needed.update(facts.reads)
                    else:
                        kept.add(statement)
                        needed.update({p: n for p, n in facts.reads.items() if p not in needed})
                        if control:
                            enter(statement)
                elif control and isinstance(statement, ast.Break | ast.Continue) and self._decides(statement, kept):
                    kept.add(statement)
                    enter(statement)
            if size == len(kept) + len(frames):
                return kept, frames, needed

    def _is_endless(self, statement: ast.AST) -> bool:
        """Is it the outermost loop, and may the generator go on until the loop stops asking?"""
        if statement is not self.outer:
            return False
        return self.endless if isinstance(statement, ast.For) else not self._is_plain(statement)

    def _is_plain(self, loop: ast.stmt) -> bool:
        """A `while` whose condition does not depend on results: it can be repeated as it is."""
        assert isinstance(loop, ast.While)
        facts = self.facts[loop]
        if facts.graph or facts.unseen or facts.reader or facts.changes:
            return False
        return not any(meets(p, q) for p in self._results() for q in facts.reads)

    def _results(self) -> set[str]:
        """What is bound in the loop from what the graph gives, directly or not."""
        found = set(self.facts[self.step].binds)
        while True:
            size = len(found)
            for statement in self.statements:
                facts = self.facts[statement]
                if facts.graph is not None or any(meets(p, q) for p in found for q in facts.reads):
                    found |= {*facts.binds, *facts.changes} - {NUMPY_DRAWS, MAY_DRAW, PYTHON_DRAWS}
            if size == len(found):
                return found

    def _decides(self, statement: ast.stmt, kept: set[ast.stmt]) -> bool:
        """Does a `break` or `continue` decide whether a batch is made, or what comes after it?"""
        loop = next(self.script.enclosing(statement, *LOOPS))
        if loop not in self.blocks:
            return any(s in kept for s in _inside(loop))  # of a loop that prepares the batch
        before = _position(statement) < _position(self.step)
        if isinstance(statement, ast.Break):
            return before or loop is not self.outer
        after = [s for s in kept if loop in self.script.enclosing(s, *LOOPS) and _position(s) > _position(statement)]
        return before or bool(after)

    # -- what cannot be moved --------------------------------------------------------------------------------------

    def _check_moved(self, result: Plan) -> None:
        script = self.script
        moved = Facts()
        for statement in [*self.kept, *self.frames]:
            facts = self.facts[statement]
            if self._is_endless(statement):
                continue
            self._check_statement(statement, facts)
            moved.add(facts)
            around = [s for s in script.enclosing(statement, *LOOPS)]
            if self.inner in around or (self.drains and statement is self.outer):
                around = [*around, self.inner]
                result.cost += facts.cost.inside(around.index(self.inner))
        back = self.facts[self.step].binds
        results = self._results()
        for path, node in self.needed.items():
            if any(meets(path, p) for p in back) or any(meets(path, p) for p in results):
                raise Stays(
                    self.run.call,
                    f"`{_shown(path)}`, which the next batch needs, comes from the step before ({script.at(node)})",
                    "such state can be kept in a variable of the graph",
                )
        own = facts_of(script, *(e.value for e in self.batch))
        self._check_statement(self.run.call, own)
        moved.add(own)
        result.cost += own.cost
        result.samples = self._samples()
        result.reader = moved.reader
        self.moved = moved
        self.overwritten = [p for p in moved.overwrites if not self._is_fresh(p)]
        for statement in [*self.kept, *self.frames]:
            for name in ast.walk(statement):
                stored = isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
                if stored and name.id in script.names.scope_of(name).elsewhere:  # type: ignore[attr-defined]
                    what = ast.unparse(name)
                    raise Stays(self.run.call, f"`{what}` is global here ({script.at(name)})")
        names = self._bound()
        for path in moved.inside:
            if any(meets(path, n) for n in names):
                raise Stays(self.run.call, f"a function that prepares the batch uses `{_shown(path)}` of the loop")

    def _is_fresh(self, path: str) -> bool:
        """An array or list that is made anew for every batch."""
        made = [
            s
            for s in self.kept
            if isinstance(s, ast.Assign) and path in self.facts[s].binds and _innermost(self.script, s) is self.inner
        ]
        return bool(made) and all(isinstance(s.value, ast.Call | ast.List | ast.ListComp | ast.Tuple) for s in made)

    def _check_statement(self, statement: ast.AST, facts: Facts) -> None:
        script = self.script
        if facts.graph is not None:
            raise Stays(self.run.call, f"the batch is made with TensorFlow ({script.at(facts.graph)})")
        if facts.shows is not None:
            raise Stays(self.run.call, f"what prepares the batch prints or plots ({script.at(facts.shows)})")
        if facts.unseen is not None:
            what = script.text(facts.unseen.func) if isinstance(facts.unseen, ast.Call) else "a call"
            raise Stays(
                self.run.call,
                f"what `{what}` does cannot be seen, and it prepares the batch ({script.at(facts.unseen)})",
            )
        if isinstance(statement, ast.Return | ast.Raise | ast.Assert | ast.Import | ast.ImportFrom):
            raise Stays(self.run.call, f"what prepares the batch may end the loop ({script.at(statement)})")

    def _samples(self) -> int:
        """The size of a batch, from the constants that are called so."""
        for node in [self.outer, *self.kept]:
            for name in ast.walk(node):
                if isinstance(name, ast.Name | ast.Attribute):
                    text = (name.id if isinstance(name, ast.Name) else name.attr).lower()
                    size = self.script.integer(name) if "batch" in text or text in ("bs", "b", "n_batch") else None
                    if size is not None and 0 < size <= 65536:
                        return size
        return 64

    def _replayable(self, statement: ast.stmt) -> bool:
        """May a statement be done twice, here and in the generator, each with variables of its own?"""
        facts = self.facts[statement]
        if facts.graph or facts.shows or facts.unseen or facts.reader or facts.changes or _works(facts):
            return False
        if isinstance(statement, ast.Break | ast.Continue | ast.Pass):
            return True
        if isinstance(statement, ast.AugAssign):
            return isinstance(statement.target, ast.Name)
        return isinstance(statement, ast.Assign) and not any(
            isinstance(n, ast.Subscript | ast.Attribute) and isinstance(n.ctx, ast.Store) for n in ast.walk(statement)
        )

    # -- what goes from the loop -----------------------------------------------------------------------------------

    def _remove(self, result: Plan) -> None:
        """The moved statements leave the loop, but for those that it needs as well and that can be done twice."""
        script = self.script
        removed = {s for s in self.kept if not isinstance(s, ast.Break | ast.Continue)}
        fetched: list[Entry] = []
        again: list[ast.AST] = []  # the uses of what is fetched
        while True:
            again.clear()
            staying = self._staying(removed)
            reads: list[tuple[str, ast.AST]] = [
                (p, n) for s in staying if not (self.drains and s is self.outer) for p, n in self.facts[s].reads.items()
            ]
            own_feed = self._kept()
            reads += list(facts_of(script, *own_feed).reads.items())
            twice = None
            for statement in sorted(removed, key=_position):
                facts = self.facts[statement]
                same = self._keeps_length(statement)
                uses = [n for p, n in reads for b in facts.binds if meets(b, p) and not (same and p.endswith(".size"))]
                uses = [n for n in uses if self._may_come_from(n, statement)]
                uses += [n for p, n in reads for c in facts.changes if touches(c, p)]
                uses += self._outside(statement)
                if (length := self._length_of(statement)) is not None:
                    own = {p for p in facts.binds}
                    sizes = [n for n in uses if isinstance(n, ast.Call) and self.script.called(n) == "builtins.len"]
                    if own and len(sizes) == len(uses):
                        result.lengths.update(dict.fromkeys(sizes, length))
                        continue
                if not uses:
                    continue
                if not self._cheap_to_repeat(statement) and (back := self._given_back(statement, uses)) is not None:
                    fetched += [e for e in back if e not in fetched]
                    again += uses
                    continue
                twice = statement
                break
            if twice is None:
                break
            if not self._replayable(twice):
                facts = self.facts[twice]
                use = uses[0]
                if isinstance(use, ast.Name) and self._feeds(use):
                    raise Stays(self.run.call, f"one batch is used by two `run` calls ({script.at(use)})", TWICE)
                name = next(
                    (p for p in [*facts.binds, *facts.changes] if self._mentions(use, p)), "what it is made from"
                )
                raise Stays(self.run.call, f"`{_shown(name)}` is also used besides feeding it ({script.at(use)})")
            removed.discard(twice)
        result.removed = self._whole(removed)
        self.staying = self._staying(removed)
        result.fetched = [e for e in self.batch if e in fetched]
        if fetched and not self.reused:
            result.shown = self._shown_in(again)
        if self.reused:
            if not all(isinstance(e.value, ast.Name) for e in self.batch):
                raise Stays(self.run.call, "one batch is used by two `run` calls", TWICE)
            result.fetched = list(self.batch)
            return
        if self.run.holder is not None and result.entries and len(result.entries) == len(self.run.feed.keys):
            result.removed.append(self.run.holder)

    def _cheap_to_repeat(self, statement: ast.stmt, seen: frozenset[ast.stmt] = frozenset()) -> bool:
        """May it be done twice, and all that it is made from?"""
        if statement in seen:
            return True
        reads = self.facts[statement].reads
        makers = [
            s for s in self.kept if s is not statement and any(meets(p, q) for p in self.facts[s].binds for q in reads)
        ]
        return self._replayable(statement) and all(self._cheap_to_repeat(s, seen | {statement}) for s in makers)

    def _may_come_from(self, use: ast.AST, statement: ast.stmt) -> bool:
        """May a name have the value that it is given in this statement, and not a later one?"""
        while isinstance(use, ast.Attribute):
            use = use.value
        if not isinstance(use, ast.Name) or not isinstance(use.ctx, ast.Load):
            return True
        reaching = self.script.names.reaching(use)
        return not reaching or any(self.script.statement(b.node) is statement for b in reaching)

    def _length_of(self, statement: ast.stmt) -> str | None:
        """`len(x)` of `order = np.random.permutation(len(x))`: how the loop can say `len(order)` without it."""
        match statement:
            case ast.Assign(targets=[ast.Name()], value=ast.Call(func=ast.Attribute(attr="permutation"), args=[size])):
                called = self.script.called(size) if isinstance(size, ast.Call) else ""
                shape = isinstance(size, ast.Subscript) and isinstance(size.value, ast.Attribute)
                if (
                    called == "builtins.len"
                    or self.script.integer(size) is not None
                    or (shape and size.value.attr == "shape")  # type: ignore[attr-defined]
                ):
                    facts = facts_of(self.script, size)
                    if not any(meets(p, q) for p in facts.reads for q in self._bound()):
                        return self._value(size)
        return None

    def _mentions(self, use: ast.AST, path: str) -> bool:
        last = _shown(path).split(".")[-1]
        return any(
            (isinstance(n, ast.Name) and n.id == last) or (isinstance(n, ast.Attribute) and n.attr == last)
            for n in ast.walk(use)
        )

    def _keeps_length(self, statement: ast.stmt) -> bool:
        """`X, Y = shuffle(X, Y)`, `X = X[np.random.permutation(len(X))]`: other rows in front, as many as before."""
        script = self.script
        if not isinstance(statement, ast.Assign):
            return False
        if isinstance(statement.value, ast.Call):
            return script.called(statement.value).startswith("sklearn.utils") and "shuffle" in script.called(
                statement.value
            )
        (target,) = statement.targets[:1]
        pairs = (
            list(zip(target.elts, statement.value.elts, strict=False))
            if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple)
            else [(target, statement.value)]
        )
        return all(
            isinstance(value, ast.Subscript)
            and ast.unparse(value.value) == ast.unparse(name)
            and self._permutes(value.slice)
            for name, value in pairs
        )

    def _permutes(self, index: ast.expr) -> bool:
        if isinstance(index, ast.Call):
            return self.script.called(index) == "numpy.random.permutation"
        if not isinstance(index, ast.Name):
            return False
        found = self.script.names.reaching(index)
        return bool(found) and all(
            b.kind == "assign" and not b.path and isinstance(b.value, ast.Call) and self._permutes(b.value)
            for b in found
        )

    def _staying(self, removed: set[ast.stmt]) -> list[ast.stmt]:
        gone = set(self._whole(removed))
        under = {s for g in gone for s in _inside(g)}
        return [s for s in [self.outer, *self.statements] if s not in under and s not in gone]

    def _whole(self, removed: set[ast.stmt]) -> list[ast.stmt]:
        """A compound statement goes where all in it does."""
        found: list[ast.stmt] = []
        for statement in [self.outer, *self.statements]:
            goes = statement in removed or self._is_emptied(statement, removed)
            if goes and not any(f in found for f in self.script.enclosing(statement, ast.stmt)):
                found.append(statement)
        return found

    def _is_emptied(self, block: ast.stmt, removed: set[ast.stmt]) -> bool:
        if not isinstance(block, _COMPOUND) or block in self.blocks:
            return False
        inside = list(_inside(block))
        leaves = [s for s in inside if isinstance(s, ast.Break | ast.Continue)]
        return (
            any(s in removed for s in inside)
            and all(s in removed or isinstance(s, _EMPTY) for s in inside)
            and not any(_innermost(self.script, s) in self.blocks for s in leaves)
        )

    def _outside(self, statement: ast.stmt) -> list[ast.AST]:
        """Uses, outside of the loop, of what a statement of it binds."""
        script, inside = self.script, set(_inside(self.outer)) | {self.outer}
        found: list[ast.AST] = []
        for target in ast.walk(statement):
            if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store):
                scope = script.names.scope_of(target)
                owner = scope.elsewhere.get(target.id, scope)
                for binding in owner.bindings.get(target.id, ()):
                    if binding.node is target:
                        found += [
                            n
                            for n in script.names.loads(binding)
                            if script.statement(n) not in inside and not self._in_header(n)
                        ]
        return found

    def _kept(self) -> list[ast.expr]:
        """The values that the call goes on being fed, also for tensors that are no placeholders themselves."""
        return [v for v in self.run.feed.values if all(v is not e.value for e in self.batch)]

    def _in_header(self, node: ast.AST) -> bool:
        return any(n is node for n in ast.walk(self.outer))

    def _feeds(self, node: ast.AST) -> bool:
        """Does a name stand in the feed dict of another run call?"""
        parent = self.script.parents.get(node)
        return isinstance(parent, ast.Dict) and node in parent.values

    def _given_back(self, statement: ast.stmt, uses: list[ast.AST]) -> list[Entry] | None:
        """The entries of a statement's names that the run call can give back, as all uses follow it and allow that."""
        names = {p for p in self.facts[statement].binds}
        if self.facts[statement].changes.keys() - {NUMPY_DRAWS, PYTHON_DRAWS, MAY_DRAW} - self._opaque(statement):
            return None
        entries: list[Entry] = []
        for use in uses:
            sized = isinstance(use, ast.Call) and len(use.args) == 1 and self.script.called(use) == "builtins.len"
            if sized:
                use = use.args[0]  # type: ignore[attr-defined]
            elif isinstance(use, ast.Attribute) and use.attr == "shape":
                use, sized = use.value, True
            if not isinstance(use, ast.Name) or use.id not in {n.split("::")[-1] for n in names}:
                return None
            entry = next((e for e in self.batch if isinstance(e.value, ast.Name) and e.value.id == use.id), None)
            parent = self.script.parents.get(use)
            again = (
                isinstance(parent, ast.Dict)
                and use in parent.values
                and (key := parent.keys[parent.values.index(use)]) is not None
                and entry is not None
                and placeholder_of(self.script, key) is entry.placeholder
            )
            if entry is None or not (again or sized):
                return None
            around_use = self.script.statement(use)
            if around_use not in self.statements or self.inner not in self.script.enclosing(around_use, *LOOPS):
                return None
            if _position(around_use) < _position(self.step) or not self._same_block():
                return None
            if _innermost(self.script, around_use) is not self.inner:
                return None
            entries.append(entry)
        return entries

    def _shown_in(self, uses: list[ast.AST]) -> ast.If | None:
        """The `if step % 100 == 0:` directly after the step that has all these uses in it."""
        script = self.script
        body = script.parents[self.step].body  # type: ignore[attr-defined]
        place = body.index(self.step) + 1
        shown = body[place] if place < len(body) else None
        if (
            not isinstance(shown, ast.If)
            or shown.orelse
            or shown.body[0].lineno == shown.lineno
            or any(
                isinstance(n, ast.Constant | ast.JoinedStr) and n.end_lineno != n.lineno for n in ast.walk(shown)
            )  # which another indentation would change
            or not {script.statement(u) for u in uses} <= set(_inside(shown))
        ):
            return None
        facts, own = self.facts[shown], self.facts[self.step].binds
        if facts.graph or facts.unseen or facts.reader or facts.shows or facts.changes:
            return None  # the condition is looked at before the step
        return None if any(meets(p, q) for p in [*own, *self._results()] for q in facts.reads) else shown

    def _opaque(self, statement: ast.stmt) -> set[str]:
        """What a statement changes apart from its own names: the reader that it takes the batch from."""
        return {p for p in self.facts[statement].changes if p not in self.facts[statement].binds}

    def _same_block(self) -> bool:
        """The run call is done in every step: directly in the body of the loop."""
        return self.script.parents.get(self.step) in (self.inner, *(b for b in self.blocks if isinstance(b, ast.With)))

    # -- what else uses the same state -----------------------------------------------------------------------------

    def _check_shared(self, result: Plan) -> None:
        """The generator runs ahead: nothing in the loop may see or disturb what it changes."""
        script = self.script
        feed = Facts()
        feed.add(facts_of(script, *self._kept()))
        for statement in self.staying:
            if not (self.drains and statement is self.outer):
                feed.add(self.facts[statement])
        for change in self.moved.changes:
            draws = {NUMPY_DRAWS, MAY_DRAW} if change in (NUMPY_DRAWS, MAY_DRAW) else {change}
            if change in (NUMPY_DRAWS, MAY_DRAW, PYTHON_DRAWS):
                other = next((feed.changes[d] for d in feed.changes if d in draws and d != MAY_DRAW), None)
                if other is not None:
                    what = "Python's" if change == PYTHON_DRAWS else "NumPy's"
                    raise Stays(
                        self.run.call,
                        f"the batch and other code of the loop ({script.at(other)}) draw from {what} random numbers: "
                        "they would be drawn in another order",
                    )
                continue
            for path, other in [*feed.reads.items(), *feed.changes.items()]:
                if change == path == CLOCK:
                    where = script.at(other)
                    raise Stays(
                        self.run.call,
                        f"what the loop looks at ({where}) may be something else where batches are prepared ahead",
                    )
                if touches(change, path):
                    raise Stays(
                        self.run.call,
                        f"`{_shown(path)}` is used in the loop ({script.at(other)}) while batches are taken from it",
                    )
        for path, node in feed.changes.items():
            if any(touches(path, p) for p in self.needed):
                raise Stays(
                    self.run.call, f"`{_shown(path)}`, which the batch is made from, is changed ({script.at(node)})"
                )

    def _check_endless(self, result: Plan) -> None:
        """Nothing may depend on the turn that the loop is in."""
        if not isinstance(self.outer, ast.For):
            raise Stays(self.run.call, "the loop has an end of its own")
        for name in ast.walk(self.outer.target):
            if isinstance(name, ast.Name):
                path = path_of(self.script, name)
                if any(meets(path, p) for p in self.needed):
                    raise Stays(self.run.call, f"the batch depends on `{name.id}`")
        result.endless = True
        result.goes_on = self.outer is self.inner

    def _check_drained(self, result: Plan) -> None:
        """The loop can run until the pipeline has no more: the run call comes first, and its variables go."""
        script, loop = self.script, self.outer
        assert isinstance(loop, ast.For)
        result.drained = loop
        rest = [s for s in loop.body if s not in result.removed]
        if not rest or rest[0] is not self.step:
            raise Stays(self.run.call, f"the loop does something before the step ({script.at(rest[0])})", DRAINS)
        if (
            not isinstance(self.run.call.func, ast.Attribute)
            or self.run.call.func.attr != "run"
            or (
                not any(
                    v.name == "tensorflow.Session" or v.name == "tensorflow.InteractiveSession"
                    for v in script.values(self.run.call.func.value)
                )
            )
        ):
            raise Stays(self.run.call, f"the loop takes its batches from an iterator ({script.at(loop)})", DRAINS)
        made = all(  # for this very loop
            isinstance(n, ast.Call) and all(v.kind == "generator" for v in script.values(n))
            for n in _iterated(script, loop.iter)
        )
        if not made and (early := self._early_ends()):
            raise Stays(
                self.run.call,
                f"`{script.text(loop.iter)}` would be further than the loop when that ends ({script.at(early[0])})",
                DRAINS,
            )
        names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
        for statement in self.staying:
            for path, node in self.facts[statement].reads.items() if statement is not loop else ():
                if _shown(path).split(".")[0] in names:
                    raise Stays(self.run.call, f"`{_shown(path)}` is also used besides feeding it ({script.at(node)})")
        for node in self._outside(ast.Assign([loop.target], loop.iter)):
            raise Stays(self.run.call, f"`{ast.unparse(node)}` is used after the loop ({script.at(node)})")

    def _check_header(self, loop: ast.For) -> None:
        """A loop that is done twice must give the same items twice."""
        if loop not in self.blocks or self.drains:
            return
        facts = self.facts[loop]
        iterated = facts_of(self.script, loop.iter)
        if iterated.cost.passes or iterated.cost.sample:
            raise Stays(self.run.call, f"going through the loop twice costs too much ({self.script.at(loop)})", DRAINS)
        if facts.changes or facts.reader or facts.unseen:
            raise Stays(self.run.call, f"the loop takes its batches from an iterator ({self.script.at(loop)})", DRAINS)
        for name in ast.walk(loop.iter):
            if not isinstance(name, ast.Name | ast.Attribute | ast.Call):
                continue
            for value in self.script.values(name):
                if (
                    value.kind == "generator"
                    or (value.kind == "symbol" and value.name in _ITERATORS)
                    or (not isinstance(name, ast.Call) and self._is_iterator(value))
                ):
                    raise Stays(
                        self.run.call,
                        f"the loop takes its batches from an iterator ({self.script.at(loop)})",
                        DRAINS,
                    )
                named = isinstance(name, ast.Name) or name in _iterated(self.script, loop.iter)
                if named and value.kind in ("unknown", "parameter") and not self._indexed(name):
                    raise Stays(
                        self.run.call,
                        f"`{ast.unparse(name)}` may be an iterator, which gives its items only once "
                        f"({self.script.at(loop)})",
                        DRAINS,
                    )

    def _is_iterator(self, value: Value) -> bool:
        """Something with a name that gives its items only once: `pairs = zip(a, b)`."""
        if isinstance(value.node, ast.GeneratorExp):
            return True
        called = value.script.called(value.node) if value.script and isinstance(value.node, ast.Call) else ""
        return called in _ITERATORS or called in _ONCE or called.startswith("itertools.")

    def _indexed(self, name: ast.expr) -> bool:
        """Something that is a sequence elsewhere, or one of the functions that make one."""
        if not isinstance(name, ast.Name | ast.Attribute):
            return False
        for mention in self.script.mentions(name.id if isinstance(name, ast.Name) else name.attr):
            parent = self.script.parents.get(mention)
            if isinstance(parent, ast.Subscript) and parent.value is mention:
                return True
            if isinstance(parent, ast.Attribute) and parent.attr in ("shape", "size", "append"):
                return True
            if isinstance(parent, ast.Call) and mention in parent.args:
                called = self.script.called(parent)
                if called in ("builtins.len", "numpy.random.shuffle", "random.shuffle", "builtins.range"):
                    return True
        values = self.script.values(name)
        return isinstance(name, ast.Name) and all(
            isinstance(v.node, ast.arg | ast.Name) and _is_counter(self.script, name) for v in values
        )

    def _check_ends(self, result: Plan) -> None:
        """Where the loop may end early, nothing may come after it that sees how far the generator ran ahead."""
        script = self.script
        shared = {c for c in self.moved.changes if not any(meets(c, b) for b in self._bound())}
        if not shared:
            return
        early = self._early_ends()
        late = [s for s in self.kept if _position(s) > _position(self.step) and {*self.facts[s].changes} & shared]
        unbounded = self._is_endless(self.outer)
        if not (early or late or unbounded):
            return
        after = Facts()
        function = script.function_of(self.outer)
        for statement in _after(script, self.outer):
            owner = script if statement in script.parents else script.project.owner(statement)
            walk = Walk(owner, seen=frozenset({function} if function is not None else ()))
            walk.visit(statement)
            after.add(walk.facts)
        if self.drains and (
            next(script.enclosing(self.outer, *LOOPS), None) is not None
            or (isinstance(function, ast.FunctionDef) and len(script.project.calls_of(function, script)) != 1)
        ):
            after.add(self.moved)  # the loop itself comes again
        for change in shared:
            draws = change in (NUMPY_DRAWS, MAY_DRAW)
            for path, node in [*after.reads.items(), *after.changes.items()]:
                if (path == NUMPY_DRAWS) if draws else touches(change, path):
                    what = "random numbers" if draws else f"`{_shown(path)}`"
                    raise Stays(
                        self.run.call,
                        f"{what} would have been used further than the loop got when they are used after it "
                        f"({script.at(node)})",
                    )

    def _bound(self) -> set[str]:
        return {p for s in [*self.kept, *self.frames] if not self._is_endless(s) for p in self.facts[s].binds}

    # -- the generator ---------------------------------------------------------------------------------------------

    def _written(self, result: Plan) -> list[str]:
        start, rebound = self._start(result)
        result.rebound = rebound
        result.goes_on = result.goes_on and not start and not rebound
        lines = [line for statement in start for line in self._simple(statement, 0, comments=False)]
        lines += self._block([self.outer], 0, result)
        return lines

    def _start(self, result: Plan) -> tuple[list[ast.stmt], list[str]]:
        """What the loop's variables are before it: assignments to repeat, and names to rebind where they are."""
        script, names = self.script, self.script.names
        inside = {self.outer, *self.statements}
        start: dict[ast.stmt, None] = {}
        rebound: dict[str, None] = {}
        result.uses = []
        bound = {p.split("::")[-1] for p in self._bound()}
        nodes: list[ast.AST] = [*self.kept, *(e.value for e in self.batch)]
        for frame in self.frames:
            if self._is_endless(frame):
                continue
            nodes += [getattr(frame, "iter", None) or getattr(frame, "test", None) or ast.Pass()]
        for node in nodes:
            for name in ast.walk(node):
                if not isinstance(name, ast.Name):
                    continue
                if name.id not in bound:
                    if names.reaching(name) and not all(
                        script.statement(b.node) in inside for b in names.reaching(name)
                    ):
                        result.uses.append(name)
                    continue
                if isinstance(name.ctx, ast.Store) and not isinstance(script.parents.get(name), ast.AugAssign):
                    continue
                reaching = names.reaching(name)
                if isinstance(name.ctx, ast.Store):
                    reaching = self._before(name)
                for binding in reaching:
                    statement = script.statement(binding.node)
                    if statement in inside:
                        continue
                    if binding.kind == "assign" and self._repeats(statement):
                        start[statement] = None
                    else:
                        rebound[name.id] = None
        for statement in list(start):  # what it starts with is one of several: it has to be looked up
            stored = [n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
            others = [s for s in start if s is not statement and _stores(s, stored)]
            if others or any(n in rebound for n in stored):
                del start[statement]
                rebound.update({n: None for n in stored if n in bound})
        return sorted(start, key=_position), list(rebound)

    def _check_rebound(self, result: Plan) -> None:
        """A variable of the script that the generator goes on with: the loop may not set it as well."""
        given = {n.id for e in result.fetched for n in ast.walk(e.value) if isinstance(n, ast.Name)}
        for name in result.rebound:
            if name in given:
                raise Stays(self.run.call, f"`{name}` has a value before the loop", TWICE)
            for statement in self.staying:
                facts = self.facts[statement]
                for path, node in [*facts.binds.items(), *facts.changes.items()]:
                    if _shown(path).split(".")[0] == name:
                        raise Stays(
                            self.run.call,
                            f"`{name}`, from which the batches start, is also used in the loop "
                            f"({self.script.at(node)})",
                        )
        ends = [self.outer] if self._is_endless(self.outer) else self._early_ends()
        if result.rebound and ends:
            raise Stays(
                self.run.call,
                f"`{result.rebound[0]}` would be further than the loop when that ends ({self.script.at(ends[0])})",
            )

    def _early_ends(self) -> list[ast.stmt]:
        """Where a loop around the step may end before its time, as the generator does not."""
        return [
            s
            for s in self.statements
            if isinstance(s, ast.Break | ast.Return)
            and s not in self.kept
            and (isinstance(s, ast.Return) or next(self.script.enclosing(s, *LOOPS)) in self.blocks)
        ]

    def _before(self, name: ast.Name) -> tuple[Binding, ...]:
        scope = self.script.names.scope_of(name)
        end = (self.outer.end_lineno or self.outer.lineno, 0)
        return tuple(b for b in scope.bindings.get(name.id, ()) if b.node is not name and _position(b.node) <= end)

    def _repeats(self, statement: ast.stmt) -> bool:
        """A plain assignment before the loop in the same block, such as `step = 1`."""
        if (
            not isinstance(statement, ast.Assign)
            or self.script.parents[statement] is not self.script.parents[self.outer]
        ):
            return False
        facts = facts_of(self.script, statement)
        return (
            _position(statement) < _position(self.outer)
            and all(isinstance(t, ast.Name | ast.Tuple) for t in statement.targets)
            and not (facts.changes or facts.graph or facts.unseen or facts.reader or _works(facts))
            and not any(isinstance(n, ast.Call | ast.List | ast.Dict | ast.Set) for n in ast.walk(statement.value))
            and not any(isinstance(n, ast.comprehension) for n in ast.walk(statement.value))
            and all(self._is_settled(n) for n in ast.walk(statement.value) if isinstance(n, ast.Name))
            and not any(meets(p, q) for p in facts.reads for q in self._bound())
        )

    def _is_settled(self, name: ast.Name) -> bool:
        """Is it given one value, so that it still has that when the generator begins?"""
        found = self.script.names.scope_of(name).lookup(name.id)
        return found is None or len(found[1]) == 1

    def _block(self, body: list[ast.stmt], depth: int, result: Plan) -> list[str]:
        lines: list[str] = []
        for statement in body:
            if statement is self.step:
                values = ", ".join(self._yielded(e.value, result) for e in result.entries)
                lines.append(f"{self.unit * depth}yield {values}")
            elif statement in self.kept:
                lines += self._simple(statement, depth, comments=statement in result.removed)
            elif statement in self.frames:
                lines += self._compound(statement, depth, result)
            elif isinstance(statement, ast.With | ast.Try) and any(self.step is s for s in _inside(statement)):
                lines += self._block(statement.body, depth, result)
        return lines

    def _yielded(self, node: ast.expr, result: Plan) -> str:
        text = self._value(node)
        if not (self.overwritten or result.reader) or not self._may_be_overwritten(node):
            return text
        numpy = next(
            (n for n, b in self.script.names.module.bindings.items() if all(x.symbol == "numpy" for x in b)), None
        )
        if numpy is None:
            raise Stays(self.run.call, "an array is filled anew for every batch: the pipeline would need a copy of it")
        return f"{numpy}.array({text})"

    def _may_be_overwritten(self, node: ast.expr, depth: int = 0) -> bool:
        """Is a batch a view of memory that is filled again while the pipeline still holds it?"""
        walk = Walk(self.script)
        match node:
            case ast.BinOp() | ast.UnaryOp() | ast.Compare() | ast.List() | ast.ListComp() | ast.Constant():
                return False
            case ast.Subscript():
                return not walk.picks_rows(node.slice) and self._may_be_overwritten(node.value, depth + 1)
            case ast.Name() if depth < 10:
                if any(meets(q, p) for p in self.overwritten for q in (walk.path(node), *walk.viewed(node))):
                    return True
                moved = {*self.kept, *self.frames}
                inside = [b for b in self.script.names.reaching(node) if self.script.statement(b.node) in moved]
                return any(
                    b.value is None or b.kind == "loop" or self._may_be_overwritten(b.value, depth + 1) for b in inside
                )
            case ast.Attribute():
                return any(meets(walk.path(node), p) for p in self.overwritten)
            case ast.Call():
                name = self.script.called(node)
                if name.startswith("numpy."):
                    views = name.rpartition(".")[2] in VIEWS
                    return views and bool(node.args) and self._may_be_overwritten(node.args[0], depth + 1)
                if isinstance(node.func, ast.Attribute) and node.func.attr in PURE_METHODS:
                    return PURE_METHODS[node.func.attr] is CALL and self._may_be_overwritten(node.func.value, depth + 1)
        return True

    def _value(self, node: ast.expr) -> str:
        text = self.script.source.snippet(node)
        return ast.unparse(node) if "\n" in text else text

    def _compound(self, statement: ast.stmt, depth: int, result: Plan) -> list[str]:
        body = self._block(statement.body, depth + 1, result)  # type: ignore[attr-defined]
        other = self._block(getattr(statement, "orelse", []), depth + 1, result)
        pad = self.unit * depth
        if isinstance(statement, ast.Try):
            raise Stays(
                self.run.call, f"what prepares the batch may fail and be tried again ({self.script.at(statement)})"
            )
        if not body and not other:
            return []
        lines = [pad + self._header(statement), *(body or [pad + self.unit + "pass"])]
        if other:
            if isinstance(statement, LOOPS):
                raise Stays(self.run.call, f"the loop has an `else` ({self.script.at(statement)})")
            lines += [pad + "else:", *other]
        return lines

    def _header(self, statement: ast.stmt) -> str:
        source = self.script.source
        match statement:
            case ast.For() | ast.While() if self._is_endless(statement):
                return "while True:"
            case ast.For():
                return f"for {source.snippet(statement.target)} in {self._value(statement.iter)}:"
            case ast.While():
                return f"while {self._value(statement.test)}:"
            case ast.If():
                return f"if {self._value(statement.test)}:"
            case ast.With():
                items = ", ".join(ast.unparse(i) for i in statement.items)
                return f"with {items}:"
        raise Stays(self.run.call, f"what prepares the batch is not understood ({self.script.at(statement)})")

    def _simple(self, statement: ast.stmt, depth: int, *, comments: bool) -> list[str]:
        """A statement at another depth, with its comments where it moves."""
        source = self.script.source
        if any(
            isinstance(n, ast.Constant | ast.JoinedStr) and n.end_lineno != n.lineno
            for n in ast.walk(statement)
            if isinstance(n, ast.expr) and not (isinstance(n, ast.Constant) and not isinstance(n.value, str | bytes))
        ):
            raise Stays(
                self.run.call, f"what prepares the batch holds a string of several lines ({self.script.at(statement)})"
            )
        pad = self.unit * depth
        first, *rest = source.snippet(statement).split("\n")
        own = " " * statement.col_offset
        lines = [pad + first.rstrip("\r")]
        for line in rest:
            line = line.expandtabs().rstrip("\r")
            lines.append(pad + (line[len(own) :] if line.startswith(own) else line.lstrip()))
        if not comments:
            return lines
        assert statement.end_lineno is not None
        tail = source.lines[statement.end_lineno - 1].encode()[statement.end_col_offset or 0 :].decode().strip()
        if tail.startswith("#"):
            lines[-1] += f"  {tail}"
        above: list[str] = []
        for number in range(statement.lineno - 2, -1, -1):
            text = source.lines[number].strip()
            if not text.startswith("#"):
                break
            above.insert(0, pad + text)
        return [*above, *lines]


#: Where the generator would stand, what the loop is told cannot be seen.
INVISIBLE = "make the generator a function of what it needs, beside the code that builds the graph"
TWICE = "fetch the batch along with the step and feed it to the second call, or merge both into one call"
DRAINS = "an initializable iterator, run down to OutOfRangeError in every epoch, takes its place"

_COMPOUND = (ast.For, ast.While, ast.If, ast.With, ast.Try)
#: Compound statements that are not looked into; `try: ... except*` from Python 3.11 on.
_UNFOLLOWED = (ast.Match, ast.AsyncFor, ast.AsyncWith, *filter(None, [getattr(ast, "TryStar", None)]))
_EMPTY = (*_COMPOUND, ast.Pass, ast.Break, ast.Continue)
_ITERATORS = frozenset("builtins.iter builtins.map builtins.filter builtins.open builtins.next".split())
#: Made anew wherever they are written in a loop's header; with a name of their own they are used up once.
_ONCE = frozenset("builtins.zip builtins.enumerate builtins.reversed tqdm.tqdm".split())


def _works(facts: Facts) -> bool:
    return bool(facts.cost.passes or facts.cost.sample or facts.cost.batch > 10)


def _inside(statement: ast.AST) -> Iterator[ast.stmt]:
    """The statements in a compound one, in order, without those of functions that it defines."""
    for name in ("body", "handlers", "orelse", "finalbody"):
        for part in getattr(statement, name, []):
            if isinstance(part, ast.ExceptHandler):
                yield from _inside(part)
                continue
            yield part
            if not isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from _inside(part)


def _innermost(script: Script, statement: ast.AST) -> ast.AST | None:
    return next(script.enclosing(statement, *LOOPS), None)


def _position(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def _shown(path: str) -> str:
    return path.rpartition("::")[2]


def _stores(statement: ast.stmt, names: list[str]) -> bool:
    return any(isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id in names for n in ast.walk(statement))


def _iterated(script: Script, node: ast.expr) -> list[ast.expr]:
    """What a loop goes through, within `zip` and `enumerate`."""
    if isinstance(node, ast.Call) and script.called(node) in _ONCE:
        return [n for a in node.args for n in _iterated(script, a)]
    return [node]


def _is_counter(script: Script, name: ast.Name) -> bool:
    return all(b.kind == "loop" for b in script.names.reaching(name)) and bool(script.names.reaching(name))


def _after(script: Script, statement: ast.stmt) -> Iterator[ast.stmt]:
    """What is executed after a statement: behind it in its blocks, and behind the calls of its function.

    In a loop, and in a function that is called several times, what stands before it comes after it as well.
    """
    todo: list[tuple[Script, ast.AST]] = [(script, statement)]
    seen: set[ast.AST] = set()
    while todo:
        owner, node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        function = owner.function_of(node)
        calls = owner.project.calls_of(function, owner) if isinstance(function, ast.FunctionDef) else []
        todo += [(s, s.statement(c)) for s, c, _ in calls]
        again = len(calls) > 1
        while (parent := owner.parents.get(node)) is not None:
            again |= isinstance(parent, LOOPS)
            for name in ("body", "orelse", "finalbody"):
                body = getattr(parent, name, None)
                if isinstance(body, list) and any(node is s for s in body):
                    place = next(n for n, s in enumerate(body) if s is node)
                    yield from (s for n, s in enumerate(body) if n > place or (again and n < place))
            if isinstance(parent, ast.FunctionDef | ast.Module):
                break
            node = parent
