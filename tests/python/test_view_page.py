"""The page of `rgaps view` in headless Chromium, which `make test-view-page` installs. The screenshot is target/view/page.png.

Chromium is driven over its DevTools protocol, a WebSocket with JSON.
"""

import base64
import contextlib
import io
import itertools
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from test_view import LIMIT, client, view

import rgaps

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: make test-view-page")
OUT = Path(__file__).resolve().parents[2] / "target" / "view"


class Browser:
    """One page of a browser."""

    def __init__(self, socket):
        self.socket = socket
        self.numbers = itertools.count(1)
        #: What the page's scripts and the browser complained of.
        self.complaints = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        number = next(self.numbers)
        said = {"id": number, "method": method, "params": params}
        if hasattr(self, "session"):
            said["sessionId"] = self.session
        self.socket.send(json.dumps(said))
        while True:
            answer = json.loads(self.socket.recv(LIMIT))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.complaints.append(answer["params"])

    def ask(self, script):
        params = {"expression": script, "returnByValue": True, "awaitPromise": True}
        return self.call("Runtime.evaluate", **params)["result"].get("value")

    def wait_for(self, script):
        deadline = time.monotonic() + LIMIT
        while not (value := self.ask(script)):
            assert time.monotonic() < deadline, f"waited for {script}; complaints: {self.complaints}"
            time.sleep(0.05)
        return value


@contextlib.contextmanager
def browser(folder):
    # No sandbox: CI runs as root in a container. The page is our own.
    words = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
    words += [f"--user-data-dir={folder}", "--window-size=1200,900", "about:blank"]
    environment = {**os.environ, "HOME": str(folder)}
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            for line in process.stderr:
                if line.startswith("DevTools listening on "):
                    break
            else:
                pytest.fail("Chromium did not start")
            with client.connect(line.split()[-1], max_size=None) as socket:
                yield Browser(socket)
        finally:
            process.kill()


def boxes(page, kind):
    return sorted(page.ask(f"[...document.querySelectorAll('.box.{kind} b')].map((box) => box.textContent)"))


def test_the_page_draws_topics_processes_and_images(tmp_path):
    rows, columns = np.mgrid[0:120, 0:160].astype(np.uint8)
    image = np.stack([rows, columns, np.full_like(rows, 200)], axis=2)
    # Text of others is text, and not a part of the page.
    evil = "<img src=x onerror=alert(1)>"
    with (
        rgaps.publisher("camera/front", type="rgb8", history=1, transient_local=True) as camera,
        rgaps.publisher("robot/joints") as joints,
        rgaps.Node(evil) as other,
        other.subscriber("robot/joints"),
        view() as at,
        browser(tmp_path) as page,
    ):
        camera.put(image)
        joints.put(b"x")
        page.call("Page.navigate", url=at["url"])
        page.wait_for("document.body?.dataset.drawn === 'yes'")
        page.wait_for("document.querySelector('.box.topic img')?.naturalWidth === 160")
        page.wait_for("document.querySelectorAll('#arrows > path').length >= 3")
        assert boxes(page, "topic") == ["camera/front", "robot/joints"]
        assert evil in boxes(page, "process")
        assert "camera/front" in page.ask("document.getElementById('topics').textContent")
        assert "host" in page.ask("document.getElementById('pools').textContent")
        assert page.ask("document.getElementById('error').hidden")
        assert_is_image(page, image)
        shot = page.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / "page.png").write_bytes(base64.b64decode(shot["data"]))
        assert_has_colours(OUT / "page.png", page)
        assert_draws_links(page)
        camera.put(255 - image)
        page.wait_for(f"{CENTRE}[2] === 55")
        assert page.complaints == []


def assert_draws_links(page):
    """As the page would draw this state with a link to another host."""
    page.ask("""fetch(address('state.json')).then((answer) => answer.json()).then((state) => {
      const rates = { messages_out_per_s: 5, bytes_out_per_s: 2048, messages_in_per_s: 0, bytes_in_per_s: 0 };
      state.daemon.host = 'robot';
      state.links = [{ host: 'desk', state: 'linked', lanes: 2, ...rates }, { host: 'lab', state: 'lost', lanes: 0, ...rates }];
      draw(state);
      window.drawn = [...document.querySelectorAll('.box.host')].map((box) => box.innerText).join();
      window.rows = document.getElementById('links').innerText;
    })""")
    drawn, rows = page.ask("window.drawn"), page.ask("window.rows")
    assert all(part in drawn for part in ("robot", "desk", "5.0 Hz out, 0 Hz in", "lab", "lost")), drawn
    assert "2.0 KiB/s" in rows, rows


#: The pixel in the middle of the thumbnail.
CENTRE = """(() => {
  const image = document.querySelector('.box.topic img');
  const canvas = new OffscreenCanvas(160, 120).getContext('2d');
  canvas.drawImage(image, 0, 0);
  return [...canvas.getImageData(80, 60, 1, 1).data];
})()"""


def assert_is_image(page, image):
    assert page.ask(CENTRE)[:3] == image[60, 80].tolist()


def assert_has_colours(file, page):
    """The screenshot has the image where the page says that it is."""
    from PIL import Image

    place = "(() => { const { left, top, width, height } = document.querySelector('.box.topic img').getBoundingClientRect();"
    x, y = page.ask(f"{place} return [left + scrollX + width / 2, top + scrollY + height / 2]; }})()")
    shot = np.asarray(Image.open(io.BytesIO(file.read_bytes())).convert("RGB")).astype(int)
    assert abs(shot[round(y), round(x)] - [60, 80, 200]).max() <= 12


def test_a_page_without_the_token_says_what_is_missing(tmp_path):
    with rgaps.publisher("topic"), view("--token", "0123456789abcdef") as at, browser(tmp_path) as page:
        url = at["url"].split("?")[0]
        page.call("Page.navigate", url=url)
        text = page.wait_for("!document.getElementById('error')?.hidden && document.getElementById('error')?.textContent")
        assert "token" in text
        page.call("Page.navigate", url=f"{url}?token=0123456789abcdef")
        page.wait_for("document.body?.dataset.drawn === 'yes'")
