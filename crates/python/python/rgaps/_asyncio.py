"""``async for`` and ``await`` over a subscriber's pollable descriptor, and publishing from an event loop.

A publisher has no descriptor to wait for. So a call that publishes first tries on the loop's thread, where it never waits.
If it would have to wait, a thread of a small pool waits for room or memory, and then the call tries again. Only a try
publishes, between two suspensions of the task, so a task that is cancelled while it waits has published nothing.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from ._errors import Closed

if TYPE_CHECKING:
    from types import TracebackType

    from ._rgaps import Loan, Publisher, Sample, Subscriber

_T = TypeVar("_T")

#: Threads that wait for publishers. Each waits for at most a slice (in seconds), so more waiting tasks take turns.
_THREADS = 4
_SLICE = 0.1
_pool: ThreadPoolExecutor | None = None


class WouldWait(Exception):
    """A call would have to wait. Its arguments are ``"room"`` or ``"memory"``, and the message's bytes."""


class Waiters:
    """The tasks of one event loop that wait for one subscriber.

    An event loop takes one callback per descriptor, so the tasks share it: whenever the descriptor is readable, all tasks
    try to receive, and those that get no message wait again.
    """

    def __init__(self, subscriber: Subscriber) -> None:
        self.loop = asyncio.get_running_loop()
        # A duplicate, since the subscriber may be closed while a task waits.
        self._fd = os.dup(subscriber.fileno())
        self._waiting: set[asyncio.Future[None]] = set()

    async def wait(self) -> None:
        """Returns when there may be a message."""
        future: asyncio.Future[None] = self.loop.create_future()
        if not self._waiting:
            self.loop.add_reader(self._fd, self._wake)
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)
            if not self._waiting and not self.loop.is_closed():
                self.loop.remove_reader(self._fd)

    def _wake(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        """Wakes all waiting tasks, so that they see that the subscriber is closed. Any thread may call it."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._wake)

    def __del__(self) -> None:
        os.close(self._fd)


async def receive(subscriber: Subscriber, timeout: float | None = None) -> Sample:
    """The next message."""
    sample = subscriber.try_recv()
    if sample is not None:
        return sample
    if timeout is None:
        return await _receive(subscriber)
    try:
        return await asyncio.wait_for(_receive(subscriber), timeout)
    except asyncio.TimeoutError:
        pass
    # In a thread, since this may ask the daemon.
    raise await _in_thread(subscriber._timed_out, timeout)


async def _receive(subscriber: Subscriber) -> Sample:
    while True:
        sample = subscriber.try_recv()
        if sample is not None:
            return sample
        await subscriber._waiters(asyncio.get_running_loop(), Waiters).wait()


class Receiver:
    """The asynchronous iterator of a subscriber. It ends when the subscriber is closed."""

    def __init__(self, subscriber: Subscriber) -> None:
        self._subscriber = subscriber

    def __aiter__(self) -> Receiver:
        return self

    async def __anext__(self) -> Sample:
        try:
            return await _receive(self._subscriber)
        except Closed:
            raise StopAsyncIteration from None


def _forget_pool() -> None:
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget_pool)


async def _in_thread(wait: Callable[..., _T], *arguments: object) -> _T:
    """Calls ``wait`` in a thread of the pool. Cancelling the task loses nothing, since the thread only waits."""
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="rgaps-wait")
    return await asyncio.get_running_loop().run_in_executor(_pool, wait, *arguments)


async def _tried(publisher: Publisher, attempt: Callable[[bool], _T]) -> _T:
    """Calls ``attempt(overdue)`` until it does not raise `WouldWait`. ``overdue``: the publisher's deadline has passed."""
    since: dict[str, float] = {}
    overdue = False
    while True:
        try:
            return attempt(overdue)
        except WouldWait as would:
            what, size = would.args
        limit = publisher._limit(what)
        now = time.monotonic()
        left = None if limit is None else limit - (now - since.setdefault(what, now))
        if what == "memory":
            last = left is not None and left <= _SLICE
            await _in_thread(publisher._wait_for_memory, size, last)
        elif left is None or left > 0:
            slice_ = _SLICE if left is None else min(left, _SLICE)
            await _in_thread(publisher._wait_for_room, size, slice_)
        else:
            await _in_thread(publisher._check_overdue, size)
            overdue = True


async def put(publisher: Publisher, data: Any, keywords: dict[str, Any] | None) -> int:
    """Publishes a copy."""

    def attempt(overdue: bool) -> int:
        return publisher._at_once(overdue).put(data, **(keywords or {}))

    return await _tried(publisher, attempt)


async def publish(loan: Loan, stream: object = None) -> int:
    """Publishes a loan."""
    return await _tried(
        loan._publisher(), lambda overdue: loan._publish_at_once(overdue, stream=stream)
    )


async def enter(loan: Loan) -> Any:
    """The beginning of ``async with`` over a loan."""
    return loan.__enter__()


async def leave(loan: Loan, failed: bool) -> None:
    """The end of ``async with`` over a loan."""
    if not loan._is_filled(failed):
        return
    try:
        await publish(loan)
    except asyncio.CancelledError:
        loan.discard()
        raise


class Lending:
    """The result of `Publisher.loan_async`: waits for a loan, by ``await`` or ``async with``."""

    def __init__(
        self, publisher: Publisher, arguments: tuple[Any, ...], keywords: dict[str, Any] | None
    ) -> None:
        self._publisher = publisher
        self._arguments = arguments
        self._keywords = keywords or {}
        self._loan: Loan | None = None

    async def _lend(self) -> Loan:
        def attempt(overdue: bool) -> Loan:
            return self._publisher._at_once(overdue).loan(*self._arguments, **self._keywords)

        return await _tried(self._publisher, attempt)

    def __await__(self) -> Generator[Any, None, Loan]:
        return self._lend().__await__()

    async def __aenter__(self) -> Any:
        self._loan = await self._lend()
        return await enter(self._loan)

    async def __aexit__(
        self,
        exception: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if self._loan is not None:
            await leave(self._loan, exception is not None)
