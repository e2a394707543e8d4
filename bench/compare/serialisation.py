"""What turning a tensor into bytes and back costs (the paper's Table III): pickle, torch.save, safetensors.

On the host, since all three work there: a tensor of 1000 x 1000 float32, 4 MB.
"""
import io
import pickle
import time

import torch

from figures import times

SHAPE = (1000, 1000)


def with_torch_save(tensor):
    stream = io.BytesIO()
    torch.save(tensor, stream)
    return stream.getvalue()


def ways_there_and_back():
    yield "pickle", lambda t: pickle.dumps(t, protocol=pickle.HIGHEST_PROTOCOL), pickle.loads
    yield "torch.save", with_torch_save, lambda data: torch.load(io.BytesIO(data), weights_only=True)
    try:
        from safetensors.torch import load, save
    except ImportError:
        return
    yield "safetensors", lambda t: save({"t": t}), lambda data: load(data)["t"]


def timed(function, argument, rounds):
    taken = []
    for _ in range(rounds):
        begun = time.perf_counter_ns()
        function(argument)
        taken.append(time.perf_counter_ns() - begun)
    return taken


def run(options, found, save, say):
    """Fills `found`, and yields what failed."""
    rounds = 20 if options.quick else 200
    found.update(shape=SHAPE, dtype="float32", rounds=rounds, rows=[])
    tensor = torch.rand(SHAPE)
    names = []
    for name, there, back in ways_there_and_back():
        names.append(name)
        data = there(tensor)
        row = {"way": name, "bytes": len(data), "same": torch.equal(back(data), tensor)}
        timed(there, tensor, 3), timed(back, data, 3)
        row["serialise"] = times(timed(there, tensor, rounds))
        row["deserialise"] = times(timed(back, data, rounds))
        found["rows"].append(row)
        save()
        if not row["same"]:
            yield name, "the tensor that came back is another"
    # The floor: the bytes copied once.
    copy = torch.empty_like(tensor)
    found["floor_copy"] = times(timed(copy.copy_, tensor, rounds))
    if "safetensors" not in names:
        yield "safetensors", "is not installed"
