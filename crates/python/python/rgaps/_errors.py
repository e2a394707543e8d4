"""What goes wrong. Every error is an ``rgaps.Error``; where Python has a class of its own for such
a failure, ours is one of those too, so ``except TimeoutError`` works."""

from __future__ import annotations

import sys


class Error(Exception):
    """The base of all errors of rgaps. The message says what to do next."""


class InvalidArgument(Error, ValueError):
    """An argument is out of its limits."""


class ConfigError(Error, ValueError):
    """The configuration cannot be used."""


class Closed(Error, ValueError):
    """The node, publisher, subscriber, loan or sample was closed, published or released."""


class Forked(Error, RuntimeError):
    """The handle was made before ``fork()``. Make new ones in the child process."""


class TimedOut(Error, TimeoutError):
    """Nothing came in time."""


class BackPressured(Error, TimeoutError):
    """Reliable subscribers did not read on within the publisher's deadline; the message names them. Nothing was
    published: `put` has discarded the message, a loan is still open, to be published again or discarded."""


class WouldWait(Exception):
    """For ``rgaps._asyncio``, which waits elsewhere: a call would have to wait. Its arguments are
    ``"room"`` or ``"memory"``, and the message's bytes."""


class TooManyHeld(Error):
    """The subscriber holds as many samples as it may."""


class PoolFull(Error, MemoryError):
    """The pool is at its cap, and nothing came back in time."""


class TooLarge(Error, ValueError):
    """A message of this size can never fit."""


class NoBlocks(Error):
    """All blocks of the publisher are in use by loans, history and held samples."""


class TooManyLoans(Error):
    """Too many loans are open."""


class LoanLost(Error):
    """Another member of the realm broke the protocol and took the loan away."""


class Untrusted(Error):
    """A publisher announced what cannot be. The message is skipped."""


class Aborted(Error):
    """The message was never finished: its publisher died, or lost its GPU context, with the work
    still queued that was to write it. Take the next one."""


class NotPermitted(Error, PermissionError):
    """The access rules, or the socket's permissions, say no."""


class TypeMismatch(Error):
    """A message is not of the type that its publisher has declared."""


class DomainMismatch(Error):
    """The topic exists in another domain."""


class PathTooSlow(Error):
    """The path between the members is slower than one of them requires. The message says which path
    it is, and why it is no better."""


class LimitReached(Error):
    """A named limit of the daemon is reached."""


class DomainUnavailable(Error):
    """The domain has no pool here: no such device, no driver, out of device memory."""


class VersionMismatch(Error):
    """Protocol, layout or realm differ between this process and the daemon."""


class NotFound(Error, LookupError):
    """No topic of that name."""


class ZoneLost(Error):
    """The topic's memory was lost with the daemon that served it. Join again for new memory."""


class DaemonUnavailable(Error, ConnectionError):
    """There is no daemon, it cannot be started, it went away, or it does not answer."""


class SystemFailure(Error, OSError):
    """A system call or a call of the GPU's driver failed."""


class MismatchWarning(RuntimeWarning):
    """A publisher and a subscriber of a topic do not match: no message goes from one to the other. The
    message says what does not fit."""


class ForkWarning(RuntimeWarning):
    """The process forked while arrays over samples in host memory were alive.

    A child does not have that memory: one that reads such an array ends with SIGSEGV. Copy what a child
    needs before the fork (``array.copy()``), or have the child subscribe itself. Where no child reads such
    an array, ``warnings.simplefilter("ignore", rgaps.ForkWarning)`` turns this off.
    """


class RealmWarning(RuntimeWarning):
    """Several daemons serve this user's realm, and their clients do not see each other's topics."""


class CopyWarning(RuntimeWarning):
    """A loan was published by a copy, since an array over it was still alive.

    Whoever keeps such an array could change the message while others read it. To publish without
    the copy, let go of the array first; to make it an error, use
    ``warnings.simplefilter("error", rgaps.CopyWarning)``.
    """


class WriteWarning(RuntimeWarning):
    """Somebody wrote to a message that was received, which ``RGAPS_DEBUG=writes`` found."""


def place() -> str:
    """The line that is run now, outside of this package and of those that it works for."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _package(frame.f_globals) in _INNER:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


#: Packages whose code takes views on behalf of someone else.
_INNER = frozenset({"rgaps", "numpy", "torch", "jax", "cupy", "numba", "tvm_ffi"})


def _package(names: dict[str, object]) -> str:
    return str(names.get("__name__", "")).partition(".")[0]
