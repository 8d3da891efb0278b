"""Plan, merge, apply, read again: until nothing is proposed."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from .codemod import Codemod, Fix, Refusal, registry
from .edits import CallAs, Delete, Edit, Insert, Replace
from .files import shown
from .script import Project, Script
from .source import RELEVANT, Source, SourceError, parse, read
from .target import Target

#: Python frames that following a value through a script may take (the default of 1000 is too few for some).
RECURSION_LIMIT = 4000

#: A rewrite that still proposes something after this many rounds is refused.
MAX_ROUNDS = 5


@dataclass(frozen=True)
class Options:
    """What the user asked for. `select` names exactly the codemods to run, whatever their level."""

    level: int = 2
    select: frozenset[str] | None = None
    ignore: frozenset[str] = frozenset()
    amp_dtype: str | None = None  # None: float16, or bfloat16 where the target is known to be a CPU
    ignored_in: Mapping[Path, frozenset[str]] = field(default_factory=dict, hash=False)  # codemods off in single files
    distribute: str = "none"  # "horovod", ..., or "auto"
    lr_scaling: bool = True  # with the number of workers

    def names(self, codemod: str) -> bool:
        """Whether it is asked for by name, as `tune` does: then also where it seldom pays, or costs unknown memory."""
        return codemod in (self.select or ())

    def codemods(self) -> list[Codemod]:
        """Those that run. What distributes comes first: it takes its places, and the others see to it later."""
        found = [c for c in registry().values() if c.name not in self.ignore and self._runs(c)]
        return sorted(found, key=lambda c: not c.distribute)

    def _runs(self, codemod: Codemod) -> bool:
        if codemod.distribute:
            return self.distribute in (codemod.distribute, "auto")
        return codemod.name in self.select if self.select is not None else codemod.level <= self.level


@dataclass(frozen=True)
class Applied:
    """One fix that was made; `lines` are the first and last line of every place it touched in the original."""

    codemod: str
    line: int
    column: int
    message: str
    hardware: str = "any"
    lines: tuple[tuple[int, int], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refused:
    codemod: str
    line: int
    column: int
    reason: str
    hint: str = ""


@dataclass
class Result:
    """What became of one file. `after` is `before` where nothing changed."""

    path: Path
    before: bytes = b""
    after: bytes = b""
    target: Target | None = None
    applied: list[Applied] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    error: SourceError | None = None

    @property
    def status(self) -> str:
        """ "failed", "changed", "unchanged", or "not-applicable" for a file without TensorFlow."""
        if self.error:
            return "failed"
        if self.after != self.before:
            return "changed"
        return "unchanged" if self.target else "not-applicable"


def rewrite(
    paths: Sequence[Path],
    options: Options,
    target_of: Callable[[Source], Target],
    data: dict[Path, bytes] | None = None,
) -> list[Result]:
    """Rewrite files that belong together: an edit that needs two of them is made in both or in neither.

    Writes nothing. `data` gives the bytes of paths that are not to be read from disk.
    """
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, RECURSION_LIMIT))
    try:
        return _rewrite(paths, options, target_of, data)
    finally:
        sys.setrecursionlimit(limit)


def _rewrite(
    paths: Sequence[Path], options: Options, target_of: Callable[[Source], Target], data: dict[Path, bytes] | None
) -> list[Result]:
    results: dict[Path, Result] = {}
    sources: dict[Path, Source] = {}
    for path in paths:
        result = results[path] = Result(path)
        try:
            result.before = result.after = data[path] if data and path in data else read(path)
            if RELEVANT.search(result.before):
                sources[path] = parse(result.before, path)
        except SourceError as error:
            result.error = error
    for path in paths if sources else ():  # a file without TensorFlow may batch a dataset that it is handed
        if path not in sources and not results[path].error:
            with contextlib.suppress(SourceError):
                sources[path] = parse(results[path].before, path)
    if sources:
        try:
            _settle(sources, results, options, target_of)
        except SourceError as error:
            if len(sources) == 1 or Path(error.path) not in sources:
                for path in sources:
                    results[path] = Result(path, results[path].before, results[path].before, error=error)
            else:  # one file of the group cannot be handled: the others go on without it
                bad = Path(error.path)
                others = [p for p in paths if p != bad]
                again = {r.path: r for r in _rewrite(others, options, target_of, data)}
                results = {
                    p: again.get(p) or Result(p, results[p].before, results[p].before, error=error) for p in paths
                }
    return list(results.values())


def _settle(
    sources: dict[Path, Source], results: dict[Path, Result], options: Options, target_of: Callable[[Source], Target]
) -> None:
    for round_number in range(MAX_ROUNDS + 1):
        project = Project(target_of, options, editable=set(sources))
        scripts = [project.add(source) for source in sources.values()]
        plan = _Plan(project, scripts, options)
        if round_number == 0:
            for script in scripts:
                results[script.path].target = script.target
        for path, refused in plan.refused.items():
            if round_number == 0:
                results[path].refused = refused
        for path, applied in plan.applied.items():
            results[path].applied += applied if round_number == 0 else _in_original(results[path], applied)
        if not plan.edits:
            return
        if round_number == MAX_ROUNDS:
            worst = next(iter(plan.edits))
            raise SourceError(worst.path, "the rewrite does not settle: please report this script")
        for script, edits in plan.edits.items():
            sources[script.path] = _apply(script, edits)
            results[script.path].after = sources[script.path].data


def _in_original(result: Result, applied: list[Applied]) -> list[Applied]:
    """What a later round found in its own input, with the places where that stands in the original."""
    from .diffs import Diff, python_lines

    diff = Diff(result.before, result.after, python_lines)
    return [
        replace(
            a,
            line=(position := diff.position(a.line, a.column))[0],
            column=position[1],
            lines=tuple((diff.origin(first)[0], diff.origin(last)[1]) for first, last in a.lines),
        )
        for a in applied
    ]


def edited(script: Script, edits: Sequence[Edit]) -> Source:
    """What a file becomes by edits, for a codemod that asks what it could do then."""
    from .spelling import spell_out

    spelled: list[Edit] = []
    for edit in edits:
        text, imports = spell_out(script, edit)
        spelled += [*imports, text]
    return _apply(script, list(dict.fromkeys(spelled)))


def _apply(script: Script, edits: list[Edit]) -> Source:
    from .cst import Tree  # LibCST takes a third of a second to import: only when something is to be edited

    tree = Tree(script.source, list(dict.fromkeys(node for edit in edits for node in edit.nodes)))
    data = tree.apply(edits)
    try:
        source = parse(data, script.path)
        compile(data, str(script.path), "exec", dont_inherit=True)
    except (SourceError, SyntaxError, ValueError) as error:
        _check_original(script.source)
        names = ", ".join(sorted({type(e).__name__ for e in edits}))
        raise SourceError(
            script.path,
            f"the rewritten script does not compile ({error}; edits: {names}): "
            "nothing was written, please report this script",
        ) from None
    return source


def _check_original(source: Source) -> None:
    """Some errors show only when a file is compiled, such as a late `from __future__`: they are the script's own."""
    try:
        compile(source.data, str(source.path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise SourceError(source.path, f"does not compile: {error.msg}", error.lineno or 0, error.offset or 0) from None


class _Plan:
    """One round: every codemod's findings, and the edits of those fixes that can be made together."""

    def __init__(self, project: Project, scripts: Iterable[Script], options: Options) -> None:
        self.project, self.options = project, options
        self.edits: dict[Script, list[Edit]] = {}
        self.applied: dict[Path, list[Applied]] = {}
        self.refused: dict[Path, list[Refused]] = {}
        self._claims: dict[tuple[ast.AST, str], Edit] = {}
        self._seen: set[tuple[str, frozenset[Edit]]] = set()
        for script in scripts:
            for codemod in options.codemods():
                try:
                    findings = list(codemod.run(script))
                except RecursionError:
                    raise SourceError(
                        script.path,
                        f"too entangled to be followed by {codemod.name}: please report "
                        f"this script (--ignore {codemod.name} leaves that out)",
                    ) from None
                for finding in findings:
                    if isinstance(finding, Refusal):
                        self._refuse(script, codemod, finding)
                    else:
                        self._take(script, codemod, finding)

    def _refuse(self, script: Script, codemod: Codemod, refusal: Refusal) -> None:
        owner = self.project.owner(refusal.node)
        if self._suppressed(owner, codemod, [refusal.node]):
            return
        node, reason = refusal.node, refusal.reason
        if owner.path not in self.project.editable:  # it is reported where the script gets to that file
            if (place := owner.at(node)) not in reason:
                reason = f"{reason} ({place})"
            owner, node = script, _import_of(script, owner)
        path, position = owner.path, owner.position(node)
        refused = Refused(codemod.name, *position, _from_here(reason, path, position[0]), refusal.hint)
        if refused not in self.refused.setdefault(path, []):
            self.refused[path].append(refused)

    def _take(self, script: Script, codemod: Codemod, fix: Fix) -> None:
        from .spelling import once, spell_out

        owners = {edit.node: self.project.owner(edit.node) for edit in fix.edits}
        key = (codemod.name, frozenset(fix.edits))
        if key in self._seen:
            return
        self._seen.add(key)
        if fix.level and fix.level > self.options.level:
            self._refuse(
                script,
                codemod,
                Refusal(
                    fix.node,
                    f"{fix.message}: changes more than -O{self.options.level} allows",
                    f"-O{fix.level} applies it",
                ),
            )
            return
        foreign = [e for e in fix.edits if owners[e.node].path not in self.project.editable]
        if foreign:
            other = owners[foreign[0].node]
            self._refuse(
                script,
                codemod,
                Refusal(
                    fix.node,
                    f"needs a change in {other.at(foreign[0].node)}",
                    f"tfboost rewrite {shown(script.path)} {shown(other.path)} edits both together",
                ),
            )
            return
        if self._suppressed(self.project.owner(fix.node), codemod, [fix.node]) or any(
            self._suppressed(owners[e.node], codemod, list(e.nodes)) for e in fix.edits
        ):
            return
        spelled: list[tuple[Script, Edit]] = []
        for edit in fix.edits:
            owner = owners[edit.node]
            text, imports = spell_out(owner, edit)
            spelled += [(owner, i) for i in imports] + [(owner, text)]
        spelled = once(spelled)
        if any(self._conflicts(owner, edit) for owner, edit in spelled):
            return  # its place is taken in this round; what is still worth doing is found again in the next
        for owner, edit in spelled:
            if (edit.node, edit.slot) not in self._claims:
                self._claims[edit.node, edit.slot] = edit
                self.edits.setdefault(owner, []).append(edit)
        places: dict[Script, ast.AST] = {}
        for node in (fix.node, *owners):
            owner = self.project.owner(node)
            if owner.path in self.project.editable:
                places.setdefault(owner, node)
        first = next(iter(places), None)
        for owner, node in places.items():
            lines = tuple(sorted({_lines(edit) for other, edit in spelled if other is owner}))
            line, column = owner.position(node)
            message = _from_here(fix.message, owner.path, line)
            notes = tuple(_from_here(note, owner.path, 0) for note in fix.notes) if owner is first else ()
            self.applied.setdefault(owner.path, []).append(
                Applied(codemod.name, line, column, message, codemod.hardware, lines, notes)
            )

    def _conflicts(self, owner: Script, edit: Edit) -> bool:
        taken = self._claims.get((edit.node, edit.slot))
        if taken is not None:
            return taken != edit
        destroys = isinstance(edit, Replace | Delete | CallAs)
        for (node, _), other in self._claims.items():
            if isinstance(other, Replace | Delete | CallAs) and (
                node is edit.node or node in owner.enclosing(edit.node, ast.AST)
            ):
                return True
            if destroys and (node is edit.node or edit.node in owner.enclosing(node, ast.AST)):
                return True
        return False

    def _suppressed(self, owner: Script, codemod: Codemod, nodes: list[ast.AST]) -> bool:
        if codemod.name in self.options.ignored_in.get(owner.path, ()):
            return True
        for node in nodes:
            first = getattr(node, "lineno", 0)
            last = getattr(node, "end_lineno", first)
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.For | ast.While | ast.If | ast.With | ast.Module):
                last = first
            for line in range(first, last + 1):
                names = owner.ignored.get(line, frozenset())
                if names is None or codemod.name in names:
                    return True
        return False


def _import_of(script: Script, other: Script) -> ast.AST:
    """The statement that imports from another file of the project; the file itself where others do."""
    imports = (b for s in script.names.scopes.values() for found in s.bindings.values() for b in found)
    for binding in imports:
        if binding.kind in ("import", "star"):
            found = script.project.resolve(script, binding.symbol)
            if found is not None and found[0] is other:
                return script.statement(binding.node)
    return script.tree


def _from_here(reason: str, path: Path, line: int) -> str:
    """A reason or message as a report on this file and line gives it: places elsewhere keep their file's name."""
    name = shown(path)
    if Path(name).is_absolute():  # what is beside it needs no folder
        reason, name = reason.replace(f"{path.parent}{os.sep}", ""), path.name
    here = rf"(?<![\w./\\-]){re.escape(name)}:(\d+)"
    reason = re.sub(rf" \({here}\)", lambda m: "" if int(m[1]) == line else m[0], reason)
    return re.sub(here, r"line \1", reason)


def _lines(edit: Edit) -> tuple[int, int]:
    """First and last of the lines that an edit changes or stands next to."""
    node = edit.node
    assert isinstance(node, ast.expr | ast.stmt)
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    last = max(getattr(n, "end_lineno", first) for n in edit.nodes)
    if isinstance(edit, Insert):
        return (last, last) if edit.after else (first, first)
    return first, last
