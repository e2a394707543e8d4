"""``async for`` and ``await`` over a subscriber's pollable descriptor."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from ._errors import Closed, TimedOut

if TYPE_CHECKING:
    from ._rgaps import Sample, Subscriber


class Waiters:
    """The tasks of one event loop that wait for one subscriber.

    An event loop takes one callback per descriptor, so the tasks share it: whenever there is
    something to read all of them look, and those who find nothing wait again.
    """

    def __init__(self, subscriber: Subscriber) -> None:
        self.loop = asyncio.get_running_loop()
        # Our own number for the same object: the subscriber may be closed while a task waits.
        self._fd = os.dup(subscriber.fileno())
        self._waiting: set[asyncio.Future[None]] = set()

    async def wait(self) -> None:
        """Returns when there may be something to read."""
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
        """Wakes all who wait, so that they see that the subscriber is closed. From any thread."""
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
    except asyncio.TimeoutError as error:
        message = f"no message on topic '{subscriber.topic}' within the time-out"
        raise TimedOut(message) from error


async def _receive(subscriber: Subscriber) -> Sample:
    while True:
        sample = subscriber.try_recv()
        if sample is not None:
            return sample
        await subscriber._waiters(asyncio.get_running_loop(), Waiters).wait()


class Receiver:
    """What ``async for`` iterates over. It ends when the subscriber is closed."""

    def __init__(self, subscriber: Subscriber) -> None:
        self._subscriber = subscriber

    def __aiter__(self) -> Receiver:
        return self

    async def __anext__(self) -> Sample:
        try:
            return await _receive(self._subscriber)
        except Closed:
            raise StopAsyncIteration from None
