"""The declared type of a topic: what does not fit it is refused, on both sides."""

import asyncio
import queue

import numpy as np
import pytest

import rgaps


@pytest.mark.parametrize(
    ("dtype", "shape", "text"),
    [
        ("float16", (3, 1080, 1920), "float16[3,1080,1920]"),
        (np.float32, (3, None, None), "float32[3,*,*]"),
        ("torch.bfloat16", None, "bfloat16"),
        ("uint8", (), "uint8[]"),
        (np.dtype("i8"), 7, "int64[7]"),
        ("bool", (None,) * 8, "bool[*,*,*,*,*,*,*,*]"),
    ],
)
def test_the_text_of_a_type(node, dtype, shape, text):
    with node.publisher("t", dtype=dtype, shape=shape) as pub, node.subscriber("t") as sub:
        assert pub.type == sub.type == text
        with node.subscriber("t", dtype=dtype, shape=shape) as other:
            assert other.type == text
        with node.subscriber("t", type=text) as other:
            assert other.type == text


def test_members_that_declare_otherwise_are_refused(node):
    with node.subscriber("t", dtype="float16", shape=(3, 4)):
        for other in ({"dtype": "float32", "shape": (3, 4)}, {"dtype": "float16"}, {"type": "image"}):
            with pytest.raises(rgaps.TypeMismatch, match=r"float16\[3,4\]"):
                node.publisher("t", **other)
            with pytest.raises(rgaps.TypeMismatch):
                node.subscriber("t", **other)


@pytest.mark.parametrize(
    "wrong",
    [
        {"shape": (3,)},
        {"dtype": "float7"},
        {"dtype": "uint8", "shape": "abc"},
        {"dtype": "uint8", "shape": (-1,)},
        {"dtype": "uint8", "shape": (1,) * 9},
        {"dtype": "uint8", "shape": (3,), "type": "image"},
    ],
)
def test_what_is_no_declaration(node, wrong):
    for join in (node.publisher, node.subscriber):
        with pytest.raises(rgaps.InvalidArgument):
            join("t", **wrong)


def test_a_publisher_refuses_what_does_not_fit(node):
    with node.subscriber("t") as sub, node.publisher("t", dtype="float16", shape=(3, None)) as pub:
        for wrong, found in [
            (np.zeros((3, 2), "f4"), r"float32\[3,2\]"),
            (np.zeros((2, 2), "f2"), r"float16\[2,2\]"),
            (np.zeros(3, "f2"), r"float16\[3\]"),
            (b"bytes", "plain bytes"),
        ]:
            with pytest.raises(rgaps.TypeMismatch, match=rf"{found}.*'t'.*float16\[3,\*\]"):
                pub.put(wrong)
        with pytest.raises(rgaps.TypeMismatch, match=r"float32\[3,5\]"):
            pub.loan((3, 5), "float32")
        loan = pub.loan((3, 5))
        assert loan.dtype == "float16"
        loan.truncate(2)
        with pytest.raises(rgaps.TypeMismatch, match=r"float16\[2,5\]"):
            loan.publish()
        assert sub.try_recv() is None
        loan.truncate(2)
        loan.discard()
        pub.put(np.ones((3, 2), "f2"))
        assert sub.recv(5).numpy().tolist() == [[1, 1]] * 3


def test_a_whole_type_is_the_default_of_a_loan(node):
    with node.subscriber("t") as sub, node.publisher("t", dtype=np.float32, shape=(2, 3)) as pub:
        with pub.loan() as array:
            assert isinstance(array, np.ndarray) and array.shape == (2, 3)
            array[...] = 5
        assert (sub.recv(5).numpy() == 5).all()
    with node.publisher("free", dtype="uint8", shape=(None,)) as pub:
        with pytest.raises(rgaps.InvalidArgument, match="shape"):
            pub.loan()
        assert pub.loan(3).dtype == "uint8"


@pytest.fixture
def mixed(node):
    """A publisher that knew no type when it joined, and a subscriber that declared one since."""
    with node.publisher("t") as pub, node.subscriber("t", dtype="uint8", shape=(2, None)) as sub:
        yield pub, sub


def publish_mixed(pub):
    pub.put(np.zeros((2, 3), "u1"))
    pub.put(np.zeros((2, 3), "i1"))
    pub.put(b"bytes")
    pub.put(np.zeros((2, 1), "u1"))


def test_a_subscriber_refuses_what_does_not_fit(mixed):
    pub, sub = mixed
    publish_mixed(pub)
    assert sub.recv(5).shape == (2, 3)
    with pytest.raises(rgaps.TypeMismatch, match=r"message 1 is int8\[2,3\].*uint8\[2,\*\]"):
        sub.recv(5)
    with pytest.raises(rgaps.TypeMismatch, match="message 2 is plain bytes"):
        sub.try_recv()
    assert sub.try_recv().shape == (2, 1)
    assert sub.held == 0


def test_so_do_iterations_and_listeners(mixed):
    pub, sub = mixed
    publish_mixed(pub)
    messages = iter(sub)
    assert next(messages).sequence == 0
    with pytest.raises(rgaps.TypeMismatch):
        next(messages)

    async def receive():
        with pytest.raises(rgaps.TypeMismatch):
            await sub.recv_async(5)
        return await sub.recv_async(5)

    assert asyncio.run(receive()).sequence == 3
    good, bad = queue.SimpleQueue(), queue.SimpleQueue()
    with sub.listen(lambda sample: good.put(sample.sequence), on_error=bad.put):
        publish_mixed(pub)
        assert [good.get(timeout=10), good.get(timeout=10)] == [4, 7]
    for number in (5, 6):
        error = bad.get(timeout=10)
        assert isinstance(error, rgaps.TypeMismatch) and f"message {number}" in str(error)
