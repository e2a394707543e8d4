"""A robot that knows only DDS: it publishes an image ten times a second, and prints the commands that it gets.

    pip install cyclonedds
    python examples/dds/robot.py

Its topics have the names that nodes of ROS 2 give them in DDS, so `zenoh-bridge-ros2dds` and nodes of ROS 2 see them.
"""

import argparse
import time

from cyclonedds.core import Policy, Qos
from cyclonedds.domain import DomainParticipant
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic
from messages import Header, Image, Time, Twist

HEIGHT, WIDTH = 48, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=0, help="end after N images; 0: never")
    arguments = parser.parse_args()
    participant = DomainParticipant()
    reliable = Qos(Policy.Reliability.Reliable(10**9), Policy.History.KeepLast(10))
    images = DataWriter(participant, Topic(participant, "rt/camera", Image), qos=reliable)
    commands = DataReader(participant, Topic(participant, "rt/cmd_vel", Twist), qos=reliable)
    number = 0
    while not arguments.images or number < arguments.images:
        now = time.time_ns()
        header = Header(Time(now // 10**9, now % 10**9), "front")
        pixels = bytes([number % 256]) * (HEIGHT * WIDTH * 3)
        images.write(Image(header, HEIGHT, WIDTH, "rgb8", 0, WIDTH * 3, list(pixels)))
        number += 1
        for command in commands.take(10):
            print(f"drive {command.linear.x} m/s, turn {command.angular.z} rad/s", flush=True)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
