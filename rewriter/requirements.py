"""What installed packages and requirement files say about the TensorFlow and Keras that a script runs on."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from .config import load_toml
from .target import FIRST_KERAS3, LAST_KERAS2, OLDEST, Evidence, Version

#: Distributions that install TensorFlow; the value tells whether it can only use the CPU.
_TENSORFLOW = {
    "tensorflow": False,
    "tensorflow-gpu": False,
    "tensorflow-cpu": True,
    "tensorflow-macos": False,
    "tensorflow-rocm": False,
    "tensorflow-intel": True,
    "intel-tensorflow": True,
    "tensorflow-aarch64": True,
    "tensorflow-cpu-aws": True,
    "nvidia-tensorflow": False,
    "tf-nightly": False,
    "tf-nightly-gpu": False,
    "tf-nightly-cpu": True,
}

#: Run by the interpreter that is asked, which may be an old one. Imports nothing but `os` and `sys`.
_LIST_PACKAGES = r"""
import sys
sys.path[:] = [p for p in sys.path if p not in ("", ".")]
import os
print("packages")
for folder in sys.path:
    try:
        names = os.listdir(folder)
    except OSError:
        continue
    for name in names:
        stem, dot, kind = name.rpartition(".")
        if kind in ("dist-info", "egg-info") and stem[:1] in "tTkKiIn" and "-" in stem:
            print(stem)
"""


class InterpreterError(Exception):
    """`--python` names something that cannot be asked for its packages."""


def of_interpreter(python: str) -> Evidence:
    """What the packages of an interpreter, and the GPUs of this machine, say. TensorFlow is not imported."""
    import subprocess

    try:
        done = subprocess.run([python, "-c", _LIST_PACKAGES], capture_output=True, text=True, timeout=60)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or error
        raise InterpreterError(f"`{python}` cannot be run: {reason}") from None
    heading, *lines = done.stdout.splitlines() or [""]
    if done.returncode or heading != "packages":
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise InterpreterError(f"`{python}` is not a Python interpreter that runs here: {last}")
    packages: dict[str, str] = {}
    for line in lines:
        name, _, version = line.partition("-")
        packages.setdefault(_normal(name), version)
    return _of_packages(packages, python)


def _of_packages(packages: dict[str, str], python: str) -> Evidence:
    found = [(name, version) for name in _TENSORFLOW if (version := _version(packages.get(name, "")))]
    if not found:
        return Evidence(why=(f"{python} has no TensorFlow",))
    name, version = found[0]
    keras = _version(packages.get("keras", ""))
    why = f"{name} {packages[name]}" + (f" and keras {packages['keras']}" if keras else "") + f" in {python}"
    cpu, ampere = (True, False) if _TENSORFLOW[name] else (False, False)
    if not cpu and name not in ("tensorflow-macos", "tensorflow-rocm"):
        cpu, ampere = _gpus()
    why += ", no GPU" if cpu else ", Ampere or newer GPU" if ampere else ""
    keras3 = keras is not None and keras[0] >= 3
    return Evidence(
        version,
        version,
        None,
        (why,),
        cpu,
        keras if keras3 else None,
        ampere,
        slow_bfloat16=cpu and _is_slow_in_bfloat16(),
        two_keras=keras3 and version <= LAST_KERAS2,
    )


def _gpus() -> tuple[bool, bool]:
    """Whether this machine certainly has no GPU for TensorFlow, and whether all are Ampere or newer."""
    import shutil
    import subprocess

    tool = shutil.which("nvidia-smi")
    if not tool:
        devices = ("/dev/nvidia0", "/dev/kfd", "/dev/dxg")  # NVIDIA, AMD, and either under Windows
        return sys.platform.startswith("linux") and not any(map(os.path.exists, devices)), False
    try:
        done = subprocess.run(
            [tool, "--query-gpu=compute_cap", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False, False
    found = [float(c) for c in re.findall(r"^\s*(\d+\.\d+)\s*$", done.stdout, re.MULTILINE)]
    return False, done.returncode == 0 and bool(found) and min(found) >= 8.0


#: Instructions for bfloat16, as Linux calls them on x86 and on ARM.
_BFLOAT16 = frozenset({"avx512_bf16", "avx_ne_convert", "amx_bf16", "bf16"})


def _is_slow_in_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU of this machine is known to compute bfloat16 with instructions for other types."""
    try:
        text = cpuinfo.read_text()
    except OSError:  # not Linux
        return False
    flags = re.findall(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return bool(flags) and not any(_BFLOAT16 & set(line.split()) for line in flags)


# -- requirement files ---------------------------------------------------------------------------------------

_MAIN = ("requirements.txt", "pyproject.toml", "setup.cfg", "environment.yml", "environment.yaml")
_FURTHER = re.compile(r"requirements.*\.txt|environment.*\.ya?ml")


def of_folder(folder: Path) -> Evidence | None:
    """What the requirement files of a folder say about TensorFlow and Keras; None when they name neither."""
    try:
        names = {entry.name for entry in folder.iterdir()}
    except OSError:
        return None
    found = []
    for name in _MAIN:
        if name in names and (evidence := _of_file(folder / name)):
            if evidence.says_version:
                return evidence
            found.append(evidence)
    further = [
        e for name in sorted(names.difference(_MAIN)) if _FURTHER.fullmatch(name) and (e := _of_file(folder / name))
    ]
    if informed := [e for e in further if e.says_version]:
        return _either(informed)
    return next(iter(found + further), None)


def _of_file(path: Path) -> Evidence | None:
    try:
        text = path.read_bytes().decode(errors="replace")
    except OSError:
        return None
    if path.suffix == ".txt":
        return _of_requirements(_requirement_lines(path, text, {path}), path.name)
    if "tensorflow" not in text and "keras" not in text:
        return None
    if path.suffix == ".toml":
        return _of_requirements(_toml_requirements(text), path.name)
    lines = (re.sub(r"^\s*-\s+", "", line).split(" #")[0].strip().strip("\"'") for line in text.splitlines())
    return _of_requirements(lines, path.name, conda=path.suffix != ".cfg")


def _requirement_lines(path: Path, text: str, seen: set[Path]) -> Iterator[str]:
    for raw in text.replace("\\\n", " ").splitlines():
        line = re.sub(r"(^|\s)#.*", "", raw).strip()
        include = re.match(r"(?:-r|--requirement)[\s=]*(\S+)", line)
        if include is None:
            yield line
        elif (other := path.parent / include[1]) not in seen and len(seen) < 20:
            seen.add(other)
            try:
                yield from _requirement_lines(other, other.read_bytes().decode(errors="replace"), seen)
            except OSError:
                continue


def _toml_requirements(text: str) -> Iterator[str]:
    """Requirements of `[project]`, `[dependency-groups]` and Poetry's tables."""
    try:
        data = load_toml(text)
    except ValueError:
        return
    project, poetry = _table(data, "project"), _table(data, "tool", "poetry")
    groups: list[Any] = [
        project.get("dependencies"),
        *_table(project, "optional-dependencies").values(),
        *_table(data, "dependency-groups").values(),
        poetry.get("dependencies"),
        poetry.get("dev-dependencies"),
        *(g.get("dependencies") for g in _table(poetry, "group").values() if isinstance(g, dict)),
    ]
    for group in groups:
        if isinstance(group, list):
            yield from (r for r in group if isinstance(r, str))
        elif isinstance(group, dict):
            for name, value in group.items():
                for one in value if isinstance(value, list) else [value]:
                    given = one.get("version", "") if isinstance(one, dict) else one
                    if isinstance(given, str):
                        yield f"{name} {'==' if given[:1].isdigit() else ''}{given}"


def _table(data: dict[str, Any], *keys: str) -> dict[str, Any]:
    for key in keys:
        data = data.get(key) or {}
        if not isinstance(data, dict):
            return {}
    return data


_REQUIREMENT = re.compile(r"([A-Za-z][\w.-]*)\s*(?:\[[^\]]*\])?\s*\(?([^;@#)]*)")
_SPECIFIER = re.compile(r"(===?|~=|!=|>=|<=|<|>|\^|~|=)\s*v?(\d+(?:\.\d+)*)")


def _of_requirements(lines: Iterable[str], file: str, conda: bool = False) -> Evidence | None:
    tensorflow: list[Evidence] = []
    keras: Evidence | None = None
    for line in lines:
        match = _REQUIREMENT.match(line)
        if not match or (name := _normal(match[1])) not in (*_TENSORFLOW, "keras"):
            continue
        specifiers = "".join(match[2].split())
        if conda and specifiers[:1].isdigit():
            specifiers = f"={specifiers}"
        low, high = _bounds(specifiers)
        why = (f"{file}: {name}{specifiers}" if low or high else f"{file} names {name} without a version",)
        if name != "keras":
            if high and high[1] >= _ANY:
                high = OLDEST if high[0] == 1 else None  # 1.15 is the last of 1.x; there is no 3.x
            tensorflow.append(Evidence(low, high, None, why, _TENSORFLOW[name]))
        elif high and high < (3, 0):
            keras = Evidence(None, LAST_KERAS2, 2, why)
        elif low and low >= (3, 0):
            keras = Evidence(FIRST_KERAS3, None, 3, why, keras_version=low)
    found = _either(tensorflow) if tensorflow else None
    return found.narrowed(keras) if found and keras else found or keras


def _either(found: list[Evidence]) -> Evidence:
    """What holds whichever of several applies: lines with markers, files for different machines."""
    first = found[0]
    for other in found[1:]:
        why = first.why if set(other.why) <= set(first.why) else (*first.why, *other.why)
        first = replace(
            first,
            why=why,
            cpu=first.cpu and other.cpu,
            keras=first.keras if first.keras == other.keras else None,
            lowest=min(first.lowest, other.lowest) if first.lowest and other.lowest else None,
            highest=max(first.highest, other.highest) if first.highest and other.highest else None,
            keras_version=first.keras_version if first.keras_version == other.keras_version else None,
        )
    return first


#: Stands for the last minor version of a major one.
_ANY = 1000


def _bounds(specifiers: str) -> tuple[Version | None, Version | None]:
    """Lowest and highest minor version that version specifiers allow."""
    lowest: Version | None = None
    highest: Version | None = None
    for operator, text in _SPECIFIER.findall(specifiers):
        numbers = [int(n) for n in text.split(".")]
        version = (numbers[0], numbers[1] if len(numbers) > 1 else 0)
        low = high = None
        match operator:
            case "==" | "===" | "=":
                low, high = version, version if len(numbers) > 1 else (version[0], _ANY)
            case ">=" | ">":
                low = version
            case "<=":
                high = version
            case "<" if any(numbers[2:]):  # below 2.16.1 there is 2.16.0
                high = version
            case "<":
                high = (version[0], version[1] - 1) if version[1] else (version[0] - 1, _ANY)
            case "~=" | "^" | "~":
                minor = len(numbers) > 2 if operator == "~=" else operator == "~" and len(numbers) > 1
                low, high = version, version if minor else (version[0], _ANY)
        lowest = max(filter(None, (lowest, low)), default=None)
        highest = min(filter(None, (highest, high)), default=None)
    return lowest, highest


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _version(text: str) -> Version | None:
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None
