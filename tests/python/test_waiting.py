"""Waiting: time-outs, threads, callbacks, wait sets, event loops, Ctrl-C."""

import asyncio
import functools
import gc
import select
import signal
import queue
import sys
import threading
import time

import pytest

import rgaps


def later(seconds, action, *arguments):
    thread = threading.Timer(seconds, action, arguments)
    thread.start()
    return thread


def asleep(thread):
    """Waits until a thread sleeps, and sleeps again when it has been looked at: it waits for something."""
    end = time.monotonic() + 60
    seen = 0
    while seen < 20:
        assert time.monotonic() < end, "it does not wait"
        with open(f"/proc/{thread}/stat") as stat:
            seen = seen + 1 if stat.read().rsplit(") ", 1)[1][0] == "S" else 0
        time.sleep(0.005)


def test_timeouts(pair):
    _, sub = pair
    for wanted in (0, 0.05, 0.25):
        begun = time.monotonic()
        with pytest.raises(rgaps.TimedOut, match="'pair'"):
            sub.recv(wanted)
        with pytest.raises(TimeoutError):
            sub.recv(wanted)
        assert not sub.wait(wanted)
        assert wanted * 3 <= time.monotonic() - begun


@pytest.mark.parametrize("wrong", [-1, -0.001, float("nan"), float("inf")])
def test_a_timeout_that_is_none_fails_at_once_whether_or_not_a_message_is_queued(
    node, pair, wrong
):
    pub, sub = pair
    fails = functools.partial(pytest.raises, rgaps.InvalidArgument)
    with rgaps.WaitSet(sub) as waits:
        for queued in (False, True):
            if queued:
                pub.put(b"x")
            with fails(match="^timeout=.*None to wait without limit$"):
                sub.recv(wrong)
            with fails(match="^timeout="):
                sub.wait(wrong)
            with fails(match="^timeout="):
                sub.recv_async(wrong)
            with fails(match="^timeout="):
                waits.wait(wrong)
        with fails(match="^timeout="):
            pub.wait_for_subscribers(1, wrong)
        with sub.recv(60) as sample, fails(match="^timeout="):
            sample.synchronize(wrong)
    for name in ("deadline", "loan_timeout"):
        with fails(match=f"^{name}="):
            node.publisher("wrong", **{name: wrong})
    with fails(match="^spin="):
        node.subscriber("wrong", spin=wrong)


@pytest.mark.parametrize("timeout", [None, 3600])
def test_a_message_ends_the_wait(pair, timeout):
    pub, sub = pair
    received = []
    thread = threading.Thread(target=lambda: received.append(sub.recv(timeout).tobytes()))
    thread.start()
    asleep(thread.native_id)
    assert received == []
    pub.put(b"x")
    thread.join(60)
    assert received == [b"x"]


def test_other_threads_run_while_one_waits(pair):
    pub, sub = pair
    received = []
    thread = threading.Thread(target=lambda: received.append(sub.recv(60).tobytes()))
    thread.start()
    # Would not get here if the waiting thread kept the interpreter.
    assert sum(range(10000)) == 49995000
    pub.put(b"x")
    thread.join(60)
    assert received == [b"x"]


def test_closing_ends_waits_of_other_threads(node):
    sub = node.subscriber("t")
    later(0.2, sub.close)
    with pytest.raises(rgaps.Closed):
        sub.recv()
    with pytest.raises(rgaps.Closed):
        sub.try_recv()


def test_wait_for_subscribers(node):
    with node.publisher("t") as pub:
        assert pub.wait_for_subscribers(0, 0)
        assert not pub.wait_for_subscribers(1, 0.05)
        subs = []
        thread = later(0.1, lambda: subs.append(node.subscriber("t")))
        assert pub.wait_for_subscribers(1, 60) and pub.subscribers == 1
        # It is there before the call that creates it returns.
        thread.join()


def test_callbacks(node):
    got, done = [], threading.Event()

    def callback(sample):
        got.append((sample.tobytes(), threading.current_thread()))
        if len(got) == 100:
            done.set()

    with node.subscriber("t", reliable=True) as sub, node.publisher("t", deadline=60) as pub:
        with sub.listen(callback) as listener:
            assert listener.running
            for number in range(100):
                pub.put(bytes([number]))
            assert done.wait(60)
        assert not listener.running
        assert [data for data, _ in got] == [bytes([number]) for number in range(100)]
        assert threading.current_thread() not in {thread for _, thread in got}
        pub.put(b"after")
        assert sub.recv(60).tobytes() == b"after" and len(got) == 100


def test_a_callback_may_close_its_own_listener(node):
    got, closed = [], threading.Event()
    with node.subscriber("t") as sub, node.publisher("t") as pub:

        def callback(sample):
            got.append(sample.sequence)
            listener.close()
            closed.set()

        listener = sub.listen(callback)
        pub.put(b"one")
        assert closed.wait(60) and not listener.running
        # It would take some of them.
        for number in range(20):
            pub.put(bytes([number]))
            assert sub.recv(60).tobytes() == bytes([number])
        assert got == [0]


def test_what_a_callback_raises_is_shown_and_the_next_message_comes(node, monkeypatch):
    shown, done = [], threading.Event()
    monkeypatch.setattr(sys, "unraisablehook", lambda what: shown.append(what.exc_value))

    def callback(sample):
        if sample.sequence == 1:
            done.set()
        raise KeyError(sample.sequence)

    with node.subscriber("t") as sub, node.publisher("t") as pub, sub.listen(callback):
        pub.put(b"")
        pub.put(b"")
        assert done.wait(60)
    assert [str(error) for error in shown] == ["0", "1"]


def test_errors_of_receiving_go_to_on_error(node):
    kept, errors, failed = [], [], threading.Event()

    def on_error(error):
        errors.append(error)
        failed.set()

    with node.subscriber("t", max_held=2) as sub, node.publisher("t") as pub:
        with sub.listen(kept.append, on_error=on_error):
            for _ in range(4):
                pub.put(b"x")
            assert failed.wait(60)
        assert isinstance(errors[0], rgaps.TooManyHeld) and len(kept) == 2


def test_a_listener_keeps_its_subscriber(node):
    done = threading.Event()
    listener = node.subscriber("t").listen(lambda sample: done.set())
    gc.collect()
    with node.publisher("t") as pub:
        pub.put(b"x")
        assert done.wait(60) and listener.running
    listener.close()


def test_match_events_tell_who_comes_and_goes(node):
    heard = queue.Queue()
    with node.publisher("t") as pub:
        with pub.on_matched(heard.put) as listener:
            with node.subscriber("t") as sub:
                assert heard.get(timeout=60) == rgaps.Matched(1, 1, 1, 1)
                # Nobody keeps this one but the subscriber.
                sub.on_matched(lambda matched: heard.put(matched.current_count))
                assert heard.get(timeout=60) == 1
            assert heard.get(timeout=60) == (0, -1, 1, 0)
            assert listener.running
        assert not listener.running
        with node.subscriber("t"):
            pass
        assert heard.empty()
        with pytest.raises(TypeError, match="callback must be a function"):
            pub.on_matched(3)
        last = pub.on_matched(heard.put)
    assert not last.running


def test_a_program_may_end_while_a_listener_runs(program):
    run = program(
        """
        import rgaps, threading
        sub, pub = rgaps.subscriber("t"), rgaps.publisher("t")
        first = threading.Event()
        sub.listen(lambda sample: first.set())
        def flood():
            while True:
                pub.put(b"x")
        threading.Thread(target=flood, daemon=True).start()
        first.wait(60)
        print("ends")
        """
    )
    assert run.finish() == "ends"


def test_a_wait_set_tells_which_topics_have_messages(node):
    subs = [node.subscriber(f"t{number}") for number in range(20)]
    pubs = [node.publisher(f"t{number}") for number in range(20)]
    with rgaps.WaitSet(*subs[:19]) as waiting:
        waiting.attach(subs[19])
        assert len(waiting) == 20 and waiting.wait(0.05) == []
        pubs[3].put(b"x")
        pubs[19].put(b"y")
        assert waiting.wait(60) == [subs[3], subs[19]]
        assert waiting.wait(60) == [subs[3], subs[19]]
        subs[3].recv(60), subs[19].recv(60)
        later(0.15, pubs[7].put, b"z")
        assert waiting.wait() == [subs[7]]
        subs[7].recv(60)
        assert waiting.detach(subs[7]) and not waiting.detach(subs[7])
        pubs[7].put(b"not waited for")
        assert waiting.wait(0.05) == []
        with pytest.raises(rgaps.InvalidArgument, match="at a time"):
            waiting.attach(subs[0])
    with pytest.raises(rgaps.InvalidArgument, match="empty"):
        waiting.wait(1)
    # Out of the set, it rings its own bell again.
    later(0.1, pubs[0].put, b"x")
    assert subs[0].recv(60).tobytes() == b"x"


def test_the_descriptor_is_readable_while_there_are_messages(pair):
    pub, sub = pair

    def readable(timeout):
        return bool(select.select([sub], [], [], timeout)[0])

    assert not readable(0.05)
    for _ in range(3):
        pub.put(b"1")
        pub.put(b"2")
        assert readable(60) and readable(0)
        assert [sub.try_recv().tobytes(), sub.try_recv().tobytes()] == [b"1", b"2"]
        assert sub.try_recv() is None and not readable(0.05)


def test_async_for(node):
    async def main():
        with node.subscriber("t") as sub, node.publisher("t", history=128) as pub:

            async def publish():
                for number in range(100):
                    pub.put(bytes([number]))
                    if number % 10 == 0:
                        await asyncio.sleep(0.01)

            task = asyncio.create_task(publish())
            got = []
            async for sample in sub:
                got.append(sample.tobytes()[0])
                if len(got) == 100:
                    break
            await task
            return got

    assert asyncio.run(main()) == list(range(100))


def test_recv_async_times_out_and_other_tasks_run(pair):
    pub, sub = pair

    async def main():
        with pytest.raises(rgaps.TimedOut):
            await sub.recv_async(timeout=0.05)
        asyncio.get_running_loop().call_later(0.1, pub.put, b"x")
        sample, ticks = await asyncio.gather(sub.recv_async(), _ticks())
        assert sample.tobytes() == b"x" and ticks == 10
        pub.put(b"there already")
        assert (await sub.recv_async(0)).tobytes() == b"there already"

    async def _ticks():
        for _ in range(10):
            await asyncio.sleep(0.001)
        return 10

    asyncio.run(main())
    asyncio.run(main())  # in a new loop


def test_tasks_share_a_subscriber(node):
    async def main():
        with node.subscriber("t") as sub, node.publisher("t", history=128) as pub:

            async def take(count):
                return [(await sub.recv_async(60)).tobytes()[0] for _ in range(count)]

            tasks = [asyncio.create_task(take(20)) for _ in range(5)]
            await asyncio.sleep(0.05)
            for number in range(100):
                pub.put(bytes([number]))
                await asyncio.sleep(0)
            got = await asyncio.gather(*tasks)
            assert sorted(sum(got, [])) == list(range(100))
            assert all(each == sorted(each) for each in got)

    asyncio.run(main())


def test_closing_ends_async_for(node):
    async def main():
        sub = node.subscriber("t")
        asyncio.get_running_loop().call_later(0.1, sub.close)
        return [sample async for sample in sub]

    assert asyncio.run(asyncio.wait_for(main(), 60)) == []


def test_a_cancelled_task_takes_no_message(pair):
    pub, sub = pair

    async def main():
        task = asyncio.create_task(sub.recv_async())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        pub.put(b"x")
        assert (await sub.recv_async(60)).tobytes() == b"x"

    asyncio.run(main())


@pytest.mark.parametrize(
    "wait",
    [
        "sub.recv()",
        "next(sub)",
        "sub.wait()",
        "rgaps.WaitSet(sub).wait()",
        "pub.wait_for_subscribers(2)",
        "[held.put(b'') for _ in range(100)]",
        "[full.loan(100 << 20) for _ in range(100)]",
    ],
)
def test_ctrl_c_ends_every_wait(program, wait):
    run = program(
        """
        import sys, rgaps
        sub, pub = rgaps.subscriber("t"), rgaps.publisher("t")
        slow = rgaps.subscriber("held", reliable=True)
        held = rgaps.publisher("held", history=4, deadline=None)
        full = rgaps.publisher("full", loan_timeout=None)
        try:
            print("waits")
            exec(compile(sys.argv[1], "wait", "exec"))
        except KeyboardInterrupt:
            print("interrupted")
        """,
        wait,
    )
    assert run.line() == "waits"
    asleep(run.process.pid)
    run.process.send_signal(signal.SIGINT)
    assert run.finish() == "interrupted"


def test_a_subscriber_is_in_one_wait_set_at_a_time(node):
    with node.subscriber("t") as sub, node.publisher("t") as pub:
        with rgaps.WaitSet(sub) as waiting:
            with pytest.raises(rgaps.InvalidArgument, match="topic 't' is in a wait set"):
                rgaps.WaitSet(sub)
            pub.put(b"x")
            assert waiting.wait(60) == [sub]
        other = rgaps.WaitSet(sub)
        assert other.wait(60) == [sub]
        # A set that nobody has any more does not live.
        del other
        assert rgaps.WaitSet(sub).wait(60) == [sub]
