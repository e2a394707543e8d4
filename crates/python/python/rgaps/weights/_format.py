"""The format of versions of weights in messages.

Each shard of a version is one message with two parts: `index`, JSON that describes the tensors, and `bytes`, where each
tensor begins at a multiple of 256 bytes. The message's header says to which version it belongs. Readers see a message whole
or not at all, so a shard is never torn; a version is complete when all its shards have arrived.

The publisher writes both parts before it publishes the loan, and nobody writes them afterwards. A reader copies header and
index once and checks the copies, since another process wrote them. It checks that every tensor lies within `bytes`; it does
not check the elements.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .._dtypes import element_bytes
from ._errors import WeightsMismatch

if TYPE_CHECKING:
    from .._rgaps import Part, Sample

#: The format of messages; a reader refuses others.
FORMAT = 1
ALIGNMENT_BYTES = 256
#: DLPack's device of the host.
_HOST = (1, 0)
VERSION_MAX = 2**63 - 1
#: Limits of one version.
SHARDS_MAX = 64
TENSORS_MAX = 1 << 20
DIMENSIONS_MAX = 64
#: How many partial updates may follow a full version, at most.
PARTIALS_MAX = 64

Kind = Literal["full", "partial"]


def topic(name: str, kind: Kind, shard: int) -> str:
    """The topic of one shard's messages.

    Each shard and kind has a topic of its own. In a shared topic, newer messages of one shard would displace the history that
    a dead publisher of another shard left."""
    return f"{name}/{kind}/{shard}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor, or a piece of one, in a message."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    #: Where the piece begins in the whole tensor, and the shape of the whole tensor; None for a whole tensor.
    at: tuple[int, ...] | None = None
    whole: tuple[int, ...] | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * (element_bytes(self.dtype) or 0)

    @property
    def full_shape(self) -> tuple[int, ...]:
        return self.shape if self.whole is None else self.whole


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a message: the version and shard that it is."""

    version: int
    base: int | None
    run: str
    shard: int
    shards: int
    meta: dict[str, Any]

    def encode(self) -> dict[str, object]:
        return {
            "weights": FORMAT,
            "version": self.version,
            "base": self.base,
            "run": self.run,
            "shard": self.shard,
            "shards": self.shards,
            "meta": self.meta,
        }


def encode_index(entries: list[Entry]) -> bytes:
    rows = [[each.name, each.dtype, each.shape, each.offset, each.at, each.whole] for each in entries]
    return json.dumps(rows, separators=(",", ":"), ensure_ascii=False).encode()


def decode_header(sample: Sample) -> Header:
    """Checks the header of a message, which another process wrote."""
    meta: Mapping[str, Any] = sample.meta
    if meta.get("weights") != FORMAT:
        raise WeightsMismatch(f"a message on {sample.topic!r} is not weights of format {FORMAT}")
    version, base, shards = meta.get("version"), meta.get("base"), meta.get("shards")
    shard, run, user = meta.get("shard"), meta.get("run"), meta.get("meta")
    counts = [(version, VERSION_MAX), (shards, SHARDS_MAX), (shard, SHARDS_MAX)]
    counts += [] if base is None else [(base, VERSION_MAX)]
    good = all(_is_count(value, most) for value, most in counts) and isinstance(run, str) and isinstance(user, dict)
    header = Header(version, base, run, shard, shards, user)  # type: ignore[arg-type]
    if not good or header.shard >= header.shards or (header.base is not None and header.base >= header.version):
        raise WeightsMismatch(f"a message on {sample.topic!r} has a header that no publisher of weights writes")
    return header


def decode_index(sample: Sample) -> dict[str, Entry]:
    """Copies the index of a message and checks the copy: every entry must lie within the part `bytes`."""
    try:
        rows = json.loads(_host_bytes(sample))
        limit = sample.part("bytes").nbytes
        if not isinstance(rows, list) or len(rows) > TENSORS_MAX:
            raise ValueError("not a list of tensors")
        entries = [_entry(row, limit) for row in rows]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise WeightsMismatch(f"a message on {sample.topic!r} has no valid index: {error}") from None
    found = {each.name: each for each in entries}
    if len(found) != len(entries):
        raise WeightsMismatch(f"a message on {sample.topic!r} has two tensors of one name")
    return found


class OnHost:
    """A part as a copy on the host, also for a numpy before 2.1, which cannot ask for one."""

    def __init__(self, part: Part) -> None:
        self._part = part

    def __dlpack__(self, **_wanted: Any) -> Any:
        return self._part.__dlpack__(dl_device=_HOST, copy=True)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _HOST


def _host_bytes(sample: Sample) -> bytes:
    part = sample.part("index")
    if part.domain == "host":
        return bytes(memoryview(part))
    import numpy as np

    return np.from_dlpack(OnHost(part)).tobytes()


def _entry(row: Any, limit: int) -> Entry:
    name, dtype, shape, offset, at, whole = row
    entry = Entry(name, dtype, _shape(shape), offset, *(None if each is None else _shape(each) for each in (at, whole)))
    if not isinstance(name, str) or not isinstance(dtype, str) or element_bytes(dtype) is None:
        raise ValueError(f"tensor {name!r:.80} has no known type")
    if not _is_count(offset, limit) or offset % ALIGNMENT_BYTES or offset + entry.nbytes > limit:
        raise ValueError(f"tensor {name!r:.80} lies outside its message")
    if (entry.at is None) != (entry.whole is None):
        raise ValueError(f"tensor {name!r:.80} is half a piece")
    if entry.at is not None and entry.whole is not None:
        check_piece(name, entry.shape, entry.at, entry.whole)
    return entry


def check_piece(name: str, shape: tuple[int, ...], at: tuple[int, ...], whole: tuple[int, ...]) -> None:
    """Raises WeightsMismatch unless a piece lies within its whole tensor."""
    fits = len(shape) == len(at) == len(whole) and all(
        begin + length <= end for begin, length, end in zip(at, shape, whole, strict=True)
    )
    if not fits:
        raise WeightsMismatch(f"the piece of {name!r} with shape {shape} at {at} does not lie in a tensor of shape {whole}")


def _shape(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > DIMENSIONS_MAX or not all(_is_count(n, VERSION_MAX) for n in value):
        raise ValueError(f"{value!r:.80} is no shape")
    return tuple(value)


def _is_count(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
