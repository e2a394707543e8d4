"""What the three subscribers share: they take every frame, check it, and look at it in place.

Prints a line of JSON now and then, and a last one with what was found.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image as Pillow

import rgaps
from frames import TOPIC, Image, Memory, address_of, memory_of

#: Looks at a frame, given its number and how many there will be.
Look = Callable[[Memory, Any, int, int], None]


def run(description: str, look: Look, picture: Callable[[], Image]) -> None:
    """Takes all frames, and writes the picture that was made of them."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--domain", default="host")
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--picture", required=True)
    parser.add_argument("--patience", type=float, default=1.0, help="times longer that others may take")
    arguments = parser.parse_args()
    memory = memory_of(arguments.domain)
    found = Findings()
    with rgaps.subscriber(TOPIC, type="rgb8", reliable=True) as sub:
        # The first frame may be long in coming, the others not.
        timeout = 30.0 * arguments.patience
        while found.next < arguments.frames:
            with sub.recv(timeout) as sample:
                found.received(sample, time.monotonic_ns())
                array = memory.view(sample)
                found.check(memory, sample, array)
                look(memory, array, sample.sequence, arguments.frames)
                del array
            timeout = 10.0 * arguments.patience
            if found.frames % 10 == 0:
                print(json.dumps({"frames": found.frames}), flush=True)
    Pillow.fromarray(picture()).save(arguments.picture)
    print(json.dumps(found.report()), flush=True)


class Findings:
    """What was seen of the stream."""

    def __init__(self) -> None:
        self.frames = 0
        self.next = 0
        self._missed = 0
        self._corrupt = 0
        self._copied_bytes = 0
        self._latencies_us: list[float] = []
        self._places: dict[int, str] = {}

    def received(self, sample: rgaps.Sample, now_ns: int) -> None:
        """Counts the frame, and those that should have come before it."""
        self._latencies_us.append((now_ns - sample.publish_ns) / 1000)
        self.frames += 1
        self._missed += sample.sequence - self.next
        self.next = sample.sequence + 1

    def check(self, memory: Memory, sample: rgaps.Sample, array: Any) -> None:
        """Compares the checksum, and looks where the array is."""
        if memory.checksum(array) != sample.tag:
            self._corrupt += 1
        place = memory.place(address_of(array))
        if address_of(array) != sample.address or not place:
            self._copied_bytes += sample.nbytes
        self._places[sample.sequence] = place

    def report(self) -> dict[str, object]:
        """As it is printed."""
        p50, p99 = np.percentile(self._latencies_us, [50, 99])
        return {
            "frames": self.frames,
            "missed": self._missed,
            "corrupt": self._corrupt,
            "copied_bytes": self._copied_bytes,
            "p50_us": float(p50),
            "p99_us": float(p99),
            "places": self._places,
        }


def brightness(memory: Memory, array: Any, step: int) -> npt.NDArray[np.float32]:
    """Brightness of every `step`-th pixel in both directions, as people see it (BT.601)."""
    pixels = memory.small(array[::step, ::step])
    weights = np.array([0.299, 0.587, 0.114], dtype=np.float32)
    return np.asarray(pixels.astype(np.float32) @ weights)
