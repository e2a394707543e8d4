"""The readers' side: assembles complete versions from the messages of shards."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from .._default import default_node
from .._errors import Closed, InvalidArgument, TimedOut
from .._rgaps import WaitSet
from . import _format
from ._errors import VersionIncomplete, WeightsMismatch
from ._format import Kind
from ._version import Arrays, Message, Weights, merge

if TYPE_CHECKING:
    from .._rgaps import Node, Subscriber

#: The most full versions of a shard that wait for other shards: ranks are at most one version apart.
_WAITING_MAX = 2
#: How often a waiting thread checks whether another thread has completed a version, in seconds.
_SLICE_SECONDS = 0.5

#: Identifies a version: the trainer's run, and the number.
_Key = tuple[str, int]


class _Topic:
    """The subscriber of one shard and kind, and the versions of its messages that wait for other shards."""

    def __init__(self, subscriber: Subscriber, most: int) -> None:
        self.subscriber = subscriber
        self.most = most
        self.waiting: deque[_Key] = deque()


class WeightsSubscriber:
    """Reads the weights that a `WeightsPublisher` publishes under a name. Any thread may use it.

    A subscriber keeps the newest complete version, on which a partial update may be based, and the messages of newer versions
    that have arrived. It takes messages from the trainer only within `wait` and `latest`.

    Args:
        node: The node that subscribes; None for the default node.
        name: The name of the weights.
        arrays: The library of the tensors, ``"torch"`` or ``"numpy"``. Default: torch.
        domain: Where the tensors are, as in `Node.subscriber`: ``"cuda:0"`` has one copy on that GPU for all readers there.
            Default: the host.
        max_held: Largest number of versions and partial updates that this process keeps (4 to 4096). Default: 256.
    """

    def __init__(
        self,
        node: Node | None,
        name: str,
        *,
        arrays: Arrays = "torch",
        domain: str | None = None,
        max_held: int = 256,
    ) -> None:
        if arrays not in ("torch", "numpy"):
            raise InvalidArgument(f"arrays={arrays!r}: 'torch' or 'numpy'")
        if arrays == "numpy" and domain not in (None, "host"):
            raise InvalidArgument(f"numpy cannot read tensors in {domain!r}; use arrays='torch'")
        self._node = default_node() if node is None else node
        self._name, self._arrays, self._domain, self._max_held = name, arrays, domain, max_held
        self._lock = threading.Lock()
        self._closed = False
        self._current: Weights | None = None
        self._run: str | None = None
        self._returned: int | None = None
        self._groups: dict[_Key, dict[int, Message]] = {}
        self._error: WeightsMismatch | None = None
        self._topics: dict[tuple[Kind, int], _Topic] = {}
        self._set = WaitSet()
        self._subscribe(1)

    @property
    def name(self) -> str:
        """The name of the weights."""
        return self._name

    def latest(self) -> Weights | None:
        """The newest complete version that is there, without waiting; None before the first.

        Raises:
            WeightsMismatch: A version arrived that is not valid. It is skipped; the next call goes on.
        """
        with self._lock:
            self._take()
            if self._current is not None:
                self._returned = self._current.version
            return self._current

    def wait(self, version: int | None = None, timeout: float | None = None) -> Weights:
        """Waits for a complete version, and returns the newest one.

        Args:
            version: Waits until the newest complete version is this one or a greater one. Default: until it is one that
                neither `wait` nor `latest` has returned.
            timeout: The longest wait, in seconds; None waits without limit. Default: None.

        Raises:
            VersionIncomplete: Only a part of a newer version arrived in time: its trainer is slow or dead.
            TimedOut: Nothing newer arrived in time.
            WeightsMismatch: As in `latest`.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                self._take()
                if (found := self._current) is not None and self._is_wanted(found, version):
                    self._returned = found.version
                    return found
                left = _SLICE_SECONDS if end is None else end - time.monotonic()
                if left <= 0:
                    raise self._timed_out(version, timeout)
            self._set.wait(min(left, _SLICE_SECONDS))

    def close(self) -> None:
        """Ends the subscription. Versions that were returned stay valid."""
        with self._lock:
            self._closed = True
            self._set.close()
            for topic in self._topics.values():
                topic.subscriber.close()
            self._groups.clear()
            self._current = None

    def __enter__(self) -> WeightsSubscriber:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _is_wanted(self, found: Weights, version: int | None) -> bool:
        if version is not None:
            return found.version >= version
        return self._returned is None or found.version > self._returned

    def _subscribe(self, shards: int) -> None:
        """Subscribes to the topics of that many shards, if it does not yet."""
        kinds: tuple[tuple[Kind, int], ...] = (("full", _WAITING_MAX), ("partial", _format.PARTIALS_MAX))
        for shard in range(len(self._topics) // 2, shards):
            for kind, most in kinds:
                subscriber = self._node.subscriber(
                    _format.topic(self._name, kind, shard),
                    domain=self._domain,
                    late="all",
                    max_held=self._max_held,
                )
                self._topics[kind, shard] = _Topic(subscriber, most)
                self._set.attach(subscriber)

    def _take(self) -> None:
        """Takes what has arrived, and makes the newest complete version the current one."""
        if self._closed:
            raise Closed(f"the subscriber of {self._name!r} is closed")
        known = 0
        while known != len(self._topics):
            known = len(self._topics)
            for (kind, shard), topic in list(self._topics.items()):
                while (sample := topic.subscriber.try_recv()) is not None:
                    try:
                        self._keep(kind, shard, topic, Message(sample))
                    except WeightsMismatch as error:
                        self._error = error
                    finally:
                        sample.release()
                self._advance()
        found, self._error = self._error, None
        if found is not None:
            raise found

    def _keep(self, kind: Kind, shard: int, topic: _Topic, message: Message) -> None:
        header = message.header
        if header.shard != shard or (header.base is None) != (kind == "full"):
            raise WeightsMismatch(f"a message on {topic.subscriber.topic!r} belongs to another topic")
        if self._current is not None and header.version <= self._current.version:
            return
        self._subscribe(header.shards)
        key = (header.run, header.version)
        self._groups.setdefault(key, {})[shard] = message
        topic.waiting.append(key)
        while len(topic.waiting) > topic.most:
            self._drop_one(topic.waiting.popleft(), shard)

    def _drop_one(self, key: _Key, shard: int) -> None:
        group = self._groups.get(key, {})
        group.pop(shard, None)
        if not group:
            self._groups.pop(key, None)

    def _advance(self) -> None:
        """Advances to the newest complete full version, and then over the partial updates that follow it."""
        fulls = [key for key, group in self._groups.items() if _base(group) is None]
        updates = [key for key, group in self._groups.items() if _base(group) is not None]
        for key in sorted(fulls, key=lambda key: key[1], reverse=True) + sorted(updates, key=lambda key: key[1]):
            # Adopting a version drops the groups that are not newer.
            if (group := self._groups.get(key)) is None:
                continue
            try:
                if _is_complete(group) and ((base := _base(group)) is None or self._follows(key, base)):
                    on = None if base is None else self._current
                    self._adopt(key, merge([group[each] for each in sorted(group)], self._arrays, on))
            except WeightsMismatch as error:
                self._error = error
                del self._groups[key]

    def _follows(self, key: _Key, base: int) -> bool:
        return self._current is not None and (key[0], base) == (self._run, self._current.version)

    def _adopt(self, key: _Key, version: Weights) -> None:
        self._run, self._current = key[0], version
        for each in [each for each in self._groups if each[1] <= key[1]]:
            del self._groups[each]
        for topic in self._topics.values():
            topic.waiting = deque(each for each in topic.waiting if each in self._groups)

    def _timed_out(self, version: int | None, timeout: float | None) -> TimedOut:
        wanted = "newer version" if version is None else f"version {version} or newer"
        have = "none is complete" if self._current is None else f"the newest complete one is {self._current.version}"
        text = f"no {wanted} of {self._name!r} within {timeout} s; {have}"
        if not self._groups:
            return TimedOut(text)
        key = max(self._groups, key=lambda key: key[1])
        group = self._groups[key]
        shards = next(iter(group.values())).header.shards
        if missing := sorted(set(range(shards)) - group.keys()):
            return VersionIncomplete(f"{text}; version {key[1]} lacks shards {missing} of {shards}")
        return VersionIncomplete(f"{text}; version {key[1]} is a partial update, and its base {_base(group)} has not arrived")


def _base(group: dict[int, Message]) -> int | None:
    return next(iter(group.values())).header.base


def _is_complete(group: dict[int, Message]) -> bool:
    headers = [each.header for each in group.values()]
    if len({(each.shards, each.base) for each in headers}) > 1:
        raise WeightsMismatch(f"shards of version {headers[0].version} disagree on the number of shards, or on the base")
    return len(group) == headers[0].shards
