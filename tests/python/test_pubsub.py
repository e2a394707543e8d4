"""Messages from a publisher to subscribers in one process: what is put in comes out."""

import array
import json
import os
import subprocess
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import rgaps
import rgaps._bin


def test_bytes_arrive(pair):
    pub, sub = pair
    for number, data in enumerate([b"", b"x", b"hello" * 1000, bytearray(b"abc"), memoryview(b"view")]):
        assert pub.put(data, tag=number + 7) == number
        sample = sub.recv(60)
        assert sample.tobytes() == bytes(data)
        assert bytes(memoryview(sample)) == bytes(data)
        assert (sample.sequence, sample.tag, sample.missed) == (number, number + 7, 0)
        assert (sample.dtype, sample.shape, sample.nbytes) == (None, (len(data),), len(data))
        assert sample.topic == "pair" and sample.domain == "host"


def test_publish_time_is_the_monotonic_clock(pair):
    pub, sub = pair
    before = time.monotonic_ns()
    pub.put(b"now")
    assert before <= sub.recv(60).publish_ns <= time.monotonic_ns()


DTYPES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES += ["float16", "float32", "float64", "complex64", "complex128", "bool"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4), (3, 0, 2), (1, 1, 7, 1)])
def test_arrays_arrive_as_they_were(pair, dtype, shape):
    pub, sub = pair
    random = np.random.default_rng(1)
    data = np.asarray(random.integers(0, 2**11, shape)).astype(dtype)
    pub.put(data)
    with pub.loan(shape, dtype) as loan:
        loan[...] = data
    for _ in range(2):
        sample = sub.recv(60)
        got = np.asarray(sample)
        assert (got.dtype, got.shape, sample.dtype, sample.shape) == (data.dtype, shape, dtype, shape)
        assert got.tobytes() == data.tobytes()


@pytest.mark.parametrize(
    "strange",
    [
        np.arange(60).reshape(3, 4, 5).transpose(2, 0, 1),
        np.arange(60)[::-7],
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.broadcast_to(np.float32(3), (4, 5)),
    ],
)
def test_arrays_with_strides_of_their_own_arrive_in_row_major_order(pair, strange):
    pub, sub = pair
    pub.put(strange)
    got = sub.recv(60).numpy()
    assert np.array_equal(got, strange) and got.flags.c_contiguous


def test_other_buffers(pair):
    pub, sub = pair
    pub.put(array.array("d", [1.5, 2.5]))
    assert sub.recv(60).numpy().tolist() == [1.5, 2.5]
    # A sample can be put on again: that is how a message is forwarded.
    pub.put(np.arange(6, dtype="int16").reshape(2, 3))
    pub.put(sub.recv(60))
    assert sub.recv(60).numpy().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_what_cannot_be_put(pair):
    pub, _ = pair
    with pytest.raises(TypeError, match="encode"):
        pub.put("text")
    with pytest.raises(TypeError, match="type int: give numpy.asarray"):
        pub.put(5)
    with pytest.raises(rgaps.InvalidArgument, match="format"):
        pub.put(np.zeros(3, dtype=[("a", "i4"), ("b", "f8")]))
    with pytest.raises(rgaps.InvalidArgument, match="format"):
        pub.put(np.zeros(3, dtype=">i4"))
    with pytest.raises(rgaps.InvalidArgument, match="9 dimensions"):
        pub.put(np.zeros((1,) * 9))
    # A refused put gives its loan back.
    for _ in range(200):
        with pytest.raises(rgaps.InvalidArgument):
            pub.put(np.zeros((1,) * 9))


@pytest.mark.parametrize("dtype", ["float32", "f4", "<f4", np.float32, np.dtype("f4"), "torch.float32"])
def test_names_of_types(pair, dtype):
    loan = pair[0].loan(3, dtype)
    assert (loan.dtype, loan.nbytes, loan.shape) == ("float32", 12, (3,))
    loan.discard()


@pytest.mark.parametrize("dtype", ["float7", object, ">f4", np.dtype(">i4"), 5])
def test_names_that_are_no_types(pair, dtype):
    with pytest.raises(rgaps.InvalidArgument):
        pair[0].loan(3, dtype)


@pytest.mark.parametrize("shape", [-1, (2, -1), (1,) * 9, (2**40, 2**40)])
def test_shapes_that_cannot_be(pair, shape):
    with pytest.raises(rgaps.InvalidArgument):
        pair[0].loan(shape)


def test_a_loan_is_published_at_the_end_of_its_block(pair):
    pub, sub = pair
    with pub.loan((4, 4), "uint8", tag=5) as loan:
        loan.numpy()[...] = 9
        assert sub.try_recv() is None
        loan.tag += 1
    assert not loan.open
    sample = sub.recv(60)
    assert sample.tag == 6 and (sample.numpy() == 9).all()


def test_a_loan_is_not_published_after_an_exception(pair):
    pub, sub = pair
    with pytest.raises(KeyError):
        with pub.loan(4) as loan:
            raise KeyError
    assert not loan.open and sub.try_recv() is None
    with pytest.raises(rgaps.Closed):
        loan.publish()


def test_publish_and_discard_by_hand(pair):
    pub, sub = pair
    loan = pub.loan(3)
    assert loan.write(b"abc") == 3
    loan.write(b"X", at=1)
    assert loan.publish() == 0
    assert sub.recv(60).tobytes() == b"aXc"
    for call in (loan.publish, loan.numpy, lambda: loan.address, lambda: loan.write(b"")):
        with pytest.raises(rgaps.Closed):
            call()
    loan.discard()
    with pub.loan(3) as loan:
        loan.discard()
    assert sub.try_recv() is None
    with pub.loan(3) as loan:
        with pytest.raises(rgaps.InvalidArgument, match="do not fit"):
            loan.write(b"four")


def test_a_loan_can_be_shorter_in_the_end(pair):
    pub, sub = pair
    with pub.loan((100, 3), "int32") as loan:
        loan.numpy()[:2] = [[1, 2, 3], [4, 5, 6]]
        loan.truncate(2)
        with pytest.raises(rgaps.InvalidArgument):
            loan.truncate(3)
    sample = sub.recv(60)
    assert sample.nbytes == 24 and sample.numpy().tolist() == [[1, 2, 3], [4, 5, 6]]


def test_forgotten_loans_come_back(node):
    pub = node.publisher("t", max_loans=4)
    for _ in range(20):
        pub.loan(1000)
    held = [pub.loan(1000) for _ in range(4)]
    with pytest.raises(rgaps.TooManyLoans, match="max_loans"):
        pub.loan(1000)
    assert len(held) == 4


def test_iteration_ends_when_the_subscriber_is_closed(node):
    import threading

    with node.subscriber("t", reliable=True) as sub, node.publisher("t") as pub:
        for number in range(5):
            pub.put(bytes([number]))
        threading.Timer(0.3, sub.close).start()
        assert [sample.tobytes()[0] for sample in sub] == [0, 1, 2, 3, 4]
        assert list(sub) == []


def test_the_default_node():
    with rgaps.subscriber("d", max_held=8) as sub, rgaps.publisher("d", history=4) as pub:
        assert rgaps.default_node() is rgaps.default_node()
        pub.put(b"hello")
        assert sub.recv(60).tobytes() == b"hello"


def test_best_effort_says_what_was_missed(node):
    with node.subscriber("t") as sub, node.publisher("t", history=4) as pub:
        pub.put(b"first")
        assert sub.recv(60).missed == 0
        for number in range(10):
            pub.put(bytes([number]))
        sample = sub.recv(60)
        assert (sample.tobytes()[0], sample.missed, sample.sequence) == (6, 6, 7)
        assert sub.recv(60).missed == 0 and sub.missed == 6


@pytest.mark.parametrize(
    "late, expected", [(None, []), ("latest", [9]), (3, [7, 8, 9]), ("all", [2, 3, 4, 5, 6, 7, 8, 9])]
)
def test_late_joiners(node, late, expected):
    with node.publisher("t", history=8, transient_local=True) as pub:
        for number in range(10):
            pub.put(bytes([number]))
        with node.subscriber("t", late=late) as sub:
            got = []
            while (sample := sub.try_recv()) is not None:
                got.append(sample.tobytes()[0])
            assert got == expected


def test_the_latest_is_the_newest_of_all_publishers(node):
    for number in range(3):
        with node.publisher("t", history=2, transient_local=True) as pub:
            pub.put(bytes([number]))
    with node.subscriber("t", late="latest") as sub:
        assert sub.recv(60).tobytes() == b"\2"
    with node.subscriber("t", late="all") as sub:
        assert [sub.recv(60).tobytes()[0] for _ in range(2)] == [1, 2]
    assert node.forget_topic("t") == {"publishers": 2, "messages": 2}
    with pytest.raises(rgaps.NotFound, match="rgaps topic list"):
        node.forget_topic("t")


def test_keep_all_is_a_log(node):
    with node.publisher("t", history=rgaps.KeepAll(100, 1 << 20), transient_local=True) as pub:
        for number in range(50):
            pub.put(bytes([number]))
        with node.subscriber("t", late="all") as sub:
            assert [sub.recv(60).tobytes()[0] for _ in range(50)] == list(range(50))
        with pytest.raises(rgaps.TooLarge, match="raise the limit of bytes of its history"):
            pub.loan(2 << 20)


def command(*arguments):
    """What the command `rgaps` prints as JSON."""
    folder = Path(os.environ["RGAPS_DAEMON"]).parent if "RGAPS_DAEMON" in os.environ else rgaps._bin.FOLDER
    program = Path(folder, "rgaps")
    return json.loads(subprocess.check_output([program, *arguments, "--json"]))


def test_listings(node):
    with node.subscriber("t") as sub, node.publisher("t", type="image") as pub:
        pub.put(b"x")
        sub.recv(60)
        assert node.status()["topics"] == 1
        (topic,) = node.topics()
        assert (topic["name"], topic["type_name"]) == ("t", "image")
        info = node.topic("t")
        assert info["publishers"] == len(info["publisher_list"]) == 1
        assert info["subscribers"] == len(info["subscriber_list"]) == 1
        assert info.keys() > topic.keys() and topic["domain"] == "host"
        # The command has the same names.
        assert info.keys() == command("topic", "info", "t").keys() and topic.keys() == command("topic", "list")[0].keys()
        assert info["publisher_list"][0].keys() == command("topic", "info", "t")["publisher_list"][0].keys()
        assert node.pools()[0].keys() == command("pool")[0].keys()
        assert any(client["name"] == "test" for client in node.clients())
        assert node.pools()[0]["cap_bytes"] == 256 << 20
        assert (pub.type, pub.domain, pub.subscribers) == ("image", "host", 1)


def test_reprs_name_what_they_are(pair, node):
    pub, sub = pair
    pub.put(np.zeros((2, 3), "f4"))
    loan = pub.loan((2, 3), "f4")
    shown = [repr(node), repr(pub), repr(sub), repr(loan), repr(sub.recv(60))]
    assert all(text.startswith("<rgaps.") for text in shown)
    assert "float32" in shown[3] and "float32" in shown[4] and "'pair'" in shown[1]


def test_trim_gives_memory_back(pair):
    pub, sub = pair
    pub.put(bytes(10 << 20))
    sub.recv(60).release()
    for _ in range(20):
        pub.put(b"small")
    while sub.try_recv() is not None:
        pass
    assert pub.trim() > 0
    pub.put(b"and goes on")
    assert sub.recv(60).tobytes() == b"and goes on"


@pytest.mark.parametrize("keep", [{"depth": 1}, {"keep": "latest"}])
def test_a_slow_reader_of_a_fast_camera_reads_the_newest_frame(node, keep):
    with node.subscriber("camera", **keep) as sub, node.publisher("camera") as pub:
        for read in range(3):
            for frame in range(30):
                pub.put(bytes([30 * read + frame]))
            with sub.recv(60) as sample:
                assert sample.tobytes() == bytes([30 * read + 29]) and sample.missed == 29
            assert sub.try_recv() is None and sub.missed == 29 * (read + 1)


def test_a_depth_is_over_all_publishers_and_asks_nothing_of_them(node):
    with node.subscriber("t", depth=5, reliable=True) as sub:
        with node.publisher("t", history=16) as one, node.publisher("t", history=16) as two:
            for number in range(40):
                (one, two)[number % 2].put(bytes([number]))
            read = sorted(sub.recv(60).tobytes()[0] for _ in range(5))
            assert read == [35, 36, 37, 38, 39] and sub.try_recv() is None and sub.missed == 35


@pytest.mark.parametrize("keeps_an_array", [False, True], ids=["", "published as a copy"])
def test_a_loan_that_was_shortened_has_no_stale_bytes(pair, keeps_an_array):
    pub, sub = pair
    loan = pub.loan(100, meta={"frame_id": "lidar"})
    array = loan.numpy() if keeps_an_array else None
    loan.write(b"abc" + 97 * b"!")
    loan.truncate(3)
    assert loan.nbytes == 3
    with pytest.raises(rgaps.InvalidArgument, match="do not fit"):
        loan.write(b"x", at=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rgaps.CopyWarning)
        loan.publish()
    del array
    sample = sub.recv(60)
    assert (sample.nbytes, sample.shape, sample.tobytes()) == (3, (3,), b"abc")
    assert bytes(memoryview(sample)) == b"abc" and sample.meta["frame_id"] == "lidar"


def test_a_shortened_loan_with_strides_ends_with_its_last_element(pair):
    pub, sub = pair
    loan = pub.loan((4, 2), "uint8", strides=(8, 1))
    loan.numpy()[:] = 5
    loan.truncate(2)
    loan.publish()
    sample = sub.recv(60)
    assert sample.tobytes()[:2] == b"\5\5" and sample.numpy().tolist() == [[5, 5]] * 2
    loan = pub.loan((4, 2), "uint8")
    loan.truncate(0)
    loan.publish()
    sample = sub.recv(60)
    assert sample.nbytes == 0 and sample.shape == (0, 2)


def test_namespaces_and_remapping(realm, monkeypatch):
    rules = {"camera": "front/camera", "/clock": "/sim/clock"}
    with rgaps.Node(namespace="robot1", remap=rules) as node, node.subscriber("camera") as sub:
        assert sub.topic == "robot1/front/camera"
        assert node.resolve_topic("/clock") == "sim/clock"
        assert node.resolve_topic("lidar/*") == "robot1/lidar/*"
        assert node.topic("camera")["name"] == "robot1/front/camera"
        monkeypatch.setenv("RGAPS_NAMESPACE", "robot1/front")
        with rgaps.Node() as other, other.publisher("camera") as pub:
            pub.put(b"seen")
            assert sub.recv(60).tobytes() == b"seen"
    with pytest.raises(rgaps.ConfigError, match="argument namespace: namespace = \"a//b\""):
        rgaps.Node(namespace="a//b")
    with pytest.raises(TypeError, match="remap must be a mapping of topics"):
        rgaps.Node(remap=["camera:=front/camera"])
