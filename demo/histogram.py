"""Brightness histogram of each frame. The picture has time to the right and brightness upwards."""

from __future__ import annotations

from typing import Any

import numpy as np

from frames import Image, Memory
from subscriber import brightness, run

LEVELS = 256
_columns: list[Image] = []


def look(memory: Memory, array: Any, number: int, frames: int) -> None:
    levels = brightness(memory, array, 3).astype(np.uint8)
    counts = np.bincount(levels.reshape(-1), minlength=LEVELS)
    # The square root, so that what is rare is seen beside what is common.
    shown = np.sqrt(counts / counts.max()) * 255
    _columns.append(shown.astype(np.uint8)[::-1])


def picture() -> Image:
    return np.stack(_columns, axis=1)


if __name__ == "__main__":
    run(__doc__, look, picture)
