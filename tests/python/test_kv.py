"""rgaps.kv: every byte of every block, against a model of a model: workers that die, pools that are full, peers that differ."""

import asyncio
import gc
import threading
import warnings
import zlib

import numpy as np
import pytest

import rgaps
from rgaps import kv

LIMIT = 120
SPEC = kv.Spec(layers=3, kv_heads=2, head_dim=4, dtype="int32", model="toy", version="1")


def toy(spec, tokens, layer):
    """Keys and values of a prompt in a layer, as no other prompt, position, layer, head or element has them. As in a
    transformer, those of a token depend on all tokens before it."""
    states, state = [], 0
    for token in tokens:
        state = zlib.crc32(int(token).to_bytes(4, "little"), state)
        states.append(state)
    places = np.arange(spec.kv_heads * spec.head_dim).reshape(1, spec.kv_heads, spec.head_dim) + 64 * layer
    mixed = np.array(states, np.uint64)[:, None, None] * np.uint64(2654435761) + places.astype(np.uint64)
    keys = (mixed & np.uint64(0x7FFFFFFF)).astype(spec.dtype)
    return keys, (keys // 3 - 1).astype(spec.dtype)


def prefill(request, spec=SPEC, layers=None):
    """What an engine does: computes all tokens, and writes those that the decoder lacks."""
    for layer in range(spec.layers) if layers is None else layers:
        all_keys, all_values = toy(spec, request.tokens, layer)
        with request.layer(layer) as (keys, values):
            keys[...] = all_keys[request.start :]
            values[...] = all_values[request.start :]


def serve(worker, count=1):
    for _ in range(count):
        request = worker.recv(LIMIT)
        with request:
            prefill(request, worker.spec)
            request.wait_for_save({"token": int(request.tokens[-1]) + 1})


def check(load, layers=None):
    """Every byte of a load's blocks in the pool, padding included."""
    pool = load._decoder.pool
    spec, tokens = pool.spec, len(load.tokens)
    assert len(load.block_table) >= spec.blocks(tokens)
    table = load.block_table[: spec.blocks(tokens)]
    for layer in range(spec.layers) if layers is None else layers:
        for cache, wanted in zip((pool.keys, pool.values), toy(spec, load.tokens, layer), strict=True):
            got = np.asarray(cache[layer, table]).reshape(-1, spec.kv_heads, spec.head_dim)
            assert np.array_equal(got[:tokens], wanted)
            assert not got[tokens:].any(), "bytes of another prompt follow the last token"


def audit(pool, loads):
    """Each block is free, or cached, or has as many owners as tables name it; and no private block is in two tables."""
    owners = np.zeros(pool.blocks, int)
    for load in loads:
        assert len(set(load.block_table)) == len(load.block_table)
        np.add.at(owners, load.block_table, 1)
    assert owners.tolist() == pool._owners
    assert not (set(pool._free) & set(pool._cached))
    assert sorted([*pool._free, *pool._cached]) == np.flatnonzero(owners == 0).tolist()
    assert {pool._hash_of[block] for block in range(pool.blocks)} - {None} == set(pool._by_hash)
    assert all(pool._hash_of[block] is not None for block in np.flatnonzero(owners > 1))


@pytest.fixture
def pool():
    return kv.BlockPool(SPEC, 64)


@pytest.fixture
def worker(node):
    with kv.PrefillWorker(SPEC, name="p0", node=node) as worker:
        yield worker


@pytest.fixture
def decoder(node, pool):
    with kv.Decoder(pool, name="d0", workers=["p0"], node=node) as decoder:
        yield decoder


def until(*decoders, state):
    """Waits for a state of the test's own."""
    import time

    end = time.monotonic() + LIMIT
    while not state():
        for decoder in decoders:
            decoder.poll()
        assert time.monotonic() < end, "the state did not come"


# The pool, and names of blocks.


def test_hashes_name_all_that_a_block_depends_on():
    tokens = list(range(40))
    first = kv.block_hashes(SPEC, tokens)
    assert [len(each) for each in first] == [16, 16]
    assert kv.block_hashes(SPEC, tokens[:32]) == first
    other = kv.block_hashes(SPEC, [99, *tokens[1:]])
    assert first[0] != other[0] and first[1] != other[1]
    newer = kv.Spec(3, 2, 4, "int32", model="toy", version="2")
    assert not set(first) & set(kv.block_hashes(newer, tokens))


def test_a_pool_gives_blocks_out_once_and_keeps_prefixes_until_it_needs_them():
    pool = kv.BlockPool(SPEC, 4)
    blocks = pool.allocate(3)
    hashes = [bytes([n]) * 16 for n in range(3)]
    for block, each in zip(blocks, hashes, strict=True):
        pool.register(block, each)
    assert pool.match(hashes) == blocks and pool.free == 1
    pool.share(blocks[:1])
    pool.release(blocks)
    assert pool.free == 3 and pool.match(hashes) == blocks
    with pytest.raises(kv.NoFreeBlocks):
        pool.allocate(4)
    assert pool.free == 3
    pool.allocate(2)
    assert pool.match(hashes) == blocks[:2], "the end of a prompt goes before its beginning"
    pool.release(blocks[:1])
    with pytest.raises(rgaps.InvalidArgument):
        pool.release(blocks[:1])
    pool.forget_prefixes()
    assert pool.match(hashes) == [] and pool.cached == 0 and pool.free == 2


@pytest.mark.parametrize("wrong", [{"layers": 0}, {"kv_heads": -1}, {"head_dim": 1.5}, {"block_size": True},
                                   {"dtype": "float17"}, {"model": "m" * 300}])
def test_a_spec_that_cannot_be_is_refused(wrong):
    with pytest.raises(rgaps.InvalidArgument):
        kv.Spec(**{"layers": 1, "kv_heads": 1, "head_dim": 1, **wrong})


@pytest.mark.parametrize("wrong", [[], [-1], [1 << 32], [1.5], [[1]]])
def test_tokens_that_are_none_are_refused(decoder, wrong):
    with pytest.raises(rgaps.InvalidArgument):
        decoder.start_load_kv(wrong)


# One worker, one decoder.


@pytest.mark.parametrize("count", [1, 15, 16, 17, 64, 100])
def test_a_prompt_crosses_layer_by_layer(worker, decoder, count):
    load = decoder.start_load_kv(range(count))
    request = worker.recv(LIMIT)
    assert request.tokens.tolist() == list(range(count)) and request.start == 0
    for layer in range(SPEC.layers):
        prefill(request, layers=[layer])
        load.wait_for_layer_load(layer, LIMIT)
        check(load, [layer])
    assert not load.done
    request.wait_for_save({"token": 7})
    load.wait(LIMIT)
    check(load)
    assert load.result == {"token": 7} and load.worker == "p0"
    decoder.request_finished(load)
    decoder.request_finished(load)
    audit(decoder.pool, [])


def test_only_blocks_that_the_decoder_lacks_cross(worker, decoder):
    first = decoder.start_load_kv(range(40))
    serve(worker)
    first.wait(LIMIT)
    assert decoder.get_num_new_matched_tokens(range(70)) == (70 - 32, True)
    second = decoder.start_load_kv(range(70))
    assert second.reused == 2 and second.block_table[:2] == first.block_table[:2]
    request = worker.recv(LIMIT)
    assert request.start == 32
    with request:
        prefill(request)
        request.wait_for_save()
    second.wait(LIMIT)
    check(second)
    decoder.request_finished(first)
    check(second)
    # All blocks are there: nobody is asked.
    assert decoder.get_num_new_matched_tokens(range(64)) == (0, False)
    third = decoder.start_load_kv(range(64))
    assert third.done and third.result == {} and worker.try_recv() is None
    check(third)
    audit(decoder.pool, [second, third])


def test_arrays_of_ones_own_are_copied_into_the_loan(worker, decoder):
    load = decoder.start_load_kv(range(20))
    request = worker.recv(LIMIT)
    for layer in (2, 0, 1):
        request.save_kv_layer(layer, *toy(SPEC, request.tokens, layer))
    request.wait_for_save()
    load.wait(LIMIT)
    check(load)


def test_nobody_can_write_a_layer_once_it_is_published(worker, decoder):
    decoder.start_load_kv(range(20))
    request = worker.recv(LIMIT)
    with warnings.catch_warnings():
        warnings.simplefilter("error", rgaps.CopyWarning)
        with request.layer(0) as (keys, values):
            assert keys.shape == values.shape == (20, 2, 4)
            keys[...], values[...] = 1, 2
    assert keys.size == values.size == 0


def test_padding_has_no_bytes_of_another_prompt(node, pool):
    others = np.full((2, 16, 2, 4), 0x5A5A5A5A, np.int32)
    with (
        kv.PrefillWorker(SPEC, name="p0", node=node, window_bytes=3 * 2 * others.nbytes) as worker,
        kv.Decoder(pool, name="d0", workers=["p0"], node=node) as decoder,
    ):
        for token in range(2):
            load = decoder.start_load_kv([token] * 17)
            serve(worker)
            load.wait(LIMIT)
            check(load)
            # The publisher's memory comes round several times, full of another prompt.
            for _ in range(200):
                worker._senders["d0"].put({"k": others, "v": others})
                decoder.poll()


def test_more_tokens_get_blocks_of_their_own(worker, decoder):
    load = decoder.start_load_kv(range(20))
    with pytest.raises(rgaps.InvalidArgument):
        load.reserve(30)
    serve(worker)
    load.wait(LIMIT)
    load.reserve(32)
    assert len(load.block_table) == 2
    load.reserve(33)
    assert len(load.block_table) == 3
    audit(decoder.pool, [load])
    with pytest.raises(kv.NoFreeBlocks):
        load.reserve(16 * 65)
    audit(decoder.pool, [load])


# Back-pressure.


def test_a_load_waits_until_blocks_are_free(node, worker):
    pool = kv.BlockPool(SPEC, 4)
    with kv.Decoder(pool, name="d0", workers=["p0"], node=node, max_waiting=1) as decoder:
        first = decoder.start_load_kv(range(60))
        second = decoder.start_load_kv(range(100, 120))
        serve(worker)
        first.wait(LIMIT)
        assert decoder.waiting == 1 and second.block_table == [] and worker.try_recv() is None
        with pytest.raises(kv.NoFreeBlocks, match="most that may"):
            decoder.start_load_kv([1])
        with pytest.raises(rgaps.TimedOut):
            second.wait(0)
        decoder.request_finished(first)
        serve(worker)
        second.wait(LIMIT)
        check(second)
        with pytest.raises(kv.NoFreeBlocks, match="has 4"):
            decoder.start_load_kv(range(65))
        audit(pool, [second])


def test_a_load_that_waits_can_be_given_back(node, worker):
    pool = kv.BlockPool(SPEC, 2)
    with kv.Decoder(pool, name="d0", workers=["p0"], node=node) as decoder:
        loads = [decoder.start_load_kv([n] * 32) for n in range(3)]
        decoder.request_finished(loads[1])
        with pytest.raises(rgaps.Closed):
            loads[1].wait(LIMIT)
        serve(worker)
        loads[0].wait(LIMIT)
        decoder.request_finished(loads[0])
        serve(worker)
        loads[2].wait(LIMIT)
        check(loads[2])


def test_a_decoder_that_does_not_read_aborts_its_request_and_no_other(node):
    shape_bytes = 4 * 16 * 2 * 4 * 4
    with kv.PrefillWorker(SPEC, name="p0", node=node, window_bytes=2 * shape_bytes, deadline=0.2) as worker:
        pools = [kv.BlockPool(SPEC, 16) for _ in range(2)]
        slow, good = (kv.Decoder(p, name=f"d{n}", workers=["p0"], node=node) for n, p in enumerate(pools))
        with slow, good:
            slow.start_load_kv(range(60))
            load = good.start_load_kv(range(60))
            request = worker.recv(LIMIT)
            with pytest.raises(kv.RequestAborted, match="does not read"):
                prefill(request)
            request = worker.recv(LIMIT)
            for layer in range(3):
                prefill(request, layers=[layer])
                load.wait_for_layer_load(layer, LIMIT)
            request.wait_for_save()
            load.wait(LIMIT)
            check(load)


# Peers that differ, fail, or say what cannot be.


@pytest.mark.parametrize("field", ["layers", "kv_heads", "head_dim", "dtype", "block_size", "model", "version"])
def test_a_spec_that_differs_is_named(node, worker, field):
    wrong = {**SPEC._describe(), field: {"dtype": "float16", "model": "other", "version": "2"}.get(field, 8)}
    pool = kv.BlockPool(kv.Spec(**wrong), 8)
    with kv.Decoder(pool, name="d0", workers=["p0"], node=node) as decoder:
        load = decoder.start_load_kv(range(20))
        assert worker.try_recv() is None
        with pytest.raises(kv.SpecMismatch, match=f"{field} is .* here and .* there"):
            load.wait(LIMIT)
        audit(pool, [])


def test_messages_of_another_version_are_refused(worker, decoder, monkeypatch):
    monkeypatch.setattr("rgaps.kv._protocol.VERSION", 2)
    load = decoder.start_load_kv(range(20))
    monkeypatch.undo()
    assert worker.try_recv() is None
    with pytest.raises(kv.SpecMismatch, match="version 1 of the messages, the decoder 2"):
        load.wait(LIMIT)


def test_without_a_worker_a_load_fails_after_its_patience(node, pool):
    now = [0.0]
    with kv.Decoder(pool, name="d0", workers=["p0"], node=node, patience=5, clock=lambda: now[0]) as decoder:
        load = decoder.start_load_kv(range(20))
        decoder.poll()
        assert load.failed is None
        now[0] = 6.0
        with pytest.raises(kv.NoPrefillWorker, match="p0"):
            load.wait(LIMIT)
        audit(pool, [])


def test_a_worker_that_gives_no_sign_loses_the_prompt(node, pool):
    now = [0.0]
    with (
        kv.PrefillWorker(SPEC, name="p0", node=node) as stuck,
        kv.PrefillWorker(SPEC, name="p1", node=node) as other,
        kv.Decoder(pool, name="d0", workers=["p0", "p1"], node=node, patience=5, clock=lambda: now[0]) as decoder,
    ):
        load = decoder.start_load_kv(range(20))
        late = stuck.recv(LIMIT)
        prefill(late, layers=[0])
        now[0] = 6.0
        decoder.poll()
        now[0] = 12.0
        decoder.poll()
        assert late.aborted
        serve(other)
        # What the stuck worker sends late is not taken.
        with pytest.raises(kv.RequestAborted):
            prefill(late, layers=[1])
        load.wait(LIMIT)
        assert load.worker == "p1"
        check(load)


def test_a_worker_that_was_restarted_between_two_looks_has_lost_the_prompt(node, pool):
    now = [0.0]
    worker = kv.PrefillWorker(SPEC, name="p0", node=node)
    with kv.Decoder(pool, name="d0", workers=["p0"], node=node, clock=lambda: now[0]) as decoder:
        load = decoder.start_load_kv(range(20))
        worker._requests.close()  # as its death does; the decoder does not look meanwhile
        with kv.PrefillWorker(SPEC, name="p0", node=node) as again:
            now[0] = 2.0
            decoder.poll()
            assert again.try_recv() is None
            until(decoder, state=lambda: load._attempt == 2)
            serve(again)
            load.wait(LIMIT)
            check(load)


class Cable:
    """A publisher to another host: while the cable is out, it sees no subscribers."""

    def __init__(self, publisher):
        self.publisher, self.out = publisher, True

    @property
    def subscribers(self):
        return 0 if self.out else self.publisher.subscribers

    def __getattr__(self, name):
        return getattr(self.publisher, name)


def test_a_cut_cable_cost_the_layers_that_had_crossed(node, pool):
    now = [0.0]
    with (
        kv.PrefillWorker(SPEC, name="p0", node=node) as worker,
        kv.PrefillWorker(SPEC, name="p1", node=node) as other,
        kv.Decoder(pool, name="d0", workers=["p0", "p1"], node=node, clock=lambda: now[0]) as decoder,
    ):
        load = decoder.start_load_kv(range(40))
        request = worker.recv(LIMIT)
        prefill(request, layers=[0])
        cables = {name: Cable(asked) for name, asked in decoder._asked.items()}
        decoder._asked, worker._senders = cables, {"d0": Cable(worker._senders["d0"])}
        for _ in range(20):
            now[0] += 1.0
            decoder.poll()
        assert not request.aborted
        cables["p1"].out = False  # workers do not come back at one moment
        decoder.poll()
        cables["p0"].out = worker._senders["d0"].out = False
        prefill(request, layers=[1, 2])
        request.wait_for_save()
        load.wait(LIMIT)
        assert load.attempts == 1 and other.try_recv() is None
        check(load)


def test_a_worker_that_is_out_of_sight_loses_its_loads_to_one_that_is_there(node, pool):
    now = [0.0]
    with (
        kv.PrefillWorker(SPEC, name="p0", node=node) as worker,
        kv.PrefillWorker(SPEC, name="p1", node=node) as other,
        kv.Decoder(pool, name="d0", workers=["p0", "p1"], node=node, clock=lambda: now[0]) as decoder,
    ):
        load = decoder.start_load_kv(range(40))
        worker.recv(LIMIT)
        decoder._asked["p0"] = Cable(decoder._asked["p0"])
        decoder.poll()
        assert load.attempts == 1
        now[0] += 0.5
        decoder.poll()
        assert (load.attempts, load.worker) == (2, "p1")
        serve(other)
        load.wait(LIMIT)
        check(load)


def test_a_request_that_waits_in_a_queue_is_not_taken_for_stuck(node, pool):
    now = [0.0]
    with (
        kv.PrefillWorker(SPEC, name="p0", node=node) as worker,
        kv.Decoder(pool, name="d0", workers=["p0"], node=node, patience=5, clock=lambda: now[0]) as decoder,
    ):
        first, second = decoder.start_load_kv(range(20)), decoder.start_load_kv(range(100, 120))
        request = worker.recv(LIMIT)
        for _ in range(10):
            now[0] += 3.0
            decoder.poll()
            assert not request.aborted  # where the worker answers
        with request:
            prefill(request)
            request.wait_for_save()
        serve(worker)
        for load in (first, second):
            load.wait(LIMIT)
            check(load)
            assert load._attempt == 1


def test_a_failing_engine_gives_the_prompt_to_another_worker(node, pool):
    with (
        kv.PrefillWorker(SPEC, name="p0", node=node) as bad,
        kv.PrefillWorker(SPEC, name="p1", node=node) as good,
        kv.Decoder(pool, name="d0", workers=["p0", "p1"], node=node) as decoder,
    ):
        load = decoder.start_load_kv(range(20))
        with pytest.raises(ZeroDivisionError), bad.recv(LIMIT) as request:
            prefill(request, layers=[0])
            with request.layer(1):
                1 / 0  # noqa: B018
        decoder.poll()
        serve(good)
        load.wait(LIMIT)
        check(load)


def test_when_all_workers_fail_the_error_says_how(worker, decoder):
    load = decoder.start_load_kv(range(20))
    with worker.recv(LIMIT) as request:
        prefill(request, layers=[0, 1])
    with pytest.raises(kv.TransferFailed, match="p0 failed: the worker left the request"):
        load.wait(LIMIT)
    assert load.block_table == []
    audit(decoder.pool, [])


def forge(node, worker, load, op="layer", parts=None, **says):
    """A message on the decoder's topic as a peer may send it."""
    meta = {"kv": 1, "op": op, "id": load._id, "attempt": load._attempt, **says}
    with node.publisher("kv/decode/d0") as publisher:
        publisher.put(b"" if parts is None else parts, meta=meta)


GOOD = np.zeros((2, 16, 2, 4), np.int32)


@pytest.mark.parametrize(
    "says",
    [
        {"layer": 9, "parts": {"k": GOOD, "v": GOOD}},
        {"layer": "0", "parts": {"k": GOOD, "v": GOOD}},
        {"layer": 0, "parts": {"k": GOOD}},
        {"layer": 0, "parts": {"k": GOOD, "v": GOOD[:1]}},
        {"layer": 0, "parts": {"k": GOOD, "v": GOOD.astype(np.float32)}},
        {"layer": 0},
        {"op": "end", "result": {}},
    ],
)
def test_a_peers_wrong_message_costs_it_the_load_and_writes_nothing(node, pool, says):
    with (
        kv.PrefillWorker(SPEC, name="p0", node=node) as worker,
        kv.Decoder(pool, name="d0", workers=["p0"], node=node, max_attempts=1) as decoder,
    ):
        load = decoder.start_load_kv(range(20))
        forge(node, worker, load, **says)
        with pytest.raises(kv.TransferFailed, match="p0 (sent a layer that is not one|ended without layers)"):
            load.wait(LIMIT)
        assert not pool.keys.any() and not pool.values.any()
        audit(pool, [])


def test_messages_of_others_are_ignored(node, worker, decoder):
    load = decoder.start_load_kv(range(20))
    with node.publisher("kv/decode/d0") as publisher, node.publisher("kv/prefill/p0") as requests:
        for meta in ({}, {"kv": 1, "op": "end", "id": "x/y", "attempt": 1}, {"kv": 1, "op": "end", "id": load._id, "attempt": 9},
                     {"kv": 1, "op": "what", "id": load._id, "attempt": 1}):
            publisher.put(b"", meta=meta)
            requests.put(b"", meta={**meta, "decoder": "../x"})
        requests.put(b"", meta={"kv": 1, "op": "load", "id": "a", "attempt": 1, "decoder": "../x"})
    serve(worker)
    load.wait(LIMIT)
    check(load)


def test_blocks_that_are_not_the_prompts_are_not_built_upon(worker, decoder):
    load = decoder.start_load_kv(range(40))
    load.reused, load._hashes[0] = 1, bytes(16)
    decoder._request(load, "p0")
    decoder.poll()
    assert worker.recv(LIMIT).start == 0  # the first request
    worker._drain()
    with pytest.raises(kv.TransferFailed, match="not those of the prompt"):
        load.wait(LIMIT)


def test_a_worker_with_a_full_queue_refuses(node, pool):
    with (
        kv.PrefillWorker(SPEC, name="p0", node=node, max_queued=1) as worker,
        kv.Decoder(pool, name="d0", workers=["p0"], node=node) as decoder,
    ):
        first, second = decoder.start_load_kv(range(20)), decoder.start_load_kv(range(100, 120))
        serve(worker)
        first.wait(LIMIT)
        with pytest.raises(kv.TransferFailed, match="1 requests waiting"):
            second.wait(LIMIT)


def test_wrong_calls_of_an_engine_say_so(worker, decoder):
    decoder.start_load_kv(range(20))
    request = worker.recv(LIMIT)
    with pytest.raises(rgaps.InvalidArgument, match="layers 0 to 2"):
        request.layer(3)
    prefill(request, layers=[0])
    with pytest.raises(rgaps.InvalidArgument, match="was published"):
        request.layer(0)
    with pytest.raises(rgaps.InvalidArgument, match=r"layers \[1, 2\] were not"):
        request.wait_for_save()
    prefill(request, layers=[1, 2])
    request.wait_for_save()
    with pytest.raises(rgaps.InvalidArgument, match="has ended"):
        request.wait_for_save()


# Deaths.

WORKER = """
    import os, signal, sys
    sys.path.insert(0, sys.argv[1])
    from rgaps import kv
    import test_kv
    name, seed, die = sys.argv[2], int(sys.argv[3]), sys.argv[4] == "die"
    random = test_kv.np.random.default_rng(seed)
    with kv.PrefillWorker(test_kv.SPEC, name=name) as worker:
        print("ready")
        for request in worker:
            for layer in range(test_kv.SPEC.layers):
                if die and random.random() < 0.03:
                    os.kill(os.getpid(), signal.SIGKILL)
                all = test_kv.toy(test_kv.SPEC, request.tokens, layer)
                try:
                    with request.layer(layer) as (keys, values):
                        keys[...] = all[0][request.start:]
                        if die and random.random() < 0.03:
                            os.kill(os.getpid(), signal.SIGKILL)
                        values[...] = all[1][request.start:]
                except kv.RequestAborted:
                    break
            else:
                with request:
                    request.wait_for_save({"token": int(request.tokens[-1]) + 1})
"""

DECODER = """
    import sys
    sys.path.insert(0, sys.argv[1])
    from rgaps import kv
    import test_kv
    pool = kv.BlockPool(test_kv.SPEC, 64)
    decoder = kv.Decoder(pool, name=sys.argv[2], workers=["p0"])
    loads = [decoder.start_load_kv([n] * 100) for n in range(4)]
    print("asked")
    input()
"""


def start_worker(program, name, seed, die=True):
    from pathlib import Path

    run = program(WORKER, Path(__file__).parent, name, seed, "die" if die else "live")
    assert run.line(LIMIT) == "ready"
    return run


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", [1, 2])
def test_random_prompts_and_killed_workers_every_byte(program, node, seed):
    random = np.random.default_rng(seed)
    pools = [kv.BlockPool(SPEC, 40) for _ in range(2)]
    decoders = [
        kv.Decoder(pool, name=f"d{n}", workers=["p0", "p1", "p2"], node=node, max_attempts=100)
        for n, pool in enumerate(pools)
    ]
    runs = {f"p{n}": start_worker(program, f"p{n}", seed * 100 + n, die=n < 2) for n in range(3)}
    prefixes = [random.integers(0, 1000, 96) for _ in range(3)]
    open_loads = [[], []]
    left, kills, reused = 150, 0, 0
    while left or any(open_loads):
        for name, run in runs.items():
            if run.process.poll() is not None:
                kills += 1
                runs[name] = start_worker(program, name, seed * 100 + 10 + kills)
        which = int(random.integers(0, 2))
        decoder, loads = decoders[which], open_loads[which]
        if left and len(loads) < 6:
            left -= 1
            prefix = prefixes[int(random.integers(0, 3))][: int(random.integers(0, 97))]
            tokens = np.concatenate([prefix, random.integers(0, 1000, int(random.integers(1, 60)))])
            loads.append(decoder.start_load_kv(tokens))
            continue
        if not loads:
            continue
        load = loads.pop(0)
        if random.random() < 0.1:
            decoder.request_finished(load)  # whatever its state
            audit(decoder.pool, loads)
            continue
        while not load.done:
            for name, run in runs.items():
                if run.process.poll() is not None:
                    kills += 1
                    runs[name] = start_worker(program, name, seed * 100 + 10 + kills)
            try:
                load.wait(60)
            except rgaps.TimedOut:
                continue
        check(load)
        reused += load.reused
        assert load.result in ({"token": int(load.tokens[-1]) + 1}, {})
        decoder.request_finished(load)
        audit(decoder.pool, loads)
    print(f"seed {seed}: {kills} workers killed, {reused} blocks reused")
    assert kills and reused
    for decoder in decoders:
        decoder.close()
        audit(decoder.pool, [])


def test_a_dead_decoders_blocks_are_let_go(program, node, worker, pool):
    from pathlib import Path

    run = program(DECODER, Path(__file__).parent, "d0")
    assert run.line(LIMIT) == "asked"
    request = worker.recv(LIMIT)
    prefill(request, layers=[0])
    run.process.kill()
    run.process.wait()
    until(state=lambda: request.aborted)
    with request:
        prefill(request, layers=[1])
        raise AssertionError("the decoder is dead")
    with kv.Decoder(pool, name="d1", workers=["p0"], node=node) as decoder:
        load = decoder.start_load_kv(range(20))
        serve(worker)  # the dead decoder's other requests are skipped
        load.wait(LIMIT)
        check(load)
        assert list(worker._senders) == ["d1"]
    used = {each["name"]: each for each in node.topics()}.get("kv/decode/d0")
    assert not used or not used["held"]


def test_a_decoder_that_died_before_its_request_was_taken_holds_nobody_up(program, node, pool):
    from pathlib import Path

    with kv.PrefillWorker(SPEC, name="p0", node=node, outage=0.1) as worker:
        run = program(DECODER, Path(__file__).parent, "d0")
        assert run.line(LIMIT) == "asked"
        run.process.kill()
        run.process.wait()
        until(state=lambda: not worker._requests.publishers)
        with kv.Decoder(pool, name="d1", workers=["p0"], node=node) as decoder:
            load = decoder.start_load_kv(range(20))
            with worker.recv(LIMIT) as request:
                assert request.decoder == "d0"
                prefill(request)
                raise AssertionError("the decoder is dead")
            serve(worker)
            load.wait(LIMIT)
            check(load)
            assert list(worker._senders) == ["d1"]


def test_a_closed_decoder_has_given_all_back(node, worker, pool):
    decoder = kv.Decoder(pool, name="d0", workers=["p0"], node=node)
    loads = [decoder.start_load_kv([n] * 200) for n in range(8)]
    assert decoder.waiting
    request = worker.recv(LIMIT)
    prefill(request, layers=[0])
    decoder.close()
    decoder.close()
    audit(pool, [])
    with pytest.raises(rgaps.Closed):
        loads[0].wait(LIMIT)
    with pytest.raises(rgaps.Closed):
        decoder.start_load_kv([1])
    assert request.aborted and worker.try_recv() is None


def test_a_closed_worker_hands_its_requests_on(node, pool):
    with kv.PrefillWorker(SPEC, name="p1", node=node) as other:
        worker = kv.PrefillWorker(SPEC, name="p0", node=node)
        with kv.Decoder(pool, name="d0", workers=["p0", "p1"], node=node) as decoder:
            loads = [decoder.start_load_kv([n] * 40) for n in range(2)]
            worker.close()
            decoder.poll()
            serve(other, 2)
            for load in loads:
                load.wait(LIMIT)
                check(load)


# Event loops, and threads.


def test_many_tasks_of_one_loop_share_a_decoder(node):
    async def main():
        pool = kv.BlockPool(SPEC, 12)
        with (
            kv.PrefillWorker(SPEC, name="p0", node=node) as worker,
            kv.Decoder(pool, name="d0", workers=["p0"], node=node) as decoder,
        ):

            async def engine():
                while True:
                    request = await worker.recv_async()
                    with request:
                        for layer in range(SPEC.layers):
                            async with request.layer(layer) as (keys, values):
                                all_keys, all_values = toy(SPEC, request.tokens, layer)
                                keys[...], values[...] = all_keys[request.start :], all_values[request.start :]
                        request.wait_for_save({"token": 1})

            async def prompt(number):
                load = decoder.start_load_kv([number] * (30 + number))
                await load.wait_for_layer_load_async(0, LIMIT)
                check(load, [0])
                await load.wait_async(LIMIT)
                check(load)
                decoder.request_finished(load)

            serving = asyncio.ensure_future(engine())
            await asyncio.gather(*(prompt(number) for number in range(20)))
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            assert decoder._receiving is None
            audit(pool, [])

    asyncio.run(main())


def test_transfer_and_computation_overlap_in_two_threads(node, pool):
    """The worker computes a layer while the decoder has the one before."""
    with (
        kv.PrefillWorker(SPEC, name="p0", node=node) as worker,
        kv.Decoder(pool, name="d0", workers=["p0"], node=node) as decoder,
    ):
        have = [threading.Event() for _ in range(SPEC.layers)]

        def engine():
            with worker.recv(LIMIT) as request:
                for layer in range(SPEC.layers):
                    if layer:
                        assert have[layer - 1].wait(LIMIT)
                    prefill(request, layers=[layer])
                request.wait_for_save()

        thread = threading.Thread(target=engine)
        thread.start()
        load = decoder.start_load_kv(range(50))
        for layer in range(SPEC.layers):
            load.wait_for_layer_load(layer, LIMIT)
            check(load, [layer])
            have[layer].set()
        load.wait(LIMIT)
        thread.join(LIMIT)
        assert not thread.is_alive()


def test_nothing_keeps_messages_that_were_copied(node, worker, decoder):
    for _ in range(3):
        load = decoder.start_load_kv(np.arange(100))
        serve(worker)
        load.wait(LIMIT)
        decoder.request_finished(load)
        decoder.pool.forget_prefixes()
    gc.collect()
    assert decoder._blocks.held == 0 and worker._requests.held == 0
