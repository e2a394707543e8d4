"""Errors of `rgaps.kv`. Each is an ``rgaps.Error``, too."""

from __future__ import annotations

from .._errors import Error


class KvError(Error):
    """The base class of the errors of `rgaps.kv`."""


class SpecMismatch(KvError, ValueError):
    """Two sides have caches of different shapes, element types, models or versions. The message names each field that
    differs. Blocks of one cannot be read as blocks of the other, so nothing was sent."""


class NoFreeBlocks(KvError, MemoryError):
    """The pool has too few blocks, or too many loads wait for blocks. Call `Decoder.request_finished` for loads that are
    no longer needed, make the pool larger, or raise ``max_waiting``."""


class NoPrefillWorker(KvError, ConnectionError):
    """None of the decoder's prefill workers appeared within ``patience``."""


class TransferFailed(KvError):
    """No prefill worker delivered the blocks. The message says for each attempt which worker failed, and how. The
    load's blocks are free again."""


class RequestAborted(KvError):
    """The decoder of this request no longer wants its blocks: it died, was closed, does not read, or cancelled the request.
    Take the next request."""
