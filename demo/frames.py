"""Frames in either kind of memory: how to look at one, check it, and find out where it lies."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

import rgaps

TOPIC = "demo/camera"
HEIGHT, WIDTH = 1080, 1920
FPS = 30
Image = npt.NDArray[np.uint8]


class Memory(Protocol):
    """What differs between the host and a GPU."""

    def view(self, block: rgaps.Sample | rgaps.Loan) -> Any:
        """An array over the block, without a copy."""

    def fill(self, array: Any, image: Image) -> None:
        """Writes a frame."""

    def checksum(self, array: Any) -> int:
        """64 bits that depend on every byte and its place."""

    def small(self, array: Any) -> npt.NDArray[Any]:
        """A computed, small result as an array of numpy."""

    def place(self, address: int) -> str:
        """Which shared memory the address is in, and where; the same text in every process that
        maps the same bytes. Empty if the address is in no shared memory."""


class HostMemory:
    """Shared host memory, seen by numpy."""

    def __init__(self) -> None:
        # Not needed on a GPU, so not at the top.
        import xxhash

        self._digest = xxhash.xxh3_64_intdigest
        self._mappings: list[tuple[int, int, str, int]] = []

    def view(self, block: rgaps.Sample | rgaps.Loan) -> Image:
        return np.asarray(block)

    def fill(self, array: Image, image: Image) -> None:
        np.copyto(array, image)

    def checksum(self, array: Image) -> int:
        return self._digest(array.data)

    def small(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return array

    def place(self, address: int) -> str:
        found = self._look_up(address)
        if not found:
            self._mappings = list(_shared_mappings())
            found = self._look_up(address)
        return found

    def _look_up(self, address: int) -> str:
        for start, end, inode, offset in self._mappings:
            if start <= address < end:
                return f"inode {inode} + {offset + address - start}"
        return ""


def _shared_mappings() -> Any:
    """This process's shared mappings of memory files: start, end, inode, offset in the file."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[1].endswith("s") and fields[5].startswith("/memfd:"):
                start, end = (int(part, 16) for part in fields[0].split("-"))
                yield start, end, fields[4], int(fields[2], 16)


class GpuMemory:
    """A GPU's memory, seen by torch. Nothing but results that are small goes to the host."""

    def __init__(self) -> None:
        import torch  # type: ignore[import-not-found,unused-ignore]

        self._torch = torch
        self._device = torch.device("cuda", 0)
        words = HEIGHT * WIDTH * 3 // 8
        # Odd weights, so that every bit of every word counts, all different, so that its place does.
        self._weights = torch.arange(words, device=self._device, dtype=torch.int64) * 2 + 1

    def view(self, block: rgaps.Sample | rgaps.Loan) -> Any:
        return self._torch.from_dlpack(block)

    def fill(self, array: Any, image: Image) -> None:
        array.copy_(self._torch.from_numpy(np.ascontiguousarray(image)))

    def checksum(self, array: Any) -> int:
        words = array.reshape(-1).view(self._torch.int64)
        return int((words * self._weights).sum().item()) & (2**64 - 1)

    def small(self, array: Any) -> npt.NDArray[Any]:
        result: npt.NDArray[Any] = array.cpu().numpy()
        return result

    def place(self, address: int) -> str:
        # Each process maps a GPU's pool at an address of its own, and the driver does not tell the
        # offset; that the tensor is at the sample's address is checked by the subscriber.
        return "in the GPU's pool"


def gpu_domain() -> str | None:
    """The domain of the first GPU, if rgaps and torch both can use it."""
    if len(rgaps.domains()) < 2:
        return None
    try:
        import torch
    except ImportError:
        return None
    return rgaps.domains()[1] if torch.cuda.is_available() else None


def memory_of(domain: str) -> Memory:
    """The kind of memory of a domain."""
    return HostMemory() if domain == "host" else GpuMemory()


def address_of(array: Any) -> int:
    """Where an array of numpy or a tensor of torch begins."""
    if isinstance(array, np.ndarray):
        return int(array.__array_interface__["data"][0])
    return int(array.data_ptr())
