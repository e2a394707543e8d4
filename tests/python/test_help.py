"""help(): every parameter of every call of `rgaps`, `rgaps.weights` and `rgaps.kv` is explained."""

import inspect
import re

import pytest
import rgaps
import rgaps.kv
import rgaps.services
import rgaps.weights

# Users get these from calls, and make none.
GIVEN = {"Call", "Layer", "Load", "PrefillRequest", "Request"}


def _calls():
    """All that users call, by name: methods, and functions of the module."""
    public = [*((name, getattr(rgaps, name)) for name in rgaps.__all__)]
    # The methods of Weights are below: the others are those of a mapping.
    public += [(name, getattr(rgaps.weights, name)) for name in rgaps.weights.__all__ if name != "Weights"]
    public += [(name, getattr(rgaps.kv, name)) for name in rgaps.kv.__all__]
    public += [(name, getattr(rgaps.services, name)) for name in rgaps.services.__all__]
    for name, value in public:
        if not inspect.isclass(value):
            yield name, value
        elif not issubclass(value, BaseException):
            methods = (method for method in dir(value) if not method.startswith("_") and not hasattr(tuple, method))
            yield from ((f"{name}.{method}", getattr(value, method)) for method in methods)
            if value.__module__.startswith(("rgaps.weights", "rgaps.kv", "rgaps.services")) and name not in GIVEN:
                yield name, value
    for method in ("changed_since", "info", "load_into", "pieces"):
        yield f"Weights.{method}", getattr(rgaps.weights.Weights, method)


def _signature(call):
    try:
        return inspect.signature(call)
    except (TypeError, ValueError):
        return None


CALLS = {name: call for name, call in _calls() if callable(call) and _signature(call) is not None}


def test_there_are_calls():
    assert len(CALLS) > 40 and {"Node.publisher", "publisher", "Loan.publish", "Sample.part", "Decoder", "Load.wait"} <= CALLS.keys()


@pytest.mark.parametrize("name", CALLS)
def test_help_explains_every_parameter_and_its_default(name):
    text = inspect.getdoc(CALLS[name]) or ""
    explained = dict(re.findall(r"^    (\w+): ((?:.+\n?(?:     +.+\n?)*))", text, re.MULTILINE))
    for parameter in inspect.signature(CALLS[name]).parameters.values():
        if parameter.name in {"self", "cls"} or parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            continue
        assert parameter.name in explained, f"{name}: {parameter.name}"
        if parameter.default is not inspect.Parameter.empty:
            assert "Default:" in explained[parameter.name], f"{name}: {parameter.name} has no default in words"


def test_help_explains_how_a_node_is_made():
    explained = set(re.findall(r"^    (\w+): ", inspect.getdoc(rgaps.Node), re.MULTILINE))
    assert {"name", "config", "realm", "socket"} <= explained
