"""What `bench/python_latency.py` uses of torch, over the test driver, whose device memory the host may read.

Not torch: no tensors, no allocator. It lets CI run that program, where torch has 539 MB.
"""

import ctypes
import mmap
import os
import time

import numpy

int64 = numpy.int64
_library = ctypes.CDLL(os.environ["RGAPS_CUDA_LIBRARY"])


class Tensor:
    """Words at an address, and what keeps them there."""

    def __init__(self, address, count, owner):
        self._owner = owner
        self._address = address
        memory = (ctypes.c_uint64 * count).from_address(address)
        self._words = numpy.frombuffer(memory, dtype=numpy.int64)

    def fill_(self, number):
        self._words[...] = number

    def data_ptr(self):
        return self._address

    def __ne__(self, number):
        return self._words != number


class dtype:
    pass


def _call(name, *arguments):
    code = getattr(_library, name)(*arguments)
    if code:
        raise RuntimeError(f"{name}: {code}")


class _Stream:
    def __init__(self):
        handle = ctypes.c_void_p()
        _call("cuStreamCreate", ctypes.byref(handle), 1)
        self.cuda_stream = handle.value

    def synchronize(self):
        _call("cuStreamSynchronize", ctypes.c_void_p(self.cuda_stream))


class _Event:
    def __init__(self, enable_timing=False):
        self._at = 0.0

    def record(self):
        self._at = time.monotonic()

    def synchronize(self):
        cuda.current.synchronize()
        self._at = time.monotonic()

    def elapsed_time(self, end):
        return max(end._at - self._at, 1e-6) * 1000


class _Cuda:
    Stream, Event = _Stream, _Event

    def __init__(self):
        context = ctypes.c_void_p()
        _call("cuInit", 0)
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        _call("cuCtxPushCurrent_v2", context)
        address = ctypes.c_uint64()
        _call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(4096))
        self._scratch = address.value
        self.current = None

    def set_stream(self, stream):
        self.current = stream

    def _sleep(self, clocks):
        """Something is queued; the driver's delay is how long it takes."""
        here, there = ctypes.c_uint64(self._scratch), ctypes.c_uint64(self._scratch + 2048)
        stream = ctypes.c_void_p(self.current.cuda_stream)
        _call("cuMemcpyAsync", here, there, ctypes.c_size_t(8), stream)

    def get_device_name(self, ordinal):
        return "test driver"


cuda = _Cuda()


def zeros(count, dtype, pin_memory):
    """Registered memory, which is never freed."""
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    _call("cuMemHostRegister_v2", ctypes.c_uint64(address), ctypes.c_size_t(mmap.PAGESIZE), 2)
    return Tensor(address, count, memory)


def from_dlpack(exporter):
    """Behind the publisher's work, which is waited for here, since the host reads."""
    capsule = exporter.__dlpack__(stream=cuda.current.cuda_stream)
    if hasattr(exporter, "synchronize"):
        exporter.synchronize()
    return Tensor(exporter.address, exporter.nbytes // 8, capsule)
