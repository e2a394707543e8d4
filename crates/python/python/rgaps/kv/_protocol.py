"""Messages between decoders and prefill workers.

A worker subscribes to ``TOPIC/prefill/WORKER``, a decoder to ``TOPIC/decode/DECODER``. The metadata of a message says what
it is (the key ``op``); arrays are its parts.

| op | from | parts | what it says |
|---|---|---|---|
| `load` | decoder | ``tokens``, ``have`` | Compute this prompt. ``have``: hashes of the leading blocks that the decoder has. |
| `cancel` | decoder | | The blocks are no longer wanted. |
| `query` | decoder | | Has the worker still got the request? A worker that was restarted has not. |
| `layer` | worker | ``k``, ``v`` | Keys and values of one layer, of all blocks that the decoder lacks. |
| `end` | worker | | All layers were published; ``result`` is what the engine says. |
| `alive`, `lost` | worker | | It has the request, or has not. |
| `failed` | worker | | The worker cannot compute it; ``reason`` says why. |
| `refused` | worker | | The worker's `Spec` differs; ``spec`` has it. |

Each message has the number of the load (``id``) and of the attempt. A decoder takes only messages of the attempt that it
waits for, so what a worker sends late is ignored. A reader copies each field of a peer once, and checks the copy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from .._errors import InvalidArgument

#: Version of these messages. `load`, `refused` and their fields ``kv``, ``id``, ``attempt``, ``decoder`` stay as they are.
VERSION = 1
#: How often a waiting side looks whether its peers live, in seconds.
LOOK_S = 0.05
#: The longest text of an error that crosses, in characters.
REASON_MAX = 500
#: The longest name of a worker, and of a load.
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Head(NamedTuple):
    """What each message has."""

    version: int
    op: str
    id: str
    attempt: int


def checked_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgument(f"a worker's name has 1 to 64 letters, digits, '_', '.', '-'; not {name!r}")
    return name


def request_topic(topic: str, worker: str) -> str:
    return f"{topic}/prefill/{worker}"


def block_topic(topic: str, decoder: str) -> str:
    return f"{topic}/decode/{decoder}"


def head(op: str, id: str, attempt: int) -> dict[str, object]:
    return {"kv": VERSION, "op": op, "id": id, "attempt": attempt}


def parse(meta: Mapping[str, object]) -> Head | None:
    """The head of a message, or nothing if it is none of ours."""
    version, op, id, attempt = (meta.get(key) for key in ("kv", "op", "id", "attempt"))
    if not isinstance(version, int) or not isinstance(op, str) or not isinstance(attempt, int):
        return None
    if not isinstance(id, str) or not _NAME.fullmatch(id):
        return None
    return Head(version, op, id, attempt)
