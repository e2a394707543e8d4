"""Entry points of the programs in the wheel."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

FOLDER = str(Path(__file__).resolve().parent / "bin")


def _run(name: str) -> NoReturn:
    program = os.path.join(FOLDER, name)
    if not os.access(program, os.X_OK):
        sys.exit(f"{name}: this installation of rgaps lacks the program ({program}); install the wheel that 'make wheel' builds")
    os.execv(program, [name, *sys.argv[1:]])


def rgapsd() -> NoReturn:
    """Runs the daemon."""
    _run("rgapsd")


def rgaps() -> NoReturn:
    """Runs the command line."""
    _run("rgaps")


def rgaps_links() -> NoReturn:
    """Runs the links to other hosts. The daemon starts this program if links are configured."""
    _run("rgaps-links")
