"""Plays the demo and takes the pictures of its dashboard that the documents show: `make pictures`."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).parents[1] / "images"
WIDTH = 1280
LONGEST = 900_000  # milliseconds: a limit for a hang, not a wait


@dataclass(frozen=True)
class Picture:
    """A page of the dashboard, as high as it is worth showing; `until` is there when its figures are."""

    name: str
    path: str
    height: int
    until: str


PICTURES = (
    Picture("overview", "/", 330, "table.runs tbody tr:nth-child(2)"),
    Picture("dashboard", "/runs/demo", 1120, ".plot canvas >> nth=5"),
    Picture("round", "/runs/demo/rounds/60", 1000, ".phases li >> nth=3"),
    Picture("silos", "/runs/demo/silos", 1120, ".tally tbody tr >> nth=9"),
    Picture("compare", "/compare?run=demo&run=demo-mean", 1000, ".plot canvas >> nth=3"),
)


def main() -> None:
    browser_path = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser_path is None:
        sys.exit("Chromium is missing: install it (Debian: apt-get install chromium).")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fedrep_cli.main", "demo", "--compare", "--folder", folder]
        demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            address, token = _said(demo, r"as admin +(http://\S+?)/#token=(\S+)")
            _said(demo, r"(Accuracy) (\S+)")
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"])
                page = browser.new_page(reduced_motion="reduce")
                page.goto(f"{address}/#token={token}")
                for picture in PICTURES:
                    _take(page, address, picture)
                browser.close()
        finally:
            demo.send_signal(signal.SIGINT)
            demo.wait(60)


def _take(page: Page, address: str, picture: Picture) -> None:
    page.set_viewport_size({"width": WIDTH, "height": picture.height})
    page.locator("h1").wait_for(timeout=LONGEST)
    page.goto(address + picture.path)
    page.locator(picture.until).wait_for(timeout=LONGEST)
    page.locator(".live.up").wait_for(timeout=LONGEST)
    page.screenshot(path=IMAGES / f"{picture.name}.png")


def _said(demo: subprocess.Popen[str], wanted: str) -> tuple[str, str]:
    assert demo.stdout is not None
    for line in demo.stdout:
        if found := re.search(wanted, line):
            return found[1], found[2]
    raise SystemExit("the demo ended before it was over")


if __name__ == "__main__":
    main()
