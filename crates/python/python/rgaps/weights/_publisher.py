"""The trainer's side: one message per shard and version, filled in place in shared memory."""

from __future__ import annotations

import contextlib
import secrets
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._default import default_node
from .._dtypes import dtype_name, element_bytes, is_float, numpy_dtype, torch_dtype
from .._errors import Closed, InvalidArgument
from .._torch import is_tensor
from . import _format
from ._errors import BaseMissing, StaleVersion, VersionsHeld, WeightsMismatch
from ._format import Entry, Header, Kind

if TYPE_CHECKING:
    from .._rgaps import Node, Publisher

#: How often a publisher that waits for readers asks which versions they still hold, in seconds.
_LOOK_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Piece:
    """A rank's piece of a tensor that is sharded over ranks: a value of the dictionary that the rank publishes.

    Args:
        tensor: The piece: a tensor of torch or an array of numpy.
        at: Where the piece begins in the whole tensor: an index per dimension.
        whole: The shape of the whole tensor.
    """

    tensor: Any
    at: tuple[int, ...]
    whole: tuple[int, ...]


class WeightsPublisher:
    """Publishes the weights of one model, version by version. Any thread may use it; calls take turns.

    Args:
        node: The node that publishes; None for the default node.
        name: The name of the weights. The topics are ``name/full/0``, ``name/partial/0`` and so on, two per shard.
        shard: ``(rank, ranks)``: this process publishes shard ``rank`` of ``ranks`` (at most 64). A version is complete
            when all ranks have published it. Ranks may be at most one version apart, as training steps keep them.
            Default: one shard.
        run: A text that all ranks of one start of the trainer share and no other start has, such as the job's id and
            restart count. Needed if there are several ranks: readers never combine shards of different runs. Default: a
            random text of this publisher.
        versions: How many full versions of this shard may be in memory at once: the one that is being written, the newest
            (with several ranks, the newest two), and older ones that readers still hold. Default: one older version. All
            readers that are one version behind hold the same one. The memory for partial updates has the same limit.
        partials: How many partial updates may follow a full version (1 to 64). Late joiners need all of them. Default: 16.
        timeout: How many seconds publishing waits for readers to drop old versions, or for memory of the pool. Default: 60.

    Raises:
        InvalidArgument: An argument is outside its limits.
    """

    def __init__(
        self,
        node: Node | None,
        name: str,
        *,
        shard: tuple[int, int] = (0, 1),
        run: str | None = None,
        versions: int | None = None,
        partials: int = 16,
        timeout: float = 60.0,
    ) -> None:
        rank, ranks = shard
        if not 1 <= ranks <= _format.SHARDS_MAX or not 0 <= rank < ranks:
            raise InvalidArgument(f"shard={shard}: a rank is below the number of ranks, which is 1 to {_format.SHARDS_MAX}")
        if ranks > 1 and not run:
            raise InvalidArgument("several ranks need run=, a text that all ranks of this start of the trainer share")
        if run is not None and len(run.encode()) > 256:
            raise InvalidArgument("run= has more than 256 bytes")
        if not 1 <= partials <= _format.PARTIALS_MAX:
            raise InvalidArgument(f"partials={partials}: 1 to {_format.PARTIALS_MAX}")
        # Ranks may be one version apart, so the last version that all ranks have is the second newest of some.
        history = 1 if ranks == 1 else 2
        self._versions = history + 2 if versions is None else versions
        if self._versions <= history:
            raise InvalidArgument(f"versions={versions}: at least {history + 1}, for the newest and the one being written")
        self._node = default_node() if node is None else node
        self._name, self._rank, self._ranks = name, rank, ranks
        self._run = run or secrets.token_hex(16)
        self._timeout = timeout
        self._partials = partials
        # The updates in the history, those of each older version that readers may hold, and the update that is being written.
        self._updates_max = partials * (self._versions - history) + 1
        self._lock = threading.Lock()
        self._closed = False
        self._version = self._newest_before()
        #: The tensors of this publisher's newest version; None before its first full one.
        self._tensors: dict[str, Entry] | None = None
        self._updates = 0
        self._publishers = {"full": self._publisher("full", history), "partial": self._publisher("partial", partials)}

    @property
    def name(self) -> str:
        """The name of the weights."""
        return self._name

    @property
    def version(self) -> int | None:
        """The newest version: of this publisher, or of an earlier one that left its history. None if there is none."""
        return self._version

    def publish(
        self,
        state: Mapping[str, Any],
        *,
        version: int | None = None,
        dtype: object = None,
        meta: Mapping[str, object] | None = None,
    ) -> int:
        """Publishes a full version, and returns its number.

        rgaps copies the tensors once, into shared memory, and converts them by that copy. You may change them when the call
        returns. Tensors that share their memory, as tied weights do, are published once.

        Args:
            state: Name to tensor: of torch, on any device, or of numpy; or a `Piece` of a tensor.
            version: Greater than every version before. Default: the next number; with several ranks it must be given.
            dtype: Floating-point tensors become this type; others keep theirs. A value beyond its range becomes infinite.
                Default: they keep their type.
            meta: A small dictionary for the readers, such as ``{"step": 1000}``, as in `Publisher.put`. Default: none.

        Raises:
            StaleVersion: The version is not greater than those before.
            VersionsHeld: Readers hold old versions, ``versions`` are in memory, and none was dropped in time.
            PoolFull: The pool is at its cap, and no memory was returned in time.
            TooLarge: The version is larger than the pool.
            InvalidArgument: A value is no tensor, or of a type that cannot be published.
        """
        with self._lock:
            number = self._number(version)
            converted = None if dtype is None else dtype_name(dtype)
            plan = _Plan()
            for name, value in state.items():
                plan.add(name, value, converted)
            self._send("full", plan, number, None, meta)
            self._tensors = {each.name: each for each in plan.entries}
            self._updates = 0
            return number

    def publish_partial(
        self,
        state: Mapping[str, Any],
        *,
        version: int | None = None,
        base: int | None = None,
        meta: Mapping[str, object] | None = None,
    ) -> int:
        """Publishes a version that differs from the newest one in some tensors, and returns its number.

        rgaps copies only these tensors; readers share all others with the previous version. It converts tensors to their type in
        the full version. With several ranks, every rank must publish the version, with ``{}`` if nothing changed.

        Args:
            state: The tensors that changed. Names, shapes and pieces are those of the full version.
            version: As in `publish`. Default: the next number.
            base: The version that this one updates. It must be this publisher's newest one. Default: the newest one.
            meta: As in `publish`; it replaces the dictionary of the previous version. Default: none.

        Raises:
            BaseMissing: This publisher has no full version yet, its newest version is not ``base``, or ``partials``
                updates have followed the full version.
            WeightsMismatch: A tensor is not in the full version, or has another shape there.
            StaleVersion, VersionsHeld, PoolFull, TooLarge, InvalidArgument: As in `publish`.
        """
        with self._lock:
            number = self._number(version)
            if self._tensors is None:
                raise BaseMissing(f"{self._name!r}: this publisher has published no full version; publish one first")
            if base is not None and base != self._version:
                raise BaseMissing(f"{self._name!r}: base={base}, but the newest version is {self._version}")
            if self._updates == self._partials:
                raise BaseMissing(
                    f"{self._name!r}: {self._partials} partial updates have followed the full version, as many as partials= "
                    "allows; publish a full version"
                )
            plan = _Plan()
            for name, value in state.items():
                before = self._tensors.get(name)
                if before is None:
                    raise WeightsMismatch(f"{name!r} is not in the full version that the partial update is of")
                entry = plan.add(name, value, before.dtype, exactly=True)
                if (entry.shape, entry.at, entry.whole) != (before.shape, before.at, before.whole):
                    raise WeightsMismatch(f"{name!r} has shape {entry.shape}, and {before.shape} in the full version")
            self._send("partial", plan, number, self._version, meta)
            self._updates += 1
            return number

    def versions_in_memory(self) -> int:
        """How many full versions of this shard are in memory: those in the history, and older ones that readers hold."""
        return self._in_memory("full")[0]

    def wait_for_subscribers(self, n: int = 1, timeout: float | None = None) -> bool:
        """Waits until enough processes subscribe. Returns False if they do not after the time-out.

        Args:
            n: How many subscribers to wait for. Default: 1.
            timeout: The longest wait, in seconds; None waits without limit. Default: None.
        """
        return self._publishers["full"].wait_for_subscribers(n, timeout)

    def close(self) -> None:
        """Closes the publisher. Readers that come later still get the newest version, as long as the daemon runs."""
        with self._lock:
            self._closed = True
            for publisher in self._publishers.values():
                publisher.close()

    def __enter__(self) -> WeightsPublisher:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _publisher(self, kind: Kind, history: int) -> Publisher:
        return self._node.publisher(
            _format.topic(self._name, kind, self._rank),
            history=history,
            transient_local=True,
            loan_timeout=self._timeout,
            max_loans=1,
        )

    def _newest_before(self) -> int | None:
        """The newest version in the history that an earlier publisher of this shard left on this host."""
        found = None
        kinds: tuple[Kind, ...] = ("full", "partial")
        for kind in kinds:
            with self._node.subscriber(_format.topic(self._name, kind, self._rank), late="all") as history:
                while (sample := history.try_recv()) is not None:
                    # Skips messages that no trainer wrote; newer messages displace them.
                    with sample, contextlib.suppress(WeightsMismatch):
                        version = _format.decode_header(sample).version
                        found = version if found is None else max(found, version)
        return found

    def _number(self, version: int | None) -> int:
        if self._closed:
            raise Closed(f"the publisher of {self._name!r} is closed")
        if version is None:
            if self._ranks > 1:
                raise InvalidArgument("with several ranks, give version=, the same on all ranks")
            return 0 if self._version is None else self._version + 1
        if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version <= _format.VERSION_MAX:
            raise InvalidArgument(f"version={version!r} is no integer from 0 to {_format.VERSION_MAX}")
        if self._version is not None and version <= self._version:
            raise StaleVersion(
                f"{self._name!r}: version {version} is not greater than {self._version}, the newest one. Readers only go "
                "forward: after a restart from a checkpoint, continue the versions, and put the step into meta="
            )
        return version

    def _send(
        self,
        kind: Kind,
        plan: _Plan,
        version: int,
        base: int | None,
        meta: Mapping[str, object] | None,
    ) -> None:
        header = Header(version, base, self._run, self._rank, self._ranks, dict(meta or {}))
        index = _format.encode_index(plan.entries)
        self._wait_for_readers(kind)
        parts: dict[str, Any] = {"index": (len(index), "uint8"), "bytes": (plan.bytes, "uint8")}
        loan = self._publishers[kind].loan(parts, meta=header.encode())
        try:
            loan["index"] = index
            plan.fill(loan["bytes"])
            loan.publish()
        except BaseException:
            loan.discard()
            raise
        self._version = version

    def _in_memory(self, kind: Kind) -> tuple[int, list[str]]:
        """How many messages of the topic are in memory, and a text for each subscriber that holds some."""
        topic = self._node.topic("/" + self._publishers[kind].topic)
        used = [each["used"] for each in topic["publisher_list"] if each["used"]]
        blocks = sum(each[use]["blocks"] for each in used for use in ("history", "loans", "held"))
        holders = [
            f"{each['client']!r} (process {each['pid']}) holds {each['held']}"
            for each in topic["subscriber_list"]
            if each["held"]
        ]
        return blocks, holders

    def _wait_for_readers(self, kind: Kind) -> None:
        """Waits until the limit of versions in memory has room for one more message."""
        most = self._versions if kind == "full" else self._updates_max
        end = time.monotonic() + self._timeout
        while (found := self._in_memory(kind))[0] >= most:
            if time.monotonic() >= end:
                raise VersionsHeld(
                    f"{self._name!r}: {found[0]} messages with versions are in memory and the limit is {most}, this one "
                    f"included; readers dropped none for {self._timeout} s: {', '.join(found[1]) or 'none is known'}. Have them "
                    "load a newer version and drop the old one, or raise versions="
                )
            time.sleep(_LOOK_SECONDS)


class _Plan:
    """The layout of a message: the entry of each tensor, and the source to copy it from."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.bytes = 0
        self._sources: list[tuple[Entry, Any]] = []
        self._shared: dict[object, int] = {}

    def add(self, name: str, value: Any, dtype: str | None, *, exactly: bool = False) -> Entry:
        """Adds a tensor. It is converted to `dtype` if both are floating-point types. With `exactly`, it must get `dtype`."""
        if not isinstance(name, str):
            raise InvalidArgument(f"the name {name!r} is no text")
        at = whole = None
        if isinstance(value, Piece):
            value, at, whole = value.tensor, tuple(value.at), tuple(value.whole)
        tensor, own, memory = _look(name, value)
        if dtype is None or not (exactly or is_float(own) and is_float(dtype)):
            dtype = own
        elif exactly and dtype != own and not (is_float(own) and is_float(dtype)):
            raise WeightsMismatch(f"{name!r} is {own}, and {dtype} in the full version")
        shape = tuple(tensor.shape)
        if at is not None and whole is not None:
            _format.check_piece(name, shape, at, whole)
        known = self._shared.get((memory, dtype)) if memory is not None else None
        entry = Entry(name, dtype, shape, self.bytes if known is None else known, at, whole)
        if known is None:
            self._sources.append((entry, tensor))
            if memory is not None:
                self._shared[(memory, dtype)] = entry.offset
            self.bytes += -(-entry.nbytes // _format.ALIGNMENT_BYTES) * _format.ALIGNMENT_BYTES
        self.entries.append(entry)
        return entry

    def fill(self, target: Any) -> None:
        """Copies and converts the tensors into the message's bytes."""
        for entry, tensor in self._sources:
            if entry.nbytes == 0:
                continue
            there = target[entry.offset : entry.offset + entry.nbytes]
            if is_tensor(tensor):
                _fill_torch(there, entry, tensor)
            else:
                there.view(numpy_dtype(entry.dtype)).reshape(entry.shape)[...] = tensor


def _look(name: str, value: Any) -> tuple[Any, str, object]:
    """The tensor to read, the name of its type, and a key that identifies its memory (None: never shared)."""
    import numpy as np

    if is_tensor(value):
        if value.is_meta or value.is_sparse or value.is_quantized or value.layout != sys.modules["torch"].strided:
            raise InvalidArgument(f"{name!r} has no elements in memory one after the other: it is {value.layout} on {value.device}")
        tensor = value.detach()
        own = dtype_name(tensor.dtype)
        memory = (str(tensor.device), tensor.data_ptr(), own, tuple(tensor.shape), tensor.stride())
        return tensor, own, memory if tensor.numel() else None
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        own = dtype_name(array.dtype)
        memory = ("numpy", array.ctypes.data, own, array.shape, array.strides)
        return array, own, memory if array.size and isinstance(value, np.ndarray) else None
    raise InvalidArgument(f"{name!r} is a {type(value).__name__}, and no tensor of torch or array of numpy")


def _fill_torch(there: Any, entry: Entry, tensor: Any) -> None:
    torch = sys.modules["torch"]
    target = torch.from_numpy(there)
    if element_bytes(entry.dtype) == 1 and entry.dtype == dtype_name(tensor.dtype):
        # As bytes: torch cannot copy every type of one byte.
        target.view(entry.shape).copy_(tensor.view(torch.uint8))
    else:
        target.view(torch_dtype(entry.dtype)).view(entry.shape).copy_(tensor)
