"""help(): every parameter of the calls that configure or publish is explained."""

import inspect
import re

import pytest
import rgaps

CALLS = [
    rgaps.Node.publisher,
    rgaps.Node.subscriber,
    rgaps.publisher,
    rgaps.subscriber,
    rgaps.Publisher.loan,
    rgaps.Publisher.put,
    rgaps.Publisher.wait_for_subscribers,
    rgaps.Subscriber.recv,
    rgaps.Subscriber.listen,
    rgaps.Loan.publish,
    rgaps.Sample.release,
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__qualname__)
def test_help_explains_every_parameter_and_its_default(call):
    text = inspect.getdoc(call)
    explained = dict(re.findall(r"^    (\w+): ((?:.+\n?(?:     +.+\n?)*))", text, re.MULTILINE))
    for name, parameter in inspect.signature(call).parameters.items():
        if name == "self":
            continue
        assert name in explained, f"{call.__qualname__}: {name}"
        if parameter.default is not inspect.Parameter.empty:
            assert "Default:" in explained[name], f"{call.__qualname__}: {name} has no default in words"


def test_help_explains_how_a_node_is_made():
    explained = set(re.findall(r"^    (\w+): ", inspect.getdoc(rgaps.Node), re.MULTILINE))
    assert {"name", "config", "realm", "socket"} <= explained
