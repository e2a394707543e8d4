"""`rgaps topic pub --ffmpeg` with the real ffmpeg, of PyPI's imageio-ffmpeg. What goes wrong: crates/cli/tests/video.rs."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest

import rgaps


@pytest.fixture
def publish(tmp_path, monkeypatch):
    (tmp_path / "ffmpeg").symlink_to(imageio_ffmpeg.get_ffmpeg_exe())
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    program = shutil.which("rgaps", path=str(Path(sys.executable).parent)) or "rgaps"

    def publish(*options):
        subprocess.run([program, "topic", "pub", "camera", "--transient-local", *options], check=True, timeout=120)

    return publish


def test_the_pictures_of_a_file_are_those_that_went_in(node, publish, tmp_path):
    source = ["-f", "lavfi", "-i", "testsrc=size=64x48:rate=100:duration=0.1"]
    film = str(tmp_path / "film.mkv")
    ffmpeg = [str(tmp_path / "ffmpeg"), "-v", "error", *source]
    # Without loss, and without a change of colour space.
    subprocess.run([*ffmpeg, "-c:v", "ffv1", "-pix_fmt", "bgr0", film], check=True, timeout=120)
    raw = subprocess.run([*ffmpeg, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], stdout=subprocess.PIPE, check=True, timeout=120)
    expected = np.frombuffer(raw.stdout, np.uint8).reshape(-1, 48, 64, 3)
    before = time.time_ns()
    publish("--ffmpeg", film, "--frame-id", "left")
    with node.subscriber("camera", late="all", type="rgb8") as sub:
        times = [before]
        for number, picture in enumerate(expected):
            sample = sub.recv(60)
            assert sample.sequence == number and (sample.numpy() == picture).all()
            assert sample.meta["frame_id"] == "left"
            times.append(sample.meta["capture_ns"])
        assert times == sorted(times) and times[-1] < time.time_ns()
        assert sub.try_recv() is None and len(expected) == 10


def test_an_endless_source_is_read_until_there_is_enough(node, publish):
    publish("--ffmpeg", "testsrc2=size=32x24:rate=30", "--ffmpeg-option", "f=lavfi", "--count", "5")
    with node.subscriber("camera", late="all") as sub:
        shapes = {sub.recv(60).shape for _ in range(5)}
    assert shapes == {(24, 32, 3)}


@pytest.mark.skipif(len(rgaps.domains()) < 2, reason="no GPU answers, and the test driver was not built")
def test_pictures_go_to_a_gpu(node, publish):
    publish("--ffmpeg", "color=red:size=8x4", "--ffmpeg-option", "f=lavfi", "--count", "1", "--domain", "cuda")
    with node.subscriber("camera", late="all") as sub:
        sample = sub.recv(60)
    pixels = np.frombuffer(sample.tobytes(), np.uint8).reshape(sample.shape)
    assert sample.domain.startswith("cuda:") and pixels.shape == (4, 8, 3)
    # Through YUV, whose red is not quite red.
    assert (pixels[..., 0] > 250).all() and (pixels[..., 1:] < 5).all()
