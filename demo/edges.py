"""Edges of each frame: the slope of its brightness. The picture is a frame from the middle."""

from __future__ import annotations

from typing import Any

import numpy as np

from frames import HEIGHT, WIDTH, Image, Memory
from subscriber import brightness, run

STEP = 3
_picture: Image = np.zeros((HEIGHT // STEP, WIDTH // STEP), dtype=np.uint8)


def look(memory: Memory, array: Any, number: int, frames: int) -> None:
    global _picture
    light = brightness(memory, array, STEP)
    slope = np.zeros_like(light)
    slope[:, 1:] += np.abs(np.diff(light, axis=1))
    slope[1:] += np.abs(np.diff(light, axis=0))
    if number == frames // 2:
        _picture = np.clip(slope * 4, 0, 255).astype(np.uint8)


if __name__ == "__main__":
    run(__doc__, look, lambda: _picture)
