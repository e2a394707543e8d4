"""The decode side: asks workers for blocks, and copies them into its pool as they arrive.

A decoder asks only if its pool has room for the whole prompt, so the free blocks of the pool limit what workers send
(back-pressure). Loads without room wait in order of arrival. A decoder checks every message of a worker before it
copies a byte. If a worker dies, fails or sends something wrong, the decoder asks another one.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .. import _default
from .._errors import Aborted, BackPressured, Closed, Error, InvalidArgument, TimedOut, TooManyHeld, Untrusted
from . import _protocol
from ._blocks import BlockPool
from ._errors import KvError, NoFreeBlocks, NoPrefillWorker, SpecMismatch, TransferFailed
from ._spec import HASH_BYTES, Spec, as_tokens, block_hashes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .._rgaps import Node, Publisher, Sample

#: How many requests, and bytes of them, a worker may leave unread before the decoder considers it stuck.
_REQUESTS = 1024
_REQUEST_BYTES = 64 << 20
#: After how many seconds without a sign of a worker the decoder asks it whether it still has the request.
_QUERY_S = 1.0
#: How long a worker may be out of sight, in seconds, while another one is there to take its loads.
_GONE_S = 0.2


class Load:
    """The blocks of one prompt, arriving. Get it from `Decoder.start_load_kv`.

    Attributes:
        tokens: Token ids of the prompt, ``uint32[n]``.
        block_table: Numbers of the prompt's blocks in the decoder's pool, in order. Empty while the load waits for free
            blocks, and after it has failed or was returned.
        reused: How many of its first blocks the pool had; these are not sent.
        result: The dictionary that the worker passed to `PrefillRequest.wait_for_save`. Empty if the pool had all blocks.
        worker: Name of the worker that was asked last.
    """

    def __init__(self, decoder: Decoder, number: int, tokens: npt.NDArray[np.uint32]) -> None:
        self.tokens = tokens
        self.block_table: list[int] = []
        self.reused = 0
        self.result: dict[str, Any] = {}
        self.worker: str | None = None
        self._decoder = decoder
        self._id = f"{decoder._session}-{number}"
        self._hashes = block_hashes(decoder.pool.spec, tokens)
        self._attempt = 0
        self._layers: set[int] = set()
        self._complete = self._given_back = False
        self._error: KvError | None = None
        self._failures: list[str] = []
        self._refusals: list[SpecMismatch] = []
        self._unfit: set[str] = set()
        # When the worker last gave a sign, and when the decoder last asked it for one.
        self._progress = self._queried = decoder._clock()

    @property
    def done(self) -> bool:
        """Whether all layers are in the pool."""
        return self._complete

    @property
    def attempts(self) -> int:
        """How many times a worker was asked: 1 if the first one delivered, 0 if the pool had all blocks."""
        return self._attempt

    @property
    def failed(self) -> KvError | None:
        """The error that ended the load, if one did."""
        return self._error

    def wait_for_layer_load(self, layer: int, timeout: float | None = None) -> None:
        """Waits until the blocks of a layer are in the pool. Layers that came before stay valid if the worker then dies:
        the next worker sends equal ones.

        Args:
            layer: Number of the layer, from 0 on.
            timeout: The longest wait, in seconds; None waits without limit. Default: None.

        Raises:
            TimedOut: They did not arrive in time. The load continues.
            NoPrefillWorker: No worker appeared within ``patience``. The load has failed.
            SpecMismatch: No worker has a cache of this spec. The load has failed.
            TransferFailed: No worker delivered the blocks. The load has failed.
            Closed: The load was returned by `Decoder.request_finished`, or its decoder was closed.
            InvalidArgument: There is no such layer.
        """
        self._decoder._wait(self._layer_here(layer), timeout)

    async def wait_for_layer_load_async(self, layer: int, timeout: float | None = None) -> None:
        """Like `wait_for_layer_load`, for an event loop.

        Args:
            layer: Number of the layer, from 0 on.
            timeout: The longest wait, in seconds; None waits without limit. Default: None.

        Raises:
            TimedOut, NoPrefillWorker, SpecMismatch, TransferFailed, Closed, InvalidArgument: As in `wait_for_layer_load`.
        """
        await self._decoder._wait_async(self._layer_here(layer), timeout)

    def wait(self, timeout: float | None = None) -> None:
        """Waits until all layers are in the pool, and the worker has ended the request.

        Args:
            timeout: The longest wait, in seconds; None waits without limit. Default: None.

        Raises:
            TimedOut, NoPrefillWorker, SpecMismatch, TransferFailed, Closed: As in `wait_for_layer_load`.
        """
        self._decoder._wait(self._all_here, timeout)

    async def wait_async(self, timeout: float | None = None) -> None:
        """Like `wait`, for an event loop.

        Args:
            timeout: The longest wait, in seconds; None waits without limit. Default: None.

        Raises:
            TimedOut, NoPrefillWorker, SpecMismatch, TransferFailed, Closed: As in `wait_for_layer_load`.
        """
        await self._decoder._wait_async(self._all_here, timeout)

    def reserve(self, tokens: int) -> None:
        """Adds private blocks to the block table, for the tokens that the model decodes.

        Args:
            tokens: How many tokens the table shall cover, with those of the prompt.

        Raises:
            NoFreeBlocks: The pool has too few. Nothing was allocated.
            InvalidArgument: The load is not done.
        """
        if not self.done or self._given_back:
            raise InvalidArgument("only a load that is done has room for more tokens")
        missing = self._decoder.pool.spec.blocks(tokens) - len(self.block_table)
        if missing > 0:
            self.block_table += self._decoder.pool.allocate(missing)

    def _layer_here(self, layer: int) -> Callable[[], bool]:
        if not 0 <= layer < self._decoder.pool.spec.layers:
            raise InvalidArgument(f"there are layers 0 to {self._decoder.pool.spec.layers - 1}, not {layer}")
        return lambda: self._all_here() or layer in self._layers

    def _all_here(self) -> bool:
        if self._error is not None:
            raise self._error
        if self._given_back:
            raise Closed("the load was given back by request_finished, or its decoder was closed")
        return self._complete


class Decoder:
    """Loads blocks from prefill workers into a pool. One thread or event loop at a time may use a decoder, its pool and its loads.

    Args:
        pool: The memory for the blocks.
        name: The decoder's name, unique below ``topic``: 1 to 64 letters, digits, ``_``, ``.``, ``-``.
        workers: Names of the prefill workers that it may ask. They may start later than the decoder.
        topic: The prefix of the topics' names. Default: ``"kv"``.
        node: The node to use. Default: the process's default node.
        domain: Where blocks are received, as in `Node.subscriber`. Default: where the workers publish them.
        patience: After how many seconds without a sign a worker counts as stuck, and how long to wait for a first worker. A
            worker gives a sign when it begins or ends a layer or takes a request, so make it longer than any of these takes.
            If a worker dies, the decoder asks another one after 0.2 s. If there is none, as while the network is down, the
            loads stay with their worker, and continue when it is back. Default: 60.
        max_attempts: How many times workers are asked for one prompt before the load fails. Default: 8.
        max_waiting: How many loads may wait for free blocks. Default: 1024.
        max_held: How many messages may be held unread at a time. Default: 64.
        clock: A function that returns the time in seconds, for tests. Default: ``time.monotonic``.

    Raises:
        InvalidArgument: There is no worker, or a name has other characters.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        name: str,
        workers: Sequence[str],
        topic: str = "kv",
        node: Node | None = None,
        domain: str | None = None,
        patience: float = 60.0,
        max_attempts: int = 8,
        max_waiting: int = 1024,
        max_held: int = 64,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not workers:
            raise InvalidArgument("a decoder needs the name of at least one prefill worker")
        self.pool = pool
        self.name = _protocol.checked_name(name)
        names = [_protocol.checked_name(worker) for worker in workers]
        self._clock, self._patience = clock, patience
        self._max_attempts, self._max_waiting = max_attempts, max_waiting
        # Distinguishes this decoder's loads from those of an earlier decoder of the same name.
        self._session = secrets.token_hex(8)
        self._count = 0
        self._waiting: deque[Load] = deque()
        self._active: dict[str, Load] = {}
        self._receiving: asyncio.Task[None] | None = None
        self._waiters = 0
        # When each worker went out of sight; while all are, the time of the last look.
        self._missing: dict[str, float] = {}
        self._asked: dict[str, Publisher] = {}
        node = node or _default.default_node()
        # Created before the first request, since a worker publishes blocks only to a decoder that subscribes.
        self._blocks = node.subscriber(
            _protocol.block_topic(topic, name), reliable=True, domain=domain, max_held=max_held
        )
        from .. import KeepAll

        for worker in names:
            self._asked[worker] = node.publisher(
                _protocol.request_topic(topic, worker), history=KeepAll(_REQUESTS, _REQUEST_BYTES), deadline=0.0
            )

    @property
    def spec(self) -> Spec:
        """The shape of the cache."""
        return self.pool.spec

    @property
    def waiting(self) -> int:
        """The number of loads that wait for free blocks."""
        return len(self._waiting)

    def get_num_new_matched_tokens(self, tokens: Sequence[int] | npt.NDArray[Any]) -> tuple[int, bool]:
        """How many tokens of a prompt a load would fetch, since the pool lacks their blocks; and whether there are any, so that
        the load takes time. Changes nothing.

        Args:
            tokens: Token ids of the prompt.

        Raises:
            InvalidArgument: There is no token, or one is not a number from 0 to 2^32 - 1.
        """
        found = len(self.pool.match(block_hashes(self.spec, tokens))) * self.spec.block_size
        return len(tokens) - found, found < len(tokens)

    def start_load_kv(self, tokens: Sequence[int] | npt.NDArray[Any]) -> Load:
        """Allocates blocks for a prompt, and asks a worker for those that the pool lacks. Returns the load at once.

        If the pool has all blocks of the prompt, the load is done, and no worker is asked: run the last token again to get
        the first new one, without writing its block, since others may read it. Return each load with
        `request_finished`.

        Args:
            tokens: Token ids of the prompt.

        Raises:
            NoFreeBlocks: The prompt never fits into the pool, or ``max_waiting`` loads wait for blocks.
            InvalidArgument: There is no token, or one is not a number from 0 to 2^32 - 1.
            Closed: The decoder is closed.
        """
        ids = as_tokens(tokens)
        if self.spec.blocks(len(ids)) > self.pool.blocks:
            needed = self.spec.blocks(len(ids))
            raise NoFreeBlocks(f"a prompt of {len(ids)} tokens takes {needed} blocks, and the pool has {self.pool.blocks}")
        if self._blocks.closed:
            raise Closed("the decoder is closed")
        self.poll()
        if len(self._waiting) >= self._max_waiting:
            raise NoFreeBlocks(f"{len(self._waiting)} loads wait for free blocks, the most that may")
        self._count += 1
        load = Load(self, self._count, ids)
        self._waiting.append(load)
        self._admit()
        return load

    def request_finished(self, load: Load) -> None:
        """Returns the blocks of a load. Full blocks of the prompt stay in the prefix cache until their memory is needed. A load
        that is not done is cancelled. A second call for the same load does nothing.

        Args:
            load: The load, of this decoder.

        Raises:
            InvalidArgument: The load belongs to another decoder.
        """
        if load._decoder is not self:
            raise InvalidArgument("the load belongs to another decoder")
        if load._given_back:
            return
        load._given_back = True
        if load in self._waiting:
            self._waiting.remove(load)
        if self._active.pop(load._id, None) is not None:
            self._tell(load, "cancel")
        self._release(load)
        self._admit()

    def poll(self) -> None:
        """Copies arrived layers into the pool, replaces dead workers, and starts loads that now have room. Never waits. The
        methods that wait call it.

        Raises:
            Closed: The decoder is closed.
        """
        # Look for dead workers before receiving, so that messages which a worker published before its death are not lost.
        alive = {name for name, asked in self._asked.items() if asked.subscribers}
        while True:
            try:
                sample = self._blocks.try_recv()
            except (Aborted, Untrusted, TooManyHeld):
                # Aborted, Untrusted: the layer is lost, and the end of the attempt finds it missing. TooManyHeld: wait for room.
                break
            if sample is None:
                break
            self._dispatch(sample)
        now = self._clock()
        self._look(alive, now)
        for load in list(self._active.values()):
            late = now - load._progress > self._patience
            if load.worker is None:
                self._ask(load, late)
            elif late:
                self._next_worker(load, f"gave no sign for {self._patience} s", unfit=True)
            elif load.worker in self._missing:
                if alive - load._unfit and now - self._missing[load.worker] > _GONE_S:
                    self._next_worker(load, "died")
            elif now - max(load._progress, load._queried) > _QUERY_S:
                load._queried = now
                self._tell(load, "query")
        self._admit()

    def close(self) -> None:
        """Cancels all loads, and closes the topics. This frees the blocks of all loads that are not done; done loads keep theirs
        until `request_finished`."""
        if self._blocks.closed:
            return
        for load in [*self._waiting, *self._active.values()]:
            self._waiting.clear()
            self.request_finished(load)
        if self._receiving is not None:
            self._receiving.cancel()
        for asked in self._asked.values():
            asked.close()
        self._blocks.close()

    def __enter__(self) -> Decoder:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _look(self, alive: set[str], now: float) -> None:
        """Notes which workers are out of sight. An outage of the network hides all workers of a host at about the same time, so a
        worker counts as dead only if others are still in sight."""
        for name in self._asked:
            if name not in alive:
                if not alive or name not in self._missing:
                    self._missing[name] = now
            elif self._missing.pop(name, None) is not None:
                # The worker may have restarted: ask at once whether it still has its requests.
                for load in self._active.values():
                    if load.worker == name:
                        load._queried = now
                        self._tell(load, "query")

    def _admit(self) -> None:
        while self._waiting:
            load = self._waiting[0]
            shared = self.pool.match(load._hashes)
            lacking = self.spec.blocks(len(load.tokens)) - len(shared)
            # Share before counting: cached blocks count as free, but these are needed.
            self.pool.share(shared)
            if lacking > self.pool.free:
                self.pool.release(shared)
                return
            self._waiting.popleft()
            load.reused = len(shared)
            load.block_table = shared + self.pool.allocate(lacking)
            if not lacking:
                load._complete = True
                continue
            load._progress = self._clock()
            self._active[load._id] = load
            self._ask(load, late=False)

    def _ask(self, load: Load, late: bool) -> None:
        """Sends the prompt to the worker that has the fewest loads of this decoder."""
        fit = [name for name in self._asked if name not in load._unfit]
        busy = [each.worker for each in self._active.values()]
        for name in sorted((name for name in fit if self._asked[name].subscribers), key=busy.count):
            if load._attempt >= self._max_attempts:
                break
            load._attempt += 1
            if self._request(load, name):
                load.worker, load._progress = name, self._clock()
                return
            load._failures.append(f"{name} does not take requests")
            load._unfit.add(name)
        if late or load._attempt >= self._max_attempts or not set(self._asked) - load._unfit:
            self._fail(load)

    def _request(self, load: Load, worker: str) -> bool:
        import numpy as np

        load._layers.clear()
        have = np.frombuffer(b"".join(load._hashes[: load.reused]), np.uint8).reshape(-1, HASH_BYTES)
        meta = {**_protocol.head("load", load._id, load._attempt), "decoder": self.name, "spec": self.spec._describe()}
        try:
            self._asked[worker].put({"tokens": load.tokens, "have": have}, meta=meta)
        except BackPressured:
            return False
        return True

    def _next_worker(self, load: Load, why: str, unfit: bool = False) -> None:
        load._failures.append(f"{load.worker} {why}")
        if unfit and load.worker is not None:
            load._unfit.add(load.worker)
            self._tell(load, "cancel")
        load.worker = None
        load._progress = self._clock()
        self._ask(load, late=False)

    def _fail(self, load: Load) -> None:
        del self._active[load._id]
        if load._refusals and len(load._refusals) == len(load._failures):
            load._error = load._refusals[0]
        elif load._failures:
            load._error = TransferFailed(f"{len(load.tokens)} tokens were not computed: {'; '.join(load._failures)}")
        else:
            names = ", ".join(self._asked)
            load._error = NoPrefillWorker(f"none of the prefill workers {names} was there within {self._patience} s")
        self._release(load)

    def _release(self, load: Load) -> None:
        table, load.block_table = load.block_table, []
        self.pool.release(table)

    def _tell(self, load: Load, op: str) -> None:
        """Sends a message to the load's worker. Ignores a worker that is dead or stuck."""
        if load.worker is not None:
            try:
                meta = {**_protocol.head(op, load._id, load._attempt), "decoder": self.name}
                self._asked[load.worker].put(b"", meta=meta)
            except (BackPressured, Closed):
                pass

    def _dispatch(self, sample: Sample) -> None:
        with sample:
            meta = dict(sample.meta)
            head = _protocol.parse(meta)
            load = self._active.get(head.id) if head is not None else None
            if head is None or load is None or load.worker is None or head.attempt != load._attempt:
                return
            load._progress = self._clock()
            if head.op == "layer":
                self._copy(load, meta.get("layer"), sample)
            elif head.op == "end":
                self._end(load, meta.get("result"))
            elif head.op == "failed":
                self._next_worker(load, f"failed: {str(meta.get('reason'))[: _protocol.REASON_MAX]}", unfit=True)
            elif head.op == "lost":
                self._next_worker(load, "has lost the request: it was restarted, or dropped it")
            elif head.op == "refused":
                self._refused(load, meta)

    def _copy(self, load: Load, layer: object, sample: Sample) -> None:
        blocks = load.block_table[load.reused :]
        shape = self.spec._shape(len(blocks))
        try:
            if not isinstance(layer, int) or not 0 <= layer < self.spec.layers or layer in load._layers:
                raise ValueError(f"layer {layer!r} is none, or came before")
            parts = [sample.part(name) for name in ("k", "v")]
            for part in parts:
                if part.shape != shape or part.dtype != self.spec.dtype:
                    raise ValueError(f"{part.name} is {part.dtype}{list(part.shape)}, not {self.spec.dtype}{list(shape)}")
            keys, values = ((part.torch() if self.spec._is_torch else part.numpy()) for part in parts)
        except (KeyError, ValueError, Error) as error:
            self._next_worker(load, f"sent a layer that is not one: {error}", unfit=True)
            return
        self.pool._write(layer, blocks, keys, values)
        load._layers.add(layer)

    def _end(self, load: Load, result: object) -> None:
        missing = sorted(set(range(self.spec.layers)) - load._layers)
        if missing:
            self._next_worker(load, f"ended without layers {missing}")
            return
        del self._active[load._id]
        load.result = dict(result) if isinstance(result, dict) else {}
        load._complete = True
        for block, each in zip(load.block_table, load._hashes, strict=False):
            self.pool.register(block, each)

    def _refused(self, load: Load, meta: dict[str, Any]) -> None:
        spec = meta.get("spec")
        differences = self.spec._differences(spec) if isinstance(spec, dict) else [str(meta.get("reason"))[:200]]
        mismatch = f"worker {load.worker} cannot serve decoder {self.name}: {', '.join(differences)}"
        load._refusals.append(SpecMismatch(mismatch))
        self._next_worker(load, f"refused: {', '.join(differences)}", unfit=True)

    def _wait(self, here: Callable[[], bool], timeout: float | None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            self.poll()
            if here():
                return
            self._blocks.wait(self._slice(end, timeout))

    async def _wait_async(self, here: Callable[[], bool], timeout: float | None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        self._waiters += 1
        try:
            while True:
                self.poll()
                if here():
                    return
                left = self._slice(end, timeout)
                # All waiting tasks share one task that receives.
                if self._receiving is None or self._receiving.done():
                    self._receiving = asyncio.ensure_future(self._receive())
                receiving = self._receiving
                await asyncio.wait({receiving}, timeout=left)
                if receiving.done() and not receiving.cancelled():
                    receiving.result()
        finally:
            self._waiters -= 1
            if not self._waiters and self._receiving is not None:
                self._receiving.cancel()
                self._receiving = None

    async def _receive(self) -> None:
        try:
            self._dispatch(await self._blocks.recv_async())
        except (Aborted, Untrusted, TooManyHeld, Closed):
            pass

    @staticmethod
    def _slice(end: float | None, timeout: float | None) -> float:
        left = _protocol.LOOK_S if end is None else min(end - time.monotonic(), _protocol.LOOK_S)
        if left <= 0:
            raise TimedOut(f"the blocks did not arrive within {timeout} s; the load goes on")
        return left
