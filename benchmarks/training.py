"""What is gained: every script in `benchmarks/scripts` as it is, rewritten, tuned, and edited by hand.

    python benchmarks/training.py [NAME...] [--env tf221] [--rounds 5] [--output results.json] [--markdown]

`scripts.toml` says in which environments (`.envs`) a script runs. In each round every variant trains once, in a fresh
process and over the same samples; the order turns round from one round to the next. A cell is how many times as fast as
the original training runs once it runs evenly, with its 95 % interval (`rewriter/runner/speed.py`).

    original   train.py
    rewrite    what `tfboost rewrite` makes of it for that environment
    tune       what `tfboost tune` makes of it
    by hand    by_hand.py: the same training, as fast as its author could make it without other tools

--output keeps what was measured: what is in there already, with the same scripts and settings, is not measured again: a
run can be interrupted, continued and extended. Needs tfboost installed, and the environments of `nox -s envs`.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from rewriter.runner import report, speed
from rewriter.runner.record import Run
from rewriter.runner.validate import Conditions, Script, pair, reach, validate, why_not_trained

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "benchmarks" / "scripts"
TABLE = ROOT / "benchmarks" / "scripts.toml"
VARIANTS = ("rewrite", "tune", "by hand")


def main() -> None:
    table = tomllib.loads(TABLE.read_text())
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(table)}; default: all")
    parser.add_argument("--env", action="append", help="only in this environment (can be repeated)")
    parser.add_argument("--level", "-O", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="at least 3")
    parser.add_argument("--budget", type=float, default=15.0, help="seconds that the original trains in a round")
    parser.add_argument("--tune", type=float, default=10.0, metavar="MINUTES", help="for `tfboost tune`; 0: not")
    parser.add_argument("--parity", action="store_true", help="also check that every variant trains the same")
    parser.add_argument("--output", type=Path, help="keep the measurements in this JSON file")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    if options.rounds < speed.FEWEST_PAIRS:
        parser.error(f"--rounds must be at least {speed.FEWEST_PAIRS}")
    if unknown := set(options.names) - set(table):
        parser.error(f"there is no script {', '.join(sorted(unknown))}")

    results: dict[str, Any] = {}
    if options.output and options.output.exists():
        results = json.loads(options.output.read_text())["results"]
    settings = {name: getattr(options, name) for name in ("level", "rounds", "budget", "tune", "parity")}
    shown = []
    for name in options.names or table:
        for env in table[name]["environments"]:
            if options.env and env not in options.env:
                continue
            key = f"{name} {env}"
            shown.append(key)
            with tempfile.TemporaryDirectory() as folder:
                paths = variants(name, env, Path(folder), options)
                digests = {variant: hashlib.sha256(path.read_bytes()).hexdigest() for variant, path in paths.items()}
                known = results.get(key)
                if known and known["settings"] == settings and known["digests"].items() >= digests.items():
                    continue
                if options.tune and (path := tuned(name, env, Path(folder), options)):
                    paths["tune"] = path
                    digests["tune"] = hashlib.sha256(path.read_bytes()).hexdigest()
                results[key] = {"settings": settings, "digests": digests, **measure(key, paths, env, options)}
            if options.output:
                save(options.output, {"version": 1, "results": results})
    show({key: results[key] for key in shown}, options.markdown)


# -- the variants ----------------------------------------------------------------------------------------------


def variants(name: str, env: str, folder: Path, options: argparse.Namespace) -> dict[str, Path]:
    """The scripts that are there without measuring anything."""
    original, rewritten = SCRIPTS / name / "train.py", folder / "rewrite" / "train.py"
    rewritten.parent.mkdir()
    done = tfboost("rewrite", original, "-o", rewritten, "--python", python(env), "-O", str(options.level), "--quiet")
    if done.returncode:
        sys.exit(done.stderr)
    return {"original": original, "rewrite": rewritten, "by hand": SCRIPTS / name / "by_hand.py"}


def tuned(name: str, env: str, folder: Path, options: argparse.Namespace) -> Path | None:
    """None where this tfboost cannot tune, or has failed to."""
    original, out = SCRIPTS / name / "train.py", folder / "tune" / "train.py"
    out.parent.mkdir()
    tell(f"{name} {env}: tune")
    done = tfboost("tune", original, "-o", out, "--python", python(env), "--budget", str(options.tune))
    tell(done.stdout.rstrip())
    if not out.exists() and "No such command" not in done.stderr:
        tell(f"{name} {env}: tune failed: {done.stderr.strip()[-500:]}")
    return out if out.exists() else None


def tfboost(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rewriter", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def python(env: str) -> str:
    return str(ROOT / ".envs" / env / "bin" / "python")


# -- measuring -------------------------------------------------------------------------------------------------


def measure(key: str, paths: dict[str, Path], env: str, options: argparse.Namespace) -> dict[str, Any]:
    """Rounds over all variants that differ from the original."""
    conditions = Conditions(python(env), options.budget)
    text = paths["original"].read_bytes()
    scripts = {v: pair(paths["original"], path, ())[1] for v, path in paths.items()}
    changed = [v for v in scripts if v != "original" and paths[v].read_bytes() != text]
    runs: dict[str, list[Run]] = {v: [] for v in ("original", *changed)}
    amount: dict[str, Any] = {}
    for number in range(options.rounds):
        for variant in list(runs) if number % 2 == 0 else list(reversed(runs)):
            tell(f"{key}: round {number + 1} of {options.rounds}, {variant}")
            run = conditions.run(scripts[variant], "speed", **amount)
            runs[variant].append(run)
            if not amount:
                if reason := why_not_trained(run):
                    sys.exit(f"{key}: {variant} {reason}")
                amount = reach(run)
    cells: dict[str, dict[str, Any]] = {v: {"answer": "unchanged"} for v in scripts if v != "original"}
    cells |= {v: cell(runs["original"], runs[v]) for v in changed}
    if options.parity:
        for variant in changed:
            cells[variant]["parity"] = parity(key, scripts["original"], scripts[variant], variant, conditions, options)
    rates = [t.rate for run in runs["original"] if (t := speed.throughput(run))]
    waits = [t.wait for run in runs["original"] if (t := speed.throughput(run)) and t.wait is not None]
    return {
        "about": about(paths["original"]),
        "unit": "samples" if "samples" in amount else "steps",
        "rate": median(rates) if rates else None,
        "wait": median(waits) if waits else None,
        "variants": cells,
        "environment": report.environment([run for made in runs.values() for run in made]),
    }


def cell(original: list[Run], variant: list[Run]) -> dict[str, Any]:
    found = speed.compare(original, variant)
    failed = next((reason for run in variant if (reason := why_not_trained(run))), "")
    return {
        **{name: getattr(found, name) for name in ("answer", "ratio", "low", "high", "pairs")},
        "reason": failed or found.reason,
        "compile_seconds": median([t.compile_seconds for t in found.rewritten]) if found.rewritten else None,
    }


def parity(
    key: str, original: Script, script: Script, variant: str, conditions: Conditions, options: argparse.Namespace
) -> dict[str, Any]:
    """By-hand edits promise what level 2 promises."""
    level = options.level if variant == "rewrite" else 2
    result = validate(
        original, script, conditions, level, pairs=0, progress=lambda text, *_: tell(f"{key}: {variant}: {text}")
    )
    findings = [f"{f.kind}: {f.message}" for f in (result.parity.findings if result.parity else ()) if f.fails]
    return {"verdict": result.verdict, "findings": [*findings, *filter(None, [result.failure])]}


def about(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def save(path: Path, document: dict[str, Any]) -> None:
    """All or nothing: an interruption leaves what was there."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(json.dumps(document, indent=1) + "\n")
    beside.replace(path)


# -- the table -------------------------------------------------------------------------------------------------


def show(results: dict[str, Any], markdown: bool) -> None:
    columns = [v for v in VARIANTS if any(v in result["variants"] for result in results.values())]
    head = ["script", "TensorFlow", "original", *columns]
    rows = [head, *(list(row(key, result, columns)) for key, result in results.items())]
    if markdown:
        rows.insert(1, ["---", "---", *("---:" for _ in head[2:])])
        for line in rows:
            print("|", " | ".join(line), "|")
        return
    widths = [max(len(line[i]) for line in rows) for i in range(len(head))]
    for line in rows:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def row(key: str, result: dict[str, Any], columns: list[str]) -> Iterator[str]:
    yield key.split()[0]
    yield result["environment"]["tensorflow"] or ""
    yield f"{result['rate']:,.0f} {result['unit']}/s" if result["rate"] else "?"
    for variant in columns:
        found = result["variants"].get(variant)
        if found is None:
            yield ""
        elif found["answer"] == "unchanged":
            yield "nothing changed"
        elif found["ratio"] is None:
            yield f"? ({found['reason']})"
        else:
            differs = "" if found.get("parity", {}).get("verdict", "pass") == "pass" else ", trains differently"
            yield f"{found['ratio']:.2f} ({found['low']:.2f} to {found['high']:.2f}{differs})"


if __name__ == "__main__":
    main()
