"""What the bridge to ROS 2 knows of message types, beside rosbags, which has the definitions of each release; and what publishers keep
for late joiners, with the publisher and the subscriber of Zenoh that rmw_zenoh uses."""

import contextlib
import queue
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rosbags")

import ros2_vectors as vectors
from rosbags.typesys import Stores, get_typestore

#: Seconds that anything may take on any machine.
LIMIT = 120


def test_hashes_are_those_of_each_release():
    known = vectors.known()
    assert len(known) > 35
    for release in (Stores.ROS2_IRON, Stores.ROS2_JAZZY, Stores.ROS2_KILTED, Stores.ROS2_LYRICAL):
        store = get_typestore(release)
        assert [(name, store.hash_rihs01(name)) for name, _ in known] == known, release


def test_the_messages_that_the_tests_of_the_bridge_carry_are_those_of_rosbags():
    assert vectors.VECTORS.read_text().splitlines() == list(vectors.lines())


TEXT = "std_msgs/msg/String"
KEY = "0/{}/std_msgs::msg::dds_::String_/" + dict(vectors.known())[TEXT]


def cdr(text):
    return b"\0\1\0\0" + struct.pack("<I", len(text) + 1) + text.encode() + b"\0"


def attachment(number):
    """As rmw_zenoh writes it: number, time, id."""
    return struct.pack("<qqB", number, 1_700_000_000_000_000_000, 16) + bytes(range(16))


@contextlib.contextmanager
def bridge(endpoint, folder, rules):
    """`rgaps bridge ros2` with these rules: topic and direction."""
    rule = '[[bridge.ros2]]\ntopic = "{}"\ntype = "{}"\ndirection = "{}"\ntransient_local = true\nreliable = true\ndepth = 2\n'
    (folder / "bridge.toml").write_text("".join(rule.format(topic, TEXT, direction) for topic, direction in rules))
    program = shutil.which("rgaps", path=str(Path(sys.executable).parent)) or "rgaps"
    words = [program, "bridge", "ros2", "--config", str(folder / "bridge.toml"), "--connect", endpoint, "--every", "0"]
    with subprocess.Popen(words) as process:
        try:
            yield
        finally:
            process.terminate()
    assert process.returncode == 0


def test_late_joiners_get_what_publishers_kept_in_both_directions(node, tmp_path):
    zenoh = pytest.importorskip("zenoh")
    ext = pytest.importorskip("zenoh.ext")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"tcp/127.0.0.1:{probe.getsockname()[1]}"
    config = zenoh.Config()
    for key, value in [
        ("mode", '"router"'), ("listen/endpoints", f'["{endpoint}"]'), ("scouting/multicast/enabled", "false"),
        ("timestamping/enabled", "true"),
    ]:  # fmt: skip
        config.insert_json5(key, value)
    with zenoh.open(config) as session:
        described = ext.declare_advanced_publisher(
            session, KEY.format("described"), cache=ext.CacheConfig(2), publisher_detection=True
        )
        for number in range(1, 4):
            described.put(cdr(f"robot {number}"), attachment=attachment(number))
        with (
            node.publisher("map", transient_local=True, history=1) as kept,
            bridge(endpoint, tmp_path, [("described", "from"), ("map", "to")]),
            node.subscriber("described", late="all") as late,
        ):
            # Those that the publisher kept, and then what comes, each once.
            assert [late.recv(LIMIT).tobytes() for _ in range(2)] == [b"robot 2", b"robot 3"]
            described.put(cdr("robot 4"), attachment=attachment(4))
            assert late.recv(LIMIT).tobytes() == b"robot 4"

            kept.put(b"map 1")
            heard, subscribers = queue.Queue(), []
            for _ in range(2):
                subscriber = ext.declare_advanced_subscriber(
                    session, KEY.format("map"), lambda sample: heard.put(sample.payload.to_bytes()),
                    history=ext.HistoryConfig(detect_late_publishers=True, max_samples=2),
                )  # fmt: skip
                subscribers.append(subscriber)
                assert heard.get(timeout=LIMIT) == cdr("map 1")
            kept.put(b"map 2")
            assert [heard.get(timeout=LIMIT) for _ in range(2)] == [cdr("map 2")] * 2
            assert heard.empty() and late.try_recv() is None
