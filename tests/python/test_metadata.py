"""Headers, attachments and parts: what travels beside a message, and several arrays in one."""

import gc
import warnings

import numpy as np
import pytest

import rgaps

LIMIT = 120


def test_meta_comes_back_as_the_dictionary_that_was_given(pair):
    pub, sub = pair
    meta = {
        "capture_ns": 1_700_000_000_000_000_000,
        "frame_id": "left",
        "exposure": 0.5,
        "gain": -3,
        "id": 2**64 - 1,
        "ok": True,
        "nothing": None,
        "raw": b"\x00\xff",
        "K": [[1.0, 0.0], [0.0, 1.0]],
        "nested": {"a": {"b": ["ä", 1]}},
    }
    pub.put(np.zeros((2, 3), "f4"), meta=meta)
    sample = sub.recv(LIMIT)
    assert sample.meta == meta and list(sample.meta)[:2] == ["capture_ns", "frame_id"]
    assert type(sample.meta["ok"]) is bool and type(sample.meta["gain"]) is int
    assert sample.shape == (2, 3) and isinstance(sample.attachment, bytes)
    with pub.loan(4, "u1", meta={"n": np.int32(5), "K": np.eye(2), "t": (1, 2)}) as loan:
        assert loan.meta == {"n": 5, "K": [[1, 0], [0, 1]], "t": [1, 2]}
        loan.meta = {**loan.meta, "frame_id": None, "x": np.float32(0.5)}
    assert sub.recv(LIMIT).meta == {"n": 5, "K": [[1, 0], [0, 1]], "t": [1, 2], "x": 0.5}


def test_a_header_is_messagepack(pair):
    msgpack = pytest.importorskip("msgpack", reason="msgpack is not installed")
    pub, sub = pair
    meta = {"capture_ns": 5, "frame_id": "x", "values": [1, 2.5, "t", b"b", None]}
    pub.put(b"", meta=meta)
    assert msgpack.unpackb(sub.recv(LIMIT).attachment) == meta


def test_an_attachment_is_bytes_and_none_is_none(pair):
    pub, sub = pair
    pub.put(b"x", attachment=memoryview(b"beside"))
    pub.put(b"x", attachment=np.arange(3, dtype="u1"))
    pub.put(b"x")
    pub.put(b"x", attachment=bytes(4096))
    first, second, third, most = (sub.recv(LIMIT) for _ in range(4))
    assert (first.attachment, first.meta) == (b"beside", {})
    assert second.attachment == b"\x00\x01\x02"
    assert (third.attachment, third.meta, third.keys()) == (None, {}, [])
    assert most.attachment == bytes(4096)
    loan = pub.loan(3)
    loan.attachment = b"set later"
    assert loan.attachment == b"set later" and loan.meta == {}
    loan.attachment = None
    assert loan.attachment is None
    loan.publish()
    assert sub.recv(LIMIT).attachment is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"attachment": bytes(4097)}, "4097 bytes is over the limit of 4096 bytes"),
        ({"meta": {"a": bytes(4096)}}, "over the limit of 4096 bytes"),
        ({"meta": {"a": 1}, "attachment": b"b"}, "meta or attachment, not both"),
        ({"meta": {1: 2}}, "keys of meta must be text"),
        ({"meta": {"a": {"b": [object()]}}}, r"meta\['a'\]\['b'\]\[0\] is of type object"),
        ({"meta": {"a": 2**64}}, r"meta\['a'\] does not fit in 64 bits"),
        ({"meta": {"capture_ns": -1}}, "nanoseconds since 1970"),
        ({"meta": {"frame_id": 5}}, r"meta\['frame_id'\] must be text"),
        ({"meta": [1]}, r"meta must be a dictionary.*not \[1\]"),
    ],
)
def test_what_cannot_travel_is_refused_with_the_reason(pair, arguments, words):
    pub, sub = pair
    with pytest.raises(rgaps.InvalidArgument, match=words):
        pub.put(b"x", **arguments)
    with pytest.raises(rgaps.InvalidArgument, match=words):
        pub.loan(1, **arguments)
    assert sub.try_recv() is None


def test_meta_that_contains_itself_is_refused(pair):
    pub, _ = pair
    circle = []
    circle.append(circle)
    with pytest.raises(rgaps.InvalidArgument, match="more than 16 deep"):
        pub.put(b"x", meta={"circle": circle})


def arrays():
    random = np.random.default_rng(2)
    return {
        "rgb": random.integers(0, 255, (4, 5, 3), dtype=np.uint8),
        "depth": random.random((4, 5), dtype=np.float32),
        "pose": np.eye(4).T[::-1],
        "scalar": np.float64(2.5),
        "name": b"seven b",
    }


def test_several_arrays_are_put_and_read_in_one_message(pair):
    pub, sub = pair
    sent = arrays()
    assert pub.put(sent, tag=3, meta={"frame_id": "cam"}) == 0
    sample = sub.recv(LIMIT)
    assert sample.keys() == list(sent) == list(sample) and len(sample) == 5
    assert "rgb" in sample and "pose" in sample and "other" not in sample
    for name in ("rgb", "depth", "pose", "scalar"):
        got = sample[name]
        assert got.dtype == sent[name].dtype and np.array_equal(got, sent[name])
        assert not got.flags.writeable and got.ctypes.data % 256 == 0
    assert sample["name"].tobytes() == sent["name"]
    assert (sample.tag, sample.meta) == (3, {"frame_id": "cam"})
    assert sample.dtype is None and sample.nbytes == sample.part("name").offset + 7
    part = sample.part("depth")
    assert (part.name, part.shape, part.dtype, part.nbytes) == ("depth", (4, 5), "float32", 80)
    assert bytes(memoryview(part)) == sent["depth"].tobytes()
    assert np.array_equal(np.from_dlpack(part), sent["depth"])
    with pytest.raises(KeyError, match="its parts are: 'rgb', 'depth', 'pose', 'scalar', 'name'"):
        sample["other"]


def test_a_sample_without_parts_is_still_true(pair):
    pub, sub = pair
    pub.put(b"plain")
    sample = sub.recv(LIMIT)
    assert sample and len(sample) == 0 and "x" not in sample
    with pytest.raises(KeyError, match="its parts are: none"):
        sample["x"]
    assert np.asarray(sample).tobytes() == b"plain"


def test_an_array_over_a_part_keeps_the_block(pair):
    pub, sub = pair
    sent = arrays()
    pub.put(sent)
    sample = sub.recv(LIMIT)
    rgb = sample["rgb"]
    sample.release()
    with pytest.raises(rgaps.Closed):
        sample["rgb"]
    for _ in range(50):
        pub.put({"rgb": np.zeros((4, 5, 3), "u1")})
    assert sub.held == 1 and np.array_equal(rgb, sent["rgb"])
    del rgb, sample
    gc.collect()
    assert sub.held == 0


def test_parts_are_filled_in_place(pair):
    pub, sub = pair
    sent = arrays()
    wanted = {"rgb": ((4, 5, 3), "uint8"), "depth": ((4, 5), np.float32), "name": (7, "u1")}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pub.loan(wanted, meta={"n": 1}) as loan:
            assert loan.keys() == ["rgb", "depth", "name"]
            loan["rgb"][...] = sent["rgb"]
            depth = loan["depth"]
            depth[...] = sent["depth"]
            loan["name"] = sent["name"]
            with pytest.raises(rgaps.InvalidArgument, match="part 'depth' is float32"):
                loan["depth"] = np.zeros((4, 5))
            with pytest.raises(KeyError, match="no part 'pose'"):
                loan["pose"]
            with pytest.raises(KeyError, match="no part 'pose'"):
                loan["pose"] = sent["pose"]
    assert depth.size == 0
    sample = sub.recv(LIMIT)
    assert np.array_equal(sample["rgb"], sent["rgb"])
    assert np.array_equal(sample["depth"], sent["depth"])
    assert sample["name"].tobytes() == sent["name"] and sample.meta == {"n": 1}


def test_a_loan_whose_part_is_still_seen_is_copied_with_its_parts_and_meta(pair):
    pub, sub = pair
    loan = pub.loan({"a": (3, "u1"), "b": (2, "f8")}, meta={"k": "v"})
    kept = loan["a"]
    kept[:] = [1, 2, 3]
    loan["b"][...] = [0.5, 1.5]
    with pytest.warns(rgaps.CopyWarning):
        loan.publish()
    kept[:] = 9
    sample = sub.recv(LIMIT)
    assert sample["a"].tolist() == [1, 2, 3] and sample["b"].tolist() == [0.5, 1.5]
    assert sample.meta == {"k": "v"}


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({}, "the list of parts is empty"),
        ({"x" * 64: b"1"}, "has 64 bytes; a name has 1 to 63 bytes"),
        ({"": b"1"}, "has 0 bytes"),
        ({str(n): b"1" for n in range(33)}, "33 parts are over the limit of 32 parts"),
        ({1: b"1"}, "name of a part must be text"),
    ],
)
def test_parts_beyond_the_limits_are_refused(pair, parts, words):
    pub, _ = pair
    with pytest.raises(rgaps.InvalidArgument, match=words):
        pub.put(parts)
    with pytest.raises(rgaps.InvalidArgument, match=words):
        pub.loan({name: (1, "u1") for name in parts})


def test_a_topic_that_is_declared_as_one_array_takes_no_parts(node):
    with node.publisher("declared", dtype="float32", shape=(2,)) as pub:
        with pytest.raises(rgaps.TypeMismatch):
            pub.put({"a": np.zeros(2, "f4")})
        with pytest.raises(rgaps.TypeMismatch):
            pub.loan({"a": (2, "f4")})


def test_late_joiners_and_other_processes_get_parts_and_meta(node, program):
    pub = node.publisher("late", transient_local=True)
    pub.put({"a": np.arange(5)}, meta={"frame_id": "kept"})
    reader = program(
        """
        import rgaps
        sample = rgaps.subscriber("late", late="latest").recv(60)
        print(sample["a"].tolist(), sample.meta)
        """
    )
    assert reader.line() == "[0, 1, 2, 3, 4] {'frame_id': 'kept'}"
    reader.finish()


@pytest.mark.skipif(len(rgaps.domains()) < 2, reason="no GPU answers, and the test driver was not built")
def test_parts_on_a_gpu_are_put_and_copied_back(node):
    sent = arrays()
    with (
        node.subscriber("gpu") as sub,
        node.publisher("gpu", domain="cuda") as pub,
        node.subscriber("gpu", domain="host") as on_host,
    ):
        pub.put(sent, meta={"frame_id": "gpu"})
        sample = sub.recv(LIMIT)
        assert sample.domain == pub.domain and sample.keys() == list(sent)
        assert sample.meta == {"frame_id": "gpu"}
        part = sample.part("depth")
        assert part.domain == pub.domain and part.__dlpack_device__() == (2, 0)
        copied = sample.tobytes()[part.offset :][: part.nbytes]
        assert copied == sent["depth"].tobytes()
        there = on_host.recv(LIMIT)
        assert np.array_equal(there["rgb"], sent["rgb"]) and np.array_equal(there["pose"], sent["pose"])
        # Of the part, and not of the message's first bytes.
        host = np.from_dlpack(part, device="cpu")
        assert np.array_equal(host, sent["depth"])
        loan = pub.loan({"a": (3, "u1"), "b": (4, "f4")})
        loan["a"] = b"abc"
        loan["b"] = np.arange(4, dtype="f4")
        loan.publish()
        there = on_host.recv(LIMIT)
        assert there["a"].tobytes() == b"abc" and there["b"].tolist() == [0, 1, 2, 3]


def test_meta_cannot_be_changed_in_place_where_the_change_would_be_lost(pair):
    pub, sub = pair
    with pub.loan(1, meta={"n": 1}) as loan:
        with pytest.raises(TypeError, match="does not support item assignment"):
            loan.meta["n"] = 2
        loan.meta = {**loan.meta, "n": 3}
    sample = sub.recv(LIMIT)
    with pytest.raises(TypeError, match="does not support item assignment"):
        sample.meta["n"] = 4
    pub.put(b"", meta=sample.meta)
    assert dict(sub.recv(LIMIT).meta) == {"n": 3}


def test_a_message_with_parts_is_no_array_and_shows_its_parts(pair):
    pub, sub = pair
    with pub.loan({"rgb": ((2, 2), "uint8"), "pose": (3, "float32")}) as loan:
        assert "parts 'rgb', 'pose'" in repr(loan)
        for call in (loan.numpy, loan.torch):
            with pytest.raises(rgaps.InvalidArgument, match=r"the loan has parts 'rgb', 'pose': choose one, such as loan\['rgb'\]"):
                call()
    sample = sub.recv(LIMIT)
    assert repr(sample) == "<rgaps.Sample 'pair' #0: parts 'rgb', 'pose'>"
    for call in (sample.numpy, sample.torch):
        with pytest.raises(rgaps.InvalidArgument, match=r"the sample has parts 'rgb', 'pose': choose one, such as sample\['rgb'\]"):
            call()
    assert sample["rgb"].shape == (2, 2)
