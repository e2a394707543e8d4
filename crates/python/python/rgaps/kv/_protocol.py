"""Messages between decoders and prefill workers.

A worker subscribes to ``TOPIC/prefill/WORKER``, a decoder to ``TOPIC/decode/DECODER``. The key ``op`` in a message's metadata
is its kind; arrays are its parts.

| op | from | parts | meaning |
|---|---|---|---|
| `load` | decoder | ``tokens``, ``have`` | Compute this prompt. ``have``: hashes of the leading blocks that the decoder has. |
| `cancel` | decoder | | The blocks are no longer wanted. |
| `query` | decoder | | Does the worker still have the request? A restarted worker has not. |
| `layer` | worker | ``k``, ``v`` | Keys and values of one layer, of all blocks that the decoder lacks. |
| `end` | worker | | All layers were published; ``result`` is from the engine. |
| `alive`, `lost` | worker | | The answer to `query`: the worker has the request, or has not. |
| `failed` | worker | | The worker cannot compute it; ``reason`` says why. |
| `refused` | worker | | The worker's `Spec` differs; ``spec`` has it. |

Each message has the load's ``id`` and the number of the attempt. A decoder takes only messages of the current attempt, so it
ignores what earlier workers send late. A reader copies each field of a peer once, and checks the copy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from .._errors import InvalidArgument

#: Version of these messages. `load`, `refused` and their fields ``kv``, ``id``, ``attempt``, ``decoder`` stay as they are.
VERSION = 1
#: How often a waiting side checks whether its peers are alive, in seconds.
LOOK_S = 0.05
#: The longest text of an error in a message, in characters.
REASON_MAX = 500
#: The names of workers, decoders and loads.
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Head(NamedTuple):
    """The fields that every message has."""

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
    """The head of a message; None if the message is not of this protocol."""
    version, op, id, attempt = (meta.get(key) for key in ("kv", "op", "id", "attempt"))
    if not isinstance(version, int) or not isinstance(op, str) or not isinstance(attempt, int):
        return None
    if not isinstance(id, str) or not _NAME.fullmatch(id):
        return None
    return Head(version, op, id, attempt)
