"""Chromium without a window, driven over its DevTools protocol: a WebSocket with JSON. For pictures of the page of `rgaps view`."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
#: Seconds that anything may take on any machine.
LIMIT = 120


class Browser:
    """One page of a browser."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.numbers = itertools.count(1)
        self.session: str | None = None
        #: What the page's scripts and the browser complained of.
        self.complaints: list[Any] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        number = next(self.numbers)
        said = {"id": number, "method": method, "params": params}
        if self.session is not None:
            said["sessionId"] = self.session
        self.socket.send(json.dumps(said))
        while True:
            answer = json.loads(self.socket.recv(LIMIT))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.complaints.append(answer["params"])

    def ask(self, script: str) -> Any:
        params = {"expression": script, "returnByValue": True, "awaitPromise": True}
        return self.call("Runtime.evaluate", **params)["result"].get("value")

    def wait_for(self, script: str) -> Any:
        deadline = time.monotonic() + LIMIT
        while not (value := self.ask(script)):
            assert time.monotonic() < deadline, f"waited for {script}; complaints: {self.complaints}"
            time.sleep(0.05)
        return value

    def draw(self, file: Path) -> None:
        """Writes a picture of the page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(shot["data"]))


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser that keeps its files in that folder."""
    assert CHROMIUM is not None, "tools/setup.sh chromium installs it"
    # No sandbox: CI runs as root in a container. The page is our own.
    words = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
    words += [f"--user-data-dir={folder}", "--window-size=1200,900", "about:blank"]
    environment = {**os.environ, "HOME": str(folder)}
    # A session of its own: Debian's program is a script, which would leave the browser behind.
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if line.startswith("DevTools listening on "):
                    break
            else:
                raise AssertionError("Chromium did not start")
            with connect(line.split()[-1], max_size=None) as socket:
                yield Browser(socket)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
