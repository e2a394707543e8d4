"""Other processes: what they can have of samples and handles, and what they are told where they cannot."""

import multiprocessing
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rgaps

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"

FORK = """
    import os, sys, signal
    import numpy as np
    import rgaps
    with rgaps.subscriber("t") as sub, rgaps.publisher("t") as pub:
        pub.put(np.arange(1000))
        array = np.asarray(sub.recv(60))
        safe = array.copy()
        pid = os.fork()
        if pid == 0:
            assert safe.sum() == 499500
            print("copied", flush=True)
            array.sum()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        print("ended by", signal.Signals(os.WTERMSIG(status)).name)
        assert array.sum() == 499500
        print("the parent goes on")
"""


def test_a_forked_child_that_touches_a_samples_array_says_why_it_ends(program):
    run = program(FORK)
    assert run.finish().splitlines() == ["copied", "ended by SIGSEGV", "the parent goes on"]
    errors = run.errors()
    assert "rgaps: this process was forked" in errors and "array.copy()" in errors
    # Before it happened, too, for those whose framework has a handler of its own.
    assert re.search(r"ForkWarning: this process forks while an array", errors)


def test_a_forked_childs_fault_still_reaches_pythons_faulthandler(program):
    run = program("import faulthandler\nfaulthandler.enable()\n" + FORK.replace("\n    ", "\n"))
    run.finish()
    errors = run.errors()
    assert errors.index("rgaps: this process was forked") < errors.index("Segmentation fault")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_fork_without_arrays_warns_of_nothing(node):
    with node.subscriber("t") as sub, node.publisher("t") as pub:
        pub.put(b"x")
        sample = sub.recv(60)
        array = np.asarray(sample)
        del array
        process = multiprocessing.get_context("fork").Process(target=int)
        process.start()
        process.join(60)
        assert process.exitcode == 0 and sample.tobytes() == b"x"


def _receive(pipe, topic):
    with rgaps.Node("child") as node, node.subscriber(topic, reliable=True) as sub:
        pipe.send("ready")
        pipe.send([int(np.asarray(sub.recv(60)).sum()) for _ in range(3)])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_child_of_every_start_method_subscribes_itself(node, method):
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=_receive, args=(theirs, "t"))
    process.start()
    assert ours.poll(60) and ours.recv() == "ready"
    with node.publisher("t", deadline=60) as pub:
        for number in range(3):
            pub.put(np.full(10, number))
    assert ours.poll(60) and ours.recv() == [0, 10, 20]
    process.join(60)
    assert process.exitcode == 0


def test_samples_and_handles_say_what_to_send_instead_of_being_pickled(pair, node):
    pub, sub = pair
    pub.put(np.arange(5))
    sample = sub.recv(60)
    for value, words in [
        (sample, r"sample\.numpy\(\)\.copy\(\)"),
        (pub.loan(3), "a Loan cannot be pickled"),
        (node, "a Node cannot be pickled"),
        (pub, "a Publisher cannot be pickled"),
        (sub, "a Subscriber cannot be pickled"),
        (rgaps.WaitSet(sub), "a WaitSet cannot be pickled"),
    ]:
        with pytest.raises(TypeError, match=words):
            pickle.dumps(value)
    # An array over a sample goes by copy.
    again = pickle.loads(pickle.dumps(np.asarray(sample)))
    assert (again == np.arange(5)).all()


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataloaders_workers_subscribe_themselves(method, workers):
    pytest.importorskip("torch")
    command = [sys.executable, str(EXAMPLES / "dataloader.py"), "--demo", "--frames", "12"]
    command += ["--workers", str(workers), "--method", method]
    run = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert run.returncode == 0, run.stderr
    assert f"12 frames in batches of up to 4, the first pixels are {list(range(12))}" in run.stdout
