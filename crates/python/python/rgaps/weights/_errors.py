"""Errors of `rgaps.weights`. Each is an `rgaps.Error`, too."""

from __future__ import annotations

from .._errors import Error, TimedOut


class WeightsMismatch(Error, ValueError):
    """Names, shapes or element types do not match: between a partial update and its base, between the pieces of a tensor, or
    between a version and a module. The message names the tensor. Nothing was published or loaded."""


class StaleVersion(Error, ValueError):
    """The version is not greater than the newest one of these weights. Nothing was published."""


class BaseMissing(Error, LookupError):
    """A partial update has no base: this publisher has published no full version, its newest version is another one, or
    too many partial updates follow the last full version. Publish a full version. Nothing was published."""


class VersionsHeld(Error, TimeoutError):
    """As many versions as ``versions`` allows are in memory, since readers hold old ones. The message names the readers.
    Nothing was published."""


class VersionIncomplete(TimedOut):
    """No complete version arrived before the time-out, but a part of one: shards, or the base of a partial update, are
    missing. The message says which."""
