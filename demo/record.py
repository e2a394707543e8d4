"""Records the camera of the demo, checks the file with two readers, replays it, and draws the page of `rgaps view` beside a frame of
the file. The last line is JSON. See README.md."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from mcap.reader import make_reader
from mcap_protobuf.decoder import DecoderFactory
from PIL import Image as Pillow

import rgaps
from browser import browser
from frames import FPS, HEIGHT, TOPIC, WIDTH, HostMemory, Image
from run import OUT, Part, end, follow

#: How much faster than the camera the recording is replayed.
RATE = 2
#: The longest wait for a frame or a program, in seconds.
PATIENCE = 60.0


def command(*arguments: str) -> subprocess.Popen[str]:
    """The command line of the wheel."""
    program = shutil.which("rgaps", path=str(Path(sys.executable).parent)) or "rgaps"
    return subprocess.Popen([program, *arguments], stdout=subprocess.PIPE, text=True)


def record(file: Path, frames: int, photos: str | None) -> dict[str, Any]:
    """Records the camera, beside a subscriber that checks each frame; the recorder's last report."""
    # Reliably, so that a busy machine makes the camera slower and not the recording shorter.
    recorder = command("record", "-o", str(file), "--reliable", "--every", "0.2", "--json", TOPIC)
    assert recorder.stdout is not None
    parts: list[Part] = []
    try:
        for line in recorder.stdout:
            if json.loads(line)["topics"] == 1:
                break
        common = ["--frames", str(frames)]
        picture = ["--picture", str(OUT / "histogram.png")]
        camera = ["--subscribers", "1", *(["--photos", photos] if photos else [])]
        parts = [Part("histogram", *common, *picture), Part("camera", *common, *camera)]
        follow(parts, frames)
    finally:
        wrong = end(parts)
        recorder.send_signal(signal.SIGINT)
    if wrong:
        raise SystemExit("FAILED\n" + "\n".join(wrong))
    last: dict[str, Any] = json.loads(recorder.stdout.read().splitlines()[-1])
    if recorder.wait(PATIENCE) != 0:
        raise SystemExit("FAILED\nthe recorder failed")
    return last


def read(file: Path, memory: HostMemory) -> tuple[int, Image]:
    """Frames of the file whose checksum is wrong, and a frame, by rgaps."""
    wrong, kept = 0, None
    for _, message in rgaps.open(file):
        frame = message.numpy()
        wrong += memory.checksum(frame) != message.tag
        kept = frame if kept is None else kept
    assert kept is not None
    return wrong, kept


def read_by_others(file: Path) -> Image:
    """The same frame by the readers of MCAP and of Protocol Buffers, which know nothing of rgaps."""
    with file.open("rb") as stream:
        reader = make_reader(stream, decoder_factories=[DecoderFactory()])
        schema, channel, _, image = next(reader.iter_decoded_messages())
    assert schema is not None and schema.name == "foxglove.RawImage", schema
    assert channel.topic == TOPIC and image.encoding == "rgb8", channel
    pixels = np.frombuffer(image.data, np.uint8)
    return pixels.reshape(image.height, image.width, 3)


def replay(file: Path, frames: int, memory: HostMemory) -> tuple[int, int]:
    """Frames that a replay published, and of those the frames whose checksum is wrong."""
    wrong = 0
    with rgaps.subscriber(TOPIC, type="rgb8", reliable=True) as subscriber:
        player = command("replay", str(file), "--rate", str(RATE), "--wait-subscribers", "1", "--json")
        for _ in range(frames):
            with subscriber.recv(timeout=PATIENCE) as sample:
                frame = sample.numpy()
                wrong += memory.checksum(frame) != sample.tag
                del frame
    output, _ = player.communicate(timeout=PATIENCE)
    if player.returncode != 0:
        raise SystemExit("FAILED\nthe replay failed")
    return json.loads(output)["replayed"], wrong


def look(file: Path, folder: Path) -> Path:
    """A picture of the page of `rgaps view` while the recording is replayed."""
    picture = OUT / "page.png"
    player = command("replay", str(file), "--loop")
    server = command("view", "--listen", "0", "--json")
    try:
        assert server.stdout is not None
        at = json.loads(server.stdout.readline())
        with browser(folder / "chromium") as page:
            page.call("Page.navigate", url=at["url"])
            page.wait_for("document.body?.dataset.drawn === 'yes'")
            page.wait_for("document.querySelector('.box.topic img')?.naturalWidth > 0")
            page.wait_for("document.querySelectorAll('#arrows > path').length > 0")
            page.draw(picture)
    finally:
        for program in (server, player):
            program.send_signal(signal.SIGINT)
            program.communicate(timeout=PATIENCE)
    return picture


def side_by_side(page: Path, frame: Image) -> Pillow.Image:
    """The page, and the frame at its right."""
    left, right = Pillow.open(page).convert("RGB"), Pillow.fromarray(frame)
    left.thumbnail((960, 960))
    right.thumbnail((960, 960))
    both = Pillow.new("RGB", (left.width + right.width, max(left.height, right.height)), "white")
    both.paste(left, (0, 0))
    both.paste(right, (left.width, 0))
    return both


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=5 * FPS)
    parser.add_argument("--photos", help="folder of scikit-image's photographs")
    arguments = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="rgaps-demo-")
    os.environ.update(RGAPS_SOCKET=f"{folder}/socket", RGAPS_REALM="demo")
    file = Path(folder) / "run.mcap"
    memory = HostMemory()
    try:
        with rgaps.Node("demo") as node:
            recorded = record(file, arguments.frames, arguments.photos)
            corrupt, ours = read(file, memory)
            theirs = read_by_others(file)
            replayed, corrupt_again = replay(file, recorded["recorded"], memory)
            page = look(file, Path(folder))
            node.stop_daemon()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    corrupt += corrupt_again + (not np.array_equal(ours, theirs))
    picture = OUT / "record.png"
    side_by_side(page, theirs).save(picture)
    print(f"the page of rgaps view, and a frame of {WIDTH}x{HEIGHT} as the package `mcap` read it from the file: {picture}")
    result = {
        "recorded": recorded["recorded"],
        "dropped": recorded["dropped"],
        "replayed": replayed,
        "corrupt": corrupt,
        "file_bytes": recorded["file_bytes"],
    }
    print(json.dumps(result))
    is_right = result["recorded"] == result["replayed"] == arguments.frames
    return 0 if is_right and not corrupt and not result["dropped"] else 1


if __name__ == "__main__":
    sys.exit(main())
