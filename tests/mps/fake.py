"""Stands in for NVIDIA's nvidia-cuda-mps-control and -server in tests without a GPU.

One file under two names. The folder that RGAPS_TEST_MPS names tells it what to do, and what it did:
  clients    processes that are clients of the server, one per line; the test writes them
  behave     words: slow (answers after 0.3 s), hang (answers nothing), stubborn (terminates nobody),
             garbage (answers with no list), refuse (does not start)
  log        what was started and asked
  stop-server  if it is there, servers end
Everything ends by itself after LIFE seconds, or when the folder is gone.
"""
import os, select, signal, socket, subprocess, sys, time

LIFE = 120
state = os.environ["RGAPS_TEST_MPS"]
pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
begun = time.monotonic()


def words(name):
    try:
        return open(os.path.join(state, name)).read().split()
    except OSError:
        return []


def log(line):
    with open(os.path.join(state, "log"), "a") as to:
        to.write(line + "\n")


def over():
    return time.monotonic() - begun > LIFE or not os.path.isdir(state)


def alive(pid):
    try:
        os.kill(int(pid), 0)
        return True
    except (OSError, ValueError):
        return False


def serve():
    log(f"server {os.getpid()}")
    while not over() and not os.path.exists(os.path.join(state, "stop-server")):
        time.sleep(0.05)


def control():
    pid_file = os.path.join(pipes, "nvidia-cuda-mps-control.pid")
    if "refuse" in words("behave"):
        sys.exit("refusing to start, as told")
    if os.path.exists(pid_file) and alive(open(pid_file).read()):
        sys.exit("An instance of this daemon is already running")
    path = os.path.join(pipes, "control")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if os.path.exists(path):
        os.unlink(path)
    listener.bind(path)
    listener.listen(16)
    with open(pid_file, "w") as to:
        to.write(f"{os.getpid()}\n")
    log(f"start {os.getpid()}")
    server, quitting = None, []
    while not over():
        if quitting and not words("clients"):
            break
        if not select.select([listener], [], [], 0.02)[0]:
            continue
        asker, _ = listener.accept()
        asker.settimeout(2)
        command = asker.recv(4096).decode().split()
        log(" ".join(command))
        behave = words("behave")
        if "hang" in behave:
            held.append(asker)
            continue
        if "slow" in behave:
            time.sleep(0.3)
        if command == ["quit"]:
            quitting.append(asker)
            continue
        answer = ""
        if command == ["get_server_list"]:
            if words("clients") and server is None:
                program = os.path.join(os.path.dirname(sys.argv[0]), "nvidia-cuda-mps-server")
                server = subprocess.Popen([program], close_fds=True)
            if server is not None:
                answer = f"{server.pid}\n"
        elif command[0] == "get_client_list":
            answer = "".join(f"{pid}\n" for pid in words("clients"))
        elif command[0] == "terminate_client" and "stubborn" not in behave:
            left = [pid for pid in words("clients") if pid != command[2]]
            with open(os.path.join(state, "clients.new"), "w") as to:
                to.write("\n".join(left))
            os.replace(os.path.join(state, "clients.new"), os.path.join(state, "clients"))
        if "garbage" in behave:
            answer = "Something is wrong with 1 of 2\n"
        asker.sendall(answer.encode())
        asker.close()
    if server is not None:
        server.send_signal(signal.SIGTERM)
        server.wait()
    for name in (path, pid_file):
        os.unlink(name)
    log("quit done")


def ask():
    command = sys.stdin.readline()
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.connect(os.path.join(pipes, "control"))
    except OSError:
        print("Cannot find MPS control daemon process")
        sys.exit(1)
    line.settimeout(LIFE)
    line.sendall(command.encode())
    while True:
        got = line.recv(4096)
        if not got:
            return
        sys.stdout.write(got.decode())


held = []
if os.path.basename(sys.argv[0]) == "nvidia-cuda-mps-server":
    serve()
elif sys.argv[1:] == ["-f"]:
    control()
else:
    ask()
