"""In place of zenoh-bridge-ros2dds, which is no package of any registry: what its source does with messages, which is to hand
on their CDR bytes. It listens at the endpoint that it is given."""

import sys
import time
from pathlib import Path

import zenoh
from cyclonedds.core import Policy, Qos
from cyclonedds.domain import DomainParticipant
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples/dds"))
from messages import Image, Twist  # noqa: E402

config = zenoh.Config()
config.insert_json5("listen/endpoints", f'["{sys.argv[1]}"]')
config.insert_json5("scouting/multicast/enabled", "false")
reliable = Qos(Policy.Reliability.Reliable(10**9), Policy.History.KeepLast(10))
participant = DomainParticipant()
reader = DataReader(participant, Topic(participant, "rt/camera", Image), qos=reliable)
writer = DataWriter(participant, Topic(participant, "rt/cmd_vel", Twist), qos=reliable)
with zenoh.open(config) as session:
    publisher = session.declare_publisher("camera")
    # Cyclone reads the bytes as a message of its type, and writes them anew.
    session.declare_subscriber("cmd_vel", lambda sample: writer.write(Twist.deserialize(sample.payload.to_bytes())))
    while True:
        for message in reader.take(10):
            publisher.put(message.serialize())
        time.sleep(0.01)
