"""Publish and subscribe messages in host and GPU memory without copies.

A publisher fills a block of shared memory, and any number of subscribers in other processes read
the same bytes::

    with rgaps.publisher("camera", domain="cuda") as pub:
        with pub.loan((3, 1080, 1920), torch.float16) as t:
            t.copy_(frame)                      # in place; published when the block ends

    for sample in rgaps.subscriber("camera"):
        image = torch.from_dlpack(sample)       # no copy; numpy.asarray(sample) on the host

The bytes of a message do not change as long as a sample, or any array or tensor over it, lives. The tensor that the with
statement gives is empty afterwards. Delete other arrays over a loan before it is published: while one is alive, rgaps
publishes a copy, with a `CopyWarning`, so that nobody can change what others read.

Any thread may use a handle. In a forked child, handles of the parent raise `Forked`: create new ones there. A forked child
cannot read arrays over its parent's samples: copy them before the fork. Handles and samples cannot be pickled: send a copy
of the bytes, or subscribe in the other process.

All times are in seconds unless a name ends in ``_ns``; all sizes are in bytes.
"""

from __future__ import annotations

import atexit as _atexit
from typing import TYPE_CHECKING, NamedTuple

from . import _processes  # noqa: F401 (it registers fork handlers)
from ._default import default_node, publisher, subscriber
from ._errors import (
    Aborted,
    BackPressured,
    Closed,
    ConfigError,
    ConfigWarning,
    CopyWarning,
    DaemonUnavailable,
    Damaged,
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
    RecordingNotFound,
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
from ._matched import Matched
from ._rgaps import (
    DeviceBridge,
    DevicePublisher,
    DeviceSubscriber,
    DeviceTopic,
    Listener,
    Loan,
    Node,
    Part,
    Publisher,
    Recorded,
    Recording,
    Sample,
    Subscriber,
    WaitSet,
    __version__,
    _stop_listeners,
    domains,
    open,
)


class KeepAll(NamedTuple):
    """A history that keeps all messages up to two limits. At a limit it drops the oldest message, once every reliable subscriber
    has read it.

    Attributes:
        messages: The largest number of messages, 1 to 32768.
        bytes: The largest total size of these messages, in bytes.
    """

    messages: int
    bytes: int


_RENAMED = {
    "HeldBack": "rgaps.HeldBack is now rgaps.BackPressured",
    "QosIncompatible": "rgaps.QosIncompatible is gone: publishers and subscribers that do not match are no longer refused; "
    "see rgaps.MismatchWarning, publisher.mismatches() and subscriber.mismatches()",
}

if not TYPE_CHECKING:  # With __getattr__, a type checker would accept every name.

    def __getattr__(name):
        raise AttributeError(_RENAMED.get(name, f"module 'rgaps' has no attribute {name!r}"))


# A listener's thread must not call into an interpreter that is shutting down.
_atexit.register(_stop_listeners)

__all__ = [
    "Aborted",
    "BackPressured",
    "Closed",
    "ConfigError",
    "ConfigWarning",
    "CopyWarning",
    "DaemonUnavailable",
    "Damaged",
    "DeviceBridge",
    "DevicePublisher",
    "DeviceSubscriber",
    "DeviceTopic",
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
    "Matched",
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
    "RecordingNotFound",
    "Recorded",
    "Recording",
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
    "open",
    "publisher",
    "subscriber",
]
