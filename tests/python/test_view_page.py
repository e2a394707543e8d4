"""The page of `rgaps view` in headless Chromium, which `make test-view-page` installs. The screenshot is target/view/page.png."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from test_view import view

import rgaps

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "demo"))
pytest.importorskip("websockets.sync.client")

from browser import CHROMIUM, browser  # noqa: E402

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: make test-view-page")
OUT = ROOT / "target" / "view"


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
        page.draw(OUT / "page.png")
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
