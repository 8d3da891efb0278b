"""The command line: thin, and quick where there is nothing to do."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

gc.disable()  # a run is short: what it leaves to collect is collected between jobs

from typing import TYPE_CHECKING, Annotated, Any, NoReturn  # noqa: E402

import typer  # noqa: E402

if TYPE_CHECKING:
    from .codemod import Codemod
    from .report import FileReport
