"""The commands of `tfboost`, in Typer. What they do stands in `files`, `work` and `report`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from . import __version__, files, report, work
from .config import AMP_DTYPES, DISTRIBUTE, ConfigError, Configs, Settings, check_distribute, check_names
from .report import FileReport
from .source import SourceError

if TYPE_CHECKING:
    from .codemod import Codemod

app = typer.Typer(
    name="tfboost",
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Rewrite TensorFlow/Keras training scripts to run faster, and explain every change.",
    epilog="Exit codes: 0 done, or nothing to do; 1 `check` found something; "
    "2 a file could not be handled, or the usage is wrong.",
)

Paths = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH...",
        help="Scripts, folders (every *.py below), or - for standard input.",
        show_default=False,
    ),
]
Level = Annotated[
    int | None,
    typer.Option(
        "-O",
        "--level",
        min=1,
        max=3,
        metavar="1|2|3",
        show_default=False,
        help="1: same numbers; 2: same training, lower precision or compiled; "
        "3: other optimizer or batch. [default: 2]",
    ),
]
Select = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME,...", help="Only these codemods, whatever their level.", show_default=False),
]
Ignore = Annotated[list[str] | None, typer.Option(metavar="NAME,...", help="Not these codemods.", show_default=False)]
AmpDtype = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(AMP_DTYPES),
        show_default=False,
        help="Of mixed precision. [default: float16; bfloat16 on a CPU and on Ampere or newer GPUs]",
    ),
]
Distribute = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(DISTRIBUTE),
        show_default=False,
        help="Also make one process many: complete, or not at all. [default: none]",
    ),
]
NoLrScaling = Annotated[
    bool, typer.Option("--no-lr-scaling", help="With --distribute: leave the learning rates as they are.")
]
TargetName = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="tf2.15|tf1.15|keras3|auto",
        show_default=False,
        help="What the script will run on. [default: auto, from --python, requirement files, then the script's idioms]",
    ),
]
Python = Annotated[
    str | None,
    typer.Option(
        metavar="PYTHON",
        help="The interpreter that will run the script: its packages tell the target.",
        show_default=False,
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "-j",
        "--jobs",
        min=1,
        metavar="N",
        help="Worker processes. [default: as many as CPU cores]",
        show_default=False,
    ),
]
ForceExclude = Annotated[
    bool, typer.Option("--force-exclude", help="Leave out what the configuration excludes, also where it is named.")
]
Format = Annotated[str, typer.Option("--format", metavar="text|json", help="Of the report.")]


@app.callback(invoke_without_command=False)
def _tfboost(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Show the version and exit.",
            is_eager=True,
            callback=lambda wanted: _version() if wanted else None,
        ),
    ] = False,
) -> None:
    pass


def _version() -> NoReturn:
    _emit(f"tfboost {__version__}\n")
    raise typer.Exit


@app.command()
def rewrite(
    paths: Paths,
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT",
            show_default=False,
            help="Write the result there: a file for one script, a folder for several.",
        ),
    ] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Change the files themselves.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show the diff and write nothing.")] = False,
    level: Level = None,
    select: Select = None,
    ignore: Ignore = None,
    amp_dtype: AmpDtype = None,
    distribute: Distribute = None,
    no_lr_scaling: NoLrScaling = False,
    target: TargetName = None,
    python: Python = None,
    format: Format = "text",
    jobs: Jobs = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No report, only errors.")] = False,
    validate: Annotated[
        bool, typer.Option("--validate", help="Train the first script before and after; write nothing that fails.")
    ] = False,
    script_args: Annotated[
        str, typer.Option(metavar="'ARGS'", show_default=False, help="For the script, with --validate.")
    ] = "",
    budget: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="With --validate: how long a run trains about.")
    ] = 15.0,
    force_exclude: ForceExclude = False,
) -> None:
    """Write faster scripts, and explain every change and every refusal.

    Without -o and --in-place it shows the diff and the report, and writes nothing.
    """
    if sum((output is not None, in_place, diff)) > 1:
        raise typer.BadParameter("give one of -o, --in-place and --diff")
    stdin = _is_stdin(paths)
    if stdin and in_place:
        raise typer.BadParameter("standard input cannot be changed in place")
    _check_format(format)
    if output == "-" and (len(paths) > 1 or paths[0].is_dir()):
        raise typer.BadParameter("only one script can go to standard output", param_hint="-o")
    to_stdout = output == "-" or (stdin and output is None and not diff)
    out = None if output == "-" else output
    asked = _asked(level, select, ignore, amp_dtype, target, distribute, no_lr_scaling)
    data, reports = _rewritten(paths, asked, python, jobs, out, force_exclude)
    if script_args and not validate:
        raise typer.BadParameter("goes with --validate", param_hint="--script-args")
    if validate and any(one.status == "changed" for one in reports):
        _must_train_the_same(paths[0], reports, script_args, python, _level(level, paths[0]), budget)
    if out is not None:
        _write(data, reports, _places(paths, list(data), out))
    elif in_place:
        _write(data, [r for r in reports if r.status == "changed"], {r.path: r.path for r in reports})
    elif to_stdout:
        for one in reports:
            if one.status != "failed":
                _emit(one.after)
    elif format == "text":
        _emit_diff(reports)
    writes = out is not None or in_place
    _finish(
        reports,
        "rewrite",
        format,
        quiet=quiet,
        preview=not writes and not to_stdout,
        error=to_stdout or (not writes and format == "text"),
    )


@app.command()
def diff(
    paths: Paths,
    level: Level = None,
    select: Select = None,
    ignore: Ignore = None,
    amp_dtype: AmpDtype = None,
    distribute: Distribute = None,
    no_lr_scaling: NoLrScaling = False,
    target: TargetName = None,
    python: Python = None,
    jobs: Jobs = None,
) -> None:
    """Show what `rewrite` would change, as a unified diff that `patch -p0` applies."""
    _is_stdin(paths)
    asked = _asked(level, select, ignore, amp_dtype, target, distribute, no_lr_scaling)
    _, reports = _rewritten(paths, asked, python, jobs)
    _emit_diff(reports)
    _finish(reports, "diff", "text", quiet=True)


@app.command()
def check(
    paths: Paths,
    level: Level = None,
    select: Select = None,
    ignore: Ignore = None,
    amp_dtype: AmpDtype = None,
    distribute: Distribute = None,
    no_lr_scaling: NoLrScaling = False,
    target: TargetName = None,
    python: Python = None,
    format: Format = "text",
    jobs: Jobs = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No summary, only findings and errors.")] = False,
    force_exclude: ForceExclude = False,
) -> None:
    """List what could be faster, and exit with 1 when there is something: for commit hooks and CI."""
    _is_stdin(paths)
    _check_format(format)
    asked = _asked(level, select, ignore, amp_dtype, target, distribute, no_lr_scaling)
    _, reports = _rewritten(paths, asked, python, jobs, force_exclude=force_exclude)
    if format == "text":
        _emit(report.check_lines(reports))
    _finish(reports, "check", format, quiet=quiet, error=format == "text")


Runs = Annotated[int, typer.Option("--pairs", min=0, metavar="N", help="Runs of each script for the speed; 0: none.")]
Budget = Annotated[
    float, typer.Option(min=0.1, metavar="SECONDS", help="How long a run trains about, after its first step.")
]
Steps = Annotated[int, typer.Option(min=0, metavar="N", show_default=False, help="Train so many steps instead.")]
Timeout = Annotated[float, typer.Option(min=1, metavar="SECONDS", help="A run that takes longer is ended.")]
Page = Annotated[
    Path | None, typer.Option("--report", metavar="OUT.html", show_default=False, help="Write the report as a page.")
]
Synthetic = Annotated[
    bool, typer.Option("--synthetic-data", help="Made-up data in place of the well-known sets that are downloaded.")
]
Keep = Annotated[bool, typer.Option("--keep", help="Keep what the runs write, and say where.")]
Isolation = Annotated[
    str,
    typer.Option(
        metavar="auto|namespace|copy",
        help="What keeps the runs from changing files: an overlay of the file system, or a copy of the folder.",
    ),
]


@app.command()
def validate(
    original: Annotated[Path, typer.Argument(metavar="ORIGINAL", show_default=False, help="The script as it was.")],
    rewritten: Annotated[Path, typer.Argument(metavar="REWRITTEN", show_default=False, help="What became of it.")],
    script_args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARGS...]", show_default=False, help="For both scripts."),
    ] = None,
    level: Level = None,
    budget: Budget = 15.0,
    steps: Steps = 0,
    pairs: Runs = 5,
    seeds: Annotated[int, typer.Option(min=2, metavar="N", help="Seeds whose loss curves are compared.")] = 3,
    np: Annotated[
        int, typer.Option(min=1, metavar="N", help="Ranks, workers or replicas of the rewritten script.")
    ] = 1,
    timeout: Timeout = 900.0,
    synthetic_data: Synthetic = False,
    isolation: Isolation = "auto",
    keep: Keep = False,
    python: Python = None,
    format: Format = "text",
    report: Page = None,
) -> None:
    """Train both scripts side by side: the same training, and how much faster?

    Exit codes: 0 same training and not slower, 1 regression, 2 could not be run.
    """
    from .runner import commands as runner
    from .runner.validate import Conditions

    _check_format(format)
    if pairs in (1, 2):
        raise typer.BadParameter("must be 0, or at least 3 for an interval", param_hint="--pairs")
    _check_scripts(original, rewritten)
    with runner.told():
        runner.validate(
            original,
            rewritten,
            script_args or [],
            Conditions(
                runner.interpreter(python),
                budget,
                steps,
                timeout,
                _isolation(isolation),
                keep,
                synthetic_data,
                np,
            ),
            level=_level(level, original),
            seeds=seeds,
            pairs=pairs,
            format=format,
            page=report,
        )


@app.command()
def tune(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", show_default=False, help="It is left as it is.")],
    script_args: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS...]", show_default=False, help="For the script.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="OUT", show_default=False, help="Write the result there. [required]"),
    ] = None,
    level: Level = None,
    select: Select = None,
    ignore: Ignore = None,
    amp_dtype: AmpDtype = None,
    budget: Annotated[float, typer.Option(min=0.5, metavar="MINUTES", help="For everything that is measured.")] = 15.0,
    run_seconds: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How long a run trains about.")] = 6.0,
    steps: Steps = 0,
    timeout: Timeout = 900.0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where an interrupted tuning was.")] = False,
    synthetic_data: Synthetic = False,
    isolation: Isolation = "auto",
    python: Python = None,
    format: Format = "text",
    report: Page = None,
) -> None:
    """Measure every optimization on this machine, and keep those that pay.

    Exit codes: 0 done, 2 the script could not be run.
    """
    from .runner import commands as runner
    from .runner.validate import Conditions

    _check_format(format)
    _check_scripts(script)
    if output is None:
        raise typer.BadParameter("name the file to write", param_hint="-o")
    if output.exists() and output.samefile(script):
        raise typer.BadParameter("would overwrite the script: name another file", param_hint="-o")
    interpreter = runner.interpreter(python)
    asked = _asked(level, select, ignore, amp_dtype, None, "none")
    level = _level(level, script)

    def rewrite_with(names: tuple[str, ...] | None) -> tuple[bytes, tuple[str, ...]]:
        wanted = _all_by_name(asked, level, script)
        if names is not None:
            wanted = replace(asked, select=frozenset(names), ignore=frozenset())
        _, (found,) = _rewritten([script], wanted, interpreter, 1)
        if found.error:
            _fail(str(found.error))
        return found.after, tuple(dict.fromkeys(change.codemod for change in found.applied))

    with runner.told():
        runner.tune(
            script,
            script_args or [],
            rewrite_with,
            Conditions(interpreter, run_seconds, steps, timeout, _isolation(isolation), synthetic=synthetic_data),
            level=level,
            budget=budget,
            out=output,
            resume=resume,
            format=format,
            page=report,
        )


def _must_train_the_same(
    path: Path, reports: Sequence[FileReport], script_args: str, python: str | None, level: int, budget: float
) -> None:
    """Nothing is written where the rewritten files do not pass. Raises `typer.Exit` then."""
    import shlex

    from .runner import commands as runner
    from .runner.validate import Conditions, Script, absolute

    if not path.is_file():
        raise typer.BadParameter("name the script that trains first, then the files it needs", param_hint="--validate")
    script, args = absolute(path), tuple(shlex.split(script_args))
    files = {absolute(one.path): one.after for one in reports if one.status == "changed"}
    ways = {"horovod", "mirrored", "multiworker"}
    several = any(change.codemod in ways for one in reports for change in one.applied)
    conditions = Conditions(runner.interpreter(python), budget, ranks=2 if several else 1)
    with runner.told():
        result = runner.run(Script(script, args), Script(script, args, files), conditions, level=level)
        runner.show(result, stderr=True)
    if result.exit_code:
        _emit("nothing was written\n", error=True)
        raise typer.Exit(result.exit_code)


def _level(given: int | None, script: Path) -> int:
    """The level of the command line, of the configuration, or the usual one."""
    try:
        return given or Configs().of(script).level or 2
    except ConfigError as error:
        _fail(str(error))


def _all_by_name(asked: work.Asked, level: int, script: Path) -> work.Asked:
    """Named codemods are also tried where they seldom pay, as XLA on a CPU: `tune` measures."""
    from .codemod import registry

    settings = Configs().of(script)
    if asked.select is not None or settings.select is not None:
        return asked
    ignored = settings.ignore if asked.ignore is None else asked.ignore
    names = (one.name for one in registry().values() if one.level <= level)
    return replace(asked, select=frozenset(names) - ignored)


def _check_scripts(*paths: Path) -> None:
    from .source import parse

    for path in paths:
        if not path.is_file():
            raise typer.BadParameter(f"{path} is not a file")
        try:
            parse(files.read(path), path)
        except SourceError as error:
            _fail(str(error))


def _isolation(name: str) -> Any:
    if name not in ("auto", "namespace", "copy"):
        raise typer.BadParameter(f"must be auto, namespace or copy, not {name!r}", param_hint="--isolation")
    return name


@app.command("list")
def list_codemods(format: Format = "text") -> None:
    """List the codemods: name, level and what they do."""
    from .codemod import registry

    _check_format(format)
    found = list(registry().values())
    _emit(report.catalogue_json(found) if format == "json" else report.catalogue(found))


@app.command()
def explain(name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)]) -> None:
    """Explain a codemod: what it does, why, when it is not applied, with an example."""
    _emit(report.page(_codemod(name)))


def _codemod(name: str) -> Codemod:
    from .codemod import registry

    _checked([name], "NAME")
    return registry()[name]


# -- options -------------------------------------------------------------------------------------------------


def _is_stdin(paths: Sequence[Path]) -> bool:
    stdin = Path("-") in paths
    if stdin and len(paths) > 1:
        raise typer.BadParameter("- (standard input) stands alone", param_hint="PATH")
    return stdin


def _check_format(format: str) -> None:
    if format not in ("text", "json"):
        raise typer.BadParameter(f"must be text or json, not {format!r}", param_hint="--format")


def _asked(
    level: int | None,
    select: list[str] | None,
    ignore: list[str] | None,
    amp_dtype: str | None,
    target: str | None,
    distribute: str | None = None,
    no_lr_scaling: bool = False,
) -> work.Asked:
    if amp_dtype not in (None, *AMP_DTYPES):
        raise typer.BadParameter(f"must be {' or '.join(AMP_DTYPES)}, not {amp_dtype!r}", param_hint="--amp-dtype")
    if target not in (None, "auto"):
        from .target import named

        try:
            named(str(target))
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--target") from None
    if distribute is not None:
        try:
            check_distribute(distribute)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--distribute") from None
    return work.Asked(
        level,
        _names(select, "--select"),
        _names(ignore, "--ignore"),
        amp_dtype,
        target,
        distribute,
        False if no_lr_scaling else None,
    )


def _names(given: list[str] | None, option: str) -> frozenset[str] | None:
    if not given:
        return None
    names = [name.strip() for part in given for name in part.split(",") if name.strip()]
    _checked(names, option)
    return frozenset(names)


def _checked(names: Sequence[str], option: str) -> None:
    try:
        check_names(names)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


# -- the work ------------------------------------------------------------------------------------------------


def _rewritten(
    paths: Sequence[Path],
    asked: work.Asked,
    python: str | None,
    jobs: int | None,
    out: str | None = None,
    force_exclude: bool = False,
) -> tuple[dict[Path, bytes], list[FileReport]]:
    """The bytes of every file that is meant and can be read, and what became of every file, in order."""
    configs = Configs()
    data: dict[Path, bytes] = {}
    settings: dict[Path, Settings] = {}
    order: dict[Path, SourceError | None] = {}
    try:
        if Path("-") in paths:
            data[files.STDIN] = sys.stdin.buffer.read()
            settings[files.STDIN] = configs.of_folder(str(Path.cwd()))
            order[files.STDIN] = None
        else:
            for path in files.find(paths, _excluded(configs, out), force_exclude):
                order[path] = None
                settings[path] = configs.of(path)
                try:
                    data[path] = files.read(path)
                except SourceError as error:
                    order[path] = error
        if out is not None:
            _places(paths, list(data), out)  # a destination that cannot be is told before the work
        with _interruptible():
            reports = work.rewrite(data, asked, settings, python, jobs or _cores())
    except ConfigError as error:
        _fail(str(error))
    except Exception as error:
        if type(error).__name__ == "InterpreterError":
            raise typer.BadParameter(str(error), param_hint="--python") from None
        raise
    return data, [FileReport(path, "failed", error=error) if error else reports[path] for path, error in order.items()]


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Where nothing is written yet, Ctrl-C ends the process without ado."""
    import signal

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _excluded(configs: Configs, out: str | None) -> Callable[[Path], bool]:
    """What a walk leaves out: what the configuration excludes, and what an earlier run has written."""
    own = os.path.realpath(out) if out is not None else ""
    return lambda path: configs.of(path).excludes(path) or (bool(own) and os.path.realpath(path) == own)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _places(paths: Sequence[Path], found: Sequence[Path], out: str) -> dict[Path, Path]:
    if files.STDIN in found:
        return {files.STDIN: Path(out)}
    try:
        return files.destinations(paths, found, out)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="-o") from None


def _write(data: Mapping[Path, bytes], reports: Sequence[FileReport], places: Mapping[Path, Path]) -> None:
    """Write results where they belong; files with edits that need each other all or none."""
    together: dict[tuple[Path, ...], list[FileReport]] = {}
    for one in reports:
        if one.status != "failed":
            together.setdefault(one.together if one.status == "changed" else (one.path,), []).append(one)
    for members in together.values():
        try:
            for one in members:
                if places[one.path] == one.path and files.read(one.path) != data[one.path]:
                    raise SourceError(one.path, "was changed while it was being rewritten: not written")
            files.write(
                {places[one.path]: one.after for one in members},
                {places[one.path]: one.path for one in members},
            )
        except SourceError as error:
            for one in members:
                one.status, one.error = "failed", error
                if error.path not in (str(one.path), str(places[one.path])):
                    reason = f"not written: it belongs together with {error.path}, which could not be written"
                    one.error = SourceError(one.path, reason)
        else:
            for one in members:
                one.written = places[one.path]


# -- output --------------------------------------------------------------------------------------------------


def _finish(
    reports: Sequence[FileReport],
    command: str,
    format: str,
    *,
    quiet: bool = False,
    preview: bool = True,
    error: bool = False,
) -> NoReturn:
    """Errors and report, then the exit code."""
    for one in reports:
        if one.error:
            _emit(f"{one.error}\n", error=True)
    if format == "json":
        _emit(report.as_json(reports, command), error=error)
    elif not quiet:
        _emit(
            report.check_summary(reports) if command == "check" else report.as_text(reports, preview=preview),
            error=error,
        )
    found = command == "check" and any(one.status == "changed" for one in reports)
    raise typer.Exit(2 if any(one.error for one in reports) else int(found))


def _fail(message: str) -> NoReturn:
    _emit(f"{message}\n", error=True)
    raise typer.Exit(2)


def _emit_diff(reports: Sequence[FileReport]) -> None:
    diff = b"".join(one.diff for one in reports)
    _emit(report.coloured(diff) if diff and _colours() else diff)


def _colours() -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stdout.isatty() and os.environ.get("TERM") != "dumb")


def _emit(text: str | bytes, error: bool = False) -> None:
    """Put text on a stream; nobody may be reading any more, which is no reason to stop working."""
    stream = sys.stderr if error else sys.stdout
    data = text if isinstance(text, bytes) else _encoded(text, stream.encoding or "utf-8")
    try:
        stream.flush()
        stream.buffer.write(data)
        stream.buffer.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _encoded(text: str, encoding: str) -> bytes:
    try:
        return text.encode(encoding, "surrogateescape")
    except UnicodeEncodeError:
        return text.encode(encoding, "backslashreplace")
