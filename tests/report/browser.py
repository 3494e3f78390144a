"""A page in a headless browser: what it logs, and what a script sees after it has acted on the page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BEFORE = """<script>
window.troubles = [];
addEventListener("error", (e) => troubles.push(String(e.message || e.target.src)), true);
addEventListener("unhandledrejection", (e) => troubles.push(String(e.reason)));
console.error = console.warn = (...all) => troubles.push(all.join(" "));
</script>"""
AFTER = """<script>
addEventListener("load", () => {
  let seen;
  try { seen = (() => { %s })(); } catch (error) { troubles.push(String(error)); }
  const out = document.createElement("pre");
  out.id = "outcome";
  out.textContent = JSON.stringify({ seen, troubles });
  document.body.append(out);
});
</script>"""


def find_browser() -> str | None:
    """The first browser there is."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def act(browser: str, page: Path, script: str, folder: Path, *, width: int = 1200, dark: bool = False) -> Any:
    """Open a copy of `page`, run `script` (a function's body) after it has loaded; (its result, troubles)."""
    html = page.read_text(encoding="utf-8").replace("<head>", "<head>" + BEFORE, 1)
    html = html.replace("</body>", AFTER % script + "</body>", 1)
    copy = folder / "copy.html"
    copy.write_text(html, encoding="utf-8")
    done = subprocess.run(
        [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-extensions",
         "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}",
         f"--window-size={width},900", f"--blink-settings=preferredColorScheme={0 if dark else 1}",
         "--virtual-time-budget=5000", "--dump-dom", copy.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    found = re.search(r'<pre id="outcome">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stdout[-500:] + done.stderr[-500:]
    outcome = json.loads(unescape(found[1]))
    return outcome.get("seen"), outcome["troubles"]
