#!/usr/bin/env python3
"""How fast bare TCP connections carry bytes between two hosts, beside which copies of GPU remoting are measured.

  remoting_lane.py --serve ADDRESS                                 prints the port, and serves until it is killed
  remoting_lane.py --on ADDRESS:PORT [--bytes N] [--connections N,...]      one JSON document

Each connection carries its share of the bytes from memory to memory, as a copy to a GPU (`in`) or from one (`out`) does without a GPU. A value is the least of
the repetitions; both ends compare every byte, outside the time.
"""
import argparse, json, random, socket, struct, sys, threading, time

REPETITIONS = 15
#: What the client asks for: bytes to the server, bytes from it, whether the server has the bytes that it was sent.
IN, OUT, CHECK = b"i", b"o", b"c"


def content(bytes_):
    """The same at both ends."""
    return random.Random(7).randbytes(bytes_)


def receive(connection, to):
    at = 0
    view = memoryview(to)
    while at < len(to):
        count = connection.recv_into(view[at:])
        if count == 0:
            raise SystemExit("the other end is gone")
        at += count


def serve_one(connection):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    size = bytearray(8)
    receive(connection, size)
    expected = content(struct.unpack("<q", size)[0])
    got = bytearray(len(expected))
    while wish := connection.recv(1):
        if wish == IN:
            receive(connection, got)
            connection.sendall(b"1")
        elif wish == OUT:
            connection.sendall(expected)
        else:
            connection.sendall(b"1" if got == expected else b"0")


def serve(address):
    listener = socket.create_server((address, 0), backlog=64)
    print(listener.getsockname()[1], flush=True)
    while True:
        threading.Thread(target=serve_one, args=listener.accept()[:1], daemon=True).start()


class Lane:
    """A connection, and its share of the bytes."""

    def __init__(self, address, port, bytes_):
        self.connection = socket.create_connection((address, port))
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection.sendall(struct.pack("<q", bytes_))
        self.expected, self.got = content(bytes_), bytearray(bytes_)

    def put(self):
        self.connection.sendall(IN)
        self.connection.sendall(self.expected)
        self.connection.recv(1)

    def take(self):
        self.connection.sendall(OUT)
        receive(self.connection, self.got)

    def is_right(self):
        self.connection.sendall(CHECK)
        return self.connection.recv(1) == b"1" and self.got == self.expected


def seconds(lanes, act):
    """How long it takes until all have done it."""
    threads = [threading.Thread(target=act, args=(lane,)) for lane in lanes]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begun


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", metavar="ADDRESS")
    parser.add_argument("--on", metavar="ADDRESS:PORT")
    parser.add_argument("--bytes", type=int, default=64 << 20)
    parser.add_argument("--connections", default="1,2,4")
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
    address, port = arguments.on.rsplit(":", 1)
    rows, wrong = [], 0
    for count in map(int, arguments.connections.split(",")):
        lanes = [Lane(address, int(port), arguments.bytes // count) for _ in range(count)]
        times = {name: min(seconds(lanes, act) for _ in range(REPETITIONS)) for name, act in (("in", Lane.put), ("out", Lane.take))}
        wrong += sum(not lane.is_right() for lane in lanes)
        rows.append({"connections": count, **{f"{name}_gb_per_s": round(arguments.bytes / least / 1e9, 3) for name, least in times.items()}})
        for lane in lanes:
            lane.connection.close()
    print(json.dumps({"bytes": arguments.bytes, "repetitions": REPETITIONS, "wrong": wrong, "rows": rows}))
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main())
