"""A contact sheet: small pictures of frames all along the stream."""

from __future__ import annotations

from typing import Any

import numpy as np

from frames import HEIGHT, WIDTH, Image, Memory
from subscriber import run

STEP = 6
ROWS, COLUMNS = 3, 4
_HEIGHT, _WIDTH = HEIGHT // STEP, WIDTH // STEP
_sheet: Image = np.zeros((ROWS * _HEIGHT, COLUMNS * _WIDTH, 3), dtype=np.uint8)


def look(memory: Memory, array: Any, number: int, frames: int) -> None:
    # The place of this frame, if it is the first that falls on it.
    cell = number * ROWS * COLUMNS // frames
    if number and cell == (number - 1) * ROWS * COLUMNS // frames:
        return
    row, column = divmod(cell, COLUMNS)
    small = memory.small(array[::STEP, ::STEP])
    _sheet[row * _HEIGHT :, column * _WIDTH :][:_HEIGHT, :_WIDTH] = small


if __name__ == "__main__":
    run(__doc__, look, lambda: _sheet)
