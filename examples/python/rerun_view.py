"""Shows topics in Rerun: images, point clouds, numbers and logs.

    pip install rerun-sdk
    python examples/python/rerun_view.py camera/front robot/joints        # starts the viewer
    python examples/python/rerun_view.py --save run.rrd camera/front      # a file for it

`rgaps view` has no option for this: see docs/how-to/view.md.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import rerun as rr  # type: ignore[import-not-found,unused-ignore]

import rgaps


def show(sample: rgaps.Sample, kind: str) -> None:
    """Logs a message as what its type and its shape say it is."""
    # Without capture_ns, the time at which it was published, which is of the monotonic clock.
    published_ns = time.time_ns() - time.monotonic_ns() + sample.publish_ns
    captured_ns = sample.meta.get("capture_ns", published_ns)
    rr.set_time("capture", timestamp=np.datetime64(captured_ns, "ns"))
    arrays: dict[str, rgaps.Sample | rgaps.Part] = {f"{sample.topic}/{name}": sample.part(name) for name in sample.keys()}
    for entity, part in (arrays or {sample.topic: sample}).items():
        if kind.endswith("Log"):
            rr.log(entity, rr.TextLog(sample.tobytes().decode(), level=str(sample.meta.get("level", "INFO")).upper()))
        elif part.dtype is None:
            rr.log(entity, rr.TextDocument(f"{sample.nbytes} bytes"))
        elif kind.endswith(("PointCloud", "PointCloud2")) and part.dtype == "float32":
            rr.log(entity, rr.Points3D(part.numpy()[..., :3].reshape(-1, 3)))
        elif part.dtype == "uint8" and len(part.shape) == 3 and part.shape[2] in (3, 4):
            rr.log(entity, rr.Image(part.numpy()))
        elif len(part.shape) == 2 and part.dtype in ("uint16", "float32"):
            rr.log(entity, rr.DepthImage(part.numpy()))
        elif len(part.shape) <= 1:
            rr.log(entity, rr.Scalars(np.atleast_1d(part.numpy())))
        else:
            rr.log(entity, rr.Tensor(part.numpy()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("topics", nargs="+")
    parser.add_argument("--save", metavar="FILE", help="write a file instead of starting the viewer")
    parser.add_argument("--count", type=int, default=0, help="end after N messages; 0: with Ctrl-C")
    arguments = parser.parse_args()
    rr.init("rgaps", spawn=arguments.save is None)
    if arguments.save:
        rr.save(arguments.save)
    with rgaps.Node("rerun") as node:
        # The newest message of each topic, on the host: a viewer that is slow misses the others.
        subscribers = [node.subscriber(topic, keep="latest", domain="host") for topic in arguments.topics]
        ready = rgaps.WaitSet(*subscribers)
        shown = 0
        kinds: dict[int, str] = {}
        while not arguments.count or shown < arguments.count:
            for subscriber in ready.wait():
                while (sample := subscriber.try_recv()) is not None:
                    if sample.publisher_id not in kinds:
                        kinds[sample.publisher_id] = node.topic("/" + subscriber.topic)["type_name"]
                    show(sample, kinds[sample.publisher_id])
                    shown += 1


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        pass
