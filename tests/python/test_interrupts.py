"""Ctrl-C reaches the user wherever rgaps asks an object: `KeyboardInterrupt` is neither ignored nor replaced.

A signal's handler runs in whatever Python code rgaps calls. Here that code raises by itself, so that no test depends on time.
"""

import sys

import numpy as np
import pytest

import rgaps


def interrupt(*_arguments, **_keywords):
    raise KeyboardInterrupt


class Interrupting:
    """An object whose named attributes raise."""

    def __new__(cls, *names):
        kind = type("Interrupting", (), {name: property(interrupt) for name in names})
        return object.__new__(kind)


class Special:
    """An object whose named special methods raise."""

    def __new__(cls, *names):
        return object.__new__(type("Special", (), {name: interrupt for name in names}))


class Text(str):
    """Text that raises when it is printed."""

    __str__ = __repr__ = interrupt


def broken_type():
    """A class whose name raises."""
    return type("Meta", (type,), {"__name__": property(interrupt)})("Broken", (), {})


LOANS = {
    "an attribute of the dtype": lambda pub: pub.loan(3, Interrupting("isnative")),
    "the name of the dtype": lambda pub: pub.loan(3, Interrupting("name")),
    "the truth of an attribute of the dtype": lambda pub: pub.loan(
        3, type("D", (), {"isnative": Special("__bool__")})()
    ),
    "the text of the dtype": lambda pub: pub.loan(3, Special("__str__")),
    "the text of the dtype's name": lambda pub: pub.loan(3, type("D", (), {"name": Text("uint8")})()),
    "numpy's question for the dtype": lambda pub: pub.loan(3, Interrupting("dtype")),
    "the name of a type": lambda pub: pub.loan(3, broken_type()),
    "a length": lambda pub: pub.loan(Special("__index__")),
    "a length of several": lambda pub: pub.loan([Special("__index__")]),
    "what an error shows": lambda pub: pub.loan(Special("__repr__")),
    "a part's length": lambda pub: pub.loan({"a": (Special("__index__"), "uint8")}),
    "a stride": lambda pub: pub.loan((2, 2), strides=[Special("__index__"), 1]),
    "the name of a part": lambda pub: pub.loan({Special("__repr__"): (3, "uint8")}),
    "a tag": lambda pub: pub.put(b"", tag=Special("__index__")),
    "a stream": lambda pub: pub.loan(3).publish(stream=Special("__index__")),
    "an attribute of a stream": lambda pub: pub.loan(3).publish(stream=Interrupting("cuda_stream")),
    "the class of the header": lambda pub: pub.put(b"", meta=Interrupting("__class__")),
    "a time in the header": lambda pub: pub.put(b"", meta={"capture_ns": Special("__index__")}),
    "the class of a value in the header": lambda pub: pub.put(b"", meta={"a": Interrupting("__class__")}),
    "what is no attachment": lambda pub: pub.put(b"", attachment=Special("__repr__")),
    "DLPack": lambda pub: pub.put(Interrupting("__dlpack__")),
    "an array": lambda pub: pub.put(Interrupting("__array__")),
    "a dictionary of CUDA": lambda pub: pub.put(
        type(
            "A",
            (),
            {
                "__cuda_array_interface__": type(
                    "I",
                    (),
                    {
                        "__getitem__": lambda self, key: {"data": (0, False), "shape": (1,), "typestr": "<f4"}[key],
                        "get": interrupt,
                    },
                )()
            },
        )()
    ),
}


@pytest.mark.parametrize("where", LOANS)
def test_an_interrupt_in_a_loan_or_a_put_gets_through(node, where):
    pub = node.publisher("t")
    with pytest.raises(KeyboardInterrupt):
        LOANS[where](pub)


NODES = {
    "a time": lambda node: node.subscriber("t").recv(Special("__float__")),
    "a history": lambda node: node.publisher("t", history=Special("__index__")),
    "what is no history": lambda node: node.publisher("t", history=Special("__repr__")),
    "what is late": lambda node: node.subscriber("t", late=Special("__repr__")),
    "what is no topic": lambda node: node.publisher(Special("__repr__")),
    "a declared length": lambda node: node.publisher("t", dtype="uint8", shape=[Special("__index__")]),
    "the class of the configuration": lambda _: rgaps.Node(config=Interrupting("__class__")),
    "the path of the configuration": lambda _: rgaps.Node(config=Special("__fspath__")),
    "the path of the socket": lambda _: rgaps.Node(socket=Special("__fspath__")),
    "a value of the configuration": lambda _: rgaps.Node(config={"idle_exit_ms": Special("__repr__")}),
}


@pytest.mark.parametrize("where", NODES)
def test_an_interrupt_in_another_argument_gets_through(node, where):
    with pytest.raises(KeyboardInterrupt):
        NODES[where](node)


def test_an_interrupt_in_the_path_of_the_program_gets_through(node, monkeypatch):
    monkeypatch.setattr(sys, "argv", [Special("__fspath__")])
    with pytest.raises(KeyboardInterrupt):
        rgaps.Node()


def test_an_interrupt_that_imports_numpy_gets_through(node, monkeypatch, tmp_path):
    (tmp_path / "numpy").mkdir()
    module = tmp_path / "numpy" / "__init__.py"
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "numpy"]:
        monkeypatch.delitem(sys.modules, name)
    loan = node.publisher("t").loan(3)
    module.write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        loan.numpy()
    with pytest.raises(KeyboardInterrupt):
        node.publisher("u").put([1, 2])
    # What is wrong with a numpy that is there is not that it is missing.
    module.write_text("raise ImportError('the numpy of another Python')")
    with pytest.raises(ImportError, match="another Python"):
        loan.numpy()


def test_other_exceptions_still_become_errors_that_say_what_to_give(node):
    def fail(*_arguments):
        raise RuntimeError

    failing = type("Failing", (), {"__repr__": fail, "__index__": fail})()
    pub = node.publisher("t")
    with pytest.raises(rgaps.InvalidArgument, match="not a Failing"):
        pub.loan(failing)
    with pytest.raises(TypeError, match="numpy.asarray"):
        pub.put([1, 2])
    with pub.loan(2, np.dtype("uint8")) as array:
        array[:] = 7
