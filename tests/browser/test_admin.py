"""What an admin does in the browser, signed with the dashboard's key, before a real server; the store afterwards decides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from fedrep.protocol.plan import coordinate_privacy, traffic
from tests.browser.conftest import Visitor, visit
from tests.harness.dashboard_site import VIEWER
from tests.harness.live_server import OUTSIDER, SILOS, wait_until
from tests.harness.steered_site import MODEL, SIGNER, WEIGHTS, SteeredSite, steered_site

LOOKS = [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)]


@pytest.fixture(scope="module")
def steered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SteeredSite]:
    with steered_site(tmp_path_factory.mktemp("steered")) as made:
        yield made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "init.safetensors"
    path.write_bytes(MODEL)
    return path


def checked(visitor: Visitor, name: str) -> None:
    """Nothing went wrong in the page, nothing sticks out of it, and axe has nothing serious to say."""
    page = visitor.page
    page.evaluate("scrollTo(0, 0)")
    visitor.shoot(name)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, f"{name} scrolls sideways"
    found = Axe().run(page).response["violations"]
    assert [f"{v['id']}: {v['nodes'][0]['html'][:200]}" for v in found if v["impact"] in ("serious", "critical")] == []
    assert (visitor.problems, visitor.foreign) == ([], [])


def shown_bytes(count: int) -> str:
    value, unit = (count / 1e6, "MB") if count >= 999_500 else (count / 1e3, "kB")
    return f"{value:#.3g}".rstrip(".") + f" {unit}"


def from_a_file(page: Page) -> None:
    """The form asks for a file at once where the server has no run whose model could be taken."""
    choice, file = page.get_by_label("a file"), page.get_by_label("Model file")
    expect(choice.or_(file).first).to_be_visible()
    if choice.is_visible():
        choice.check()
    expect(file).to_be_visible()


def begun(page: Page, model: Path, name: str) -> None:
    page.get_by_role("textbox", name="Name lower-case").fill(name)
    page.get_by_label("Model file").set_input_files(model)
    expect(page.locator(".source .fine")).to_contain_text("200 parameters in one tensor")


@pytest.mark.parametrize(("scheme", "width"), LOOKS)
def test_the_first_run_is_created_from_a_file_after_preflight_and_plan(
    chromium: Browser, tmp_path_factory: pytest.TempPathFactory, model: Path, scheme: str, width: int
) -> None:
    with steered_site(tmp_path_factory.mktemp("first")) as site:
        visitor = visit(chromium, site.url, scheme=scheme, width=width, until=".empty")
        page = visitor.page
        page.get_by_role("link", name="Create the first run").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("The first run")
        begun(page, model, "first")
        page.get_by_label("Silos allowed").fill("\n".join(SILOS))
        page.get_by_label("Share of coordinates").fill("0.2")
        page.get_by_label("Byzantine silos at most").fill("1")
        expect(page.locator(".conclusion")).to_contain_text(
            "you need 8 silos; you have 4: invite 4 more, or set byzantine_count = 0"
        )
        visitor.shoot(f"first-refused-{scheme}-{width}")
        page.get_by_role("button", name="Set byzantine_count = 0").click()
        expect(page.locator(".conclusion")).to_have_text("✓ This run can be created.")
        checked(visitor, f"first-{scheme}-{width}")
        page.get_by_role("button", name="Create run").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("4 silos may join")
        expect(dialog).to_contain_text(site.server.people.credentials[SIGNER].fingerprint.hex())
        checked(visitor, f"first-asked-{scheme}-{width}")
        shown = page.locator("table.plan tbody tr").all_inner_texts()
        epsilons = page.locator(".card", has=page.get_by_role("heading", name="Plan")).inner_text()
        dialog.get_by_role("button", name="Sign and create").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("first")
        made = site.server.driver("first")
        assert np.array_equal(made.model.state.vector, WEIGHTS.reshape(-1))
        assert (made.manifest.silos, made.manifest.byzantine) == (SILOS, 0)
        planned, told = traffic(made.manifest), coordinate_privacy(made.manifest)
        assert planned is not None
        assert told is not None
        rows = {"up": planned.bits_up, "down": planned.bits_down, "together": planned.bits, "if dense": planned.dense_bits}
        assert [line.split("\t") for line in shown] == [
            [label, shown_bytes(planned.round_bytes(bits)), shown_bytes(planned.total_bytes(bits))]
            for label, bits in rows.items()
        ]
        assert told.meaning in epsilons
        assert "asks for no promise about training records" in epsilons
        page.context.close()


def test_a_file_that_is_no_model_is_refused_in_words_and_the_run_cannot_be_created(
    chromium: Browser, steered: SteeredSite, tmp_path: Path
) -> None:
    visitor = visit(chromium, steered.url, until="h1")
    page = visitor.open("/new")
    from_a_file(page)
    bad = tmp_path / "notes.safetensors"
    bad.write_text("not a model")
    page.get_by_label("Model file").set_input_files(bad)
    expect(page.get_by_role("alert")).to_contain_text("notes.safetensors is not a safetensors model file")
    expect(page.get_by_role("button", name="Create run")).to_be_disabled()
    large = tmp_path / "large.safetensors"
    with large.open("wb") as file:
        file.truncate(257_000_000)
    page.get_by_label("Model file").set_input_files(large)
    expect(page.get_by_role("alert")).to_contain_text("large.safetensors has 257 MB; this dashboard takes 256 MB at most")
    page.context.close()


def test_an_upload_shows_how_far_it_is_and_can_be_stopped(chromium: Browser, steered: SteeredSite, model: Path) -> None:
    visitor = visit(chromium, steered.url, until="h1")
    page = visitor.page
    page.route("**/api/v1/models?*", lambda _route: None)  # neither answered nor let through
    visitor.open("/new")
    from_a_file(page)
    page.get_by_label("Model file").set_input_files(model)
    expect(page.get_by_role("progressbar", name="Upload")).to_be_visible()
    checked(visitor, "uploading")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("alert")).to_contain_text("The upload was stopped.")
    expect(page.get_by_role("progressbar")).to_have_count(0)
    page.unroute("**/api/v1/models?*")
    page.get_by_label("Model file").set_input_files([])
    page.get_by_label("Model file").set_input_files(model)
    expect(page.locator(".source .fine")).to_contain_text("init.safetensors: 200 parameters")
    page.context.close()


def test_an_upload_that_a_proxy_or_a_lost_session_ends_says_what_to_do(
    chromium: Browser, steered: SteeredSite, model: Path
) -> None:
    visitor = visit(chromium, steered.url, until="h1")
    page = visitor.page
    page.route("**/api/v1/models?*", lambda route: route.fulfill(status=413, body="<html>too large</html>"))
    visitor.open("/new")
    from_a_file(page)
    page.get_by_label("Model file").set_input_files(model)
    expect(page.get_by_role("alert")).to_contain_text("A proxy before this dashboard takes no file of that size.")
    page.unroute("**/api/v1/models?*")
    page.context.clear_cookies()
    page.get_by_label("Model file").set_input_files([])
    page.get_by_label("Model file").set_input_files(model)
    expect(page.get_by_label("Token")).to_be_visible()
    page.context.close()


def test_a_run_is_cloned_with_all_its_settings(chromium: Browser, steered: SteeredSite) -> None:
    steered.server.create_run("pattern", rounds=7, reshuffle_every=3, quorum=4, initial_range=2.0)
    visitor = visit(chromium, steered.url)
    page = visitor.open("/runs/pattern")
    page.get_by_role("link", name="Clone").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("New run like pattern")
    expect(page.get_by_role("textbox", name="Name lower-case")).to_have_value("pattern-2")
    expect(page.locator(".conclusion")).to_have_text("✓ This run can be created.")
    page.get_by_text("Further settings").click()
    expect(page.get_by_label("Quorum")).to_have_value("4")
    checked(visitor, "clone")
    page.get_by_role("button", name="Create run").click()
    page.get_by_role("dialog").get_by_role("button", name="Sign and create").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("pattern-2")
    old, new = steered.server.driver("pattern"), steered.server.driver("pattern-2")
    settings = (
        "silos",
        "rounds",
        "reshuffle_every",
        "quorum",
        "initial_range",
        "coordinates",
        "aggregator",
        "alpha",
        "deadlines",
    )
    assert {name: getattr(new.manifest, name) for name in settings} == {name: getattr(old.manifest, name) for name in settings}
    assert new.model.state.hash == old.model.state.hash
    page.context.close()


@pytest.mark.parametrize(("scheme", "width"), LOOKS)
def test_silos_are_added_and_removed_from_the_next_epoch_on(
    chromium: Browser, steered: SteeredSite, scheme: str, width: int
) -> None:
    run = f"amended-{scheme}-{width}"
    steered.played(run, 1)
    visitor = visit(chromium, steered.url, scheme=scheme, width=width)
    page = visitor.open(f"/runs/{run}")
    page.get_by_role("button", name="Roll back, amend").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("silo-a").uncheck()
    dialog.get_by_label("silo-b").uncheck()
    dialog.get_by_label("silo-c").uncheck()
    dialog.get_by_role("button", name="Amend…").click()
    expect(dialog.get_by_role("alert")).to_contain_text("1 silos do not fill one buffer of 2")
    assert [problem for problem in visitor.problems if "409" not in problem] == []
    visitor.problems.clear()
    dialog.get_by_label("silo-b").check()
    dialog.get_by_label("silo-c").check()
    dialog.get_by_label("Silos to add").fill(OUTSIDER)
    checked(visitor, f"orders-{scheme}-{width}")
    dialog.get_by_role("button", name="Amend…").click()
    expect(dialog).to_contain_text(
        f"From round 10 on, the first of the next epoch: {OUTSIDER} may join; silo-a may not take part"
    )
    checked(visitor, f"amend-asked-{scheme}-{width}")
    assert steered.server.driver(run).amendment is None, "nothing is signed before it is confirmed"
    dialog.get_by_role("button", name="Sign and amend").click()
    expect(dialog.get_by_role("status")).to_contain_text("The new list counts from round 10 on.")
    pending = steered.server.driver(run).amendment
    assert pending is not None
    assert (pending.admin, sorted(pending.manifest.silos)) == (SIGNER, ["silo-b", "silo-c", "silo-d", OUTSIDER])
    page.context.close()


def test_a_run_goes_on_from_a_kept_version(chromium: Browser, steered: SteeredSite) -> None:
    steered.played("rolled", 2)
    wanted = {row.version: row.hash for row in steered.server.running.coordinator.store.models("rolled")}[1]
    visitor = visit(chromium, steered.url)
    page = visitor.open("/runs/rolled")
    page.get_by_role("button", name="Roll back, amend").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Kept version").select_option("1")
    dialog.get_by_role("button", name="Roll back…").click()
    expect(dialog).to_contain_text("become the newest version, 3. The open round 3 is skipped")
    checked(visitor, "rollback-asked")
    dialog.get_by_role("button", name="Back", exact=True).click()
    assert steered.server.driver("rolled").model.state.version == 2, "nothing is signed before it is confirmed"
    dialog.get_by_label("Kept version").select_option("1")
    dialog.get_by_role("button", name="Roll back…").click()
    dialog.get_by_role("button", name="Sign and roll back").click()
    expect(dialog.get_by_role("status")).to_contain_text("Version 1 is now version 3.")
    state = steered.server.driver("rolled").model.state
    assert (state.version, state.hash) == (3, wanted)
    page.context.close()


def test_an_excluded_silo_is_readmitted_after_a_question(chromium: Browser, steered: SteeredSite) -> None:
    steered.played("kept-out", 1)
    visitor = visit(chromium, steered.url)
    page = visitor.open("/runs/kept-out/silos")
    page.get_by_role("button", name="Exclude silo-c").click()
    page.get_by_role("dialog").get_by_role("button", name="Exclude").click()
    page.get_by_role("button", name="Readmit silo-c").click()
    driver = steered.server.driver("kept-out")
    assert driver.attendance.excluded == {"silo-c"}
    expect(page.get_by_role("dialog")).to_contain_text("It may take part again from the next roster on, with a clean record.")
    checked(visitor, "readmit-asked")
    page.get_by_role("dialog").get_by_role("button", name="Readmit").click()
    expect(page.get_by_role("button", name="Exclude silo-c")).to_be_visible()
    wait_until(lambda: not driver.attendance.excluded)
    page.context.close()


def test_a_viewer_is_offered_none_of_it(chromium: Browser, steered: SteeredSite) -> None:
    steered.server.create_run("looked-at")
    visitor = visit(chromium, steered.url, token=VIEWER)
    page = visitor.open("/runs/looked-at/silos")
    expect(page.locator("tbody tr")).to_have_count(4)
    for name in ("Clone", "New run", "Roll back, amend", "Readmit", "Exclude"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
        expect(page.get_by_role("link", name=name)).to_have_count(0)
    page = visitor.open("/new")
    expect(page.locator(".empty")).to_contain_text("You are signed in as a viewer")
    expect(page.locator("form")).to_have_count(0)
    page.context.close()
