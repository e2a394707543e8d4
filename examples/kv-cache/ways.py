"""Other ways to get a KV cache from one host to another, to compare with `rgaps.kv`.

    consolidated   the paper's: all layers, then one staging buffer, then chunks that say their layer and number, then a sentinel;
                   the receiver checks that each chunk came, and uses the buffer where they landed. The chunks are messages of rgaps.
    pickle         all layers, then one pickle of numpy arrays over a TCP socket
    gloo           all layers, then torch.distributed send and recv of each tensor, into the memory where it is used
    gloo-layers    the same, with isend at the end of each layer, while the next one is computed

Run as a program, it is the prefill side of one way. A client of a way has one cache in `Landing`, which is a paged cache whose
blocks are in order. Times are of CLOCK_MONOTONIC, which both hosts share here.
"""

from __future__ import annotations

import argparse
import pickle
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from time import monotonic_ns

import torch
from torch import distributed

import rgaps
from model import Model, load, one_thread

WAYS = ("consolidated", "pickle", "gloo", "gloo-layers")
BLOCK = 16
CHUNK_BYTES = 256 << 10
LIMIT_S = 120
#: Port of the pickles, on the worker's host; and of gloo's store, on the decoder's.
PICKLE_PORT = 7501
GLOO_PORT = 7502
TOPIC = "demo/consolidated"
_LENGTH = struct.Struct("<Q")


@dataclass
class Done:
    """A prefill: its first token, when it began, when all layers were computed, and when sending could begin."""

    token: int
    began_ns: int
    prefilled_ns: int
    sending_ns: int


@dataclass
class Fetched:
    """What a client has: all bytes have arrived, and the cache can be read."""

    done: Done
    arrived_ns: int
    ready_ns: int


class Landing:
    """The decoder's memory for one prompt: ``[layers, blocks, BLOCK, kv_heads, head_dim]`` of keys and of values."""

    def __init__(self, model: Model) -> None:
        shape = model.shape
        blocks = -(-shape.tokens_max // BLOCK)
        both = torch.zeros(2, shape.layers, blocks, BLOCK, shape.kv_heads, shape.head_dim)
        self.keys, self.values = both
        self.table = list(range(blocks))

    def layer(self, number: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        return (self.keys[number].flatten(0, 1)[:tokens], self.values[number].flatten(0, 1)[:tokens])

    def clear(self) -> None:
        """So that nothing of another prompt or way can pass for this one's."""
        self.keys.zero_()
        self.values.zero_()


class Private:
    """The worker's memory for one prompt, layer by layer."""

    def __init__(self, model: Model, tokens: int) -> None:
        shape = model.shape
        self.layers = [torch.empty(2, tokens, shape.kv_heads, shape.head_dim) for _ in range(shape.layers)]

    @contextmanager
    def layer(self, number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        keys, values = self.layers[number]
        yield keys, values


def _computed(model: Model, tokens: list[int]) -> tuple[Private, Done]:
    began = monotonic_ns()
    cache = Private(model, len(tokens))
    first = model.prefill(tokens, cache.layer)
    return cache, Done(first, began, now := monotonic_ns(), now)


# The paper's way, over topics.


def _chunks(layer_bytes: int) -> list[tuple[int, int]]:
    return [(at, min(at + CHUNK_BYTES, layer_bytes)) for at in range(0, layer_bytes, CHUNK_BYTES)]


def serve_consolidated(model: Model) -> None:
    node = rgaps.Node("consolidated")
    chunks = node.publisher(f"{TOPIC}/chunks", history=rgaps.KeepAll(4096, 64 << 20), deadline=LIMIT_S)
    requests = node.subscriber(f"{TOPIC}/requests", reliable=True)
    print("ready", flush=True)
    while True:
        with requests.recv() as request:
            tokens = request.numpy().tolist()
        cache, done = _computed(model, tokens)
        staging = torch.stack(cache.layers).flatten(1).view(torch.uint8).numpy()
        done.sending_ns = monotonic_ns()
        for layer, whole in enumerate(staging):
            for number, (low, high) in enumerate(_chunks(len(whole))):
                chunks.put(whole[low:high], meta={"layer": layer, "chunk": number})
        chunks.put(b"", meta={"end": list(vars(done).values())})


class ConsolidatedClient:
    def __init__(self) -> None:
        node = rgaps.Node("consolidated")
        self.chunks = node.subscriber(f"{TOPIC}/chunks", reliable=True)
        self.requests = node.publisher(f"{TOPIC}/requests", history=rgaps.KeepAll(16, 1 << 20), deadline=LIMIT_S)
        self.requests.wait_for_subscribers(1, LIMIT_S)

    def fetch(self, tokens: list[int], landing: Landing) -> Fetched:
        halves = [[half.flatten().view(torch.uint8).numpy() for half in landing.layer(n, len(tokens))] for n in range(len(landing.keys))]
        half_bytes = len(halves[0][0])
        expected = {(layer, chunk) for layer in range(len(halves)) for chunk in range(len(_chunks(2 * half_bytes)))}
        self.requests.put(torch.tensor(tokens).numpy())
        while True:
            with self.chunks.recv(timeout=LIMIT_S) as chunk:
                meta = dict(chunk.meta)
                if "end" in meta:
                    break
                low, data = meta["chunk"] * CHUNK_BYTES, chunk.numpy()
                keys, values = halves[meta["layer"]]
                in_keys = max(min(half_bytes - low, len(data)), 0)
                keys[low : low + in_keys] = data[:in_keys]
                values[low + in_keys - half_bytes : low + len(data) - half_bytes] = data[in_keys:]
                expected.discard((meta["layer"], meta["chunk"]))
        if expected:
            raise RuntimeError(f"{len(expected)} chunks did not come")
        now = monotonic_ns()
        return Fetched(Done(*meta["end"]), now, now)


# TCP sockets and pickle.


def _send(connection: socket.socket, what: object) -> None:
    data = pickle.dumps(what, protocol=pickle.HIGHEST_PROTOCOL)
    connection.sendall(_LENGTH.pack(len(data)))
    connection.sendall(data)


def _exactly(connection: socket.socket, count: int) -> bytearray | None:
    data = bytearray(count)
    view = memoryview(data)
    while view:
        got = connection.recv_into(view)
        if not got:
            return None
        view = view[got:]
    return data


def _receive(connection: socket.socket) -> bytearray | None:
    """The bytes of a pickle, or nothing if the other side is gone. Pickles are for hosts that trust each other: here both are ours."""
    length = _exactly(connection, _LENGTH.size)
    return None if length is None else _exactly(connection, _LENGTH.unpack(length)[0])


def serve_pickle(model: Model, address: str) -> None:
    with socket.create_server((address, PICKLE_PORT)) as listener:
        print("ready", flush=True)
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while (asked := _receive(connection)) is not None:
            cache, done = _computed(model, pickle.loads(asked))
            _send(connection, {"done": vars(done), "layers": [each.numpy() for each in cache.layers]})


class PickleClient:
    def __init__(self, address: str) -> None:
        self.connection = socket.create_connection((address, PICKLE_PORT), LIMIT_S)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fetch(self, tokens: list[int], landing: Landing) -> Fetched:
        _send(self.connection, tokens)
        data = _receive(self.connection)
        if data is None:
            raise EOFError("the prefill side is gone")
        arrived = monotonic_ns()
        found = pickle.loads(data)
        for number, layer in enumerate(found["layers"]):
            for half, into in zip(layer, landing.layer(number, len(tokens))):
                into.copy_(torch.from_numpy(half))
        return Fetched(Done(**found["done"]), arrived, monotonic_ns())


# torch.distributed with gloo: the decoder is rank 0, each prefill side has a rank of its own.

RANKS = {"gloo": 1, "gloo-layers": 2}


def join(rank: int, address: str) -> None:
    """``address`` is the decoder's."""
    distributed.init_process_group(
        "gloo", init_method=f"tcp://{address}:{GLOO_PORT}", rank=rank, world_size=1 + len(RANKS), timeout=timedelta(seconds=LIMIT_S)
    )


class Sent:
    """The worker's memory, whose layers are sent while the next one is computed."""

    def __init__(self, model: Model, tokens: int) -> None:
        self._private = Private(model, tokens)
        self._sending: list[distributed.Work] = []

    @contextmanager
    def layer(self, number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        with self._private.layer(number) as both:
            yield both
        self._sending += [distributed.isend(each, 0) for each in both]

    def wait(self) -> None:
        for each in self._sending:
            each.wait()


def serve_gloo(model: Model, way: str, address: str) -> None:
    join(RANKS[way], address)
    print("ready", flush=True)
    count = torch.zeros(1, dtype=torch.long)
    while True:
        distributed.recv(count, 0)
        tokens = torch.zeros(int(count), dtype=torch.long)
        if not len(tokens):
            return
        distributed.recv(tokens, 0)
        if way == "gloo":
            cache, done = _computed(model, tokens.tolist())
            for layer in cache.layers:
                for half in layer:
                    distributed.send(half, 0)
        else:
            began = monotonic_ns()
            sent = Sent(model, len(tokens))
            first = model.prefill(tokens.tolist(), sent.layer)
            done = Done(first, began, now := monotonic_ns(), now)
            sent.wait()
        distributed.send(torch.tensor(list(vars(done).values())), 0)


class GlooClient:
    def __init__(self, way: str) -> None:
        self.rank = RANKS[way]

    def fetch(self, tokens: list[int], landing: Landing) -> Fetched:
        distributed.send(torch.tensor([len(tokens)]), self.rank)
        distributed.send(torch.tensor(tokens), self.rank)
        for number in range(len(landing.keys)):
            for half in landing.layer(number, len(tokens)):
                distributed.recv(half, self.rank)
        done = torch.zeros(4, dtype=torch.long)
        distributed.recv(done, self.rank)
        now = monotonic_ns()
        return Fetched(Done(*done.tolist()), now, now)

    def close(self) -> None:
        distributed.send(torch.tensor([0]), self.rank)


# No transfer at all.


class LocalClient:
    """The decoder computes the prompt itself."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def fetch(self, tokens: list[int], landing: Landing) -> Fetched:
        @contextmanager
        def layer(number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            yield landing.layer(number, len(tokens))

        began = monotonic_ns()
        first = self.model.prefill(tokens, layer)
        now = monotonic_ns()
        return Fetched(Done(first, began, now, now), now, now)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--here", required=True, help="address of this host")
    parser.add_argument("--there", required=True, help="address of the decoder's host")
    arguments = parser.parse_args()
    one_thread()
    model, _ = load(arguments.model)
    if arguments.way == "consolidated":
        serve_consolidated(model)
    elif arguments.way == "pickle":
        serve_pickle(model, arguments.here)
    else:
        serve_gloo(model, arguments.way, arguments.there)


if __name__ == "__main__":
    main()
