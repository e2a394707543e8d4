"""Trains on a topic through torch's DataLoader: each worker process subscribes itself.

Run a publisher beside it (or `--demo`, which publishes from this program):

    python examples/python/dataloader.py --demo
    python examples/python/dataloader.py --topic camera/frames --frames 100

A node, a publisher, a subscriber or a sample belongs to the process that made it. So the dataset holds only the
topic's name, and each worker makes a node of its own in `__iter__`. That works with every start method: fork, spawn
and forkserver.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Iterator

import numpy as np
import torch  # type: ignore[import-not-found,unused-ignore]
from torch.utils.data import (  # type: ignore[import-not-found,unused-ignore]
    DataLoader,
    IterableDataset,
    get_worker_info,
)

import rgaps


class Frames(IterableDataset[torch.Tensor]):  # type: ignore[misc,unused-ignore]
    """The frames of a topic that has one publisher. Each worker receives `frames` of them and returns its share.

    The share follows from the publisher's sequence number, which is the same in every worker. So workers that join at
    different times return no frame twice. With several publishers, use `sample.tag` instead.
    """

    def __init__(self, topic: str, frames: int, timeout: float = 30.0) -> None:
        self.topic = topic
        self.frames = frames
        self.timeout = timeout

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        with rgaps.Node(f"loader-{worker}") as node:
            # Reliable: the publisher waits for slow workers instead of losing frames.
            with node.subscriber(self.topic, reliable=True) as sub:
                for _ in range(self.frames):
                    with sub.recv(self.timeout) as sample:
                        if sample.sequence % workers == worker:
                            # A copy: the tensor leaves this process, and the shared block is free again.
                            yield torch.from_numpy(sample.numpy().copy())


def publish(topic: str, frames: int, workers: int) -> None:
    """Publishes frames of which each has its number in every pixel."""
    with rgaps.Node("camera") as node, node.publisher(topic, deadline=30.0) as pub:
        if not pub.wait_for_subscribers(workers, 30.0):
            raise SystemExit("no worker came")
        for number in range(frames):
            with pub.loan((48, 64, 3), np.uint8) as frame:
                frame[...] = number


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--topic", default="camera/frames")
    parser.add_argument("--frames", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--method", choices=multiprocessing.get_all_start_methods(), default="spawn")
    parser.add_argument("--demo", action="store_true", help="publish the frames, too")
    arguments = parser.parse_args()

    camera = None
    if arguments.demo:
        wanted = max(arguments.workers, 1)
        context = multiprocessing.get_context("spawn")
        camera = context.Process(target=publish, args=(arguments.topic, arguments.frames, wanted))
        camera.start()
    loader = DataLoader(
        Frames(arguments.topic, arguments.frames),
        batch_size=4,
        num_workers=arguments.workers,
        multiprocessing_context=arguments.method if arguments.workers else None,
    )
    seen: list[int] = []
    for batch in loader:
        seen.extend(batch[:, 0, 0, 0].tolist())
    if camera:
        camera.join()
    print(f"{len(seen)} frames in batches of up to 4, the first pixels are {sorted(seen)}")


if __name__ == "__main__":
    main()
