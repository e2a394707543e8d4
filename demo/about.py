"""What a result says of its run, so that figures of two runs are not compared by mistake."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def about(command: str) -> dict[str, Any]:
    """Date, command, revision, machine, and how busy the machine was in the last minute."""
    revision = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True)
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": command,
        "revision": revision.stdout.strip() or "unknown",
        "machine": _machine(),
        "load": round(os.getloadavg()[0], 2),
    }


def _machine() -> dict[str, Any]:
    cpu = re.search(r"^model name[^:]*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
    }
