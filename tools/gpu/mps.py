#!/usr/bin/env python3
"""MPS on a machine with a GPU: prints one JSON document, and exits 0 only if every check held.

Usage: tools/gpu/mps.py [FOLDER]   FOLDER has the programs rgaps and rgapsd (default: target/release)

Starts a realm of its own with `rgaps up --mps`, and changes no setting of a card. Wants the Python package
rgaps and torch in this Python. Every wait has a limit. Progress goes to standard error.
"""
import ctypes, json, os, signal, subprocess, sys, tempfile, time
from pathlib import Path

BIN = Path(sys.argv[1] if len(sys.argv) > 1 else "target/release").resolve()
LIMIT = 60
MEMBER = "--member"
report, failures, processes = {}, [], []


def say(text):
    print(f"mps: {text}", file=sys.stderr, flush=True)


def check(name, held, found=None):
    say(f"{name}: {'ok' if held else 'FAILED'} {found if found is not None else ''}")
    report[name] = {"ok": bool(held), "found": found}
    if not held:
        failures.append(name)


def rgaps(*arguments, limit=LIMIT):
    done = subprocess.run([str(BIN / "rgaps"), *map(str, arguments)], capture_output=True, text=True, timeout=limit)
    return done.returncode, done.stdout, done.stderr


def document(*arguments):
    code, out, err = rgaps(*arguments, "--json")
    if code != 0:
        raise RuntimeError(f"rgaps {arguments}: {code}: {err}")
    return json.loads(out)


def wait_for(what, so, limit=LIMIT):
    until = time.monotonic() + limit
    while time.monotonic() < until:
        got = so()
        if got:
            return got
        time.sleep(0.05)
    raise RuntimeError(f"waited in vain for {what}")


# --- what the processes under test do; each prints lines of JSON ----------------------------------------


def tell(**what):
    print(json.dumps(what), flush=True)


def member(job, *arguments):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # not left behind when the check is killed
    signal.alarm(4 * LIMIT)
    globals()["member_" + job](*arguments)


def member_publish(topic, count, size):
    """Publishes tensors that hold their number, from a stream, behind a kernel that takes its time."""
    import rgaps as api, torch

    node = api.Node("mps-publisher")
    publisher = node.publisher(topic, domain="cuda", history=4)
    tell(ready=os.getpid())
    sys.stdin.readline()
    for number in range(int(count)):
        with publisher.loan((int(size),), torch.float32) as tensor:
            torch.cuda._sleep(200_000)
            tensor.fill_(number)
    torch.cuda.synchronize()
    tell(published=int(count))
    sys.stdin.readline()


def member_subscribe(topic, count):
    """Checks each message on the GPU: all of it is one number, and numbers only grow."""
    import rgaps as api, torch

    node = api.Node("mps-subscriber")
    subscriber = node.subscriber(topic, reliable=True)
    tell(ready=os.getpid())
    wrong, last, got = 0, -1.0, 0
    while got < int(count):
        sample = subscriber.recv(timeout=LIMIT)
        tensor = torch.from_dlpack(sample)
        low, high = float(tensor.min()), float(tensor.max())
        wrong += low != high or low <= last
        last, got = high, got + 1
        del tensor, sample
    tell(received=got, wrong=wrong)


def member_stuck(topic, size):
    """Publishes with a kernel of some seconds in flight, and waits to be killed."""
    import rgaps as api, torch

    node = api.Node("mps-stuck")
    publisher = node.publisher(topic, domain="cuda", history=4)
    with publisher.loan((int(size),), torch.float32) as tensor:
        torch.cuda._sleep(10_000_000_000)
        tensor.fill_(1)
    tell(ready=os.getpid())
    time.sleep(LIMIT)


def member_context():
    """Has a CUDA context and says what it takes of the GPU's memory."""
    import torch

    try:
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
    except RuntimeError as error:
        return tell(error=str(error).split("\n")[0])
    tell(ready=os.getpid())
    sys.stdin.readline()


# --- the other side --------------------------------------------------------------------------------------


class Member:
    def __init__(self, job, *arguments, mps=True):
        command = [sys.executable, __file__, MEMBER, job, *map(str, arguments)]
        environment = dict(os.environ)
        if mps:
            command = [str(BIN / "rgaps"), "run", "--", *command]
        else:
            environment["CUDA_MPS_PIPE_DIRECTORY"] = "/nonexistent"
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        processes.append(self.process)

    def heard(self, limit=2 * LIMIT):
        """Its next line; an empty one when it has ended."""
        def late(*_):
            raise RuntimeError("a process says nothing")

        signal.signal(signal.SIGALRM, late)
        signal.alarm(limit)
        try:
            line = self.process.stdout.readline()
        finally:
            signal.alarm(0)
        return json.loads(line) if line else {}

    def go(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self, limit=LIMIT):
        self.process.stdin.close()
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(limit)


def control(pipes, command):
    environment = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=pipes)
    done = subprocess.run(
        ["nvidia-cuda-mps-control"], input=command + "\n", text=True, capture_output=True, env=environment, timeout=LIMIT
    )
    return done.stdout


def numbers(text):
    return [int(word) for word in text.split() if word.isdigit()]


def clients(pipes):
    servers = numbers(control(pipes, "get_server_list"))
    return [pid for server in servers for pid in numbers(control(pipes, f"get_client_list {server}"))]


def used_mib():
    out = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=LIMIT
    ).stdout
    return int(out.split()[0])


def mps_processes():
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if words and os.path.basename(words[0]).startswith(b"nvidia-cuda-mps-"):
            found.append(int(entry.name))
    return sorted(found)


def leased():
    return sum(pool["leased_bytes"] for pool in document("pool"))


def pub_sub(name, publisher_under, subscriber_under):
    topic, count, size = f"mps/{name}", 50, 1 << 20
    subscriber = Member("subscribe", topic, count, mps=subscriber_under)
    publisher = Member("publish", topic, count, size, mps=publisher_under)
    ready = [subscriber.heard(), publisher.heard()]
    publisher.go()
    got = subscriber.heard()
    publisher.go()
    ended = [subscriber.end(), publisher.end()]
    held = got.get("received") == count and got.get("wrong") == 0 and ended == [0, 0]
    check(name, held, {"ready": ready, "got": got, "ended": ended})


def answers(pipes):
    """What a real MPS says, for comparison with what the daemon expects."""
    member = Member("context")
    pid = member.heard().get("ready")
    servers = control(pipes, "get_server_list")
    listed = "".join(control(pipes, f"get_client_list {server}") for server in numbers(servers))
    forms = {"get_server_list": servers, "get_client_list": listed, "ps": control(pipes, "ps"), "pid": pid}
    check("a client is listed by its process number", pid in numbers(listed), forms)
    lines = [line.strip() for line in (servers + listed).split("\n") if line.strip()]
    check("lists hold numbers only", all(line.isdigit() for line in lines), lines)
    member.end()
    wait_for("the client to be gone from the list", lambda: pid not in clients(pipes))
    check("an empty list has no lines", not clients(pipes), control(pipes, "get_server_list"))


def the_daemon_is_outside(pipes, daemon):
    check("the daemon is no client", daemon not in clients(pipes), clients(pipes))


def memory_per_client():
    found = {}
    for mps in (False, True):
        first = Member("context", mps=mps)
        first.heard()
        before = used_mib()
        more = [Member("context", mps=mps) for _ in range(4)]
        for one in more:
            one.heard()
        found["with" if mps else "without"] = (used_mib() - before) / len(more)
        for one in [first, *more]:
            one.end()
    check("memory of a further process, MiB", found["with"] <= found["without"], found)


def client_limit():
    members, refused = [], None
    for _ in range(64):
        one = Member("context")
        members.append(one)
        said = one.heard()
        if "ready" not in said:
            refused = said
            break
    count = len(members) - (refused is not None)
    for one in members:
        one.end()
    check("clients until one is refused", refused is not None and count >= 16, {"clients": count, "refused": refused})


def quarantine(pipes):
    stuck = Member("stuck", "mps/stuck", 1 << 20)
    pid = stuck.heard().get("ready")
    before = leased()
    os.kill(pid, signal.SIGKILL)
    begun = time.monotonic()
    seen, listed = 0, None
    while time.monotonic() - begun < LIMIT:
        # In this order: what was given back is gone from the list by then.
        given_back = leased() < before
        listed = pid in clients(pipes)
        seen = max(seen, document("status")["mps"]["quarantined"])
        if given_back:
            break
    took = time.monotonic() - begun
    stuck.end()
    found = {"seconds": round(took, 3), "quarantined": seen, "listed_when_given_back": listed}
    check("blocks of the killed come back when MPS lists it no more", leased() < before and not listed, found)
    check("nothing stays in quarantine", document("status")["mps"]["quarantined"] == 0)


def fellows_of_the_killed(pipes):
    """Known from driver 580: who shares MPS with one that is killed while it writes loses its context.
    Stated, not demanded: what has to hold is that the realm works for new processes afterwards."""
    fellow, stuck = Member("context"), Member("stuck", "mps/fellow", 1 << 20)
    fellow.heard()
    os.kill(stuck.heard()["ready"], signal.SIGKILL)
    time.sleep(2)
    fellow.go()
    report["fellow_of_a_killed_publisher"] = {"exit": fellow.end()}
    stuck.end()
    wait_for("MPS to take clients again", lambda: "ready" in Member("context").heard(), 2 * LIMIT)
    for process in processes:
        process.poll() is None and process.kill()
    pub_sub("after a killed publisher", True, True)


def main():
    if mps_processes():
        check("no MPS runs before", False, mps_processes())
        return
    with tempfile.TemporaryDirectory(prefix="rm", dir="/tmp") as folder:
        os.environ.update(
            RGAPS_SOCKET=f"{folder}/r.sock", RGAPS_DAEMON=str(BIN / "rgapsd"), PATH=f"{BIN}:{os.environ['PATH']}"
        )
        try:
            checks()
        except (RuntimeError, OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
            check("the checks came to their end", False, repr(error))
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait(LIMIT)
            rgaps("down")
            log = Path(folder) / "default.log"
            report["daemon_log_tail"] = log.read_text()[-3000:] if log.exists() else None
        try:
            wait_for("MPS to end", lambda: not mps_processes(), 20)
        except RuntimeError:
            pass
        check("nothing is left running", not mps_processes(), mps_processes())


def checks():
    up = document("up", "--mps")
    pipes = up["mps"]["pipe_directory"]
    check("up --mps", up["mps"]["state"] == "own", up["mps"])
    answers(pipes)
    the_daemon_is_outside(pipes, up["pid"])
    pub_sub("both under MPS", True, True)
    pub_sub("publisher outside", False, True)
    pub_sub("subscriber outside", True, False)
    the_daemon_is_outside(pipes, up["pid"])
    memory_per_client()
    quarantine(pipes)
    fellows_of_the_killed(pipes)
    client_limit()
    report["handover"] = document("doctor", "--handover").get("handovers")
    os.kill(document("status")["mps"]["control_pid"], signal.SIGKILL)
    again = wait_for("MPS to be started again", lambda: [m for m in [document("status")["mps"]] if m["restarts"] and m["state"] == "own"])
    check("a killed control daemon is started again", True, again[0])
    pub_sub("after the control daemon was killed", True, True)


if __name__ == "__main__":
    if sys.argv[1:2] == [MEMBER]:
        sys.exit(member(*sys.argv[2:]))
    main()
    report["ok"] = not failures
    print(json.dumps(report, indent=1))
    sys.exit(0 if report["ok"] else 1)
