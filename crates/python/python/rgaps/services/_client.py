"""The client of a service."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .. import _default
from .._errors import Closed, Error, TimedOut
from . import _protocol
from ._errors import ServiceError

if TYPE_CHECKING:
    from .._rgaps import Node, Sample

#: How often a waiting call looks whether the service is still there, in seconds.
_LOOK_S = 0.2
#: How long a call still waits for a reply after the service has disappeared, in seconds.
_LAST_REPLY_S = 1.0


class Call:
    """A request that was sent. Make one with `Client.submit`."""

    def __init__(self, client: Client, number: int, timeout: float) -> None:
        self._client, self._number = client, number
        self._deadline = time.monotonic() + timeout
        self._timeout = timeout
        self._answered = threading.Event()
        self._sample: Sample | None = None
        self._error: Error | None = None

    @property
    def done(self) -> bool:
        """Whether the call has ended: with an answer or an error, or because it was cancelled."""
        return self._answered.is_set()

    def result(self) -> Sample:
        """Waits for the answer, and returns it as a sample. Its ``meta`` has the key ``call`` besides the service's own keys.

        Raises:
            TimedOut: The service did not answer in time. The client cancels the request.
            ServiceError: The service's function raised an exception, the service is busy, or it has ended.
            Closed: The client was closed, or the call cancelled.
        """
        gone_since: float | None = None
        while not self._answered.wait(max(0.0, min(_LOOK_S, self._deadline - time.monotonic()))):
            now = time.monotonic()
            if now >= self._deadline:
                text = f"service '{self._client.name}' did not answer within {self._timeout:g} s"
                self._give_up(TimedOut(text))
            elif self._client._has_service():
                gone_since = None
            elif gone_since is None:
                gone_since = now
            elif now - gone_since > _LAST_REPLY_S:
                self._give_up(ServiceError(f"service '{self._client.name}' ended before it answered"))
        if self._error is not None:
            raise self._error
        assert self._sample is not None
        return self._sample

    def cancel(self) -> None:
        """Cancels the request at the service. `result` then raises `Closed`."""
        self._give_up(Closed(f"the call of service '{self._client.name}' was cancelled"))

    def _give_up(self, error: Error) -> None:
        if self._client._forget(self._number):
            self._end(None, error)
            self._client._cancel(self._number)

    def _end(self, sample: Sample | None, error: Error | None) -> None:
        self._sample, self._error = sample, error
        self._answered.set()


class Client:
    """Sends requests to a service. Any thread may use it; calls of several threads run at the same time.

    Args:
        name: The name of the service.
        node: The node to use. Default: the process's.
        domain: Where requests are published: ``"host"``, ``"cuda:0"``. Default: the host.
        max_bytes: The history's limit for requests that the service has not read yet. Default: 256 MiB.
    """

    def __init__(
        self, name: str, *, node: Node | None = None, domain: str | None = None, max_bytes: int = 256 << 20
    ) -> None:
        node = node or _default.default_node()
        requests, replies = _protocol.topics(name)
        self.name = name
        self._id = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._pending: dict[int, Call] = {}
        self._replies = node.subscriber(replies, reliable=True)
        self._listener = self._replies.listen(self._take)
        self._requests = node.publisher(requests, history=(1024, max_bytes), domain=domain)

    def wait_for_service(self, timeout: float | None = None) -> bool:
        """Waits until there is a service. Returns False if there is none after the time-out.

        Args:
            timeout: Seconds to wait; None waits without limit. Default: None.
        """
        begun = time.monotonic()
        if not self._requests.wait_for_subscribers(1, timeout):
            return False
        # Its replies must reach this client, too.
        while not self._has_service():
            if timeout is not None and time.monotonic() - begun >= timeout:
                return False
            time.sleep(0.005)
        return True

    def call(self, data: Any, *, timeout: float = 10.0, meta: Mapping[str, object] | None = None) -> Sample:
        """Sends a request, and waits for the answer. `Call.result` lists the errors.

        Args:
            data: An array, bytes, or a dictionary of named arrays, as `Publisher.put` takes it.
            timeout: How many seconds to wait, for a service and its answer together. Default: 10.
            meta: Keys for the service. Default: none.
        """
        return self.submit(data, timeout=timeout, meta=meta).result()

    def submit(self, data: Any, *, timeout: float = 10.0, meta: Mapping[str, object] | None = None) -> Call:
        """Sends a request, and returns without waiting for the answer.

        Args:
            data: An array, bytes, or a dictionary of named arrays, as `Publisher.put` takes it.
            timeout: How many seconds the call may take, from now until the answer. Default: 10.
            meta: Keys for the service. Default: none.

        Raises:
            TimedOut: There is no such service.
        """
        number = next(self._numbers)
        call = Call(self, number, timeout)
        if not self.wait_for_service(timeout):
            raise TimedOut(f"there was no service '{self.name}' within {timeout:g} s")
        about = {"client": self._id, "number": number, "timeout": max(0.0, call._deadline - time.monotonic())}
        with self._lock:
            self._pending[number] = call
        try:
            self._requests.put(data, meta=_protocol.header(meta, about))
        except BaseException:
            self._forget(number)
            raise
        return call

    def close(self) -> None:
        """Ends the client, and its calls."""
        with self._lock:
            pending, self._pending = self._pending, {}
        for call in pending.values():
            call._end(None, Closed(f"the client of service '{self.name}' was closed"))
        self._listener.close()
        self._requests.close()
        self._replies.close()

    def _take(self, sample: Sample) -> None:
        """Takes a reply, which may be for another client."""
        about = _protocol.call_of(sample.meta)
        if about is None or about[0] != self._id:
            return
        _, number, rest = about
        with self._lock:
            call = self._pending.pop(number, None)
        if call is None:
            return
        error = rest.get("error")
        if error is None:
            call._end(sample, None)
        else:
            call._end(None, ServiceError(f"service '{self.name}': {error}"))

    def _has_service(self) -> bool:
        return self._replies.publishers > 0

    def _forget(self, number: int) -> bool:
        """Removes a call from the pending ones. False: it has ended already."""
        with self._lock:
            return self._pending.pop(number, None) is not None

    def _cancel(self, number: int) -> None:
        about = {"client": self._id, "number": number, "cancel": True}
        try:
            self._requests.put(b"", meta=_protocol.header(None, about))
        except Error:
            # The service has ended, or does not read. It will see that the request's time is over.
            pass

    def __enter__(self) -> Client:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self.close()
