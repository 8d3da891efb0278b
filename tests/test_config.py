"""`[tool.tfboost]`: where it is found, what it may say, how it is followed; names of codemods."""

from __future__ import annotations

from pathlib import Path

import pytest

from rewriter.config import ConfigError, Configs, Settings, check_names, ignored_names, read

from .cli import FAST, PREFETCH, SCRIPT, tfboost


def settings(folder: Path, text: str) -> Settings:
    (folder / "pyproject.toml").write_text(text)
    found = read(folder / "pyproject.toml")
    assert found is not None
    return found


def test_everything(tmp_path: Path) -> None:
    found = settings(
        tmp_path,
        """
        [tool.tfboost]
        level = 1
        select = ["prefetch"]
        ignore = ["loader-workers"]
        target = "tf2.15"
        amp-dtype = "bfloat16"
        exclude = ["old", "src/gen_*.py"]
        [tool.tfboost.per-file-ignores]
        "tests/*" = ["prefetch"]
        """,
    )
    assert found == Settings(
        tmp_path,
        1,
        frozenset({"prefetch"}),
        frozenset({"loader-workers"}),
        "tf2.15",
        "bfloat16",
        ("old", "src/gen_*.py"),
        (("tests/*", frozenset({"prefetch"})),),
    )


def test_nearest_table_upward(tmp_path: Path) -> None:
    settings(tmp_path, "[tool.tfboost]\nlevel = 1\n")
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "pyproject.toml").write_text("[tool.other]\nname = 'tfboost'\n")
    assert Configs().of(deep / "x.py").level == 1
    settings(tmp_path / "a", "[tool.tfboost]\nlevel = 3\n")
    assert Configs().of(deep / "x.py").level == 3
    assert Configs().of(tmp_path / "x.py").level == 1


def test_no_table(tmp_path: Path) -> None:
    assert read(tmp_path / "pyproject.toml") is None
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert read(tmp_path / "pyproject.toml") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lvel = 1", "lvel: unknown key; did you mean `level`?"),
        ("amp_dtype = 'float16'", "amp_dtype: unknown key; did you mean `amp-dtype`?"),
        ("level = 4", "level: must be 1, 2 or 3, not 4"),
        ("level = true", "level: must be 1, 2 or 3, not True"),
        ("level = '2'", "level: must be 1, 2 or 3, not '2'"),
        ("target = 'tf'", "target: unknown target `tf`"),
        ("target = 2.15", "target: must be a string"),
        ("amp-dtype = 'half'", "amp-dtype: must be float16 or bfloat16"),
        ("select = 'prefetch'", "select: must be a list of strings"),
        ("ignore = [1]", "ignore: must be a list of strings"),
        ("ignore = ['prefech']", "ignore: unknown codemod `prefech`; did you mean `prefetch`?"),
        ("exclude = 'x'", "exclude: must be a list of strings"),
        ("per-file-ignores = ['x']", "per-file-ignores: must be a table"),
        (
            "per-file-ignores = {'*.py' = ['prefetsch']}",
            'per-file-ignores "*.py": unknown codemod `prefetsch`',
        ),
        ("level = ", ":2:9: not valid TOML"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        settings(tmp_path, f"[tool.tfboost]\n{text}\n")
    assert message in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "pyproject.toml"))


def test_not_a_table(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be a table"):
        settings(tmp_path, "[tool]\ntfboost = 1\n")


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("old", "old", True),
        ("old", "a/old", True),
        ("old", "older", False),
        ("*_pb2.py", "a/b_pb2.py", True),
        ("src/gen_*.py", "src/gen_x.py", True),
        ("src/gen_*.py", "lib/src/gen_x.py", False),
        ("src/", "src/a/b.py", True),
        ("a/b", "a/b/c/d.py", True),
    ],
)
def test_globs(tmp_path: Path, pattern: str, path: str, expected: bool) -> None:
    assert Settings(tmp_path, exclude=(pattern,)).excludes(tmp_path / path) is expected


def test_paths_outside_the_folder_match_by_name_only(tmp_path: Path) -> None:
    here = Settings(tmp_path / "a", exclude=("*/x.py", "y.py"))
    assert here.excludes(tmp_path / "a" / "b" / "x.py")
    assert not here.excludes(tmp_path / "b" / "x.py")
    assert here.excludes(tmp_path / "b" / "y.py")


@pytest.mark.parametrize(
    ("name", "message"), [("prefetch", ""), ("Pre_fetch", "did you mean `prefetch`?"), ("zzzz", "there are ")]
)
def test_names(name: str, message: str) -> None:
    if not message:
        check_names([name])
        return
    with pytest.raises(ValueError, match="unknown codemod") as error:
        check_names([name])
    assert message in str(error.value)


def test_names_in_comments() -> None:
    text = "x = 1  # noqa  # tfboost: ignore[a,  bc ]\ns = '# tfboost: ignore[no]'\n# tfboost: ignore\n"
    assert [text.split("\n")[line - 1][column - 1 :][: len(name)] for line, column, name in ignored_names(text)] == [
        "a",
        "bc",
    ]


class TestFollowed:
    """Through the command line."""

    def test_options_win(self, tmp_path: Path) -> None:
        settings(tmp_path, "[tool.tfboost]\nignore = ['prefetch']\nselect = ['prefetch']\ntarget = 'tf2.15'\n")
        (tmp_path / "a.py").write_bytes(SCRIPT)
        assert tfboost("check", "a.py", cwd=tmp_path).returncode == 0
        done = tfboost("check", "a.py", "--ignore", "loader-workers", cwd=tmp_path)
        assert (done.returncode, done.stdout.count(b"prefetch")) == (1, 1)

    def test_target_and_level(self, tmp_path: Path) -> None:
        settings(tmp_path, "[tool.tfboost]\nlevel = 1\ntarget = 'tf2.10'\n")
        (tmp_path / "a.py").write_bytes(SCRIPT)
        done = tfboost("rewrite", "a.py", cwd=tmp_path)
        assert b"TensorFlow 2.10, Keras 2 (--target tf2.10)" in done.stderr
        assert b"mixed" not in done.stdout

    def test_exclude_is_for_folders_only(self, tmp_path: Path) -> None:
        settings(tmp_path, "[tool.tfboost]\nexclude = ['old', 'b.py']\n")
        (tmp_path / "old").mkdir()
        for name in ("a.py", "b.py", "old/c.py"):
            (tmp_path / name).write_bytes(SCRIPT)
        done = tfboost("check", *PREFETCH, ".", cwd=tmp_path)
        assert [line.split(b":")[0] for line in done.stdout.splitlines()] == [b"a.py"]
        done = tfboost("check", *PREFETCH, "b.py", "old/c.py", cwd=tmp_path)
        assert [line.split(b":")[0] for line in done.stdout.splitlines()] == [b"b.py", b"old/c.py"]

    def test_per_file_ignores_and_different_tables(self, tmp_path: Path) -> None:
        settings(tmp_path, "[tool.tfboost]\nselect = ['prefetch']\nper-file-ignores = {'b.py' = ['prefetch']}\n")
        (tmp_path / "sub").mkdir()
        settings(tmp_path / "sub", "[tool.tfboost]\nselect = ['loader-workers']\n")
        for name in ("a.py", "b.py", "sub/c.py"):
            (tmp_path / name).write_bytes(SCRIPT)
        assert tfboost("rewrite", "--in-place", ".", cwd=tmp_path).returncode == 0
        assert (tmp_path / "a.py").read_bytes() == FAST
        assert (tmp_path / "b.py").read_bytes() == (tmp_path / "sub/c.py").read_bytes() == SCRIPT

    def test_mistake_stops_everything_in_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "pyproject.toml").write_text("[tool.tfboost]\nlevl = 1\n")
        (tmp_path / "a.py").write_bytes(SCRIPT)
        done = tfboost("rewrite", "--in-place", "a.py", cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.decode() == "pyproject.toml: [tool.tfboost] levl: unknown key; did you mean `level`?\n"
        assert (tmp_path / "a.py").read_bytes() == SCRIPT

    def test_ignore_comments(self, tmp_path: Path) -> None:
        ignored = SCRIPT.replace(b".batch(32)", b".batch(32)  # tfboost: ignore[prefetch]")
        (tmp_path / "a.py").write_bytes(ignored)
        assert tfboost("check", *PREFETCH, "a.py", cwd=tmp_path).returncode == 0
        misspelt = ignored.replace(b"prefetch", b"prefetsch")
        column = misspelt.splitlines()[2].index(b"prefetsch") + 1
        (tmp_path / "b.py").write_bytes(misspelt)
        (tmp_path / "c.py").write_bytes(SCRIPT)
        (tmp_path / "d.py").write_bytes(b"x = 1  # tfboost: ignore[xx]\n")
        done = tfboost("check", *PREFETCH, "a.py", "b.py", "c.py", "d.py", cwd=tmp_path)
        assert done.returncode == 2
        assert b"b.py:3:%d: unknown codemod `prefetsch`; did you mean `prefetch`?\n" % column in done.stderr
        assert b"d.py:1:26: unknown codemod `xx`" in done.stderr
        assert [line.split(b":")[0] for line in done.stdout.splitlines()] == [b"c.py"]
