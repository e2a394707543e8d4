"""The prefill side: takes prompts, and publishes keys and values layer by layer, in place.

A layer of a request is one message: a loan with the keys and values of the blocks that the decoder lacks. The model writes
into the loan, and the end of the with statement publishes it. Until then only this worker can touch its bytes;
afterwards nobody can write them, and the publisher's history keeps them until the decoder has read them. If an exception
leaves the with statement, the loan is discarded, so a decoder never sees half a layer.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .. import _default, _numpy, _torch
from .._errors import BackPressured, Error, InvalidArgument, Untrusted
from . import _protocol
from ._errors import RequestAborted
from ._spec import HASH_BYTES, Spec, as_tokens, block_hashes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .._rgaps import Loan, Node, Publisher, Sample

#: The most messages that the history for one decoder keeps.
_MESSAGES = 4096
#: The most cancelled loads that a worker remembers, since their requests may still be queued.
_CANCELLED = 4096
#: How long an answer other than a layer waits for a decoder that is out of sight, in seconds. A decoder that misses it asks again.
_ANSWER_S = 2.0


class PrefillWorker:
    """Takes requests of decoders. One thread or event loop at a time may use a worker and its requests.

    Args:
        spec: The shape of the cache; decoders must have the same.
        name: The worker's name, unique below ``topic``: 1 to 64 letters, digits, ``_``, ``.``, ``-``. Decoders name it.
        topic: The prefix of the topics' names. Default: ``"kv"``.
        node: The node to use. Default: the process's default node.
        domain: Where the blocks are published: ``"host"``, ``"cuda:0"``. Default: the host.
        window_bytes: How many bytes of layers are kept for one decoder until it has read them. One layer
            of the longest prompt must fit. Default: 64 MiB.
        deadline: How long publishing waits for a decoder that does not read, and for memory, in seconds. Default: 10.
        outage: How many seconds a decoder may be out of sight before it counts as dead. A decoder on another host is out of sight
            while the network is down; layers that are published meanwhile reach it afterwards. A request of a decoder that is out
            of sight blocks the worker for up to this time. Default: 5.
        max_queued: How many requests may wait; the worker refuses more, and their decoders ask another worker. Default: 1024.

    Raises:
        InvalidArgument: The name has other characters.
    """

    def __init__(
        self,
        spec: Spec,
        *,
        name: str,
        topic: str = "kv",
        node: Node | None = None,
        domain: str | None = None,
        window_bytes: int = 64 << 20,
        deadline: float = 10.0,
        outage: float = 5.0,
        max_queued: int = 1024,
    ) -> None:
        self.spec = spec
        self.name = _protocol.checked_name(name)
        self._topic, self._node = topic, node or _default.default_node()
        self._domain, self._window, self._deadline = domain, window_bytes, deadline
        self._outage, self._max_queued = outage, max_queued
        self._queue: deque[PrefillRequest] = deque()
        self._cancelled: dict[tuple[str, int], None] = {}
        # The requests that this process has. The answer to a query for any other request is "lost".
        self._known: weakref.WeakValueDictionary[tuple[str, int], PrefillRequest] = weakref.WeakValueDictionary()
        self._senders: dict[str, Publisher] = {}
        # When a decoder went out of sight.
        self._missing: dict[str, float] = {}
        self._requests = self._node.subscriber(_protocol.request_topic(topic, name), reliable=True)

    def recv(self, timeout: float | None = None) -> PrefillRequest:
        """Waits for the oldest request, and returns it. Skips requests of decoders that died or cancelled.

        Args:
            timeout: The longest wait, in seconds; None waits without limit. Default: None.

        Raises:
            TimedOut: No request arrived in time.
            Closed: The worker is closed.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while (request := self.try_recv()) is None:
            left = None if end is None else max(end - time.monotonic(), 0)
            if left == 0:
                raise self._requests._timed_out(timeout or 0)
            self._requests.wait(left)
        return request

    def try_recv(self) -> PrefillRequest | None:
        """The next request as in `recv`, without waiting; None if there is none.

        Raises:
            Closed: The worker is closed.
        """
        # Look for dead decoders before draining: all their requests have arrived by then.
        gone = [name for name in self._senders if self._is_gone(name)]
        self._drain()
        for decoder in gone:
            self._let_go(decoder)
        while self._queue:
            request = self._queue.popleft()
            if not request.aborted:
                return request
        return None

    async def recv_async(self, timeout: float | None = None) -> PrefillRequest:
        """Like `recv`, for an event loop.

        Args:
            timeout: The longest wait, in seconds; None waits without limit. Default: None.

        Raises:
            TimedOut, Closed: As in `recv`.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while (request := self.try_recv()) is None:
            left = None if end is None else max(end - time.monotonic(), 0)
            try:
                self._take(await self._requests.recv_async(left))
            except Untrusted:
                continue
        return request

    def __iter__(self) -> Iterator[PrefillRequest]:
        while True:
            yield self.recv()

    def _drain(self) -> None:
        while True:
            try:
                sample = self._requests.try_recv()
            except Untrusted:  # skipped; a decoder that waits for it asks again
                continue
            if sample is None:
                return
            self._take(sample)

    def _take(self, sample: Sample) -> None:
        with sample:
            meta = dict(sample.meta)
            head = _protocol.parse(meta)
            if head is None:
                return
            if head.op == "cancel":
                self._cancelled[head.id, head.attempt] = None
                while len(self._cancelled) > _CANCELLED:
                    del self._cancelled[next(iter(self._cancelled))]
                return
            if head.op not in ("load", "query"):
                return
            try:
                decoder = _protocol.checked_name(meta.get("decoder"))
            except InvalidArgument:
                return
            if head.op == "query":
                known = self._known.get((head.id, head.attempt))
                self._answer(decoder, head, "lost" if known is None or known._ended else "alive")
                return
            try:
                self._queue.append(self._checked(head, decoder, meta, sample))
            except _Refused as refused:
                self._answer(decoder, head, refused.op, **refused.says)

    def _checked(self, head: _protocol.Head, decoder: str, meta: Mapping[str, object], sample: Sample) -> PrefillRequest:
        if head.version != _protocol.VERSION:
            text = f"worker {self.name} has version {_protocol.VERSION} of the messages, the decoder {head.version}"
            raise _Refused("refused", reason=text)
        spec = meta.get("spec")
        if not isinstance(spec, dict) or self.spec._differences(spec):
            raise _Refused("refused", spec=self.spec._describe())
        if len(self._queue) >= self._max_queued:
            raise _Refused("failed", reason=f"worker {self.name} has {self._max_queued} requests waiting")
        try:
            tokens = as_tokens(sample.part("tokens").numpy())
            have = sample.part("have").numpy().tobytes()
        except (KeyError, Error, TypeError) as error:
            raise _Refused("failed", reason=f"the request cannot be read: {error}") from error
        hashes = b"".join(block_hashes(self.spec, tokens))
        if len(have) % HASH_BYTES or not hashes.startswith(have):
            raise _Refused("failed", reason="the decoder's blocks are not those of the prompt")
        return PrefillRequest(self, head, decoder, tokens, len(have) // HASH_BYTES)

    def _sender(self, decoder: str, patience: float) -> Publisher:
        """The publisher for a decoder. A decoder subscribes before it sends requests; a new publisher waits until they match."""
        sender = self._senders.get(decoder)
        if sender is None:
            from .. import KeepAll

            sender = self._node.publisher(
                _protocol.block_topic(self._topic, decoder),
                domain=self._domain,
                history=KeepAll(_MESSAGES, self._window),
                deadline=self._deadline,
                loan_timeout=self._deadline,
            )
            self._senders[decoder] = sender
            if not sender.wait_for_subscribers(1, patience):
                self._let_go(decoder)
                raise RequestAborted(f"decoder {decoder} is gone")
        return sender

    def _is_gone(self, decoder: str) -> bool:
        """Whether a decoder that has a publisher was out of sight for longer than ``outage``."""
        sender = self._senders.get(decoder)
        if sender is None or sender.subscribers:
            self._missing.pop(decoder, None)
            return False
        now = time.monotonic()
        return now - self._missing.setdefault(decoder, now) >= self._outage

    def _let_go(self, decoder: str) -> None:
        """Drops the requests of a dead decoder, and the history for it."""
        self._senders.pop(decoder).close()
        self._missing.pop(decoder, None)
        self._queue = deque(request for request in self._queue if request.decoder != decoder)

    def _answer(self, decoder: str, head: _protocol.Head, op: str, **says: object) -> None:
        """Sends a decoder a message other than a layer. Ignores a decoder that is dead or does not read."""
        try:
            self._sender(decoder, min(_ANSWER_S, self._outage)).put(b"", meta={**_protocol.head(op, head.id, head.attempt), **says})
        except (RequestAborted, BackPressured):
            pass

    def close(self) -> None:
        """Fails all waiting requests, so that decoders ask another worker, and closes all topics."""
        if self._requests.closed:
            return
        self._drain()
        while self._queue:
            self._queue.popleft().fail(f"worker {self.name} was closed")
        for sender in self._senders.values():
            sender.close()
        self._senders.clear()
        # Closed last, since decoders consider a worker without this subscriber dead.
        self._requests.close()

    def __enter__(self) -> PrefillWorker:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


class _Refused(Exception):
    def __init__(self, op: str, **says: object) -> None:
        self.op, self.says = op, says


class PrefillRequest:
    """A prompt that a decoder wants computed. Get it from `PrefillWorker.recv`.

    As a context manager, it reports an exception to the decoder, which then asks another worker. It swallows `RequestAborted`::

        for request in worker:
            with request:
                for layer in range(spec.layers):
                    with request.layer(layer) as (keys, values):
                        ...
                request.wait_for_save({"token": first_token})

    Attributes:
        tokens: Token ids of the whole prompt, ``uint32[n]``.
        start: The first token whose keys and values the decoder lacks; a multiple of the block size.
        decoder: Name of the decoder that sent it.
    """

    def __init__(
        self, worker: PrefillWorker, head: _protocol.Head, decoder: str, tokens: npt.NDArray[np.uint32], have: int
    ) -> None:
        self.tokens, self.decoder = tokens, decoder
        self.start = have * worker.spec.block_size
        self._worker, self._head = worker, head
        self._saved: set[int] = set()
        self._ended = False
        worker._known[head.id, head.attempt] = self

    @property
    def aborted(self) -> bool:
        """Whether the decoder has cancelled the request, or is dead."""
        self._worker._drain()
        if (self._head.id, self._head.attempt) in self._worker._cancelled:
            return True
        return self._worker._is_gone(self.decoder)

    def layer(self, layer: int) -> Layer:
        """A loan for the keys and values of a layer, for ``with`` or ``async with``, which gives ``(keys, values)``.

        Both are writable arrays of shape ``[len(tokens) - start, kv_heads, head_dim]``: of numpy, or of torch if the spec
        has a type of torch or the domain is a GPU. Write every element. At the end of the block the layer is published, and the
        arrays are empty. The order of layers is free; publish each as soon as it is ready.

        Args:
            layer: Number of the layer, from 0 on.

        Raises:
            RequestAborted: The decoder no longer wants the layer, or does not read within ``deadline``.
            InvalidArgument: There is no such layer, or it was published before.
            PoolFull: The pool of the domain has no memory.
            TooLarge: One layer of this prompt is larger than ``window_bytes``.
        """
        if not 0 <= layer < self._worker.spec.layers:
            raise InvalidArgument(f"there are layers 0 to {self._worker.spec.layers - 1}, not {layer}")
        if layer in self._saved or self._ended:
            raise InvalidArgument(f"layer {layer} was published, or the request has ended")
        if self.aborted:
            raise RequestAborted(f"decoder {self.decoder} no longer wants load {self._head.id}")
        return Layer(self, layer)

    def save_kv_layer(self, layer: int, keys: Any, values: Any) -> None:
        """Publishes arrays of your own: one copy, into the loan.

        Args:
            layer: Number of the layer, from 0 on.
            keys: Its keys, of the shape and library that `layer` gives: ``[len(tokens) - start, kv_heads, head_dim]``.
            values: Its values, alike.

        Raises:
            RequestAborted, InvalidArgument, PoolFull, TooLarge: As in `layer`.
        """
        with self.layer(layer) as (to_keys, to_values):
            to_keys[...] = keys
            to_values[...] = values

    def wait_for_save(self, result: Mapping[str, object] | None = None) -> None:
        """Ends the request. All layers must have been published. Waits only for room in the window.

        Args:
            result: The decoder's `Load.result`, such as the first token: at most 3 KiB, of the types that metadata may have.
                Default: empty.

        Raises:
            InvalidArgument: A layer is missing, the request has ended, or the result is too large or of another type.
            RequestAborted: The decoder does not read, or is dead.
        """
        missing = sorted(set(range(self._worker.spec.layers)) - self._saved)
        if missing or self._ended:
            raise InvalidArgument(f"layers {missing} were not published" if missing else "the request has ended")
        meta = {**_protocol.head("end", self._head.id, self._head.attempt), "result": dict(result or {})}
        try:
            self._worker._sender(self.decoder, self._worker._outage).put(b"", meta=meta)
        except BackPressured as error:
            raise RequestAborted(f"decoder {self.decoder} does not read: {error}") from error
        self._ended = True

    def fail(self, reason: str) -> None:
        """Tells the decoder that this worker cannot compute the request. The decoder asks another worker.

        Args:
            reason: Why, for the error that the decoder raises if no worker can: its first 500 characters.
        """
        if not self._ended:
            self._ended = True
            self._worker._answer(self.decoder, self._head, "failed", reason=reason[: _protocol.REASON_MAX])

    def __enter__(self) -> PrefillRequest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        if isinstance(error, RequestAborted):
            self._ended = True
            return True
        if kind is not None:
            self.fail(f"{kind.__name__}: {error}")
        elif not self._ended:
            self.fail("the worker left the request before its end")
        return False


class Layer:
    """A layer that is being filled, for ``with`` or ``async with``. Get it from `PrefillRequest.layer`.

    At the end of the block the layer is published; after an exception it is discarded. The end raises `RequestAborted` if the
    decoder does not read within ``deadline``.
    """

    def __init__(self, request: PrefillRequest, layer: int) -> None:
        self._request, self._layer = request, layer
        self._loan: Loan | None = None
        self._given: list[Any] = []

    def _open(self) -> tuple[Loan, tuple[Any, Any]]:
        request = self._request
        spec = request._worker.spec
        tokens = len(request.tokens) - request.start
        shape = spec._shape(spec.blocks(tokens))
        meta = {**_protocol.head("layer", request._head.id, request._head.attempt), "layer": self._layer}
        sender = request._worker._sender(request.decoder, request._worker._outage)
        self._loan = loan = sender.loan({"k": (shape, spec._element), "v": (shape, spec._element)}, meta=meta)
        for name in ("k", "v"):
            each = loan[name].reshape(-1, spec.kv_heads, spec.head_dim)
            # The memory may have bytes of another prompt, which the decoder must not read.
            each[tokens:] = 0
            self._given.append(each[:tokens])
        return loan, (self._given[0], self._given[1])

    def _take_back(self) -> None:
        """Empties the arrays, so that the user cannot write to a published layer."""
        for each in self._given:
            (_torch.empty if _torch.is_tensor(each) else _numpy.empty)(each)
        self._given.clear()

    def __enter__(self) -> tuple[Any, Any]:
        loan, arrays = self._open()
        loan.__enter__()
        return arrays

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        loan = self._closing()
        try:
            loan.__exit__(kind, error, trace)
        except BackPressured as slow:
            if loan.open:
                loan.discard()
            raise RequestAborted(f"decoder {self._request.decoder} does not read: {slow}") from slow
        self._closed(kind)

    async def __aenter__(self) -> tuple[Any, Any]:
        loan, arrays = self._open()
        await loan.__aenter__()
        return arrays

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loan = self._closing()
        try:
            await loan.__aexit__(kind, error, trace)
        except BackPressured as slow:
            if loan.open:
                loan.discard()
            raise RequestAborted(f"decoder {self._request.decoder} does not read: {slow}") from slow
        self._closed(kind)

    def _closing(self) -> Loan:
        self._take_back()
        assert self._loan is not None
        return self._loan

    def _closed(self, kind: type[BaseException] | None) -> None:
        if kind is None:
            self._request._saved.add(self._layer)
