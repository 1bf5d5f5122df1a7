"""Headless Chromium, driven over the pipe of its DevTools protocol: no library, no port."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE = 60.0


class Page:
    """One tab.

    Attributes:
        problems: Exceptions and errors of its console, as text.
        requests: Addresses that it asked for, but for its own file and what it holds itself.
    """

    def __init__(self, out: int, back: int) -> None:
        self._out, self._back, self._count, self._rest = out, back, 0, b""
        self._session: str | None = None
        self.problems: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Ask for something and wait for the answer."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]

    def _read(self) -> Any:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._back], [], [], max(end - time.monotonic(), 0))
            assert ready, "Chromium does not answer"
            self._rest += os.read(self._back, 1 << 20)
        text, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(text)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, params: Any) -> None:
        match method:
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(params["exceptionDetails"])[:2000])
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.problems.append(json.dumps(params["args"])[:2000])
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.problems.append(params["entry"]["text"])
            case "Network.requestWillBeSent":
                address = params["request"]["url"]
                if not address.startswith(("file:", "data:", "blob:", "about:")):
                    self.requests.append(address)

    def size(self, width: int, height: int, *, dark: bool = False, scale: float = 1) -> None:
        """Set the size of the window and the colour scheme that its user prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=scale, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, path: Path, *, scripts: bool = True) -> None:
        """Open a file and wait until it is loaded."""
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.call("Page.navigate", url=path.resolve().as_uri())
        while self._read().get("method") != "Page.loadEventFired":
            pass

    def ask(self, expression: str) -> Any:
        """Evaluate an expression of JavaScript, and wait for it where it is a promise."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def point(self, x: float, y: float) -> None:
        """Move the mouse to a place in the window."""
        for step in (-3, 0):
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + step, y=y)

    def picture(self, *, whole: bool = False) -> bytes:
        """Give what is seen, or the whole page, as a PNG."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(found["data"])

    def pdf(self) -> bytes:
        """Print."""
        found = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        return base64.b64decode(found["data"])


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """Start Chromium with a profile of its own in a folder."""
    assert CHROMIUM
    ours, theirs = os.pipe(), os.pipe()
    # Chromium reads from descriptor 3 and writes to 4.
    command = [
        "bash", "-c", 'exec 3<&"$0" 4>&"$1"; shift; exec "$@"', str(ours[0]), str(theirs[1]),
        CHROMIUM, *FLAGS, f"--user-data-dir={folder}",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, pass_fds=(ours[0], theirs[1]), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    os.close(ours[0])
    os.close(theirs[1])
    try:
        yield Page(ours[1], theirs[0])
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(ours[1])
        os.close(theirs[0])
