"""Forks and pickling: warns before a fork that breaks arrays, and refuses to pickle handles."""

from __future__ import annotations

import copyreg
import os
from typing import NoReturn

from ._errors import ForkWarning
from ._place import warn
from ._rgaps import Listener, Loan, Node, Publisher, Sample, Subscriber, WaitSet, _host_views


def _warn_of_views() -> None:
    views = _host_views()
    if views:
        alive = "an array or tensor over an rgaps sample is"
        if views > 1:
            alive = f"{views} arrays or tensors over rgaps samples are"
        warn(
            ForkWarning,
            f"this process forks while {alive} alive: a child that "
            "reads one of them ends with SIGSEGV. Copy them first (array.copy()), or subscribe in the child",
        )


def _refuse_sample(sample: object) -> NoReturn:
    raise TypeError(
        "a Sample cannot be pickled: its bytes are in shared memory of this process. Send "
        "sample.numpy().copy() or sample.tobytes(), or subscribe to the topic in the other process"
    )


def _refuse_loan(loan: object) -> NoReturn:
    raise TypeError(
        "a Loan cannot be pickled: it is memory that this process fills. Make a publisher in the other "
        "process and fill a loan of its own"
    )


def _refuse_handle(handle: object) -> NoReturn:
    name = type(handle).__name__
    raise TypeError(
        f"a {name} cannot be pickled: it belongs to this process. Make one in the other process: there, call "
        "rgaps.Node(), rgaps.publisher() or rgaps.subscriber() (in a DataLoader's dataset, in __iter__)"
    )


copyreg.pickle(Sample, _refuse_sample)
copyreg.pickle(Loan, _refuse_loan)
for _class in (Listener, Node, Publisher, Subscriber, WaitSet):
    copyreg.pickle(_class, _refuse_handle)
os.register_at_fork(before=_warn_of_views)
