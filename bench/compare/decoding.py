"""Photographs, decoded ahead by processes of their own into memory that the GPU copies from.

Not by threads: those hold the interpreter, and whoever publishes in between waits for it; then the pipeline would measure
Python's lock. Not into memory of the heap: a copy from there waits for its turn on the GPU.

Photographs are scikit-image's (demo/camera.py has the same), as JPEG files in memory.
"""
import collections
import ctypes
import importlib.util
import io
import mmap
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

PHOTOS = ["astronaut.png", "coffee.png", "chelsea.png", "rocket.jpg", "hubble_deep_field.jpg", "retina.jpg"]
CHANNELS = 3
#: Decoded batches that may be on their way to the GPU, and the largest batch.
UNDER_WAY, BATCH_MAX = 6, 8
#: Images that each process is ahead.
AHEAD = 4
#: What a process is told: file, place; and what it answers: height, width.
ORDER = struct.Struct("=II")
ANSWER = struct.Struct("=II")


def files():
    """The photographs as JPEG files, whatever they were."""
    from PIL import Image

    package = importlib.util.find_spec("skimage")
    folder = Path(package.submodule_search_locations[0]) / "data"
    found = []
    for name in PHOTOS:
        if not (folder / name).exists():
            continue  # some builds of scikit-image ship fewer
        with Image.open(folder / name) as photo:
            file = io.BytesIO()
            photo.convert("RGB").save(file, "JPEG", quality=90)
            found.append(file.getvalue())
    if not found:
        raise FileNotFoundError(f"none of the photographs is in {folder}")
    return found


def opened(file, side):
    """libjpeg halves what is more than twice as large as is wanted."""
    from PIL import Image

    photo = Image.open(io.BytesIO(file))
    photo.draft("RGB", (side, side))
    return photo


def place_bytes(photographs, side):
    """What each place has room for."""
    largest = max(photo.width * photo.height for photo in (opened(file, side) for file in photographs))
    return -(-largest * CHANNELS // mmap.PAGESIZE) * mmap.PAGESIZE


def work(memory, side):
    """A process: decodes what it is told to, until nobody is there to tell it."""
    import numpy as np

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with its parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    photographs = files()
    there = np.frombuffer(mmap.mmap(memory, 0), dtype=np.uint8)
    room = place_bytes(photographs, side)
    while len(order := sys.stdin.buffer.read(ORDER.size)) == ORDER.size:
        file, place = ORDER.unpack(order)
        image = np.asarray(opened(photographs[file], side).convert("RGB"))
        there[place * room : place * room + image.size] = image.reshape(-1)
        os.write(1, ANSWER.pack(image.shape[0], image.shape[1]))


class Decoder:
    """Batches of the photographs in turn, each decoded anew."""

    def __init__(self, side, device, processes):
        import torch

        self.torch, self.device = torch, device
        photographs = files()
        self.count, self.room = len(photographs), place_bytes(photographs, side)
        places = AHEAD * processes + BATCH_MAX * (UNDER_WAY + 1)
        memory = os.memfd_create("compare-photographs")
        os.truncate(memory, places * self.room)
        self.memory = torch.frombuffer(mmap.mmap(memory, 0), dtype=torch.uint8)
        if device.type == "cuda":
            code = int(torch.cuda.cudart().cudaHostRegister(self.memory.data_ptr(), self.memory.numel(), 0))
            if code:
                raise MemoryError(f"cudaHostRegister of {self.memory.numel()} bytes: {code}")
        command = [sys.executable, __file__, str(memory), str(side)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0, "pass_fds": [memory]}
        self.processes = [subprocess.Popen(command, **pipes) for _ in range(processes)]
        os.close(memory)
        self.free = collections.deque(range(places))
        self.ordered = collections.deque()
        self.number = 0
        self.given = collections.deque()

    def batch(self, count):
        """The next images, height x width x 3. Their places stay until the work that is queued when `used` is called has
        passed."""
        while len(self.ordered) < count + AHEAD * len(self.processes):
            if not self.free:
                self.reclaim()
            process, place = self.processes[self.number % len(self.processes)], self.free.popleft()
            process.stdin.write(ORDER.pack(self.number % self.count, place))
            self.ordered.append((process, place))
            self.number += 1
        taken = [self.ordered.popleft() for _ in range(count)]
        images = [self.image(process, place) for process, place in taken]
        self.given.append(([place for _, place in taken], None))
        return images

    def image(self, process, place):
        answer = process.stdout.read(ANSWER.size)
        if len(answer) != ANSWER.size:
            raise ChildProcessError("a process that decodes has ended")
        height, width = ANSWER.unpack(answer)
        begin = place * self.room
        return self.memory[begin : begin + height * width * CHANNELS].view(height, width, CHANNELS)

    def used(self):
        """The last batch is read by nothing but what is queued now."""
        places, _ = self.given.pop()
        event = None
        if self.device.type == "cuda":
            event = self.torch.cuda.Event()
            event.record()
        self.given.append((places, event))
        if len(self.given) > UNDER_WAY:
            self.reclaim()

    def reclaim(self):
        places, event = self.given.popleft()
        if event is not None:
            event.synchronize()
        self.free.extend(places)


if __name__ == "__main__":
    work(int(sys.argv[1]), int(sys.argv[2]))
