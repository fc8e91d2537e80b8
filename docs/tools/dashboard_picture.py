"""Plays the demo and takes the picture of its dashboard that the README shows: `python -m docs.tools.dashboard_picture`."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).parents[1] / "images" / "dashboard.png"
SIZE = {"width": 1280, "height": 1120}
LONGEST = 600_000  # milliseconds: a limit for a hang, not a wait


def main() -> None:
    browser_path = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser_path is None:
        sys.exit("Chromium is missing: install it (Debian: apt-get install chromium).")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fedrep_cli.main", "demo", "--folder", folder]
        demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            address, token = _link(demo)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"])
                page = browser.new_page(viewport=SIZE, reduced_motion="reduce")  # type: ignore[arg-type]
                _until_over(demo)
                page.goto(f"{address}/runs/demo#token={token}")
                page.locator(".page-head", has_text="rounds played").wait_for(timeout=LONGEST)
                page.locator(".plot canvas").nth(5).wait_for(timeout=LONGEST)
                page.screenshot(path=PICTURE)
                browser.close()
        finally:
            demo.send_signal(signal.SIGINT)
            demo.wait(60)


def _link(demo: subprocess.Popen[str]) -> tuple[str, str]:
    return _said(demo, r"as admin +(http://\S+?)/#token=(\S+)")


def _until_over(demo: subprocess.Popen[str]) -> None:
    _said(demo, r"(Accuracy) (\S+)")


def _said(demo: subprocess.Popen[str], wanted: str) -> tuple[str, str]:
    assert demo.stdout is not None
    for line in demo.stdout:
        if found := re.search(wanted, line):
            return found[1], found[2]
    raise SystemExit("the demo ended before it was over")


if __name__ == "__main__":
    main()
