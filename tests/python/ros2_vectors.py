"""Writes crates/ros2/tests/vectors.txt: a message of each type that the bridge knows, encoded by rosbags."""

import random
import re
import sys
from pathlib import Path

import numpy as np
from rosbags.typesys import Stores, get_typestore

ROOT = Path(__file__).resolve().parents[2]
TYPES = ROOT / "crates/ros2/src/types.rs"
VECTORS = ROOT / "crates/ros2/tests/vectors.txt"
STORE = get_typestore(Stores.ROS2_JAZZY)


def known():
    """The types of the bridge, with their hashes."""
    return re.findall(r'^    "(\w+/msg/\w+)" "(\w+)"', TYPES.read_text(), re.MULTILINE)


def message(name, rng):
    """A message with values that differ from each other."""
    values = {field: value(field, *kind, rng) for field, kind in STORE.fielddefs[name][1]}
    if name == "sensor_msgs/msg/Image":
        # 5 x 7 pixels, and 3 bytes behind each row.
        values.update(height=5, width=7, encoding="rgb8", is_bigendian=0, step=24, data=bytes_of(rng, 5 * 24))
    if name == "sensor_msgs/msg/PointCloud2":
        values.update(height=1, width=6, point_step=16, row_step=96, data=bytes_of(rng, 96), is_bigendian=False)
    return STORE.types[name](**values)


def bytes_of(rng, count):
    return np.frombuffer(rng.randbytes(count), np.uint8)


def value(field, kind, of, rng):
    if field == "nanosec":
        return rng.randrange(1_000_000_000)
    if kind.name == "BASE":
        return base(of[0], rng)
    if kind.name == "NAME":
        return message(of, rng)
    (inner, name), length = of
    count = length or rng.randint(1, 5)
    if inner.name == "NAME":
        return [message(name, rng) for _ in range(count)]
    elements = [base(name[0], rng) for _ in range(count)]
    return elements if name[0] == "string" else np.array(elements, name[0] if name[0] != "byte" else "uint8")


def base(name, rng):
    if name == "string":
        return "".join(rng.choices("abcdefgh", k=rng.randint(1, 9)))
    if name == "bool":
        return rng.random() < 0.5
    if name.startswith("float"):
        # Both of 32 and 64 bits have it.
        return rng.randint(-999, 999) / 8
    bits = int(re.search(r"\d+", name)[0]) if name not in ("byte", "char", "octet") else 8
    return rng.randrange(1, 1 << (bits - 1))


def lines():
    rng = random.Random(1)
    for name, _ in known():
        yield f"{name} {bytes(STORE.serialize_cdr(message(name, rng), name)).hex()}"


if __name__ == "__main__":
    VECTORS.write_text("\n".join(lines()) + "\n")
    sys.exit(0)
