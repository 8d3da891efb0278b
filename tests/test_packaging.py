"""The wheel ships what the checkout holds."""

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_every_module_is_installed() -> None:
    try:
        installed = {str(path) for path in files("tfboost") or ()}
    except PackageNotFoundError:
        pytest.skip("tfboost is not installed")
    if "rewriter/__init__.py" not in installed:
        pytest.skip("tfboost is installed in editable mode")
    paths = [*(ROOT / "rewriter").rglob("*.py"), *(ROOT / "codemods").rglob("*.py")]
    modules = {str(path.relative_to(ROOT)) for path in paths}
    assert modules
    assert modules <= installed
