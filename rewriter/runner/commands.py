"""`validate` and `tune` behind the command line: progress, output, exit codes."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from ..engine import Options
from ..files import write
from ..requirements import InterpreterError
from . import process, report
from .sandbox import SandboxError
from .validate import Conditions, Progress, Script, Validation, absolute, pair, start_of
from .validate import validate as judge

if TYPE_CHECKING:
    from rich.console import Console

    from .effects import Names


def validate(
    original: Path,
    rewritten: Path,
    args: list[str],
    conditions: Conditions,
    *,
    level: int,
    seeds: int,
    pairs: int,
    format: str,
    page: Path | None,
) -> NoReturn:
    """Both scripts side by side, the verdict on standard output. Raises `typer.Exit` with its code."""
    _check_page(page)
    before, after = pair(original, rewritten, args)
    result = run(before, after, conditions, level=level, seeds=seeds, pairs=pairs)
    result.original, result.rewritten = original, rewritten
    if format == "json":
        sys.stdout.write(json.dumps(report.as_json(result), indent=2) + "\n")
    else:
        show(result)
    if page is not None:
        from .page import write as write_page

        write_page(page, result, original.read_bytes(), rewritten.read_bytes())
    raise typer.Exit(result.exit_code)


def tune(
    script: Path,
    args: list[str],
    rewrite: Callable[[Names | None], tuple[bytes, Names]],
    conditions: Conditions,
    *,
    level: int,
    budget: float,
    out: Path,
    resume: bool,
    format: str,
    page: Path | None,
) -> NoReturn:
    """The script with what pays, written to `out`. Raises `typer.Exit` with its code.

    rewrite: the bytes with exactly the given codemods (None: all of the level), and the codemods that were applied.
    """
    from . import tune as tuning

    gc.enable()
    _check_page(page)
    start = Script(absolute(script), tuple(args))
    _, names = rewrite(None)
    state = out.with_name(out.name + ".tune.jsonl")
    store = tuning.Store(state, tuning.identity(start, names, conditions, level), resume)
    try:
        with share_done() as tell:
            tuner = tuning.Tuner(
                start, names, lambda wanted: rewrite(wanted)[0], conditions, level, budget, store, tell
            )
            found = tuner.tune()
    except KeyboardInterrupt:
        print(f"interrupted: {len(store.runs)} runs are kept in {state}; --resume goes on from there", file=sys.stderr)
        raise typer.Exit(130) from None
    if not found.failure:
        write({out: found.after}, {out: script})
    store.remove()
    if format == "json":
        sys.stdout.write(json.dumps(report.tuning_as_json(found, out), indent=2) + "\n")
    else:
        console = _console()
        for part in report.tuning_as_text(found, out):
            console.print(part)
    if page is not None and found.validation is None:
        print(f"{page} is not written: there is nothing to show", file=sys.stderr)
    elif page is not None and found.validation is not None:
        from .page import write as write_page

        options = Options(level, frozenset(found.kept))
        write_page(page, found.validation, script.read_bytes(), found.after, options)
    raise typer.Exit(found.exit_code)


def run(
    before: Script, after: Script, conditions: Conditions, *, level: int, seeds: int = 3, pairs: int = 5
) -> Validation:
    """A validation whose progress is shown on a terminal."""
    gc.enable()  # the command line has switched it off, for runs of a second
    conditions = replace(conditions, start=start_of(after))
    with progress() as tell:
        return judge(before, after, conditions, level, seeds=seeds, pairs=pairs, progress=tell)


def show(result: Validation, *, stderr: bool = False) -> None:
    """The verdict for people."""
    console = _console(stderr)
    for part in report.as_text(result):
        console.print(part)


def _check_page(page: Path | None) -> None:
    """Told before the work: a page that cannot be written."""
    if page is not None and (page.is_dir() or not page.absolute().parent.is_dir()):
        raise typer.BadParameter(f"{page} cannot be written", param_hint="--report")


def interpreter(python: str | None) -> str:
    """The Python that has TensorFlow; raises `typer.BadParameter`."""
    try:
        return process.interpreter(python)
    except InterpreterError as error:
        raise typer.BadParameter(str(error), param_hint="--python") from None


@contextmanager
def progress() -> Iterator[Progress]:
    """A bar on a terminal, a line for each run elsewhere; both on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text, done, total: print(f"[{done + 1}/{total}] {text}", file=sys.stderr, flush=True)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("")
        yield lambda text, done, total: bar.update(task, description=text, completed=done, total=total)


@contextmanager
def share_done() -> Iterator[Callable[[str, float], None]]:
    """Like `progress`, where it is known which share of the time is spent, not how many runs there will be."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text, share: print(f"[{min(share, 1):4.0%}] {text}", file=sys.stderr, flush=True)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda text, share: bar.update(task, description=text, completed=min(share, 1.0))


@contextmanager
def told() -> Iterator[None]:
    """What cannot be done is told in a line, with exit code 2."""
    try:
        yield
    except SandboxError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        raise typer.Exit(2) from None


def _console(stderr: bool = False) -> Console:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True, stderr=stderr)
    if not console.is_terminal:
        console.width = 160  # nobody's window: nothing is cut
    return console
