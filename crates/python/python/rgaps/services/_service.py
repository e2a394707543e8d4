"""The service, which answers requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .. import _default
from .._errors import Error
from . import _protocol

if TYPE_CHECKING:
    from .._rgaps import Node, Sample

#: The most characters of a reason that fit in a header, which has at most 4096 bytes.
_WHY_MAX = 900


class Request:
    """A request: the argument of a service's function."""

    def __init__(self, sample: Sample, client: str, number: int, timeout: float) -> None:
        #: The message: an array, bytes, or named parts.
        self.sample = sample
        #: The client's own keys of the header.
        self.meta = _protocol.own_meta(sample.meta)
        self._key = (client, number)
        self._deadline = time.monotonic() + timeout
        self._cancelled = threading.Event()

    @property
    def cancelled(self) -> bool:
        """Whether the client no longer waits: it has cancelled the call, or the time is over. A function that takes long
        should check this from time to time, and return early."""
        return self._cancelled.is_set() or self.time_left <= 0

    @property
    def time_left(self) -> float:
        """How many seconds the client still waits; negative if its time is over."""
        return self._deadline - time.monotonic()


class Service:
    """Answers requests by a function, in threads of its own, until it is closed.

    Args:
        name: The name of the service. Its topics are ``NAME/request`` and ``NAME/reply``.
        function: Gets a `Request` and returns the answer: an array, bytes, or a dictionary of named arrays, as
            `Publisher.put` takes it, or None for an answer without bytes. The client gets an exception's text.
        node: The node to use. Default: the process's.
        domain: Where answers are published: ``"host"``, ``"cuda:0"``. Default: the host.
        threads: How many requests are answered at the same time. Default: 1.
        max_queued: How many requests may wait; the service refuses more. Default: 32.
        max_bytes: The history's limit for answers that clients have not read yet. Default: 256 MiB.
    """

    def __init__(
        self,
        name: str,
        function: Callable[[Request], Any],
        *,
        node: Node | None = None,
        domain: str | None = None,
        threads: int = 1,
        max_queued: int = 32,
        max_bytes: int = 256 << 20,
    ) -> None:
        node = node or _default.default_node()
        requests, replies = _protocol.topics(name)
        self.name, self._function = name, function
        self._room = threads + max_queued
        self._lock = threading.Lock()
        self._open: dict[tuple[str, int], Request] = {}
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="rgaps-service")
        # With "drop", a client that does not read its answers delays the others only once.
        self._replies = node.publisher(replies, history=(1024, max_bytes), domain=domain, slow_reader="drop")
        self._requests = node.subscriber(requests, reliable=True, max_held=self._room + 16)
        self._listener = self._requests.listen(self._take)

    def close(self) -> None:
        """Ends the service. Waits for the function's calls that have begun; other requests get no answer."""
        self._listener.close()
        self._threads.shutdown(cancel_futures=True)
        self._requests.close()
        self._replies.close()

    def _take(self, sample: Sample) -> None:
        """Takes a request, or the cancelling of one."""
        about = _protocol.call_of(sample.meta)
        if about is None:
            return
        client, number, rest = about
        if rest.get("cancel"):
            with self._lock:
                request = self._open.get((client, number))
            if request is not None:
                request._cancelled.set()
            return
        timeout = rest.get("timeout")
        request = Request(sample, client, number, float(timeout) if isinstance(timeout, (int, float)) else 0.0)
        with self._lock:
            is_full = len(self._open) >= self._room
            if not is_full:
                self._open[request._key] = request
        if is_full:
            self._refuse(request, f"it is busy: {self._room} requests wait or are being answered")
        else:
            self._threads.submit(self._answer, request)

    def _answer(self, request: Request) -> None:
        try:
            if not request.cancelled:
                self._call(request)
        finally:
            with self._lock:
                del self._open[request._key]

    def _call(self, request: Request) -> None:
        try:
            answer = self._function(request)
        except Exception as error:  # noqa: BLE001 (the client gets it, whatever it is)
            self._refuse(request, f"{type(error).__name__}: {error}")
            return
        if request.cancelled:
            return
        try:
            self._reply(request, b"" if answer is None else answer)
        except (Error, TypeError, ValueError) as error:
            self._refuse(request, f"its answer cannot be published: {type(error).__name__}: {error}")

    def _refuse(self, request: Request, why: str) -> None:
        try:
            self._reply(request, b"", error=why[:_WHY_MAX])
        except Error:
            # The client gets no error; its call ends with its time-out.
            pass

    def _reply(self, request: Request, data: Any, **about: object) -> None:
        client, number = request._key
        call: Mapping[str, object] = {"client": client, "number": number, **about}
        self._replies.put(data, meta=_protocol.header(None, call))

    def __enter__(self) -> Service:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self.close()
