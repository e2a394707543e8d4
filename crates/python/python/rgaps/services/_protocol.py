"""The protocol between client and service: the key ``call`` in the headers of requests and replies.

========== ============= ==================================================================
key        of            meaning
========== ============= ==================================================================
client     both          the client: 16 random hexadecimal digits
number     both          the number of the call, from 1 for each client
timeout    requests      for how many seconds the client waits, from now on
cancel     requests      the client no longer waits for this call; the message has no bytes
error      replies       the reason why there is no answer; the message has no bytes
========== ============= ==================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._errors import InvalidArgument

KEY = "call"


def topics(name: str) -> tuple[str, str]:
    """The topics of requests and of replies."""
    return f"{name}/request", f"{name}/reply"


def header(meta: Mapping[str, object] | None, call: Mapping[str, object]) -> dict[str, object]:
    """A header with the user's keys, and the protocol's key ``call``."""
    if meta and KEY in meta:
        raise InvalidArgument(f"the key '{KEY}' of meta is reserved for services")
    return {**(meta or {}), KEY: dict(call)}


def call_of(meta: Mapping[str, Any]) -> tuple[str, int, Mapping[str, Any]] | None:
    """Client, number, and all keys of ``call``. None: no client or service wrote the message."""
    call = meta.get(KEY)
    if not isinstance(call, Mapping):
        return None
    client, number = call.get("client"), call.get("number")
    if not isinstance(client, str) or not isinstance(number, int):
        return None
    return client, number, call


def own_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The user's keys of a header."""
    return {key: value for key, value in meta.items() if key != KEY}
