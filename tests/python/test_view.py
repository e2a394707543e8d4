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
