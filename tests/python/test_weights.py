"""rgaps.weights: versions are whole or not there, their bytes stay, and every failure is a typed error."""

import contextlib
import fcntl
import gc
import json
import os
import random
import socket
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import rgaps
from rgaps.weights import (
    BaseMissing,
    Piece,
    StaleVersion,
    TensorInfo,
    VersionIncomplete,
    VersionsHeld,
    WeightsMismatch,
    WeightsPublisher,
    WeightsSubscriber,
    _format,
)

LIMIT = 120
#: In a program of a test: tensors whose every element tells the version, and the check of that.
STATE = """
    import numpy as np
    def state(version):
        return {name: np.full(size, version, "i8") for name, size in (("a", 20_000), ("b", 333), ("c", 1))}
    def check(weights, fresh=lambda name: True):
        assert list(weights) == ["a", "b", "c"]
        for name, array in weights.items():
            assert (array == (weights.version if fresh(name) else weights.base)).all(), (name, weights.version)
"""
exec(STATE.replace("\n    ", "\n"))


def reader(node, name="model", **options):
    return WeightsSubscriber(node, name, arrays="numpy", **options)


def tensors(seed=1):
    generator = np.random.default_rng(seed)
    return {
        "layer.weight": generator.random((64, 33)),
        "layer.bias": generator.random(33, dtype=np.float32),
        "steps": np.int64(7),
        "empty": np.zeros((0, 4), "f4"),
        "turned": generator.integers(0, 9, (5, 6), dtype="i2").T,
    }


def test_a_version_is_read_byte_for_byte_and_read_only(node):
    sent = tensors()
    with WeightsPublisher(node, "model") as pub, reader(node) as sub:
        assert (pub.name, pub.version, sub.name, sub.latest()) == ("model", None, "model", None)
        assert pub.publish(sent, version=5, meta={"step": 1000}) == 5
        weights = sub.wait(timeout=LIMIT)
        assert (weights.version, weights.base, weights.meta, list(weights)) == (5, None, {"step": 1000}, list(sent))
        for name, array in sent.items():
            got = weights[name]
            assert (got.dtype, got.shape, got.tobytes()) == (array.dtype, array.shape, array.tobytes())
            assert not got.flags.writeable and not got.flags.owndata
        assert weights.nbytes == sum(array.nbytes for array in sent.values())
        assert weights.info("layer.bias") == TensorInfo("float32", (33,), 5, 1)
        assert "layer" not in weights
        with pytest.raises(KeyError):
            weights["layer"]


def test_all_readers_of_a_process_see_the_same_bytes(node):
    with WeightsPublisher(node, "model") as pub, reader(node) as one, reader(node) as other:
        pub.publish(tensors())
        first, second = (each.wait(timeout=LIMIT)["layer.weight"] for each in (one, other))
        assert np.shares_memory(first, second)


def test_the_trainer_may_change_its_tensors_after_publishing(node):
    sent = tensors()
    with WeightsPublisher(node, "model") as pub, reader(node) as sub:
        pub.publish(sent)
        before = sent["layer.weight"].copy()
        sent["layer.weight"][...] = 0
        assert np.array_equal(sub.wait(timeout=LIMIT)["layer.weight"], before)


def test_floats_are_converted_on_the_way_and_others_are_not(node):
    sent = tensors()
    with WeightsPublisher(node, "model") as pub, reader(node) as sub:
        pub.publish(sent, dtype=np.float16)
        weights = sub.wait(timeout=LIMIT)
        for name, array in sent.items():
            wanted = array.astype("f2") if array.dtype.kind == "f" else array
            assert weights[name].dtype == wanted.dtype and np.array_equal(weights[name], wanted)


def test_arrays_that_are_one_are_published_once(node):
    tied = np.arange(10_000.0)
    with WeightsPublisher(node, "model") as pub, reader(node) as sub:
        pub.publish({"in": tied, "out": tied, "other": tied.copy()})
        weights = sub.wait(timeout=LIMIT)
        assert np.shares_memory(weights["in"], weights["out"])
        assert not np.shares_memory(weights["in"], weights["other"])
        assert all(np.array_equal(array, tied) for array in weights.values())


def test_wait_returns_newer_versions_only_and_the_newest(node):
    with WeightsPublisher(node, "model") as pub, reader(node) as sub:
        for version in (1, 2, 3):
            pub.publish(state(version), version=version)
        weights = sub.wait(timeout=LIMIT)
        assert weights.version == 3
        check(weights)
        with pytest.raises(rgaps.TimedOut, match="no newer version of 'model' within 0.01 s; the newest complete one is 3"):
            sub.wait(timeout=0.01)
        assert sub.wait(2, timeout=0).version == 3 == sub.latest().version
        with pytest.raises(rgaps.TimedOut, match="no version 4 or newer"):
            sub.wait(4, timeout=0.01)
        threading.Timer(0.05, lambda: pub.publish(state(4))).start()
        check(sub.wait(4, timeout=LIMIT))


def test_a_late_reader_gets_the_newest_version_also_after_the_trainer_has_left(node):
    with WeightsPublisher(node, "model") as pub:
        for version in range(3):
            pub.publish(state(version))
    with reader(node) as sub:
        weights = sub.wait(timeout=LIMIT)
        assert weights.version == 2
        check(weights)


def test_a_partial_update_shares_what_did_not_change(node):
    with WeightsPublisher(node, "model") as pub, reader(node) as sub:
        pub.publish(state(1), version=1)
        full = sub.wait(timeout=LIMIT)
        assert pub.publish_partial({"b": state(2)["b"]}, base=1, meta={"step": 9}) == 2
        part = sub.wait(timeout=LIMIT)
        assert (part.version, part.base, part.meta) == (2, 1, {"step": 9})
        check(part, fresh=lambda name: name == "b")
        check(full)
        assert np.shares_memory(full["a"], part["a"]) and not np.shares_memory(full["b"], part["b"])
        assert part.changed_since(1) == ["b"] and part.changed_since(0) == ["a", "b", "c"]
        # In the type of the full version.
        pub.publish({"x": np.ones(3, "f4")}, dtype="float16")
        pub.publish_partial({"x": np.full(3, 2.5)})
        assert sub.wait(timeout=LIMIT)["x"].tolist() == [2.5] * 3 and sub.latest()["x"].dtype == np.float16


def test_a_late_reader_gets_all_partial_updates_also_after_the_trainer_has_left(node):
    with WeightsPublisher(node, "model", partials=5) as pub:
        pub.publish(state(0))
        for version in range(1, 6):
            pub.publish_partial({"abc"[version % 3]: state(version)["abc"[version % 3]]})
        with pytest.raises(BaseMissing, match="5 partial updates have followed the full version"):
            pub.publish_partial({})
    with reader(node) as sub:
        weights = sub.wait(timeout=LIMIT)
        assert weights.version == 5
        assert {name: int(array[0]) for name, array in weights.items()} == {"a": 3, "b": 4, "c": 5}


def test_a_partial_update_without_its_base_is_refused_by_the_publisher(node):
    with WeightsPublisher(node, "model") as pub:
        with pytest.raises(BaseMissing, match="has published no full version"):
            pub.publish_partial({})
        pub.publish(state(3), version=3)
        with pytest.raises(BaseMissing, match="base=2, but the newest version is 3"):
            pub.publish_partial({}, base=2)
    with WeightsPublisher(node, "model") as pub, pytest.raises(BaseMissing):
        pub.publish_partial({})


def test_a_reader_that_lacks_the_base_waits_and_says_so(node):
    with reader(node) as sub, WeightsPublisher(node, "model") as pub:
        pub.publish(state(0))
        pub.publish_partial({"b": state(1)["b"]})
        with pytest.raises(VersionIncomplete, match="version 1 is a partial update, and its base 0 has not arrived"):
            # A reader whose full versions come from elsewhere: it never gets them.
            lost = WeightsSubscriber(node, "model", arrays="numpy")
            lost._topics["full", 0].subscriber.close()
            lost._topics["full", 0].subscriber = node.subscriber("nothing")
            lost._set.attach(lost._topics["full", 0].subscriber)
            lost.wait(timeout=0.2)
        check(sub.wait(1, timeout=LIMIT), fresh=lambda name: name == "b")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"d": np.zeros(3)}, "'d' is not in the full version"),
        ({"b": np.zeros(4, "f4")}, r"'b' has shape \(4,\), and \(3,\) in the full version"),
        ({"b": np.zeros(3, "i4")}, "'b' is int32, and float32 in the full version"),
        ({"b": Piece(np.zeros(3, "f4"), (0,), (6,))}, "'b' has shape"),
    ],
)
def test_a_partial_update_that_does_not_fit_is_refused_and_changes_nothing(node, state, words):
    with WeightsPublisher(node, "model") as pub, reader(node) as sub:
        pub.publish({"b": np.ones(3, "f4")})
        with pytest.raises(WeightsMismatch, match=words):
            pub.publish_partial(state)
        assert pub.version == 0 and sub.wait(timeout=LIMIT)["b"].tolist() == [1, 1, 1]
        assert pub.publish_partial({"b": np.zeros(3)}) == 1 and sub.wait(timeout=LIMIT)["b"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"a": [1, 2]}, "'a' is a list, and no tensor of torch or array of numpy"),
        ({"a": None}, "'a' is a NoneType"),
        ({1: np.zeros(1)}, "the name 1 is no text"),
        ({"a": np.array(["x"])}, "messages cannot carry elements of type str"),
        ({"a": np.zeros(2, ">f4")}, "other byte order"),
    ],
)
def test_what_is_no_tensor_is_refused_by_name(node, state, words):
    with WeightsPublisher(node, "model") as pub:
        with pytest.raises(rgaps.InvalidArgument, match=words):
            pub.publish(state)
        assert pub.version is None and pub.versions_in_memory() == 0


def test_versions_only_grow_also_over_restarts(node):
    with WeightsPublisher(node, "model") as pub:
        pub.publish(state(5), version=5)
        for stale in (5, 4, 0):
            with pytest.raises(StaleVersion, match=f"version {stale} is not greater than 5"):
                pub.publish(state(stale), version=stale)
        for wrong in (-1, 2**63, 1.0, True):
            with pytest.raises(rgaps.InvalidArgument, match="is no integer"):
                pub.publish({}, version=wrong)
        assert pub.publish_partial({}) == 6
    with WeightsPublisher(node, "model") as pub, reader(node) as sub:
        assert pub.version == 6
        with pytest.raises(StaleVersion):
            pub.publish(state(6), version=6)
        assert pub.publish(state(7)) == 7
        check(sub.wait(7, timeout=LIMIT))
    with pytest.raises(rgaps.Closed):
        pub.publish({})
    with pytest.raises(rgaps.Closed):
        sub.latest()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shard": (2, 2)}, "a rank is below the number of ranks"),
        ({"shard": (0, 65)}, "1 to 64"),
        ({"shard": (0, 2)}, "several ranks need run="),
        ({"shard": (0, 2), "run": "r" * 257}, "more than 256 bytes"),
        ({"shard": (0, 2), "run": "r", "versions": 2}, "versions=2: at least 3"),
        ({"versions": 1}, "at least 2"),
        ({"partials": 0}, "1 to 64"),
    ],
)
def test_arguments_outside_their_limits_are_refused(node, options, words):
    with pytest.raises(rgaps.InvalidArgument, match=words):
        WeightsPublisher(node, "model", **options)
    with pytest.raises(rgaps.InvalidArgument, match="arrays='jax'"):
        WeightsSubscriber(node, "model", arrays="jax")
    with pytest.raises(rgaps.InvalidArgument, match="numpy cannot read tensors in 'cuda'"):
        reader(node, domain="cuda")


def test_a_held_version_is_never_overwritten_and_the_trainer_is_told_who_holds_it(node):
    with WeightsPublisher(node, "model", timeout=0.1) as pub, reader(node) as sub:
        pub.publish(state(0))
        held = sub.wait(timeout=LIMIT)
        pub.publish(state(1))
        with reader(node) as other:
            second = other.wait(timeout=LIMIT)
            assert second.version == 1 and pub.versions_in_memory() == 2
            pub.publish(state(2))
            assert pub.versions_in_memory() == 3
            with pytest.raises(VersionsHeld, match=r"limit is 3, this one included; .*'test' \(process \d+\) holds 1"):
                pub.publish(state(3))
            assert pub.version == 2
            check(held)
            check(second)
        # The subscriber has gone on and the versions are dropped, one by one.
        assert sub.wait(timeout=LIMIT).version == 2
        del held, second
        gc.collect()
        assert pub.publish(state(3)) == 3
        check(sub.wait(timeout=LIMIT))


def test_a_blocked_trainer_goes_on_when_a_reader_drops_a_version(node):
    with WeightsPublisher(node, "model", versions=2, timeout=LIMIT) as pub, reader(node) as sub:
        pub.publish(state(0))
        held = [sub.wait(timeout=LIMIT)]
        pub.publish(state(1))
        blocked = threading.Thread(target=lambda: pub.publish(state(2)))
        blocked.start()
        check(held[0])
        held.clear()
        check(sub.wait(1, timeout=LIMIT))
        blocked.join(LIMIT)
        assert not blocked.is_alive() and pub.version == 2


def test_a_killed_reader_holds_no_version(node, program):
    with WeightsPublisher(node, "model", versions=2, timeout=LIMIT) as pub:
        pub.publish(state(0))
        run = program(
            """
            from rgaps.weights import WeightsSubscriber
            kept = WeightsSubscriber(None, "model", arrays="numpy").wait(timeout=60)
            print(kept.version)
            input()
            """
        )
        assert run.line(LIMIT) == "0"
        pub.publish(state(1))
        run.process.kill()
        assert pub.publish(state(2)) == 2


def test_a_pool_without_memory_and_a_version_that_never_fits_are_told(monkeypatch):
    monkeypatch.setenv("RGAPS_POOL__HOST__CAP", "16MiB")
    with rgaps.Node("small") as node, WeightsPublisher(node, "model", versions=9, timeout=0.1) as pub:
        with pytest.raises(rgaps.TooLarge):
            pub.publish({"a": np.zeros(17 << 20, "u1")})
        held = []
        with reader(node) as sub:
            with pytest.raises(rgaps.PoolFull):
                for version in range(9):
                    pub.publish({"a": np.full(4 << 20, version, "u1")})
                    held.append(sub.wait(timeout=LIMIT))
            assert 2 <= len(held) < 9 and pub.version == held[-1].version
            assert all((each["a"] == each.version).all() for each in held)
            last = held.pop()
            held.clear()
            pub.publish({"a": np.full(4 << 20, 99, "u1")})
            assert (sub.wait(timeout=LIMIT)["a"] == 99).all() and (last["a"] == last.version).all()


def shards(node, run, ranks=2, name="model", **options):
    return [WeightsPublisher(node, name, shard=(rank, ranks), run=run, **options) for rank in range(ranks)]


def test_a_version_is_complete_when_all_shards_are_there(node):
    one, two = shards(node, "job-1")
    whole = np.arange(48.0).reshape(6, 8)
    with reader(node) as sub:
        one.publish({"x": np.ones(3), "w": Piece(whole[:, :5], (0, 0), (6, 8))}, version=1, meta={"step": 4})
        with pytest.raises(VersionIncomplete, match=r"none is complete; version 1 lacks shards \[1\] of 2"):
            sub.wait(timeout=0.1)
        two.publish({"y": np.zeros(2), "w": Piece(whole[:, 5:], (0, 5), (6, 8))}, version=1)
        weights = sub.wait(timeout=LIMIT)
        assert sorted(weights) == ["w", "x", "y"] and weights.meta == {"step": 4}
        assert np.array_equal(weights["w"], whole) and weights["w"].dtype == whole.dtype
        assert weights.info("w") == TensorInfo("float64", (6, 8), 1, 2)
        (at, left), (there, right) = weights.pieces("w")
        assert (at, there) == ((0, 0), (0, 5)) and not left.flags.owndata
        assert np.array_equal(left, whole[:, :5]) and np.array_equal(right, whole[:, 5:])
        assert weights.pieces("x")[0][0] == (0,)
        # A partial update of one piece.
        one.publish_partial({}, version=2)
        two.publish_partial({"w": Piece(-whole[:, 5:], (0, 5), (6, 8))}, version=2)
        part = sub.wait(timeout=LIMIT)
        assert (part.version, part.base) == (2, 1)
        assert np.array_equal(part["w"], np.hstack([whole[:, :5], -whole[:, 5:]]))
        with pytest.raises(rgaps.InvalidArgument, match="with several ranks, give version="):
            one.publish({})
        with pytest.raises(WeightsMismatch, match="does not lie in a tensor of shape"):
            one.publish({"w": Piece(whole, (0, 1), (6, 8))}, version=3)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (np.zeros(3), np.zeros(3), "several have all of it"),
        (Piece(np.zeros(3), (0,), (6,)), np.zeros(6), "shards disagree on 'w'"),
        (Piece(np.zeros(3), (0,), (6,)), Piece(np.zeros(3, "f4"), (3,), (6,)), "shards disagree on 'w'"),
        (Piece(np.zeros(3), (0,), (6,)), Piece(np.zeros(3), (3,), (7,)), "shards disagree on 'w'"),
        (Piece(np.zeros(3), (0,), (6,)), Piece(np.zeros(2), (4,), (6,)), "have 5 of 6 elements"),
        (Piece(np.zeros(3), (0,), (6,)), Piece(np.zeros(3), (2,), (6,)), "pieces of 'w' overlap"),
    ],
)
def test_shards_that_do_not_fit_together_are_no_version_and_the_next_is(node, first, second, words):
    one, two = shards(node, "job-1")
    with reader(node) as sub:
        one.publish({"w": first}, version=1)
        two.publish({"w": second}, version=1)
        with pytest.raises(WeightsMismatch, match=words):
            sub.wait(timeout=LIMIT)
        assert sub.latest() is None
        one.publish({"w": np.ones(3)}, version=2)
        two.publish({}, version=2)
        assert sub.wait(timeout=LIMIT)["w"].tolist() == [1, 1, 1]


def test_shards_that_disagree_on_their_base_or_number_are_no_version(node):
    one, two = shards(node, "job-1")
    third = WeightsPublisher(node, "model", shard=(1, 3), run="job-1")
    with reader(node) as sub:
        one.publish({}, version=1)
        third.publish({}, version=1)
        with pytest.raises(WeightsMismatch, match="disagree on the number of shards"):
            sub.wait(timeout=LIMIT)
        one.publish({}, version=2)
        two.publish({}, version=2)
        assert sub.wait(timeout=LIMIT).version == 2


def test_shards_of_two_runs_are_never_put_together(node):
    with reader(node) as sub:
        one, two = shards(node, "job-1")
        for version in (1, 2):
            one.publish({"x": np.full(9, version)}, version=version)
            if version == 1:
                two.publish({"y": np.full(9, version)}, version=version)
        assert sub.wait(timeout=LIMIT).version == 1
        one.close()
        two.close()
        # The trainer starts again: its second rank publishes version 2, which the first one of before had published.
        one, two = shards(node, "job-2")
        two.publish({"y": np.full(9, -2)}, version=2)
        with pytest.raises(VersionIncomplete):
            sub.wait(timeout=0.1)
        one.publish({"x": np.full(9, -3)}, version=3)
        two.publish({"y": np.full(9, -3)}, version=3)
        weights = sub.wait(timeout=LIMIT)
        assert weights.version == 3 and (weights["x"] == -3).all() and (weights["y"] == -3).all()


def test_a_trainer_that_dies_in_mid_version_leaves_the_last_complete_one(node, program):
    run = program(
        """
        import numpy as np
        from rgaps.weights import WeightsPublisher
        one, two = (WeightsPublisher(None, "model", shard=(rank, 2), run="job-1") for rank in (0, 1))
        for version in range(1, 6):
            one.publish({"x": np.full(9, version)}, version=version)
            two.publish({"y": np.full(9, version)}, version=version)
        one.publish({"x": np.full(9, 6)}, version=6)
        print("in mid version")
        input()
        """
    )
    assert run.line(LIMIT) == "in mid version"
    with reader(node) as sub:
        assert sub.wait(5, timeout=LIMIT).version == 5
        run.process.kill()
        run.process.wait()
        with pytest.raises(VersionIncomplete, match=r"version 6 lacks shards \[1\]"):
            sub.wait(timeout=0.1)
    with reader(node) as late:
        weights = late.wait(timeout=LIMIT)
        assert weights.version == 5 and (weights["x"] == 5).all() and (weights["y"] == 5).all()


# The readers below hold a version of their own beside the newest: more than the default allows.
TRAINER = (
    STATE
    + """
    import sys
    from rgaps.weights import WeightsPublisher
    ranks, run = int(sys.argv[1]), sys.argv[2]
    pubs = [WeightsPublisher(None, "model", shard=(rank, ranks), run=run, partials=4, versions=8, timeout=30) for rank in range(ranks)]
    begin = version = max([pub.version for pub in pubs if pub.version is not None] or [0])
    print("ready")
    while True:
        version += 1
        full = (version - begin) % 4 == 1
        for rank, pub in enumerate(pubs):
            mine = {f"{rank}.{name}": array for name, array in state(version).items() if full or name == "b"}
            (pub.publish if full else pub.publish_partial)(mine, version=version, meta={"full": version if full else full_version, "run": run})
        if full:
            full_version = version
"""
)
READER = """
    import sys
    from rgaps.weights import WeightsSubscriber
    sub = WeightsSubscriber(None, "model", arrays="numpy")
    ranks, kept = int(sys.argv[1]), []
    def check(weights):
        assert sorted(weights) == sorted(f"{rank}.{name}" for rank in range(ranks) for name in "abc")
        for name, array in weights.items():
            wanted = weights.version if name.endswith("b") else weights.meta["full"]
            assert (array == wanted).all(), (name, weights.version, weights.meta, array)
    while True:
        weights = sub.wait(timeout=60)
        check(weights)
        kept = [*kept[-1:], weights]
        for each in kept:
            check(each)
        print(weights.version, weights.meta["run"])
"""


def _version_of(reader, trainer):
    """The next version that the reader has, and of which run it is; a trainer that ended says why."""
    try:
        version, run = reader.line(LIMIT).split()
        return int(version), run
    except AssertionError as error:
        trainer.process.kill()
        raise AssertionError(f"{error}; the trainer: {trainer.errors()}") from None


@pytest.mark.parametrize("ranks", [1, 2])
def test_processes_killed_at_random_points_tear_nothing_and_block_nobody(node, program, ranks):
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)  # shown if the test fails
    chance = random.Random(seed)
    readers = [program(READER, ranks) for _ in range(2)]
    for number in range(10):
        run = f"run-{number}"
        trainer = program(TRAINER, ranks, run)
        assert trainer.line(LIMIT) == "ready"
        victim = None
        if number % 3 == 2:
            victim = chance.randrange(2)
        # A version of this trainer has come to the reader that stays.
        stays = readers[0 if victim != 0 else 1]
        of = None
        while of != run:
            newest, of = _version_of(stays, trainer)
        time.sleep(chance.random() * 0.05)  # where in its work the kill finds the trainer
        if victim is not None:
            readers[victim].process.kill()
        trainer.process.kill()
        trainer.process.wait()
        if victim is not None:
            readers[victim] = program(READER, ranks)
    # Whoever comes now still gets a whole version.
    with reader(node) as sub:
        weights = sub.wait(timeout=LIMIT)
        assert weights.version >= newest - 1
        for name, array in weights.items():
            assert (array == (weights.version if name.endswith("b") else weights.meta["full"])).all()
    assert all(each.process.poll() is None for each in readers), [each.errors() for each in readers]


GOOD = {"weights": 1, "version": 1, "base": None, "run": "r", "shard": 0, "shards": 1, "meta": {}}


@pytest.mark.parametrize(
    ("header", "index"),
    [
        ({}, []),
        ({**GOOD, "weights": 2}, []),
        ({**GOOD, "version": -1}, []),
        ({**GOOD, "version": "1"}, []),
        ({**GOOD, "shard": 1}, []),
        ({**GOOD, "shards": 2**40}, []),
        ({**GOOD, "run": 1}, []),
        ({**GOOD, "meta": [1]}, []),
        ({**GOOD, "base": 0}, []),
        ({**GOOD, "base": 1}, []),
        (GOOD, 7),
        (GOOD, b"\xff"),
        (GOOD, [["a"]]),
        (GOOD, [["a", "float32", [1000], 0, None, None]]),
        (GOOD, [["a", "float32", [1], 7, None, None]]),
        (GOOD, [["a", "float32", [-1], 0, None, None]]),
        (GOOD, [["a", "float32", [2**62, 2**62], 0, None, None]]),
        (GOOD, [["a", "float31", [1], 0, None, None]]),
        (GOOD, [[1, "float32", [1], 0, None, None]]),
        (GOOD, [["a", ["float32"], [1], 0, None, None]]),
        (GOOD, [["a", "float32", [1], "0", None, None]]),
        (GOOD, [["a", "float32", [1], 0, [0], None]]),
        (GOOD, [["a", "float32", [1], 0, [1], [1]]]),
        (GOOD, [["a", "float32", [1], 0, None, None]] * 2),
        (GOOD, None),
    ],
)
def test_what_another_process_wrote_wrongly_is_refused_and_the_next_version_is_read(node, header, index):
    with reader(node) as sub, node.publisher("model/full/0", history=1, transient_local=True) as raw:
        parts = {"bytes": bytes(256)}
        if index is not None:
            parts["index"] = index if isinstance(index, bytes) else json.dumps(index).encode()
        raw.put(parts, meta=header)
        with pytest.raises(WeightsMismatch, match="a message on 'model/full/0'"):
            sub.wait(timeout=LIMIT)
        assert sub.latest() is None
        raw.close()
        with WeightsPublisher(node, "model") as pub:
            pub.publish(state(2), version=2)
            check(sub.wait(timeout=LIMIT))


@pytest.mark.skipif(len(rgaps.domains()) < 2, reason="no GPU answers, and the test driver was not built")
def test_readers_on_a_gpu_have_the_bytes_there(node):
    sent = tensors()
    with WeightsPublisher(node, "model") as pub, WeightsSubscriber(node, "model", domain="cuda") as sub:
        pub.publish(sent)
        weights = sub.wait(timeout=LIMIT)
        for name, array in sent.items():
            (place,) = weights._places[name]
            assert place.message.domain.startswith("cuda")
            copied = np.from_dlpack(_format.OnHost(place.message._part))
            assert copied[place.entry.offset :][: place.entry.nbytes].tobytes() == array.tobytes()


def _links_program():
    named = os.environ.get("RGAPS_LINKS_PROGRAM")
    beside = Path(os.environ.get("RGAPS_DAEMON", "rgapsd")).with_name("rgaps-links")
    packaged = Path(rgaps.__file__).with_name("bin") / "rgaps-links"
    return next((str(path) for path in (named, beside, packaged) if path and Path(path).is_file()), None)


@pytest.fixture
def two_ports():
    """Ports that no other test has, and that the kernel gives to nobody by itself: as tests in Rust hold theirs."""
    folder = Path(tempfile.gettempdir(), "rgaps-test-ports")
    folder.mkdir(exist_ok=True)
    found = []
    with contextlib.ExitStack() as stack:
        for port in range(20_000, 30_000):
            held = stack.enter_context(open(folder / str(port), "w"))
            with contextlib.suppress(OSError):
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                socket.create_server(("127.0.0.1", port)).close()
                found.append(port)
            if len(found) == 2:
                break
        yield found


@pytest.mark.skipif(_links_program() is None, reason="rgaps-links is not built")
def test_readers_on_another_host_get_shards_updates_and_history(realm, monkeypatch, two_ports):
    monkeypatch.setenv("RGAPS_LINKS_PROGRAM", _links_program())
    control_a, control_b = two_ports

    def host(name, control, other):
        addresses = {"listen": "127.0.0.1:0", "control": [f"tcp/127.0.0.1:{control}"], "connect": [f"tcp/127.0.0.1:{other}"]}
        config = {"links": {"enabled": True, "host": name, "insecure": True, "scouting": False, **addresses}}
        return rgaps.Node(name, config=config, socket=f"{realm}/{name}.sock")

    here, there = host("host-a", control_a, control_b), host("host-b", control_b, control_a)
    try:
        with reader(there) as sub:
            ranks = shards(here, "job-1")
            for version in range(1, 8):
                full = version % 3 == 1
                for rank, pub in enumerate(ranks):
                    mine = {f"{rank}.{name}": array for name, array in state(version).items() if full or name == "b"}
                    (pub.publish if full else pub.publish_partial)(mine, version=version)
                _check_shards(sub.wait(version, timeout=LIMIT), version - (version - 1) % 3)
        for version in (8, 9):
            for rank, pub in enumerate(ranks):
                pub.publish_partial({f"{rank}.b": state(version)["b"]}, version=version)
        for pub in ranks:
            pub.close()
        with reader(there) as late:
            _check_shards(late.wait(9, timeout=LIMIT), 7)
    finally:
        for node in (there, here):
            node.stop_daemon()


def _check_shards(weights, full):
    assert sorted(weights) == [f"{rank}.{name}" for rank in range(2) for name in "abc"]
    for name, array in weights.items():
        assert (array == (weights.version if name.endswith("b") else full)).all(), (name, weights.version)


def test_torch_is_not_needed_for_numpy(program):
    run = program(
        """
        import sys
        sys.modules["torch"] = None  # an import of it fails
        import numpy as np
        from rgaps.weights import WeightsPublisher, WeightsSubscriber
        with WeightsPublisher(None, "model") as pub, WeightsSubscriber(None, "model", arrays="numpy") as sub:
            pub.publish({"a": np.arange(5.0)}, dtype="float32")
            print(sub.wait(timeout=60)["a"].tolist())
        """
    )
    assert run.line(LIMIT) == "[0.0, 1.0, 2.0, 3.0, 4.0]"
    run.finish()


def _module(torch, device="cpu"):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(50, 16, device=device)
            self.norm = torch.nn.BatchNorm1d(16, device=device)
            self.head = torch.nn.Linear(16, 50, bias=False, device=device)
            self.head.weight = self.embed.weight

        def forward(self, tokens):
            return self.head(self.norm(self.embed(tokens)))

    return Tied().eval()


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


def test_a_state_dict_of_torch_is_converted_on_the_way_and_read_without_a_copy(node, torch):
    module = _module(torch)
    with WeightsPublisher(node, "model") as pub, WeightsSubscriber(node, "model") as sub:
        pub.publish(module.state_dict(), dtype=torch.bfloat16)
        weights = sub.wait(timeout=LIMIT)
        for name, tensor in module.state_dict().items():
            wanted = tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
            assert weights[name].dtype == wanted.dtype and torch.equal(weights[name], wanted)
        assert weights["embed.weight"].data_ptr() == weights["head.weight"].data_ptr()
        pub.publish_partial({"norm.weight": torch.full((16,), 2.5)})
        part = sub.wait(timeout=LIMIT)
        assert part["norm.weight"].dtype == torch.bfloat16 and (part["norm.weight"] == 2.5).all()
        assert part["embed.weight"].data_ptr() == weights["embed.weight"].data_ptr()


def test_every_type_of_torch_comes_back_bit_for_bit(node, torch):
    names = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128 float8_e4m3fn float8_e5m2"
    bits = torch.arange(64, dtype=torch.uint8)
    # An older torch lacks float8.
    types = {name: getattr(torch, name) for name in names.split() if hasattr(torch, name)}
    sent = {name: (bits % 2 if name == "bool" else bits).view(dtype) for name, dtype in types.items()}
    sent["turned"] = torch.arange(12.0).view(3, 4).t()
    with WeightsPublisher(node, "model") as pub, WeightsSubscriber(node, "model") as sub:
        pub.publish(sent)
        weights = sub.wait(timeout=LIMIT)
        for name, tensor in sent.items():
            assert weights[name].dtype == tensor.dtype and weights[name].shape == tensor.shape
            assert torch.equal(weights[name].clone().view(torch.uint8), tensor.contiguous().view(torch.uint8)), name


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_module_uses_the_shared_bytes_and_swaps_them(node, torch, device):
    trained = _module(torch)
    module = _module(torch, device)
    tokens = torch.arange(20)
    with WeightsPublisher(node, "model", versions=2, timeout=LIMIT) as pub, WeightsSubscriber(node, "model") as sub:
        # More versions than may be in memory: each load lets go of the version before.
        for number in range(5):
            with torch.no_grad():
                trained.embed.weight += number
            pub.publish(trained.state_dict())
            weights = sub.wait(timeout=LIMIT)
            weights.load_into(module)
            assert torch.equal(module(tokens), trained(tokens))
            assert module.head.weight is module.embed.weight and not module.head.weight.requires_grad
            assert module.embed.weight.data_ptr() == weights["embed.weight"].data_ptr()


def test_a_module_may_keep_memory_and_types_of_its_own(node, torch):
    trained, module = _module(torch), _module(torch)
    own = module.embed.weight.data_ptr()
    with WeightsPublisher(node, "model") as pub, WeightsSubscriber(node, "model") as sub:
        pub.publish(trained.state_dict(), dtype=torch.bfloat16)
        sub.wait(timeout=LIMIT).load_into(module, copy=True)
    assert module.embed.weight.data_ptr() == own and module.embed.weight.dtype == torch.float32
    assert torch.equal(module.embed.weight, trained.embed.weight.to(torch.bfloat16).float())
    module.embed.weight.data += 1  # its own memory


def test_what_does_not_fit_a_module_leaves_it_as_it_was(node, torch):
    module = _module(torch)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    good = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
    with WeightsPublisher(node, "model") as pub, WeightsSubscriber(node, "model") as sub:
        for change, words in [
            ({"norm.weight": torch.zeros(17)}, r"'norm.weight' has shape \(17,\), and \(16,\) in the module"),
            ({"other": torch.zeros(1)}, "the module lacks \\['other'\\]"),
            ({"norm.weight": None}, "the version lacks \\['norm.weight'\\]"),
        ]:
            pub.publish({name: tensor for name, tensor in {**good, **change}.items() if tensor is not None})
            weights = sub.wait(timeout=LIMIT)
            for copy in (False, True):
                with pytest.raises(WeightsMismatch, match=words):
                    weights.load_into(module, copy=copy)
        pub.publish(good)
        with pytest.raises(WeightsMismatch, match="meta device"):
            sub.wait(timeout=LIMIT).load_into(_module(torch).to("meta"), copy=True)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_pieces_are_put_together_in_a_module(node, torch):
    whole = torch.arange(40.0).view(8, 5)
    one, two = shards(node, "job-1")
    with WeightsSubscriber(node, "model") as sub:
        one.publish({"weight": Piece(whole[:3], (0, 0), (8, 5)), "bias": torch.ones(8)}, version=1)
        two.publish({"weight": Piece(whole[3:], (3, 0), (8, 5))}, version=1)
        weights = sub.wait(timeout=LIMIT)
        for copy in (True, False):
            module = torch.nn.Linear(5, 8)
            weights.load_into(module, copy=copy)
            assert torch.equal(module.weight, whole) and torch.equal(module.bias, torch.ones(8))


def test_tensors_without_elements_in_memory_are_refused(node, torch):
    with WeightsPublisher(node, "model") as pub:
        for tensor in (torch.zeros(3, device="meta"), torch.eye(3).to_sparse()):
            with pytest.raises(rgaps.InvalidArgument, match="'w' has no elements in memory"):
                pub.publish({"w": tensor})
