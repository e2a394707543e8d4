"""What the bridge to ROS 2 knows of message types, beside rosbags, which has the definitions of each release."""

import pytest

pytest.importorskip("rosbags")

import ros2_vectors as vectors
from rosbags.typesys import Stores, get_typestore


def test_hashes_are_those_of_each_release():
    known = vectors.known()
    assert len(known) > 35
    for release in (Stores.ROS2_IRON, Stores.ROS2_JAZZY, Stores.ROS2_KILTED, Stores.ROS2_LYRICAL):
        store = get_typestore(release)
        assert [(name, store.hash_rihs01(name)) for name, _ in known] == known, release


def test_the_messages_that_the_tests_of_the_bridge_carry_are_those_of_rosbags():
    assert vectors.VECTORS.read_text().splitlines() == list(vectors.lines())
