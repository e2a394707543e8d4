"""The camera: pans over real photographs and publishes 1080p RGB frames.

Prints a line of JSON now and then, and a last one with where each frame was written.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import time
from pathlib import Path

import numpy as np
from PIL import Image as Pillow

import rgaps
from frames import FPS, HEIGHT, TOPIC, WIDTH, Image, Memory, address_of, memory_of

#: Photographs in the wheel of scikit-image.
PHOTOS = [
    "astronaut.png",
    "coffee.png",
    "chelsea.png",
    "rocket.jpg",
    "hubble_deep_field.jpg",
    "retina.jpg",
]
#: How much larger than a frame a photograph is made, to have room to pan.
ROOM = 1.2


def shipped_photographs() -> Path:
    """Where scikit-image has them."""
    package = importlib.util.find_spec("skimage")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("scikit-image is not installed; install it, or give --photos FOLDER")
    return Path(package.submodule_search_locations[0]) / "data"


def photographs(folder: Path) -> list[Image]:
    """The photographs, decoded and scaled so that a frame fits in with some room."""
    decoded = []
    for name in PHOTOS:
        with Pillow.open(folder / name) as photo:
            scale = ROOM * max(WIDTH / photo.width, HEIGHT / photo.height)
            size = (math.ceil(photo.width * scale), math.ceil(photo.height * scale))
            scaled = photo.convert("RGB").resize(size, Pillow.Resampling.BICUBIC)
            decoded.append(np.asarray(scaled))
    return decoded


def frame(photos: list[Image], number: int, frames: int) -> Image:
    """The part of a photograph that frame `number` shows, as a view of it."""
    photo = photos[number * len(photos) // frames]
    angle = 2 * math.pi * number / (5 * FPS)
    top = round((photo.shape[0] - HEIGHT) * (0.5 + 0.5 * math.sin(angle)))
    left = round((photo.shape[1] - WIDTH) * (0.5 + 0.5 * math.cos(1.3 * angle)))
    return photo[top : top + HEIGHT, left : left + WIDTH]


def publish(pub: rgaps.Publisher, memory: Memory, image: Image) -> str:
    """Publishes a frame; returns where it was written."""
    with pub.loan((HEIGHT, WIDTH, 3), "uint8") as loan:
        array = memory.view(loan)
        memory.fill(array, image)
        loan.tag = memory.checksum(array)
        place = memory.place(address_of(array))
        # The loan is published at the end of this block, and nobody may look at it by then.
        del array
    return place


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--domain", default="host")
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--subscribers", type=int, default=3)
    parser.add_argument("--photos", type=Path, help="folder of scikit-image's photographs")
    parser.add_argument("--patience", type=float, default=1.0, help="times longer that others may take")
    arguments = parser.parse_args()
    memory = memory_of(arguments.domain)
    photos = photographs(arguments.photos or shipped_photographs())
    places = []
    # Reliable, so that a slow subscriber slows the camera down, but not for ever.
    # The history is short, so that no frame is old when it is read.
    deadline = 10.0 * arguments.patience
    publisher = rgaps.publisher(
        TOPIC, type="rgb8", domain=arguments.domain, history=4, deadline=deadline
    )
    with publisher as pub:
        if not pub.wait_for_subscribers(arguments.subscribers, 2 * deadline):
            raise SystemExit(f"only {pub.subscribers} of {arguments.subscribers} subscribers came")
        begun = due = time.monotonic()
        for number in range(arguments.frames):
            time.sleep(max(0.0, due - time.monotonic()))
            places.append(publish(pub, memory, frame(photos, number, arguments.frames)))
            # A frame that was late delays those after it, rather than having them come in a burst.
            due = max(due + 1 / FPS, time.monotonic() - 1 / FPS)
            if number % 10 == 9:
                print(json.dumps({"frames": number + 1}), flush=True)
        seconds = time.monotonic() - begun
    print(json.dumps({"frames": len(places), "seconds": seconds, "places": places}), flush=True)


if __name__ == "__main__":
    main()
