"""A prefill worker: computes prompts, and writes keys and values of each layer straight into shared memory (`rgaps.kv`)."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from model import Model, load, one_thread
from rgaps import kv

#: Name of the topics.
TOPIC = "demo/kv"


def spec_of(model: Model) -> kv.Spec:
    """What both sides must agree on. The version is a sum of the weights' bits: other weights make other keys."""
    shape = model.shape
    bits = sum(int(each.detach().view(torch.int32).sum(dtype=torch.int64)) for each in model.parameters())
    version = f"{bits & 0xFFFF_FFFF:08x}"
    return kv.Spec(shape.layers, shape.kv_heads, shape.head_dim, torch.float32, model="licences", version=version)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--name", required=True)
    arguments = parser.parse_args()
    one_thread()
    model, _ = load(arguments.model)
    with kv.PrefillWorker(spec_of(model), name=arguments.name, topic=TOPIC) as worker:
        print("ready", flush=True)
        for request in worker:
            with request:
                began = time.monotonic_ns()
                first = model.prefill(request.tokens.tolist(), request.layer, request.start)
                request.wait_for_save({"token": first, "began_ns": began, "prefilled_ns": time.monotonic_ns()})


if __name__ == "__main__":
    main()
