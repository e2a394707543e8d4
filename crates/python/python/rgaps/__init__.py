"""Publish and subscribe messages in host and GPU memory without copies.

A publisher fills a block of shared memory, and any number of subscribers in other processes read
the same bytes::

    with rgaps.publisher("camera", domain="cuda") as pub:
        with pub.loan((3, 1080, 1920), torch.float16) as t:
            t.copy_(frame)                      # in place; published when the block ends

    for sample in rgaps.subscriber("camera"):
        image = torch.from_dlpack(sample)       # no copy; numpy.asarray(sample) on the host

Bytes stay as they are for as long as a sample, or any array or tensor over it, lives. The tensor
that the with statement gives is empty afterwards. Other arrays over a loan must be gone when it is
published: while one is alive, a copy is published instead, with a `CopyWarning`, so that what
others read cannot be changed.

Handles may be used from any thread. In a forked child they raise `Forked`: make new ones there.
Arrays over a sample of the parent cannot be read in a forked child; copy them before the fork.
Handles and samples cannot be pickled: send a copy of the bytes, or subscribe in the other process.
"""

from __future__ import annotations

import atexit as _atexit
from typing import NamedTuple

from . import _processes  # noqa: F401 (it registers what happens at a fork)
from ._default import default_node, publisher, subscriber
from ._errors import (
    Aborted,
    BackPressured,
    Closed,
    ConfigError,
    CopyWarning,
    DaemonUnavailable,
    DomainMismatch,
    DomainUnavailable,
    Error,
    Forked,
    ForkWarning,
    InvalidArgument,
    LimitReached,
    LoanLost,
    MismatchWarning,
    NoBlocks,
    NotFound,
    NotPermitted,
    PathTooSlow,
    PoolFull,
    RealmWarning,
    SystemFailure,
    TimedOut,
    TooLarge,
    TooManyHeld,
    TooManyLoans,
    TypeMismatch,
    Untrusted,
    VersionMismatch,
    WriteWarning,
    ZoneLost,
)
from ._rgaps import (
    Listener,
    Loan,
    Node,
    Part,
    Publisher,
    Sample,
    Subscriber,
    WaitSet,
    __version__,
    _stop_listeners,
    domains,
)


class KeepAll(NamedTuple):
    """A history that keeps all messages, up to a number and a sum of bytes."""

    messages: int
    bytes: int


# A listener's thread must not call into an interpreter that is shutting down.
_atexit.register(_stop_listeners)

__all__ = [
    "Aborted",
    "BackPressured",
    "Closed",
    "ConfigError",
    "CopyWarning",
    "DaemonUnavailable",
    "DomainMismatch",
    "DomainUnavailable",
    "Error",
    "ForkWarning",
    "Forked",
    "InvalidArgument",
    "KeepAll",
    "LimitReached",
    "Listener",
    "Loan",
    "LoanLost",
    "MismatchWarning",
    "NoBlocks",
    "Node",
    "NotFound",
    "NotPermitted",
    "Part",
    "PathTooSlow",
    "PoolFull",
    "Publisher",
    "RealmWarning",
    "Sample",
    "Subscriber",
    "SystemFailure",
    "TimedOut",
    "TooLarge",
    "TooManyHeld",
    "TooManyLoans",
    "TypeMismatch",
    "Untrusted",
    "VersionMismatch",
    "WaitSet",
    "WriteWarning",
    "ZoneLost",
    "__version__",
    "default_node",
    "domains",
    "publisher",
    "subscriber",
]
