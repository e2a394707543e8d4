"""`rgaps bridge ros2` with nodes of DDS: Cyclone DDS encodes and decodes the messages, and a stand-in for zenoh-bridge-ros2dds
carries them."""

import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import rgaps

pytest.importorskip("cyclonedds", reason="cyclonedds has no wheel for this Python")
HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parents[1] / "examples/dds"
#: Loopback, without multicast. Other tests at the same time have a domain of their own.
CYCLONE = f"""<CycloneDDS><Domain><General><Interfaces><NetworkInterface name="lo" multicast="false"/></Interfaces>
<AllowMulticast>false</AllowMulticast></General><Discovery><ExternalDomainId>{os.getpid() % 200}</ExternalDomainId>
<ParticipantIndex>auto</ParticipantIndex><Peers><Peer address="localhost"/></Peers></Discovery></Domain></CycloneDDS>"""


@pytest.fixture
def start(monkeypatch):
    """Starts programs, and ends them with the test."""
    monkeypatch.setenv("CYCLONEDDS_URI", CYCLONE)
    started = []

    def start(*words):
        started.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for program in started:
        program.kill()
        program.communicate()


def endpoint():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp/127.0.0.1:{probe.getsockname()[1]}"


def test_an_image_comes_from_dds_and_a_command_goes_there(realm, node, start):
    at = endpoint()
    rgaps_ = shutil.which("rgaps", path=str(Path(sys.executable).parent)) or "rgaps"
    start(sys.executable, str(HERE / "ros2dds_stand_in.py"), at)
    start(rgaps_, "bridge", "ros2", "--config", str(EXAMPLE / "bridge.toml"), "--connect", at, "--every", "0")
    robot = start(sys.executable, str(EXAMPLE / "robot.py"))
    with node.subscriber("camera/front", type="rgb8") as camera, node.publisher("cmd_vel") as commands:
        sample = camera.recv(120)
        image = sample.numpy()
        assert image.shape == (48, 64, 3) and (image == image[0, 0, 0]).all()
        assert sample.meta["frame_id"] == "front" and sample.meta["encoding"] == "rgb8"
        assert sample.meta["ros"]["topic"] == "/camera"
        # Discovery in DDS takes its time, and what comes before it is lost.
        printed = threading.Event()
        lines = []

        def read():
            lines.append(robot.stdout.readline())
            printed.set()

        threading.Thread(target=read, daemon=True).start()
        for _ in range(1200):
            commands.put({"linear": np.array([0.5, 0, 0]), "angular": np.array([0, 0, -1.5])})
            if printed.wait(0.1):
                break
    assert lines == ["drive 0.5 m/s, turn -1.5 rad/s\n"]
