"""A browser to click and type in, over the W3C WebDriver protocol: chromedriver and the standard library."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"ArrowRight": "\ue014", "ArrowLeft": "\ue012", "Enter": "\ue007"}


def missing() -> str:
    """Say what keeps a browser from being driven; empty if nothing does."""
    if not any(shutil.which(name) for name in BROWSERS):
        return f"no browser: none of {', '.join(BROWSERS)} is installed"
    return "" if shutil.which("chromedriver") else "no chromedriver is installed"


class Browser:
    """One window. `log` has what the page complained about, requests that failed included."""

    def __init__(self, base: str, session: str) -> None:
        self._base = f"{base}/session/{session}"

    def go(self, url: str) -> None:
        _call("POST", f"{self._base}/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that a function's body returns."""
        return _call("POST", f"{self._base}/execute/sync", {"script": script, "args": list(arguments)})

    def click(self, selector: str) -> None:
        """A real click, in the middle of what is seen."""
        _call("POST", f"{self._base}/element/{self._find(selector)}/click", {})

    def keys(self, text: str, selector: str = "body") -> None:
        _call("POST", f"{self._base}/element/{self._find(selector)}/value", {"text": KEYS.get(text, text)})

    def clear(self, selector: str) -> None:
        _call("POST", f"{self._base}/element/{self._find(selector)}/clear", {})

    def text(self, selector: str) -> str:
        return str(_call("GET", f"{self._base}/element/{self._find(selector)}/text"))

    def until(self, script: str, seconds: float = 20.0) -> Any:
        """Wait until a function's body returns something true."""
        end = time.monotonic() + seconds
        while not (found := self.run(script)):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.05)
        return found

    def size(self, width: int, height: int = 900) -> None:
        """The size of the page, not of the window around it."""
        device = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._devtools("Emulation.setDeviceMetricsOverride", device)

    def downloads(self, folder: Path) -> None:
        self._devtools("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})

    def log(self) -> list[str]:
        found = _call("POST", f"{self._base}/se/log", {"type": "browser"})
        return [entry["message"] for entry in found if entry["level"] in ("SEVERE", "WARNING")]

    def picture(self, path: Path, *, whole: bool = False) -> None:
        shot = self._devtools("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole})
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        _call("DELETE", self._base)

    def _devtools(self, command: str, parameters: dict[str, Any]) -> Any:
        return _call("POST", f"{self._base}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def _find(self, selector: str) -> str:
        found = _call("POST", f"{self._base}/element", {"using": "css selector", "value": selector})
        return str(found[ELEMENT])


@contextmanager
def browser(folder: Path, dark: bool = False) -> Iterator[Browser]:
    """A headless browser, which is ended afterwards."""
    driver = subprocess.Popen(
        [str(shutil.which("chromedriver")), "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert driver.stdout is not None
    try:
        line = next(line for line in driver.stdout if "started successfully on port" in line)
        base = f"http://127.0.0.1:{int(line.split('port')[-1].strip().rstrip('.'))}"
        arguments = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync",
            "--disable-component-update", "--no-first-run", "--hide-scrollbars",
            f"--user-data-dir={folder / 'profile'}",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        ]  # fmt: skip
        options = {
            "goog:chromeOptions": {
                "args": arguments,
                "binary": next(filter(None, map(shutil.which, BROWSERS))),
            },
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        session = _call("POST", f"{base}/session", {"capabilities": {"alwaysMatch": options}})["sessionId"]
        window = Browser(base, session)
        try:
            yield window
        finally:
            window.close()
    finally:
        driver.terminate()
        driver.wait(20)
        driver.stdout.close()


def _call(verb: str, url: str, body: dict[str, Any] | None = None) -> Any:
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"}, method=verb)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.loads(answer.read())["value"]
    except urllib.error.HTTPError as error:
        with error:
            raise AssertionError(json.loads(error.read())["value"]["message"]) from None
