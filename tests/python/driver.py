"""The test driver (tests/driver) as tests steer it: streams that are held, and counts of calls."""

import contextlib
import ctypes
import os
import time


class Driver:
    """The driver of this process, with the primary context of a GPU current."""

    def __init__(self, device=0):
        self._library = ctypes.CDLL(os.environ["RGAPS_CUDA_LIBRARY"])
        context = ctypes.c_void_p()
        self.call("cuInit", ctypes.c_uint(0))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxPushCurrent_v2", context)

    def call(self, name, *arguments):
        code = getattr(self._library, name)(*arguments)
        assert code == 0, f"{name}: {code}"

    def stream(self):
        return Stream(self)

    def copy(self, to, source, count, stream):
        self.call(
            "cuMemcpyAsync", ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(count),
            ctypes.c_void_p(stream),
        )  # fmt: skip

    def synchronize(self, stream):
        self.call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def is_idle(self, stream):
        code = self._library.cuStreamQuery(ctypes.c_void_p(stream))
        NOT_READY = 600
        assert code in (0, NOT_READY), code
        return code == 0

    def stays_busy(self, stream, seconds=0.1):
        """Whether what is queued does not finish within that time, since it waits for something."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.is_idle(stream):
                return False
            time.sleep(0.005)
        return True

    @contextlib.contextmanager
    def delay(self, milliseconds):
        """Each operation takes that long. Counts begin anew."""
        configure = self._library.rgaps_test_driver_configure
        assert configure(f"delay_us={milliseconds * 1000}".encode()) == 0
        try:
            yield
        finally:
            assert configure(b"delay_us=0") == 0

    def allocate(self, count):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(count))
        return address.value

    def calls(self, name):
        """How often a function was called."""
        function = self._library.rgaps_test_driver_calls
        function.restype = ctypes.c_uint64
        return function(name.encode())

    def live(self, what):
        """How many contexts, allocations and so on there are."""
        function = self._library.rgaps_test_driver_live
        function.restype = ctypes.c_uint64
        return function(what.encode())


class Stream:
    """Like torch's: a stream of the driver's."""

    def __init__(self, driver):
        self._driver = driver
        stream = ctypes.c_void_p()
        driver.call("cuStreamCreate", ctypes.byref(stream), 1)
        self.cuda_stream = stream.value

    def fill(self, address, value, count):
        self._driver.call(
            "cuMemsetD8Async", ctypes.c_uint64(address), ctypes.c_uint8(value),
            ctypes.c_size_t(count), ctypes.c_void_p(self.cuda_stream),
        )  # fmt: skip

    def synchronize(self):
        self._driver.synchronize(self.cuda_stream)

    @contextlib.contextmanager
    def held(self):
        """Nothing that is queued runs within the block. Whoever waits for it on the CPU waits for
        ever (the driver ends the process), so that what is within waits for nothing."""
        hold = self._driver._library.rgaps_test_driver_hold
        assert hold(ctypes.c_size_t(self.cuda_stream), 1) == 0
        try:
            yield self
        finally:
            assert hold(ctypes.c_size_t(self.cuda_stream), 0) == 0
