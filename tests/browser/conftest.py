"""A real Chromium against the real dashboard. The full suite runs only when asked for: `make test-browser`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from fedrep_dashboard.app import STATIC
from tests.harness.dashboard_server import ScriptedRun, ScriptedServer, scripted_run
from tests.harness.dashboard_site import ADMIN, as_admin, serving, settings_for

CHROMIUM = os.environ.get("FEDREP_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SMOKE = "test_smoke.py"
LIMIT = 120_000  # milliseconds: turns a hang into a failure, on a busy machine too
expect.set_options(timeout=LIMIT)
SCREENSHOTS = Path(os.environ.get("FEDREP_SCREENSHOTS", "build/screenshots"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`make test` has the smoke test only."""
    asked = any("browser" in argument for argument in config.args)
    return True if collection_path.name.startswith("test_") and collection_path.name != SMOKE and not asked else None


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Not for the whole session: while Playwright runs, asyncio.run refuses to work in this thread."""
    if CHROMIUM is None:
        pytest.skip("Chromium is missing: install it (Debian: apt-get install chromium) to run the browser tests.")
    if not (STATIC / "index.html").exists():
        pytest.skip("The dashboard's pages are not built: run make web first.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@dataclass(frozen=True)
class Site:
    """The scripted server, one of its runs, and the address of the dashboard in front of it."""

    server: ScriptedServer
    run: ScriptedRun
    url: str


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    server = ScriptedServer().start()
    server.add(scripted_run("digits-mean", aggregator="mean", alpha=0.0, budget=None, state="finished"), 40)
    server.add(scripted_run("empty", state="waiting"))
    run = server.add(scripted_run("digits", private=6), 46)
    with serving(settings_for(server.address), as_admin(server.address, tmp_path_factory.mktemp("identity"))) as url:
        yield Site(server, run, url)
    server.die()


class Visitor:
    """A signed-in page that remembers everything that went wrong in it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.problems: list[str] = []
        self.foreign: list[str] = []
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", self._asked)

    def _heard(self, message: object) -> None:
        kind, text = getattr(message, "type", ""), getattr(message, "text", "")
        if kind in ("error", "warning"):
            self.problems.append(f"{kind}: {text}")

    def _asked(self, request: object) -> None:
        address = str(getattr(request, "url", ""))
        if not address.startswith((self.url, "data:", "blob:")):
            self.foreign.append(address)

    def open(self, path: str) -> Page:
        self.page.goto(self.url + path)
        self.page.wait_for_selector("h1")
        return self.page

    def shoot(self, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


def visit(
    chromium: Browser, url: str, *, width: int = 1280, scheme: str = "light", token: str = ADMIN, until: str = "table.runs"
) -> Visitor:
    context = chromium.new_context(
        viewport={"width": width, "height": 800},
        color_scheme="dark" if scheme == "dark" else "light",
        reduced_motion="reduce",
    )
    context.set_default_timeout(LIMIT)
    visitor = Visitor(context.new_page(), url)
    visitor.page.goto(f"{url}/#token={token}")
    visitor.page.wait_for_selector(until)
    return visitor
