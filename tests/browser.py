"""A real browser for the tests of pages: headless Chromium, driven through the pipe of its debugging protocol."""

import base64
import io
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
INSTALL = "brew install chromium" if sys.platform == "darwin" else "apt-get install chromium chromium-driver"
# With this set, the browser tests fail where there is no Chromium instead of being skipped.
REQUIRED = os.environ.get("CONGRUENCY_REQUIRE_BROWSER") == "1"
needs_browser = pytest.mark.browser  # conftest.py skips or fails these where there is no Chromium


class Browser:
    """One page; `complaints` are what it wrote on the console as errors or warnings, or threw."""

    def __init__(self, profile: Path, timeout: float = 60.0) -> None:
        ours, theirs = os.pipe(), os.pipe()  # to it, from it
        self._timeout = timeout  # of one call
        switches = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
        ]
        words = " ".join([str(CHROMIUM), *switches])
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {words} 3<&{ours[0]} 4>&{theirs[1]}"],
            pass_fds=(ours[0], theirs[1]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(ours[0])
        os.close(theirs[1])
        self._out, self._in = ours[1], theirs[0]
        self._read, self._count, self._session = b"", 0, None
        self.complaints, self._events = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self._count += 1
        self._deadline = time.monotonic() + self._timeout
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _next(self):
        while b"\0" not in self._read:
            left = self._deadline - time.monotonic()
            assert left > 0, "the browser did not answer in time"
            assert select.select([self._in], [], [], left)[0], "the browser did not answer in time"
            part = os.read(self._in, 1 << 20)
            assert part, "the browser has ended"
            self._read += part
        whole, _, self._read = self._read.partition(b"\0")
        return json.loads(whole)

    def _note(self, event):
        self._events.append(event)
        kind, details = event.get("method"), event.get("params", {})
        if kind == "Runtime.exceptionThrown":
            self.complaints.append(str(details["exceptionDetails"]))
        if kind == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.complaints.append(details["entry"]["text"])
        if kind == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(details["args"]))

    @property
    def fetched(self):
        """The addresses that were asked for."""
        return [e["params"]["request"]["url"] for e in self._events if e.get("method") == "Network.requestWillBeSent"]

    def open(self, path: Path, *, width=1200, height=900, dark=False, phone=False):
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="screen", features=[scheme])
        self._events = []
        self.call("Page.navigate", url=path.as_uri())
        while self.run("document.readyState") != "complete" or self.run("location.href") != path.as_uri():
            time.sleep(0.02)

    def run(self, script):
        """The value of a piece of JavaScript."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def move(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key, code):
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code)

    def screenshot(self, path: Path, *, whole=False):
        found = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def close(self):
        self._process.terminate()
        self._process.wait(timeout=20)
        os.close(self._out)
        os.close(self._in)


ALL_VIEWS = tuple((width, dark) for width in (1400, 420) for dark in (False, True))
_CLIPPED = """
[...document.querySelectorAll('.chart > svg text')].filter((each) => {
  const [box, whole] = [each, each.closest('svg')].map((one) => one.getBoundingClientRect());
  return box.width && (box.left < whole.left - 1 || box.right > whole.right + 1 || box.bottom > whole.bottom + 1);
}).map((each) => each.textContent)
"""
_IMAGES = """
[...document.images].map((each) => each.getBoundingClientRect()).filter((box) => box.width > 20)
  .map((box) => [box.x + scrollX, box.y + scrollY, box.width, box.height])
"""


def check_page(browser, path: Path, views=ALL_VIEWS) -> None:
    """What every page keeps: nothing wider than the screen, no label cut off, no white picture in the dark."""
    for width, dark in views:
        where = (path.name, width, "dark" if dark else "light")
        browser.complaints.clear()
        browser.open(path, width=width, dark=dark, phone=width < 600)
        assert browser.complaints == [], where
        assert browser.run("document.documentElement.scrollWidth") <= width, where
        assert browser.run(_CLIPPED) == [], where
        browser.run("document.querySelectorAll('img').forEach((each) => { each.loading = 'eager'; })")
        deadline = time.monotonic() + 20
        while not browser.run("[...document.images].every((each) => each.complete)") and time.monotonic() < deadline:
            time.sleep(0.02)
        for box in browser.run(_IMAGES) if dark else []:
            assert white_frame(browser, box) < 0.9, (*where, box)


def white_frame(browser, box) -> float:
    """The white share of the frame of a picture, its outermost fiftieth."""
    clip = dict(zip(("x", "y", "width", "height"), box, strict=True), scale=1)
    shot = browser.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
    with Image.open(io.BytesIO(base64.b64decode(shot["data"]))) as image:
        pixels = np.asarray(image.convert("L"))
    edge = max(2, min(pixels.shape) // 50)
    frame = np.concatenate([pixels[:edge].ravel(), pixels[-edge:].ravel(), pixels[:, :edge].ravel()])
    return float((frame > 235).mean())
