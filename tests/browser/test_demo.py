"""The dashboard of a real demo: real CA, server, silos and attackers as processes; then the server dies and comes back."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Visitor, visit
from tests.harness.processes import hearing_ctrl_c

ROUNDS = 60  # as many as a demo plays when nobody says otherwise
NEAR = 0.02  # of the accuracy that training with all data in one place reaches
FEDREP = [sys.executable, "-m", "fedrep_cli.main"]


@dataclass(frozen=True)
class Demo:
    url: str
    token: str
    folder: Path
    said: Path


@pytest.fixture(scope="module")
def demo(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    folder = tmp_path_factory.mktemp("demo")
    said = folder / "demo.err"
    with said.open("wb") as output, hearing_ctrl_c():
        command = [*FEDREP, "demo", "--folder", str(folder / "demo")]
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        for _ in range(600):
            found = re.search(r"as admin +(http://\S+?)/#token=(\S+)", said.read_text())
            if found and (folder / "demo" / "logs" / "dashboard.log").exists():
                break
            assert process.poll() is None, said.read_text()
            time.sleep(0.2)
        assert found is not None, said.read_text()
        yield Demo(found[1], found[2], folder / "demo", said)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


@pytest.fixture(scope="module")
def visitor(chromium: Browser, demo: Demo) -> Iterator[Visitor]:
    _until_answered(demo.url)
    found = visit(chromium, demo.url, token=demo.token)
    yield found
    found.page.context.close()


def _until_answered(url: str) -> None:
    import httpx

    for _ in range(300):
        try:
            if httpx.get(f"{url}/healthz", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"the dashboard at {url} does not answer")


def _summary(demo: Demo) -> tuple[float, float]:
    """What the demo prints at its end: the accuracy it reached, and that of training with all data in one place."""
    for _ in range(300):
        found = re.search(r"Accuracy (\S+) \(all\s+data\s+in\s+one\s+place: ([\d.]+)\)", demo.said.read_text())
        if found:
            return float(found[1]), float(found[2])
        time.sleep(0.2)
    raise AssertionError(f"the demo has not ended: {demo.said.read_text()}")


def _server_process(demo: Demo) -> int:
    """Whoever holds its database: the demo's processes are forked, and all have the command line of the one that forks."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and any(_is_database(file.readlink(), demo) for file in (entry / "fd").iterdir()):
                return int(entry.name)
    raise AssertionError("no process has the demo's database open")


def _is_database(opened: Path, demo: Demo) -> bool:
    return opened.is_relative_to(demo.folder) and opened.suffix == ".sqlite3"


@pytest.mark.timeout(1200)
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="The server's process is found through /proc.")
def test_a_real_demo_is_watched_live_and_the_servers_death_and_return_are_shown(visitor: Visitor, demo: Demo) -> None:
    page = visitor.page
    page.locator("table.runs").get_by_role("link", name="demo", exact=True).click()
    current = page.locator(".stat", has_text="Round").locator(".stat-value").first
    expect(current).to_have_text(re.compile(r"[1-9]"))
    page.evaluate("window.notReloaded = true")
    expect(page.locator(".page-head .state")).to_contain_text("finished", timeout=600_000)
    expect(current).to_have_text(str(ROUNDS))
    assert page.evaluate("window.notReloaded") is True, "everything arrived live"
    expect(page.locator(".plot canvas")).to_have_count(7)
    visitor.shoot("demo-run")
    accuracy = page.locator(".stat", has_text="Accuracy").locator(".stat-value").first
    reached, central = _summary(demo)
    expect(accuracy).to_have_text(f"{100 * reached:.1f} %")
    assert reached > central - NEAR, "despite two attackers"

    page.get_by_role("navigation", name="Pages of demo").get_by_role("link", name="Silos").click()
    expect(page.locator("table.cards tbody tr")).to_have_count(10)
    told = page.locator(".card", has=page.get_by_role("heading", name="Who sat in suspected buffers"))
    expect(told.locator(".severity.alert")).to_have_count(2)
    assert set(told.locator(".severity.alert").all_text_contents()) == {"! silo-01", "! silo-02"}, "those who attack"
    expect(told).to_contain_text("stand out; the next silo has")
    expect(page.locator(".heat canvas")).to_be_visible()
    visitor.shoot("demo-silos")

    os.kill(_server_process(demo), signal.SIGKILL)
    expect(page.locator(".banner")).to_contain_text("The federation server is unreachable")
    visitor.shoot("demo-server-down")
    config = str(demo.folder / "config" / "server.toml")
    again = subprocess.Popen([*FEDREP, "server", "--config", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        expect(page.locator(".banner")).to_have_count(0)
        visitor.open("/")
        expect(page.locator("table.runs tbody tr")).to_contain_text("finished")
        visitor.shoot("demo-overview")
    finally:
        again.terminate()
        again.wait(30)
    assert visitor.problems == []
    assert visitor.foreign == []
