"""Services: requests, answers, and what becomes of both when one end is slow, wrong or gone."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import rgaps
from rgaps.services import Client, Service, ServiceError

LIMIT = 120


def test_large_arrays_cross_both_ways():
    image = np.arange(8 << 20, dtype=np.uint8).reshape(1024, 1024, 8)

    def function(request):
        assert request.meta == {"gain": 2}
        return {"sum": request.sample.numpy().astype(np.uint64).sum(axis=0), "same": request.sample.numpy()}

    with Service("work", function), Client("work") as client:
        answer = client.call(image, timeout=LIMIT, meta={"gain": 2})
        assert (answer["same"] == image).all()
        assert (answer["sum"] == image.astype(np.uint64).sum(axis=0)).all()


def test_each_client_gets_its_own_answers():
    with Service("double", lambda request: request.sample.numpy() * 2, threads=3, max_queued=1024):
        clients = [Client("double") for _ in range(3)]

        def ask(number):
            return clients[number % 3].call(np.full(3, number), timeout=LIMIT).numpy().tolist()

        with ThreadPoolExecutor(12) as threads:
            answers = list(threads.map(ask, range(120)))
        assert answers == [[2 * number] * 3 for number in range(120)]
        for client in clients:
            client.close()


def test_an_exception_is_told_and_the_service_goes_on():
    def function(request):
        if request.sample.nbytes == 0:
            raise ValueError("nothing to do")
        return b"done"

    with Service("work", function), Client("work") as client:
        with pytest.raises(ServiceError, match="ValueError: nothing to do"):
            client.call(b"", timeout=LIMIT)
        assert client.call(b"x", timeout=LIMIT).tobytes() == b"done"


def test_an_answer_that_cannot_be_published_is_told():
    with Service("work", lambda _: object()), Client("work") as client:
        with pytest.raises(ServiceError, match="cannot be published"):
            client.call(b"", timeout=LIMIT)


def test_a_late_answer_is_given_up_and_the_service_learns_it():
    events = {word: (threading.Event(), threading.Event()) for word in (b"late", b"cancelled")}

    def function(request):
        begun, learnt = events[request.sample.tobytes()]
        begun.set()
        while not request.cancelled:
            learnt.wait(0.01)
        learnt.set()

    with Service("slow", function, threads=2), Client("slow") as client:
        with pytest.raises(rgaps.TimedOut, match="did not answer within 1 s"):
            client.call(b"late", timeout=1)
        call = client.submit(b"cancelled", timeout=LIMIT)
        begun, learnt = events[b"cancelled"]
        assert begun.wait(LIMIT) and not call.done
        call.cancel()
        with pytest.raises(rgaps.Closed, match="cancelled"):
            call.result()
        assert learnt.wait(LIMIT)


def test_without_a_service_a_call_ends_in_time():
    with Client("nobody") as client:
        assert not client.wait_for_service(0.01)
        with pytest.raises(rgaps.TimedOut, match="no service 'nobody'"):
            client.call(b"", timeout=0.1)


def test_a_service_that_dies_ends_its_calls():
    code = """
import time
from rgaps.services import Service
service = Service("work", lambda _: print("begun", flush=True) or time.sleep(1000))
time.sleep(1000)
"""
    with Client("work") as client, subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        calls = [client.submit(b"", timeout=LIMIT) for _ in range(2)]
        assert process.stdout.readline() == "begun\n"
        process.kill()
        for call in calls:
            with pytest.raises(ServiceError, match="ended before it answered"):
                call.result()


def test_a_busy_service_refuses():
    end = threading.Event()
    with Service("work", lambda _: end.wait(LIMIT) and None, max_queued=1), Client("work") as client:
        calls = [client.submit(b"", timeout=LIMIT) for _ in range(3)]
        with pytest.raises(ServiceError, match="busy: 2 requests"):
            calls[2].result()
        end.set()
        assert [call.result().nbytes for call in calls[:2]] == [0, 0]


def test_a_closed_client_ends_its_calls():
    end = threading.Event()
    with Service("work", lambda _: end.wait(LIMIT) and None):
        client = Client("work")
        call = client.submit(b"", timeout=LIMIT)
        client.close()
        with pytest.raises(rgaps.Closed):
            call.result()
        end.set()


def test_the_reserved_key_is_refused():
    with Service("work", lambda _: None), Client("work") as client:
        with pytest.raises(rgaps.InvalidArgument, match="'call'"):
            client.call(b"", meta={"call": 1})
