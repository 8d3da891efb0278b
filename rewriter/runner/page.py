"""The report as one HTML file, with all that it shows in it: it needs no network, and can be sent and printed."""

from __future__ import annotations

import datetime
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter

from .. import __version__, files
from ..config import Configs
from ..detect import Detector
from ..diffs import Diff, Place
from ..engine import Applied, Options, Result, rewrite
from ..source import Source, SourceError
from ..target import Target, named
from ..work import Asked
from . import parity, report
from .record import Run
from .speed import Throughput
from .validate import Validation, why_not_trained

#: Lines around a change that are shown with it.
CONTEXT = 3
#: Points of a loss curve: as many as a figure of this width shows apart.
POINTS = 48
#: More training loops than these have no figure of their own.
MOST_LOOPS = 6
#: Lines of a failed run's standard error.
TAIL = 40


@dataclass(frozen=True)
class Look:
    """How a script is drawn: told apart by colour-blind readers, and on black-and-white paper by line and marker."""

    name: str
    colour: str
    line: Any
    marker: str
    shade: float


ORIGINAL = Look("original", "#0b4f8a", "-", "o", 0.16)
REWRITTEN = Look("rewritten", "#d97a00", (0, (4, 1.5)), "D", 0.24)
LOOKS = (ORIGINAL, REWRITTEN)

STYLE: Any = {  # of settings; their type is another in each version of matplotlib
    "svg.fonttype": "none",  # text stays text; the page's style sheet sets its font
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#667",
    "axes.labelcolor": "#334",
    "axes.grid": True,
    "grid.color": "#e4e6ea",
    "axes.axisbelow": True,
    "xtick.color": "#556",
    "ytick.color": "#556",
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


def write(path: Path, validation: Validation, before: bytes, after: bytes, options: Options | None = None) -> None:
    """Write the page for the scripts `before` and `after`. Raises `OSError` where that cannot be.

    `options` are those that tfboost made the rewrite with, where they are known: doing so again tells the reasons.
    """
    try:
        files.write({path: render(validation, before, after, options).encode()})
    except SourceError as error:
        raise OSError(0, error.message, str(path)) from None


def render(validation: Validation, before: bytes, after: bytes, options: Options | None = None) -> str:
    """The page's text."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(clean=clean, number=number, megabytes=lambda size: f"{size / 2**20:,.0f}")
    document = report.as_json(validation)
    reasons = reasons_of(validation, before, after, options)
    with matplotlib.rc_context(STYLE):
        return environment.get_template("page.html.j2").render(
            v=validation,
            document=document,
            headline=validation.failure or _sentence(report.headline(validation)),
            spoken=_sentence(report.spoken(validation.speed)),
            failed=list(_failed(validation)),
            hunks=list(hunks(before, after, reasons)),
            summaries=list(_summaries(validation)),
            pairs=list(_pairs(validation)),
            speed_figure=_speed_figure(validation),
            loss_figures=_loss_figures(validation),
            wait_figure=_wait_figure(validation),
            gpu_figure=_gpu_figure(validation),
            facts=list(_facts(document["environment"])),
            looks=LOOKS,
            made=datetime.datetime.now().strftime("%Y-%m-%d %H:%M"),
            version=__version__,
        )


def clean(text: str) -> str:
    """Without what a terminal would do with it."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    text = re.sub(r"[^\n]*\r(?!\n)", "", text)  # progress bars overwrite themselves
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "", text)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def number(value: float) -> str:
    """A rate, to three digits or more."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


# -- the changes ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A line, with its numbers in both scripts; one of them is None for a line that only the other has."""

    old: int | None
    new: int | None
    text: str


@dataclass(frozen=True)
class Part:
    """A change with the lines that follow it, and what tfboost says of it; `reasons` None: lines before a change."""

    rows: tuple[Row, ...]
    reasons: tuple[Applied, ...] | None = None
    mixed: bool = False  # tfboost changes these lines too, but not into these


#: A change: where in the original, how many lines, and what stands there now.
Key = tuple[int, int, tuple[bytes, ...]]


class _Lines(Diff):
    """Lines that were replaced by as many are places of their own: what was changed by hand leaves the others alone."""

    @cached_property
    def places(self) -> list[Place]:
        found = []
        for place in super().places:
            count = place.end - place.start
            if count == place.new_end - place.new:
                found += [
                    Place(place.start + i, place.start + i + 1, place.new + i, place.new + i + 1) for i in range(count)
                ]
            else:
                found.append(place)
        return found

    def key(self, place: Place) -> Key:
        return place.start, place.end, tuple(line.rstrip(b"\r\n") for line in self.after[place.new : place.new_end])


def hunks(before: bytes, after: bytes, reasons: Mapping[Key, Sequence[Applied]]) -> Iterator[list[Part]]:
    """The differences with their reasons, those close to each other together, with the lines around them."""
    diff = _Lines(before, after)

    def same(start: int, end: int, shift: int) -> tuple[Row, ...]:
        return tuple(Row(n + 1, n + 1 + shift, _text(diff.before[n])) for n in range(start, end))

    for hunk in diff.hunks(CONTEXT) if diff.places else ():
        changes: list[tuple[Place, tuple[Applied, ...]]] = []
        for place in hunk:
            told = tuple(reasons.get(diff.key(place), ()))
            if changes and changes[-1][0].end == place.start and changes[-1][1] == told:
                above, _ = changes.pop()
                place = Place(above.start, place.end, above.new, place.new_end)
            changes.append((place, told))
        start = max(hunk[0].start - CONTEXT, 0)
        parts = [Part(same(start, hunk[0].start, hunk[0].new - hunk[0].start))]
        ends = [*(place.start for place, _ in changes[1:]), min(hunk[-1].end + CONTEXT, len(diff.before))]
        for (place, told), end in zip(changes, ends, strict=True):
            rows = [Row(n + 1, None, _text(diff.before[n])) for n in range(place.start, place.end)]
            rows += [Row(None, n + 1, _text(diff.after[n])) for n in range(place.new, place.new_end)]
            rows += same(place.end, end, place.new_end - place.end)
            near = any(a == place.start or (a < place.end and place.start < b) for a, b, _ in reasons)
            parts.append(Part(tuple(rows), told, mixed=near and not told))
        yield [part for part in parts if part.rows]


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r\n")


def reasons_of(
    validation: Validation, before: bytes, after: bytes, options: Options | None = None
) -> dict[Key, list[Applied]]:
    """What tfboost says of each change that it would make to the original, at one level or another.

    Where no attempt makes the rewritten script, the one that makes most of it is believed first.
    """
    path = validation.original
    diff = _Lines(before, after)
    wanted = {diff.key(place) for place in diff.places}
    found: list[dict[Key, list[Applied]]] = []
    with suppress(Exception):  # a defect, or a configuration that is no longer there, must not cost the page
        settings = Configs().of(path)
        levels = dict.fromkeys((validation.level, 2, 1, 3))
        dtypes = dict.fromkeys((settings.amp_dtype, "bfloat16", "float16"))
        asked = [Asked(level=level, amp_dtype=dtype) for dtype in dtypes for level in levels]
        attempts = [*filter(None, [options]), *(one.options(settings, [path]) for one in asked)]
        for target_of in _targets(validation, settings.target or "auto"):
            for attempt in attempts:
                (result,) = rewrite([path], attempt, target_of, {path: before})
                found.append(_reasons(result))
                if result.after == after:
                    return found[-1]
    merged: dict[Key, list[Applied]] = {}
    for own in sorted(found, key=lambda own: len(wanted & own.keys())):
        merged |= own
    return merged


def _reasons(result: Result) -> dict[Key, list[Applied]]:
    diff = _Lines(result.before, result.after)
    found: dict[Key, list[Applied]] = {}
    for fix in sorted(result.applied, key=lambda fix: (fix.line, fix.column)):
        for place in diff.touched(fix.lines):
            told = found.setdefault(diff.key(place), [])
            if all((one.codemod, one.message) != (fix.codemod, fix.message) for one in told):
                told.append(fix)
    return found


def _targets(validation: Validation, name: str) -> Iterator[Callable[[Source], Target]]:
    """As `rewrite` finds the target by itself, and as it does for the interpreter that the runs were made with."""
    detector = Detector(name)
    yield lambda source: detector([source])
    told = report.environment(validation.runs)
    if version := re.match(r"\d+\.\d+", told["tensorflow"] or ""):
        cpu = not any("GPU" in device for device in told["devices"])
        seen = replace(named(f"tf{version[0]}"), cpu=cpu)
        yield lambda source: seen


# -- what is told in words ---------------------------------------------------------------------------------


def _sides(validation: Validation, purpose: str) -> Iterator[tuple[Look, list[Run]]]:
    yield from zip(LOOKS, validation.trained if purpose == "parity" else validation.timed, strict=True)


def _failed(validation: Validation) -> Iterator[tuple[str, str]]:
    """Each run that did not train to its end: what became of it, and the end of its standard error."""
    seen = set()
    for purpose in ("parity", "speed"):
        for look, runs in _sides(validation, purpose):
            for run in runs:
                why = why_not_trained(run)
                if why and (look, why) not in seen:  # all seeds fail alike
                    seen.add((look, why))
                    path = validation.original if look is ORIGINAL else validation.rewritten
                    lines = clean(run.stderr).rstrip().splitlines()
                    yield f"{path.name} (seed {run.seed}) {why}", "\n".join(lines[-TAIL:])


def _measured(validation: Validation) -> list[tuple[Look, Sequence[Throughput]]]:
    fast = validation.speed
    if fast is None or not fast.original:
        return []
    return list(zip(LOOKS, (fast.original, fast.rewritten), strict=True))


def _summaries(validation: Validation) -> Iterator[tuple[Look, Throughput]]:
    """Of each script the run in the middle."""
    for look, measured in _measured(validation):
        yield look, sorted(measured, key=lambda one: one.rate)[len(measured) // 2]


def _pairs(validation: Validation) -> Iterator[tuple[float, float, float]]:
    if fast := validation.speed:
        for before, after, ratio in zip(fast.original, fast.rewritten, fast.pairs, strict=True):
            yield before.rate, after.rate, ratio


FACTS = {
    "python": "Python",
    "tensorflow": "TensorFlow",
    "keras": "Keras",
    "horovod": "Horovod",
    "machine": "CPU",
    "cores": "CPU cores",
    "gpus": "GPU",
    "devices": "Devices that TensorFlow saw",
    "isolation": "Isolation of the runs",
}


def _facts(environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key in (*FACTS, *(environment.keys() - FACTS.keys())):
        if value := environment.get(key):
            text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            yield FACTS.get(key, key), text.replace("/device:", "")


# -- figures -----------------------------------------------------------------------------------------------


def _svg(figure: Figure, label: str) -> Markup:
    """A figure as an element of the page: no prologue, no metadata, no size of its own, no names used twice."""
    stream = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": label}):  # the names of clipping paths, unlike other figures'
        figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' id="[\w.]+_\d+"', "", text)
    text = re.sub(r'(<svg[^>]*?) (?:width|height)="[\d.]+pt"', r"\1", text)
    text = re.sub(r'(<svg[^>]*?) (?:width|height)="[\d.]+pt"', r"\1", text)
    return Markup(text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1))


def _rows(ax: Axes) -> None:
    """Both scripts one below the other."""
    ax.set_yticks([1, 0], [look.name for look in LOOKS])
    ax.set_ylim(-0.6, 1.6)
    ax.tick_params(axis="y", length=0, labelsize=10)
    ax.grid(False, axis="y")


def _speed_figure(validation: Validation) -> Markup | None:
    """Every run's throughput, runs of a pair joined."""
    sides = _measured(validation)
    if not sides:
        return None
    figure = Figure(figsize=(7.2, 1.7))
    ax = figure.subplots()
    _rows(ax)
    rates = [[one.rate for one in measured] for _, measured in sides]
    for pair in zip(*rates, strict=True):
        ax.plot(pair, [1, 0], color="#8a93a3", linewidth=0.9, zorder=1)
    for (look, _), row, own in zip(sides, (1, 0), rates, strict=True):
        ax.plot(own, [row] * len(own), look.marker, color=look.colour, markersize=6.5, markeredgecolor="white",
                linestyle="none", clip_on=False)  # fmt: skip
    ax.set_xlim(0, 1.06 * max(map(max, rates)))
    assert validation.speed is not None
    ax.set_xlabel(f"{validation.speed.unit} a second")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.6g}"))
    return _svg(figure, "Throughput of every run")


@dataclass(frozen=True)
class Curve:
    """A run's losses: the mean over each of the windows between `edges`, NaN where it had none."""

    values: parity.Array
    end: float  # samples or steps that it came to


def curves(runs: Sequence[Run], loop: int, unit: str) -> tuple[parity.Array, list[Curve]]:
    """The edges of the windows, and a curve for each run."""
    series = [parity.losses(run, unit).get(loop) for run in runs]
    known = [one for one in series if one is not None]
    if not known:
        return np.zeros(1), []
    end = max(float(at[-1]) for at, _ in known)
    count = max(1, min(POINTS, min(len(at) - 1 for at, _ in known)))
    edges = np.linspace(0, end, count + 1)
    found = []
    for one in series:
        if one is None:
            found.append(Curve(np.full(count, np.nan), 0.0))
            continue
        at, sums = one
        places = np.minimum(edges, at[-1])
        width = np.diff(places)
        enough = width >= 0.5 * np.diff(edges)
        masses = np.diff(np.interp(places, at, sums))
        found.append(Curve(np.where(enough, masses / np.where(enough, width, 1), np.nan), float(at[-1])))
    return edges, found


def _loss_figures(validation: Validation) -> list[tuple[str, Markup]]:
    """For each training loop its name and its figure."""
    sides = list(_sides(validation, "parity"))
    runs = [run for _, own in sides for run in own]
    steps = [step for run in runs for record in run.records for step in record.steps]
    unit = "samples" if all(step.samples for step in steps) else "steps"
    loops = {loop.id: loop.kind for run in runs for record in run.records[:1] for loop in record.loops}
    found = []
    for loop in sorted(loops):
        edges, own = curves(runs, loop, unit)
        if not own:
            continue
        figure = Figure(figsize=(7.2, 3.1))
        ax = figure.subplots()
        centres = (edges[:-1] + edges[1:]) / 2
        first = len(sides[0][1])
        for (look, _), group in zip(sides, (own[:first], own[first:]), strict=True):
            _draw_curves(ax, look, centres, group, edges[-1])
        values = np.array([curve.values for curve in own])
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
        if low > 0 and high > 30 * low:
            ax.set_yscale("log")
        ax.set_xlim(0, edges[-1])
        ax.set_xlabel(f"{unit} trained on")
        ax.set_ylabel("training loss")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.6g}"))
        ax.legend(loc="upper right")
        found.append((loops[loop] if len(loops) == 1 else f"loop {loop} ({loops[loop]})", figure))
    return [(name, _svg(figure, f"Loss curves of {name}")) for name, figure in found[:MOST_LOOPS]]


def _draw_curves(ax: Axes, look: Look, centres: parity.Array, group: Sequence[Curve], end: float) -> None:
    """The seeds' lines and their mean over the band that they lie in."""
    group = [curve for curve in group if np.isfinite(curve.values).any()]
    if not group:
        return
    values = np.array([curve.values for curve in group])
    there = np.isfinite(values)
    some = there.any(axis=0)
    low = np.where(some, np.where(there, values, math.inf).min(axis=0), np.nan)
    high = np.where(some, np.where(there, values, -math.inf).max(axis=0), np.nan)
    mean = np.where(some, np.where(there, values, 0).sum(axis=0) / np.maximum(there.sum(axis=0), 1), np.nan)
    runs = len(group)
    label = f"{look.name} ({runs} run{'s' * (runs > 1)})"
    if runs > 1:
        ax.fill_between(centres, low, high, color=look.colour, alpha=look.shade, linewidth=0)
        for row in values:
            ax.plot(centres, row, color=look.colour, linewidth=0.6, alpha=0.6)
    marker = look.marker if int(some.sum()) < 2 else None
    ax.plot(centres, mean, color=look.colour, linewidth=1.9, linestyle=look.line, marker=marker, label=label)
    for curve in group:  # it became NaN, or the run broke off
        known = np.flatnonzero(np.isfinite(curve.values))
        if curve.end < 0.95 * end and len(known):
            x, y = centres[known[-1]], curve.values[known[-1]]
            ax.plot(x, y, "X", color=look.colour, markersize=9, markeredgecolor="white", zorder=5)


def _wait_figure(validation: Validation) -> Markup | None:
    """The share of the time that went into waiting for input."""
    sides = [(look, [one.wait for one in own if one.wait is not None]) for look, own in _measured(validation)]
    if not any(waits for _, waits in sides):
        return None
    figure = Figure(figsize=(7.2, 1.4))
    ax = figure.subplots()
    _rows(ax)
    for (look, waits), row in zip(sides, (1, 0), strict=True):
        if not waits:
            ax.text(0.5, row, "unknown", va="center", color="#556")
            continue
        middle = 100 * float(np.median(waits))
        ax.barh(row, middle, height=0.5, color=look.colour, alpha=0.75)
        ax.plot([100 * w for w in waits], [row] * len(waits), "|", color="#223", markersize=9, linestyle="none")
        ax.text(max(middle, 100 * max(waits)) + 1, row, f"{middle:.0f} %", va="center")
    ax.set_xlim(0, 100)
    ax.set_xlabel("% of the training time spent waiting for input")
    return _svg(figure, "Waiting for input")


def _gpu_figure(validation: Validation) -> Markup | None:
    """Utilisation and memory of the GPU over time, where the runs were watched."""
    # rows of seconds, utilisation in %, memory in bytes, watts
    watched = [
        (look, np.array(gpu, float)) for look, runs in _sides(validation, "speed") for run in runs if (gpu := run.gpu)
    ]
    if not watched:
        return None
    figure = Figure(figsize=(7.2, 3.4))
    top, bottom = figure.subplots(2, 1, sharex=True)
    labelled: set[str] = set()
    for look, rows in watched:
        label = None if look.name in labelled else look.name
        labelled.add(look.name)
        top.plot(rows[:, 0], rows[:, 1], color=look.colour, linestyle=look.line, linewidth=1.1, label=label)
        bottom.plot(rows[:, 0], rows[:, 2], color=look.colour, linestyle=look.line, linewidth=1.1)
    top.set_ylim(0, 105)
    top.set_ylabel("GPU used, %")
    top.legend(loc="lower right", ncols=2)
    bottom.set_ylim(bottom=0)
    bottom.set_ylabel("GPU memory")
    bottom.yaxis.set_major_formatter(EngFormatter("B"))
    bottom.set_xlabel("seconds since the run began")
    return _svg(figure, "GPU over time")
