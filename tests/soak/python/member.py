"""A subscriber of the soak, in Python: `member.py SPEC`. It writes the same journal as the subscribers in Rust
(tests/soak/src/journal.rs), and knows what messages hold (tests/chaos/src/pattern.rs)."""

from __future__ import annotations

import json
import struct
import sys
import time
from pathlib import Path

import rgaps

MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15
JOINED, READY, WHOLE, WRONG, ABORTED = 1, 2, 3, 4, 5
# What a daemon looks like that is dead, or stopped.
PASSING = (rgaps.DaemonUnavailable, rgaps.TimedOut)
JOIN_SECONDS = 240.0
WAIT_SECONDS = 0.02


def mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def content(tag: int, length: int) -> bytes:
    key = mix(tag ^ mix(length))
    words = [(key ^ at) * STEP & MASK for at in range((length + 7) // 8)]
    return struct.pack(f"<{len(words)}Q", *words)[:length]


def until_joined(join):
    """Tries again and again while there is no daemon."""
    begun = time.monotonic()
    while True:
        try:
            return join()
        except PASSING:
            if time.monotonic() - begun > JOIN_SECONDS:
                raise
            time.sleep(0.02)


def publishers(folder: Path, topic: int, host: int) -> dict[int, tuple[int, int]]:
    """How many messages each publisher of the host has begun to publish, and has published."""
    found = {}
    for path in folder.glob(f"publisher-{topic}-{host}-*"):
        words = path.read_bytes()[:16]
        if len(words) == 16:
            found[int(path.name.rsplit("-", 1)[1])] = struct.unpack("<2Q", words)
    return found


def kind_of(sample: rgaps.Sample) -> int:
    try:
        data = sample.tobytes()
    except rgaps.Aborted:
        return ABORTED
    return WHOLE if data == content(sample.tag, len(data)) else WRONG


def main() -> None:
    spec = json.loads(sys.argv[1])
    folder, wish = Path(spec["folder"]), spec["wish"]
    with (folder / f"subscriber-{spec['id']}").open("ab", buffering=0) as journal:

        def write(*words: int) -> None:
            journal.write(struct.pack("<7Q", *words))

        node = until_joined(lambda: rgaps.Node(spec["name"], config=spec["config"]))
        before = publishers(folder, spec["topic"], spec["host"])
        subscriber = until_joined(
            lambda: node.subscriber(
                spec["topic_name"],
                type="soak",
                reliable=wish["reliable"],
                depth=wish["depth"],
                late="all" if wish["late"] else None,
            )
        )
        for publisher, (begun, _) in publishers(folder, spec["topic"], spec["host"]).items():
            write(JOINED, publisher, before.get(publisher, (0, 0))[1], begun, 0, 0, 0)
        write(READY, 0, 0, 0, 0, 0, 0)
        while not (folder / "leave").exists():
            try:
                sample = subscriber.recv(timeout=WAIT_SECONDS)
            except PASSING:
                continue
            with sample:
                actor, sequence = sample.tag >> 32, sample.tag & 0xFFFFFFFF
                about = (sample.missed, sample.publisher_id, sample.nbytes, subscriber.missed)
                write(kind_of(sample), actor, sequence, *about)
        subscriber.close()


if __name__ == "__main__":
    main()
