"""Finds the line of the user's program that runs now, for warnings and messages."""

from __future__ import annotations

import sys
import warnings
from types import FrameType


def place() -> str:
    """The file and line of the user's program that runs now, as ``FILE:LINE``."""
    frame, _ = _users_frame()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def warn(category: type[Warning], text: str) -> None:
    """Issues a warning at the line of the user's program that runs now."""
    _, level = _users_frame()
    warnings.warn(text, category, stacklevel=level)


#: Packages whose frames are skipped, since they run on behalf of the user's program.
_INNER = frozenset(
    {"rgaps", "numpy", "torch", "jax", "cupy", "numba", "tvm_ffi", "contextlib", "multiprocessing", "concurrent"}
)


def _users_frame() -> tuple[FrameType, int]:
    """The innermost frame of the user's program, and its ``stacklevel`` for the caller of this function."""
    frame, level = sys._getframe(2), 2
    while frame.f_back is not None and _package(frame.f_globals) in _INNER:
        frame, level = frame.f_back, level + 1
    return frame, level


def _package(names: dict[str, object]) -> str:
    return str(names.get("__name__", "")).partition(".")[0]
