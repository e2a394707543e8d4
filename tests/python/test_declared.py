"""Declared types: who does not match gets nothing, and what is not of its publisher's type is refused."""

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
        assert (pub.type, sub.type, node.topic("t")["type_name"]) == (text, "", text)
        with node.subscriber("t", dtype=dtype, shape=shape) as other:
            assert other.type == text
        with node.subscriber("t", type=text) as other:
            assert other.type == text


@pytest.mark.parametrize("publisher_first", [True, False])
def test_members_that_declare_otherwise_do_not_match(node, publisher_first):
    declared = {"dtype": "float16", "shape": (3, 4)}

    def join(first, second):
        if publisher_first:
            return node.publisher("t", **first), node.subscriber("t", **second)
        sub = node.subscriber("t", **second)
        return node.publisher("t", **first), sub

    for other in ({"dtype": "float32", "shape": (3, 4)}, {"type": "image"}, {}):
        with pytest.warns(rgaps.MismatchWarning, match=r"float16\[3,4\]"):
            pub, sub = join(other, declared)
        with pub, sub:
            assert (pub.subscribers, pub.mismatched, sub.mismatched) == (0, 1, 1)
            assert pub.mismatches() == sub.mismatches()
            pub.put(np.zeros((3, 4), other.get("dtype", "float16")))
            with pytest.raises(rgaps.TimedOut, match=r"1 publisher does not match.*float16\[3,4\]"):
                sub.recv(0.01)
    for wider in ({"dtype": "float16"}, {"dtype": "float16", "shape": (3, None)}, {}):
        pub, sub = join(declared, wider)
        with pub, sub:
            assert (pub.subscribers, pub.mismatched, sub.mismatched) == (1, 0, 0)
            pub.put(np.ones((3, 4), "float16"))
            assert sub.recv(60).shape == (3, 4)


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
            with pytest.raises(rgaps.TypeMismatch, match=rf"{found}.*float16\[3,\*\].*'t'"):
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
        assert sub.recv(60).numpy().tolist() == [[1, 1]] * 3


def test_a_whole_type_is_the_default_of_a_loan(node):
    with node.subscriber("t") as sub, node.publisher("t", dtype=np.float32, shape=(2, 3)) as pub:
        with pub.loan() as array:
            assert isinstance(array, np.ndarray) and array.shape == (2, 3)
            array[...] = 5
        assert (sub.recv(60).numpy() == 5).all()
    with node.publisher("free", dtype="uint8", shape=(None,)) as pub:
        with pytest.raises(rgaps.InvalidArgument, match="shape"):
            pub.loan()
        assert pub.loan(3).dtype == "uint8"
