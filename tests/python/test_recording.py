"""Recordings: what `rgaps record` writes, `rgaps.open` and readers that know nothing of rgaps read."""

import gc
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rgaps


def command(*arguments):
    program = shutil.which("rgaps", path=str(Path(sys.executable).parent)) or "rgaps"
    return subprocess.Popen([program, *arguments], stdout=subprocess.PIPE, text=True)


def record(file, topics, publish, *options):
    """Records what `publish` publishes to the topics."""
    arguments = ("record", "-o", str(file), "--reliable", "--every", "0.05", "--json", *options, *topics)
    with command(*arguments) as recorder:
        for line in recorder.stdout:
            if json.loads(line)["topics"] == len(topics):
                break
        publish()
        recorder.terminate()
        last = json.loads(recorder.stdout.read().splitlines()[-1])
    assert recorder.returncode == 0 and last["dropped"] == 0
    return last["recorded"]


IMAGE = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
META = {"capture_ns": 1_700_000_000_123_456_789, "frame_id": "left", "gain": 1.5}


@pytest.fixture
def file(tmp_path):
    """A recording of one message of each kind."""
    path = tmp_path / "run.mcap"

    def publish():
        with rgaps.publisher("image", type="rgb8") as image:
            image.put(IMAGE, tag=7, meta=META)
        with rgaps.publisher("array") as array:
            for number in range(50):
                array.put(np.arange(5, dtype=np.float64) + number, attachment=b"x" * number)
        with rgaps.publisher("parts") as parts:
            with parts.loan({"rgb": ((2, 2, 3), "uint8"), "depth": ((2, 2), "float32")}) as loan:
                loan["rgb"][:] = 3
                loan["depth"][:] = 0.5
        with rgaps.publisher("plain") as plain:
            plain.put(b"bytes")

    assert record(path, ["image", "array", "parts", "plain"], publish) == 53
    return path


def test_messages_are_what_was_published(file):
    found = {}
    for topic, message in rgaps.open(file):
        found.setdefault(topic, []).append(message)
    assert {topic: len(messages) for topic, messages in found.items()} == {"image": 1, "array": 50, "parts": 1, "plain": 1}
    (image,) = found["image"]
    assert (image.tag, image.type_name, image.dtype, image.shape) == (7, "rgb8", "uint8", (4, 6, 3))
    assert dict(image.meta) == META and np.array_equal(image.numpy(), IMAGE)
    for number, message in enumerate(found["array"]):
        array = message.numpy()
        assert array.flags.aligned and not array.flags.writeable
        assert np.array_equal(array, np.arange(5.0) + number) and message.sequence == number
        assert (message.attachment or b"") == b"x" * number
    (parts,) = found["parts"]
    assert parts.keys() == ["rgb", "depth"] and "rgb" in parts and len(parts) == 2
    assert (parts["rgb"] == 3).all() and (parts["depth"] == 0.5).all() and parts["depth"].dtype == np.float32
    with pytest.raises(KeyError, match="'rgb', 'depth'"):
        parts.part("none")
    with pytest.raises(rgaps.InvalidArgument):
        parts.numpy()
    (plain,) = found["plain"]
    assert plain.dtype is None and plain.tobytes() == bytes(memoryview(plain)) == b"bytes"
    assert plain.log_ns > parts.log_ns > image.log_ns > 0


def test_an_array_keeps_its_bytes_and_copies_none(file):
    (image,) = (message for topic, message in rgaps.open(file) if topic == "image")
    one, other = image.numpy(), np.from_dlpack(image)
    assert one.__array_interface__["data"][0] == other.__array_interface__["data"][0]
    del image
    gc.collect()
    assert np.array_equal(one, IMAGE) and np.array_equal(other, IMAGE)


def test_topics_and_a_start_can_be_chosen(file):
    recording = rgaps.open(file, topics=["image", "pl*"])
    assert recording.topics == ["image", "plain"]
    assert [topic for topic, _ in recording] == [topic for topic, _ in recording] == ["image", "plain"]
    assert list(rgaps.open(file, start=1e6)) == []
    assert recording.info()["messages"] == 53 and recording.info()["finished"]


def test_a_topic_that_the_recording_does_not_have_is_an_error(file):
    with pytest.raises(rgaps.NotFound, match="no topic that matches nix, no/\\*; it has: array, image, parts, plain"):
        rgaps.open(file, topics=["nix", "no/*"])


def test_a_shortened_loan_is_recorded_and_echoed_without_stale_bytes(tmp_path):
    def publish():
        with rgaps.publisher("short", transient_local=True, history=1) as short:
            with short.loan(100) as loan:
                loan.write(b"abc" + 97 * b"!")
                loan.truncate(3)

    assert record(tmp_path / "run.mcap", ["short"], publish) == 1
    ((_, message),) = rgaps.open(tmp_path / "run.mcap")
    assert (message.nbytes, bytes(memoryview(message))) == (3, b"abc")
    echo = command("topic", "echo", "short", "--late", "latest", "--count", "1", "--format", "raw")
    assert echo.communicate(timeout=120)[0] == "abc"


def test_what_is_no_recording_says_so(tmp_path):
    for kind in (FileNotFoundError, rgaps.RecordingNotFound, rgaps.SystemFailure):
        with pytest.raises(kind, match="none.mcap cannot be read"):
            rgaps.open(tmp_path / "none.mcap")
    (tmp_path / "text").write_text("not at all")
    with pytest.raises(rgaps.Damaged, match="not an MCAP file"):
        rgaps.open(tmp_path / "text")
    with pytest.raises(TypeError, match="topics must be text"):
        rgaps.open(tmp_path / "text", topics=3)


def test_a_damaged_chunk_is_told_and_the_rest_is_read(file):
    content = bytearray(file.read_bytes())
    at = content.index(IMAGE.tobytes())
    content[at] ^= 1
    file.write_bytes(content)
    messages = iter(rgaps.open(file))
    with pytest.raises(rgaps.Damaged, match="chunk of .* is damaged"):
        for _ in range(100):
            next(messages)
    rest = list(messages)
    assert "image" not in dict(rest)


def test_readers_that_know_nothing_of_rgaps_read_it(file):
    make_reader = pytest.importorskip("mcap.reader").make_reader
    decoders = pytest.importorskip("mcap_protobuf.decoder")

    found = {}
    with open(file, "rb") as stream:
        reader = make_reader(stream, decoder_factories=[decoders.DecoderFactory()], validate_crcs=True)
        for schema, channel, message, decoded in reader.iter_decoded_messages():
            found.setdefault(channel.topic, (schema, channel, message, decoded))
    schema, channel, message, image = found["image"]
    assert schema.name == "foxglove.RawImage" and channel.metadata["rgaps.type"] == "rgb8"
    assert (image.width, image.height, image.step, image.encoding, image.frame_id) == (6, 4, 18, "rgb8", "left")
    assert image.data == IMAGE.tobytes() and image.rgaps.tag == 7
    assert message.publish_time == META["capture_ns"]
    assert (image.timestamp.seconds, image.timestamp.nanos) == (1_700_000_000, 123_456_789)
    schema, _, _, parts = found["parts"]
    assert schema.name == "rgaps.Message"
    assert [(part.name, part.array.dtype, list(part.array.shape)) for part in parts.rgaps.parts] == [
        ("rgb", "uint8", [2, 2, 3]),
        ("depth", "float32", [2, 2]),
    ]
    assert found["plain"][3].data == b"bytes"


def test_images_in_jpeg_are_read_by_readers_that_know_nothing_of_rgaps(tmp_path):
    from PIL import Image

    make_reader = pytest.importorskip("mcap.reader").make_reader
    decoders = pytest.importorskip("mcap_protobuf.decoder")
    rows, columns = np.mgrid[0:48, 0:64].astype(np.uint8)
    image = np.stack([rows * 4, columns * 3, np.full_like(rows, 90)], axis=2)

    def publish():
        with rgaps.publisher("image", type="bgr8") as camera:
            camera.put(image, tag=7, meta=META)

    assert record(tmp_path / "run.mcap", ["image"], publish, "--jpeg=95") == 1
    ((_, message),) = rgaps.open(tmp_path / "run.mcap")
    with open(tmp_path / "run.mcap", "rb") as stream:
        reader = make_reader(stream, decoder_factories=[decoders.DecoderFactory()], validate_crcs=True)
        ((schema, channel, _, decoded),) = reader.iter_decoded_messages()
    assert (schema.name, decoded.format, decoded.frame_id) == ("foxglove.CompressedImage", "jpeg", "left")
    assert decoded.data == message.tobytes() and (message.tag, message.meta["format"]) == (7, "jpeg")
    pixels = np.asarray(Image.open(io.BytesIO(decoded.data)).convert("RGB")).astype(int)
    assert abs(pixels - image[:, :, ::-1]).max() <= 12


def test_small_arrays_have_numbers_for_plots(tmp_path):
    make_reader = pytest.importorskip("mcap.reader").make_reader
    decoders = pytest.importorskip("mcap_protobuf.decoder")

    def publish():
        with rgaps.publisher("joints") as joints, rgaps.publisher("parts") as parts:
            joints.put(np.array([[1.5, -2]], np.float32))
            parts.put({"small": np.array([-3, 4], np.int16), "large": np.zeros(65)})

    assert record(tmp_path / "run.mcap", ["joints", "parts"], publish) == 2
    with open(tmp_path / "run.mcap", "rb") as stream:
        reader = make_reader(stream, decoder_factories=[decoders.DecoderFactory()])
        found = {channel.topic: decoded for _, channel, _, decoded in reader.iter_decoded_messages()}
    assert list(found["joints"].values) == [1.5, -2] and list(found["parts"].values) == []
    assert [list(part.values) for part in found["parts"].rgaps.parts] == [[-3, 4], []]


def test_a_bag_of_ros_2_becomes_topics_and_a_recording_of_cdr_a_bag(node, tmp_path):
    """rosbags writes the bag and reads the recording."""
    rosbag2 = pytest.importorskip("rosbags.rosbag2")
    typesys = pytest.importorskip("rosbags.typesys")
    store = typesys.get_typestore(typesys.Stores.ROS2_JAZZY)
    kinds = store.types
    header = kinds["std_msgs/msg/Header"](stamp=kinds["builtin_interfaces/msg/Time"](sec=7, nanosec=5), frame_id="front")
    pixels = np.arange(18, dtype=np.uint8)
    image = kinds["sensor_msgs/msg/Image"](
        header=header, height=2, width=3, encoding="bgr8", is_bigendian=0, step=9, data=pixels
    )
    tree = kinds["tf2_msgs/msg/TFMessage"](transforms=[])
    tree_cdr = bytes(store.serialize_cdr(tree, tree.__msgtype__))
    latched = rosbag2_qos(transient_local=True)
    with rosbag2.Writer(tmp_path / "bag", version=9, storage_plugin=rosbag2.StoragePlugin.MCAP) as bag:
        camera = bag.add_connection("/camera/image_raw", image.__msgtype__, typestore=store)
        static = bag.add_connection("/tf_static", tree.__msgtype__, typestore=store, offered_qos_profiles=[latched])
        bag.write(static, 1_700_000_000_000_000_000, tree_cdr)
        for number in range(3):
            bag.write(camera, 1_700_000_000_100_000_000 + number, store.serialize_cdr(image, image.__msgtype__))

    again = tmp_path / "again.mcap"
    with node.subscriber("camera/image_raw", reliable=True) as images:
        topics = ("camera/image_raw", "tf_static", "other")
        arguments = ("record", "-o", str(again), "--ros2", "--reliable", "--every", "0.05", "--json", *topics)
        with command(*arguments) as recorder:
            for line in recorder.stdout:
                if json.loads(line)["topics"] == len(topics):
                    break
            # No message of ROS 2.
            with node.publisher("other") as other:
                other.put(b"x")
            player = command("replay", str(tmp_path / "bag"), "--wait-subscribers", "2", "--json", "--topics", "camera/**")
            for _ in range(3):
                sample = images.recv(timeout=120)
                assert np.array_equal(sample.numpy(), pixels.reshape(2, 3, 3))
                assert (sample.meta["frame_id"], sample.meta["capture_ns"]) == ("front", 7_000_000_005)
            assert json.loads(player.communicate(timeout=120)[0])["replayed"] == 3
            player = command("replay", str(tmp_path / "bag"), "--wait-subscribers", "1", "--json", "--topics", "tf_static")
            assert json.loads(player.communicate(timeout=120)[0])["replayed"] == 1
            recorder.terminate()
            last = json.loads(recorder.stdout.read().splitlines()[-1])
        assert (last["recorded"], last["dropped_by"]) == (4, {"not_ros2": 1})
    image_cdr = bytes(store.serialize_cdr(image, image.__msgtype__))
    with rosbag2.Reader(again) as bag:
        found = [(connection.topic, connection.msgtype, bytes(data)) for connection, _, data in bag.messages()]
    assert found == 3 * [("/camera/image_raw", image.__msgtype__, image_cdr)] + [("/tf_static", tree.__msgtype__, tree_cdr)]
    topic, message = list(rgaps.open(again))[-1]
    assert (topic, message.type_name, message.tobytes()) == ("tf_static", tree.__msgtype__, tree_cdr)


def rosbag2_qos(transient_local):
    """What a publisher offered, as rosbags writes it."""
    from rosbags.interfaces import Qos, QosDurability, QosHistory, QosLiveliness, QosReliability, QosTime

    durability = QosDurability.TRANSIENT_LOCAL if transient_local else QosDurability.VOLATILE
    never = QosTime(2147483647, 4294967295)
    return Qos(
        QosHistory.KEEP_LAST, 1, QosReliability.RELIABLE, durability, never, never, QosLiveliness.AUTOMATIC, never, False
    )
