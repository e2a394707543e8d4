"""A node in the style of dora: it waits for events, whose values are Arrow arrays, and sends Arrow arrays.

    pip install pyarrow
    python examples/python/arrow_node.py --demo

An event's value lies in the message itself: nothing is copied, and the message stays as long as the array is referenced.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped,import-not-found,unused-ignore]

import rgaps


class Node:
    """Topics by the names that a dataflow gives them."""

    def __init__(self, inputs: dict[str, str], outputs: dict[str, str]) -> None:
        self.node = rgaps.Node("arrow-node")
        self.set = rgaps.WaitSet()
        self.inputs = {}
        for name, topic in inputs.items():
            subscriber = self.node.subscriber(topic)
            self.set.attach(subscriber)
            self.inputs[subscriber] = name
        self.outputs = {name: self.node.publisher(topic) for name, topic in outputs.items()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            for subscriber in self.set.wait():
                while (sample := subscriber.try_recv()) is not None:
                    value = pa.array(sample)
                    yield {
                        "type": "INPUT",
                        "id": self.inputs[subscriber],
                        "value": value,
                        "metadata": dict(sample.meta),
                    }

    def send_output(self, name: str, value: pa.Array, metadata: dict[str, Any]) -> None:
        self.outputs[name].put(value.to_numpy(zero_copy_only=False), meta=metadata)


def publish_ranges(stop: threading.Event) -> None:
    """What another process would do: a scan of a laser, ten times a second."""
    with rgaps.publisher("laser/ranges") as publisher:
        number = 0
        while not stop.wait(0.1):
            publisher.put(np.linspace(0, 30, 1000, dtype=np.float32), meta={"number": number})
            number += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", action="store_true", help="also publish the input, and end after 3 events")
    arguments = parser.parse_args()
    node = Node(inputs={"ranges": "laser/ranges"}, outputs={"near": "laser/near"})
    stop = threading.Event()
    if arguments.demo:
        threading.Thread(target=publish_ranges, args=(stop,), daemon=True).start()
    for count, event in enumerate(node, 1):
        ranges = event["value"]
        near = ranges.filter(pc.less(ranges, 5.0))
        print(f"{event['id']} {event['metadata']}: {len(near)} of {len(ranges)} nearer than 5 m")
        node.send_output("near", near, event["metadata"])
        if arguments.demo and count == 3:
            break
    stop.set()


if __name__ == "__main__":
    main()
