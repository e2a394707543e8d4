"""Publishing from an event loop: nothing that waits for readers or for memory stops the loop."""

import asyncio

import numpy as np
import pytest

import rgaps

SOON = 120


async def _blocked(task):
    """Returns once the task has waited for a while, which the loop spent on others."""
    turns = 0
    while turns < 200:
        assert not task.done()
        await asyncio.sleep(0.001)
        turns += 1


def test_put_async_does_not_stop_the_loop_while_a_reader_is_slow(node):
    async def main():
        with node.subscriber("t", reliable=True) as sub:
            with node.publisher("t", history=1, deadline=None) as pub:
                assert await pub.put_async(b"0") == 0
                task = asyncio.create_task(pub.put_async(b"1", tag=7))
                await _blocked(task)
                assert sub.recv(SOON).tobytes() == b"0"
                assert await asyncio.wait_for(task, SOON) == 1
                with sub.recv(SOON) as sample:
                    assert (sample.tobytes(), sample.tag, sample.missed) == (b"1", 7, 0)

    asyncio.run(main())


def test_more_tasks_than_threads_wait_and_all_publish(node):
    async def main():
        with node.subscriber("t", reliable=True) as sub:
            with node.publisher("t", history=1, deadline=None) as pub:
                pub.put(b"first")
                tasks = [asyncio.create_task(pub.put_async(bytes([n]))) for n in range(12)]
                await _blocked(tasks[0])
                read = [sub.recv(SOON).tobytes()]
                for _ in tasks:
                    sample = await sub.recv_async(SOON)
                    read.append(sample.tobytes())
                    sample.release()
                await asyncio.wait_for(asyncio.gather(*tasks), SOON)
                assert read[0] == b"first" and sorted(read[1:]) == [bytes([n]) for n in range(12)]

    asyncio.run(main())


def test_put_async_that_is_cancelled_publishes_nothing_and_leaks_nothing(node):
    async def main():
        with node.subscriber("t", reliable=True) as sub:
            with node.publisher("t", history=1, deadline=None, max_loans=1) as pub:
                pub.put(b"0")
                for _ in range(3):
                    task = asyncio.create_task(pub.put_async(b"never"))
                    await _blocked(task)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                sub.recv(SOON).release()
                # With one loan at most, one that was left open would fail here.
                assert await pub.put_async(b"1") == 1
                assert sub.recv(SOON).tobytes() == b"1" and sub.try_recv() is None

    asyncio.run(main())


def test_put_async_fails_after_the_deadline_and_names_the_reader(node):
    async def main():
        with node.subscriber("t", reliable=True) as sub:
            with node.publisher("t", history=1, deadline=0.2) as pub:
                pub.put(b"0")
                with pytest.raises(rgaps.BackPressured, match="'test' .process .* within 200ms"):
                    await pub.put_async(b"1")
                assert sub.recv(SOON).tobytes() == b"0" and sub.try_recv() is None

    asyncio.run(main())


def test_async_with_over_a_loan_publishes_at_its_end(node):
    async def main():
        with node.subscriber("t", reliable=True) as sub:
            with node.publisher("t", history=1, deadline=None) as pub:

                async def fill(value):
                    async with pub.loan((2, 3), np.float32) as array:
                        array[...] = value
                        del array

                await fill(1)
                task = asyncio.create_task(fill(2))
                await _blocked(task)
                assert (sub.recv(SOON).numpy() == 1).all()
                await asyncio.wait_for(task, SOON)
                assert (sub.recv(SOON).numpy() == 2).all()
                with pytest.raises(ZeroDivisionError):
                    async with pub.loan(8):
                        1 / 0
                task = asyncio.create_task(fill(3))
                await task
                task = asyncio.create_task(fill(4))
                await _blocked(task)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert (sub.recv(SOON).numpy() == 3).all() and sub.try_recv() is None

    asyncio.run(main())


def test_a_loan_that_waits_for_memory_does_not_stop_the_loop(node):
    async def main():
        with node.publisher("t", loan_timeout=None) as pub:
            kept = pub.loan(200 << 20)

            async def publish():
                async with pub.loan_async(100 << 20) as loan:
                    loan.write(b"there")
                return True

            task = asyncio.create_task(publish())
            await _blocked(task)
            kept.discard()
            assert await asyncio.wait_for(task, SOON)
            with node.publisher("u", loan_timeout=0) as other:
                with pytest.raises(rgaps.PoolFull):
                    await other.loan_async(250 << 20)
            loan = await pub.loan_async((4,), "int16")
            assert loan.shape == (4,) and await loan.publish_async() == 1

    asyncio.run(main())


def test_a_publisher_that_drops_slow_readers_tells_them_what_they_missed(node):
    async def main():
        with node.subscriber("t", reliable=True) as sub:
            with node.publisher("t", history=2, deadline=0, slow_reader="drop") as pub:
                for number in range(5):
                    assert await pub.put_async(bytes([number])) == number
                for number in range(5, 9):
                    assert pub.put(bytes([number])) == number
                with sub.recv(SOON) as sample:
                    assert (sample.tobytes(), sample.missed) == (bytes([7]), 7)

    asyncio.run(main())
    with pytest.raises(rgaps.InvalidArgument, match="'fail' or 'drop', not 'block'"):
        node.publisher("t", slow_reader="block")
