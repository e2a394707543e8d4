"""The argument of callbacks for match events."""

from __future__ import annotations

from typing import NamedTuple


class Matched(NamedTuple):
    """How many members of the other side match a publisher or subscriber, and what has changed since the callback's last call.
    The names are those of ROS 2.

    Attributes:
        current_count: Members that match now.
        current_count_change: The difference to the last call; negative if fewer match.
        total_count: Members that have matched since the listener began. One that came and went between two calls may be
            missing.
        total_count_change: How many of these began to match since the last call.
    """

    current_count: int
    current_count_change: int
    total_count: int
    total_count_change: int
