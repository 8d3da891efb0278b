"""Rewrite many files: those that belong together by one call of the engine, the rest in worker processes."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .config import check_names, ignored_names
from .files import groups
from .report import FileReport
from .source import Source, SourceError, parse

if TYPE_CHECKING:
    from concurrent.futures import Future
    from multiprocessing.context import BaseContext

    from .config import Settings
    from .detect import Detector
    from .engine import Options
    from .target import Target

#: Below this many bytes of scripts a second process does not pay for its start and its import of LibCST.
WORTH_A_WORKER = 40_000

#: Bytes of scripts after which memory is cleaned up: looking for garbage all the time costs a tenth of it.
CLEAN_UP_AFTER = 500_000


@dataclass(frozen=True)
class Job:
    """Files that are rewritten together, and how."""

    data: dict[Path, bytes]
    options: Options
    detector: Detector

    @property
    def size(self) -> int:
        return sum(map(len, self.data.values()))


@dataclass(frozen=True)
class Asked:
    """What the command line says; None where it leaves the decision to the configuration."""

    level: int | None = None
    select: frozenset[str] | None = None
    ignore: frozenset[str] | None = None
    amp_dtype: str | None = None
    target: str | None = None
    distribute: str | None = None
    lr_scaling: bool | None = None

    def options(self, settings: Settings, paths: Sequence[Path]) -> Options:
        from .engine import Options

        return Options(
            self.level or settings.level or 2,
            settings.select if self.select is None else self.select,
            # the command line wins: what it selects, no configuration takes away
            self.ignore if self.ignore is not None else frozenset() if self.select is not None else settings.ignore,
            self.amp_dtype or settings.amp_dtype,
            {path: names for path in paths if (names := settings.ignored_in(path))},
            self.distribute or settings.distribute or "none",
            self.lr_scaling if self.lr_scaling is not None else settings.lr_scaling is not False,
        )


def rewrite(
    data: Mapping[Path, bytes],
    asked: Asked,
    settings: Mapping[Path, Settings],
    python: str | None,
    workers: int,
) -> dict[Path, FileReport]:
    """The report on each file; writes nothing. May raise `requirements.InterpreterError`."""
    reports = {path: FileReport(path, "not-applicable", after=content) for path, content in data.items()}
    together = groups(data)
    for path in set(data).difference(*together):
        if error := _bad_comment(path, data[path]):
            reports[path] = _failed(path, error)
    if together:
        for report in run(_jobs(together, data, asked, settings, python), workers):
            reports[report.path] = report
    return reports


def _jobs(
    together: list[list[Path]],
    data: Mapping[Path, bytes],
    asked: Asked,
    settings: Mapping[Path, Settings],
    python: str | None,
) -> list[Job]:
    from .detect import Detector

    interpreter = None
    if python is not None:
        from .requirements import of_interpreter

        interpreter = of_interpreter(python)
    jobs = []
    detectors: dict[str, Detector] = {}
    for group in together:
        for one in dict.fromkeys(settings[path] for path in group):
            paths = [path for path in group if settings[path] == one]
            name = asked.target or one.target or "auto"
            detector = detectors.setdefault(name, Detector(name, interpreter))
            jobs.append(Job({path: data[path] for path in paths}, asked.options(one, paths), detector))
    return jobs


def run(jobs: Sequence[Job], workers: int) -> list[FileReport]:
    """The reports on all files of all jobs, in no particular order."""
    workers = min(workers, len(jobs), 1 + sum(job.size for job in jobs) // WORTH_A_WORKER)
    if workers < 2:
        reports = []
        for job in jobs:
            reports += process(job)
            _clean_up(job.size)
        return reports

    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    found: list[FileReport] = []
    unfinished: list[Job] = []
    futures: list[tuple[Job, Future[list[FileReport]]]] = []
    with ProcessPoolExecutor(workers, _context(), _start) as pool:
        for job in sorted(jobs, key=lambda job: -job.size):  # long ones first: none is left over for the end
            try:
                futures.append((job, pool.submit(_process, job)))
            except BrokenProcessPool:
                unfinished.append(job)
        for job, future in futures:
            try:
                found += future.result()
            except BrokenProcessPool:
                unfinished.append(job)
    for job in unfinished:  # a worker died, and nobody knows over which job: each gets a process of its own
        with ProcessPoolExecutor(1, _context(), _start) as pool:
            try:
                found += pool.submit(_process, job).result()
            except BrokenProcessPool:
                message = "the process that worked on it died: out of memory?"
                found += [_failed(path, SourceError(path, message)) for path in job.data]
    return found


def _context() -> BaseContext:
    """Forked workers start in a hundredth of a second; no thread runs here that a fork could tear apart."""
    import multiprocessing

    return multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


def _start() -> None:
    """A worker goes with its parent, and at once on Ctrl-C; what it inherits is never garbage."""
    import signal
    import threading

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_go_with_parent, daemon=True).start()
    gc.freeze()


def _go_with_parent() -> None:
    from multiprocessing import parent_process

    if parent := parent_process():
        parent.join()
    os._exit(1)


def _process(job: Job) -> list[FileReport]:
    reports = process(job)
    _clean_up(job.size)
    return reports


_worked = 0


def _clean_up(size: int) -> None:
    global _worked
    _worked += size
    if _worked > CLEAN_UP_AFTER:
        _worked = 0
        gc.collect()


def process(job: Job) -> list[FileReport]:
    """Rewrite the files of a job. Never raises: what goes wrong stands in the reports."""
    from .engine import rewrite
    from .report import of_result

    reports = [_failed(path, error) for path, content in job.data.items() if (error := _bad_comment(path, content))]
    data = {path: content for path, content in job.data.items() if all(path != r.path for r in reports)}
    try:
        results = rewrite(list(data), job.options, _Together(job.detector, data), data)
        return reports + [of_result(result, tuple(data)) for result in results]
    except Exception as error:  # a defect of tfboost must cost this file only, and tell where it lies
        if "TFBOOST_TRACEBACK" in os.environ:
            raise
        if len(data) == 1:
            return reports + [_failed(path, _defect(path, error)) for path in data]
    alone = [Job({path: content}, job.options, job.detector) for path, content in data.items()]
    return reports + [report for one in alone for report in process(one)]


@dataclass
class _Together:
    """One target for files that run together, and for those that they import."""

    detector: Detector
    data: dict[Path, bytes]
    target: Target | None = None

    def __call__(self, source: Source) -> Target:
        if self.target is None:
            sources = [source] if set(self.data) == {source.path} else []
            for path in self.data if not sources else ():
                with contextlib.suppress(SourceError):
                    sources.append(parse(self.data[path], path))
            self.target = self.detector(sources or [source])
        return self.target


def _bad_comment(path: Path, content: bytes) -> SourceError | None:
    """The first `# tfboost: ignore[name]` that names no codemod."""
    if b"tfboost:" not in content:
        return None
    try:
        text = parse(content, path).text
    except SourceError:
        return None  # reported where it matters
    for line, column, name in ignored_names(text):
        try:
            check_names([name])
        except ValueError as error:
            return SourceError(path, str(error), line, column)
    return None


def _failed(path: Path, error: SourceError) -> FileReport:
    return FileReport(path, "failed", error=error)


def _defect(path: Path, error: Exception) -> SourceError:
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    code = trace.tb_frame.f_code if trace else None
    where = f" at {Path(code.co_filename).name}:{trace.tb_lineno}" if code and trace else ""
    return SourceError(
        path, f"defect of tfboost{where}, please report it with this script: {type(error).__name__}: {error}"
    )
