"""`rgaps view`, by a WebSocket client and a decoder that know nothing of rgaps."""

import base64
import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rgaps

client = pytest.importorskip("websockets.sync.client")
InvalidStatus = pytest.importorskip("websockets.exceptions").InvalidStatus
pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")

LIMIT = 120
IMAGE = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
META = {"capture_ns": 1_700_000_000_123_456_789, "frame_id": "left"}


@contextlib.contextmanager
def view(*arguments):
    """Where it listens."""
    program = shutil.which("rgaps", path=str(Path(sys.executable).parent)) or "rgaps"
    words = [program, "view", "--listen", "0", "--json", *arguments]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
    assert process.returncode == 0


def connect(url, **options):
    return client.connect(url, subprotocols=["foxglove.sdk.v1"], max_size=None, **options)


def channels(server, *topics):
    """The channels of these topics, as soon as all are announced."""
    found = {}
    while not all(topic in found for topic in topics):
        said = json.loads(server.recv(LIMIT))
        if said["op"] == "advertise":
            found |= {channel["topic"]: channel for channel in said["channels"]}
    return [found[topic] for topic in topics]


def subscribe(server, **ids):
    wishes = [{"id": int(name[1:]), "channelId": channel["id"]} for name, channel in ids.items()]
    server.send(json.dumps({"op": "subscribe", "subscriptions": wishes}))


def decode(channel, payload):
    from google.protobuf import descriptor_pool, message_factory

    assert (channel["encoding"], channel["schemaEncoding"]) == ("protobuf", "protobuf")
    pool = descriptor_pool.DescriptorPool()
    for file in pb2.FileDescriptorSet.FromString(base64.b64decode(channel["schema"])).file:
        pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(channel["schemaName"]))
    return kind.FromString(payload)


def message(server, by_id):
    """The next message, decoded: its subscription, its log time, its content."""
    frame = server.recv(LIMIT)
    while isinstance(frame, str):
        frame = server.recv(LIMIT)
    assert frame[0] == 1
    number, log_ns = (int.from_bytes(part, "little") for part in (frame[1:5], frame[5:13]))
    return number, log_ns, decode(by_id[number], frame[13:])


def test_messages_arrive_byte_for_byte():
    with (
        rgaps.publisher("image", type="rgb8", history=1, transient_local=True) as image,
        rgaps.publisher("array", history=1, transient_local=True) as array,
        view() as at,
        connect(at["websocket"]) as server,
    ):
        image.put(IMAGE, tag=7, meta=META)
        array.put(np.arange(5, dtype=np.float64), attachment=b"beside")
        by_id = dict(zip([3, 4], channels(server, "image", "array"), strict=True))
        assert by_id[3]["schemaName"] == "foxglove.RawImage" and by_id[4]["schemaName"] == "rgaps.Message"
        subscribe(server, _3=by_id[3], _4=by_id[4])
        got = {}
        while len(got) < 2:
            number, log_ns, content = message(server, by_id)
            assert log_ns > META["capture_ns"]
            got[number] = content
        raw, plain = got[3], got[4]
        assert (raw.width, raw.height, raw.step, raw.encoding) == (6, 4, 18, "rgb8")
        assert raw.data == IMAGE.tobytes() and raw.frame_id == "left" and raw.rgaps.tag == 7
        assert (raw.timestamp.seconds, raw.timestamp.nanos) == (1_700_000_000, 123_456_789)
        assert plain.rgaps.tensor.dtype == "float64" and list(plain.rgaps.tensor.shape) == [5]
        assert np.frombuffer(plain.data).tolist() == [0, 1, 2, 3, 4] and plain.rgaps.attachment == b"beside"
        # What is published from now on, too.
        image.put(IMAGE[::-1].copy())
        _, _, content = message(server, by_id)
        assert content.data == IMAGE[::-1].tobytes()


def test_a_larger_image_is_made_smaller_and_says_so():
    large = np.arange(60 * 80 * 3, dtype=np.uint16).astype(np.uint8).reshape(60, 80, 3)
    with (
        rgaps.publisher("image", history=1, transient_local=True) as image,
        view("--max-bytes", "4000") as at,
        connect(at["websocket"]) as server,
    ):
        image.put(large)
        (channel,) = channels(server, "image")
        subscribe(server, _1=channel)
        _, _, content = message(server, {1: channel})
        small = large[::2, ::2]
        assert (content.width, content.height, content.step) == (40, 30, 120)
        assert content.data == small.tobytes() and list(content.rgaps.tensor.shape) == list(small.shape)


def test_clouds_and_logs_are_what_their_types_say():
    points = np.arange(1000 * 4, dtype=np.float32).reshape(1000, 4)
    packed = np.arange(2 * 3 * 16, dtype=np.uint8).reshape(2, 3, 16)
    fields = [{"name": "x", "offset": 0, "datatype": 7, "count": 1}, {"name": "ring", "offset": 12, "datatype": 4, "count": 1}]
    with (
        rgaps.publisher("cloud", type="sensor_msgs/msg/PointCloud2", history=1, transient_local=True) as cloud,
        rgaps.publisher("packed", type="PointCloud", history=1, transient_local=True) as others,
        rgaps.publisher("log", type="foxglove.Log", history=1, transient_local=True) as log,
        view("--max-bytes", "8000") as at,
        connect(at["websocket"]) as server,
    ):
        cloud.put(points, meta=META)
        others.put(packed, meta={"fields": fields})
        log.put(b"it is hot", meta=META | {"level": "warning", "name": "motor", "file": "motor.py", "line": 12})
        found = channels(server, "cloud", "packed", "log")
        by_id = dict(zip([1, 2, 3], found, strict=True))
        assert [channel["schemaName"] for channel in found] == ["foxglove.PointCloud", "foxglove.PointCloud", "foxglove.Log"]
        subscribe(server, _1=by_id[1], _2=by_id[2], _3=by_id[3])
        got = {}
        while len(got) < 3:
            number, _, content = message(server, by_id)
            got[number] = content
        first = got[1]
        assert [(field.name, field.offset, field.type) for field in first.fields] == [
            ("x", 0, 7), ("y", 4, 7), ("z", 8, 7), ("intensity", 12, 7)
        ]
        assert (first.point_stride, first.frame_id, first.pose.orientation.w) == (16, "left", 1)
        # Every second point, to be as small as asked.
        assert np.frombuffer(first.data, "f4").reshape(-1, 4).tolist() == points[::2].tolist()
        assert got[2].data == packed.tobytes() and got[2].point_stride == 16
        # ROS 2 counts from int8, Foxglove from uint8: its number 3 is uint16.
        assert [(field.name, field.offset, field.type) for field in got[2].fields] == [("x", 0, 7), ("ring", 12, 3)]
        line = got[3]
        assert (line.message, line.level, line.name, line.file, line.line) == ("it is hot", 3, "motor", "motor.py", 12)
        assert (line.timestamp.seconds, line.timestamp.nanos) == (1_700_000_000, 123_456_789)


def test_a_line_of_the_log_of_ros_2_is_read():
    typesys = pytest.importorskip("rosbags.typesys")
    store = typesys.get_typestore(typesys.Stores.ROS2_JAZZY)
    time = store.types["builtin_interfaces/msg/Time"](sec=5, nanosec=6)
    said = store.types["rcl_interfaces/msg/Log"](
        stamp=time, level=40, name="talker", msg="no route", file="a.cpp", function="main", line=7,
        DEBUG=10, INFO=20, WARN=30, ERROR=40, FATAL=50,
    )  # fmt: skip
    with (
        rgaps.publisher("rosout", type="rcl_interfaces/msg/Log", history=1, transient_local=True) as rosout,
        view() as at,
        connect(at["websocket"]) as server,
    ):
        rosout.put(bytes(store.serialize_cdr(said, "rcl_interfaces/msg/Log")))
        (channel,) = channels(server, "rosout")
        subscribe(server, _1=channel)
        _, _, line = message(server, {1: channel})
    assert (line.message, line.level, line.name, line.file, line.line) == ("no route", 4, "talker", "a.cpp", 7)
    assert (line.timestamp.seconds, line.timestamp.nanos) == (5, 6)


def test_others_are_refused(tmp_path):
    token = "0123456789abcdef"
    (tmp_path / "token").write_text(token)
    with rgaps.publisher("topic"), view() as at:
        with pytest.raises(InvalidStatus, match="403"):
            connect(at["websocket"], origin="http://evil.example")
        with connect(at["websocket"], origin=at["url"].rstrip("/")) as server:
            assert json.loads(server.recv(LIMIT))["op"] == "serverInfo"
    with rgaps.publisher("topic"), view("--token-file", str(tmp_path / "token")) as at:
        url = at["websocket"].split("?")[0]
        for wrong in (url, f"{url}?token=0123456789abcdee"):
            with pytest.raises(InvalidStatus, match="401"):
                connect(wrong)
        with connect(f"{url}?token={token}") as server:
            assert json.loads(server.recv(LIMIT))["op"] == "serverInfo"
