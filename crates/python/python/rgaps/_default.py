"""The node that ``rgaps.publisher`` and ``rgaps.subscriber`` use."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Sequence
from typing import Literal

from ._rgaps import Node, Publisher, Subscriber

_lock = threading.Lock()
_node: Node | None = None


def default_node() -> Node:
    """This process's default node, created when it is first needed, with the default configuration."""
    global _node
    with _lock:
        if _node is None:
            _node = Node()
        return _node


def publisher(
    topic: str,
    *,
    type: str = "",
    dtype: object | None = None,
    shape: int | Sequence[int | None] | None = None,
    domain: str | None = None,
    history: int | tuple[int, int] | None = None,
    reliable: bool = True,
    transient_local: bool = False,
    deadline: float | None = 1.0,
    loan_timeout: float | None = 0.0,
    max_loans: int = 64,
    require: Literal["tcp", "rdma", "gpudirect", "pinned", "peer", "zero_copy"] | None = None,
    slow_reader: Literal["fail", "drop"] = "fail",
) -> Publisher:
    """Creates a publisher of ``topic`` on this process's default node, like `Node.publisher`."""
    return default_node().publisher(
        topic,
        type=type,
        dtype=dtype,
        shape=shape,
        domain=domain,
        history=history,
        reliable=reliable,
        transient_local=transient_local,
        deadline=deadline,
        loan_timeout=loan_timeout,
        max_loans=max_loans,
        require=require,
        slow_reader=slow_reader,
    )


def subscriber(
    topic: str,
    *,
    type: str = "",
    dtype: object | None = None,
    shape: int | Sequence[int | None] | None = None,
    domain: str | None = None,
    reliable: bool = False,
    late: Literal["latest", "all"] | int | None = None,
    depth: int | None = None,
    keep: Literal["latest"] | None = None,
    max_held: int = 64,
    spin: float = 20e-6,
    require: Literal["tcp", "rdma", "gpudirect", "pinned", "peer", "zero_copy"] | None = None,
) -> Subscriber:
    """Creates a subscriber of ``topic`` on this process's default node, like `Node.subscriber`."""
    return default_node().subscriber(
        topic,
        type=type,
        dtype=dtype,
        shape=shape,
        domain=domain,
        reliable=reliable,
        late=late,
        depth=depth,
        keep=keep,
        max_held=max_held,
        spin=spin,
        require=require,
    )


def _explain(function: Callable[..., object], method: Callable[..., object]) -> None:
    # The function has the method's arguments, so it takes their documentation, too (tools/docs does the same for the site).
    _, args, rest = (inspect.getdoc(method) or "").partition("Args:\n")
    function.__doc__ = f"{function.__doc__}\n\n{args}{rest}"


_explain(publisher, Node.publisher)
_explain(subscriber, Node.subscriber)


def _forget() -> None:
    # In a forked child the parent's node raises Forked, and another thread of the parent may have held the lock.
    global _lock, _node
    _lock = threading.Lock()
    _node = None


os.register_at_fork(after_in_child=_forget)
