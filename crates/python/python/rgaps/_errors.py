"""Errors and warnings. Every error is an ``rgaps.Error``. Where Python has a standard class for the failure, the error
is one of those, too, so ``except TimeoutError`` works."""

from __future__ import annotations


class Error(Exception):
    """The base class of all errors of rgaps. The message says what happened, why, and what to do."""


class InvalidArgument(Error, ValueError):
    """An argument is outside its limits."""


class ConfigError(Error, ValueError):
    """The configuration is invalid. The message names the file and line, the variable or the argument, and the key."""


class Closed(Error, ValueError):
    """The handle cannot be used any more: a closed node, publisher or subscriber, a published or discarded loan, or a
    released sample."""


class Forked(Error, RuntimeError):
    """The handle belongs to the parent process of a ``fork()``. Create new ones in the child process."""


class TimedOut(Error, TimeoutError):
    """No message arrived before the time-out, or the GPU work that writes a message did not finish before it."""


class BackPressured(Error, TimeoutError):
    """Reliable subscribers made no room within the publisher's deadline; the message names them. Nothing was published:
    `put` has discarded the message; a loan is still open, and can be published again or discarded.

    ``subscribers`` lists the slow subscribers as ``(name, pid)``, where ``name`` is that of their `Node`; ``waited`` is how long
    the publisher waited, in seconds. They are empty and 0 for a publish that does not wait."""

    subscribers: list[tuple[str, int]] = []
    waited: float = 0.0


class TooManyHeld(Error):
    """The subscriber holds ``max_held`` samples. Release some, or copy what you keep."""


class PoolFull(Error, MemoryError):
    """The pool is at its cap, and no memory was returned within ``loan_timeout``."""


class TooLarge(Error, ValueError):
    """The message is larger than the pool, or than the limit of the history, and can never fit."""


class NoBlocks(Error):
    """Loans, history and held samples use every block of the publisher."""


class TooManyLoans(Error):
    """The publisher has ``max_loans`` open loans."""


class LoanLost(Error):
    """Another process of the realm violated the protocol and took the loan away."""


class Untrusted(Error):
    """A publisher described a message that cannot be valid. The message is skipped."""


class Aborted(Error):
    """The message is aborted: its publisher died, or lost its GPU context, before the GPU work that writes the message
    finished. Receive the next one."""


class NotPermitted(Error, PermissionError):
    """The access rules, or the permissions of the daemon's socket, do not allow this."""


class TypeMismatch(Error):
    """A message is not of the type that its publisher declares."""


class DomainMismatch(Error):
    """The topic exists in another domain."""


class PathTooSlow(Error):
    """The path between a publisher and a subscriber is slower than one of them requires. The message says which path
    exists, and why there is no faster one."""


class LimitReached(Error):
    """A limit of the daemon is reached. The message names it."""


class DomainUnavailable(Error):
    """The domain cannot be used here: there is no such GPU, no driver, or no free GPU memory."""


class VersionMismatch(Error):
    """This process and the daemon have different versions of the protocol or layout, or different realms."""


class NotFound(Error, LookupError):
    """There is no topic of this name, or a recording has none of the topics."""


class ZoneLost(Error):
    """A new daemon could not take over the topic's memory from its predecessor. Create the publisher or subscriber
    again to get new memory."""


class DaemonUnavailable(Error, ConnectionError):
    """There is no daemon, none can be started, it died, or it does not answer."""


class SystemFailure(Error, OSError):
    """A system call, or a call of the GPU driver, failed. The message has its name and error code."""


class RecordingNotFound(SystemFailure, FileNotFoundError):
    """There is no file of this name to open as a recording."""


class Damaged(Error, ValueError):
    """The file is not a recording, or the recording, a chunk or a message of it is damaged. Iteration continues after a damaged
    message."""


class MismatchWarning(RuntimeWarning):
    """A publisher and a subscriber of a topic do not match, so no message passes between them. The message says why."""


class ConfigWarning(RuntimeWarning):
    """A setting has no effect: an environment variable that starts with ``RGAPS_`` and names no key of the configuration,
    or a key of ``Node(config=...)`` that a daemon which already runs has another value for."""


class ForkWarning(RuntimeWarning):
    """The process forked while arrays over samples in host memory were alive.

    That memory is not mapped in a child process: if it reads such an array, SIGSEGV ends it. Copy what the child needs before
    the fork (``array.copy()``), or subscribe in the child. If no child reads such an array,
    ``warnings.simplefilter("ignore", rgaps.ForkWarning)`` turns this warning off.
    """


class RealmWarning(RuntimeWarning):
    """Several daemons serve this user's realm, and their clients do not see each other's topics."""


class CopyWarning(RuntimeWarning):
    """A loan was published as a copy, since an array over it was still alive.

    The owner of such an array could change the message while others read it. To publish without the copy, delete the
    array first. To make this an error, use ``warnings.simplefilter("error", rgaps.CopyWarning)``.
    """


class WriteWarning(RuntimeWarning):
    """The program wrote to a received message. Only ``RGAPS_DEBUG=writes`` finds this."""


for _class in list(globals().values()):
    if isinstance(_class, type) and _class.__module__ == __name__:
        # Tracebacks and pickles use the public name.
        _class.__module__ = "rgaps"
