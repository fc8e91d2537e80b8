"""Every page at both widths and in both colours, for eyes, keyboards and screen readers; and the server's death and return."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from fedrep.record_privacy import COVERS
from fedrep.wire.v1 import observer_pb2 as pb
from tests.browser.conftest import Site, visit
from tests.harness.dashboard_server import ATTACKERS, scripted_run
from tests.harness.dashboard_site import VIEWER, insecure, serving, settings_for

PAGES = {
    "overview": "/",
    "run": "/runs/digits",
    "round": "/runs/digits/rounds/44",
    "silos": "/runs/digits/silos",
    "compare": "/compare?run=digits&run=digits-mean",
    "compare-bytes": "/compare?run=digits&run=digits-mean&by=bytes",
    "compare-time": "/compare?run=digits&run=digits-mean&by=time",
    "empty": "/runs/empty",
    "new": "/new",
    "unknown": "/runs/nobody",
}
LOOKS = [("light", 1280), ("dark", 1280), ("light", 375), ("dark", 375)]


def settled(page: Page) -> None:
    expect(page.get_by_text("Loading…")).to_have_count(0)
    expect(page.locator(".live")).to_have_text("● live")
    page.wait_for_timeout(600)  # heat maps are asked for once their width is known


def painted(page: Page) -> list[bool]:
    """For every large canvas, whether something is drawn on it."""
    found: list[bool] = page.evaluate(
        """() => [...document.querySelectorAll('canvas:not(.sample)')].map(c =>
            c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v !== 0))"""
    )
    return found


@pytest.mark.parametrize(("scheme", "width"), LOOKS)
def test_every_page_shows_its_data_without_an_error_or_a_foreign_request(
    chromium: Browser, site: Site, scheme: str, width: int
) -> None:
    visitor = visit(chromium, site.url, width=width, scheme=scheme)
    charts = {"overview": 0, "run": 10, "round": 0, "silos": 1, "compare": 5, "compare-bytes": 5, "compare-time": 5, "empty": 0}
    for name, count in {**charts, "new": 0}.items():
        page = visitor.open(PAGES[name])
        settled(page)
        drawn = painted(page)
        assert (len(drawn), all(drawn)) == (count, True), name
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, f"{name} scrolls sideways"
        visitor.shoot(f"{name}-{scheme}-{width}")
    assert visitor.problems == []
    assert visitor.foreign == []
    visitor.page.context.close()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 375)])
def test_axe_finds_no_violation(chromium: Browser, site: Site, scheme: str, width: int) -> None:
    visitor = visit(chromium, site.url, width=width, scheme=scheme)
    for name in ("overview", "run", "round", "silos", "compare", "empty", "new"):
        page = visitor.open(PAGES[name])
        settled(page)
        found = Axe().run(page).response["violations"]
        assert [f"{name}: {v['id']}: {v['help']}: {v['nodes'][0]['html'][:200]}" for v in found] == []
    visitor.page.context.close()


def test_the_sign_in_page_refuses_a_wrong_token_in_words(chromium: Browser, site: Site) -> None:
    page = chromium.new_page()
    page.goto(f"{site.url}/runs/digits")
    page.get_by_label("Token").fill("a wrong token")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not known here")
    assert [v["id"] for v in Axe().run(page).response["violations"] if v["impact"] in ("serious", "critical")] == []
    page.get_by_label("Token").fill(VIEWER)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("digits")
    expect(page.get_by_role("button", name="Pause")).to_have_count(0)
    page.close()


def test_a_new_round_reaches_charts_figures_and_events_without_a_reload(chromium: Browser, site: Site) -> None:
    visitor = visit(chromium, site.url)
    page = visitor.open("/runs/digits")
    settled(page)
    page.evaluate("window.notReloaded = true")
    item = site.server.play_round(site.run)
    expect(page.locator(".events")).to_contain_text(f"Round {item.round} ")
    expect(page.locator(".legend .where").first).to_have_text(f"latest: round {item.round}")
    expect(page.locator(".waterfall li").first).to_contain_text(str(item.round))
    expect(page.locator(".heat-axis span").last).to_have_text(str(item.round))
    assert page.evaluate("window.notReloaded") is True
    page.context.close()


def test_what_records_have_cost_is_shown_by_silo_beside_the_coordinates_epsilon_with_what_it_covers(
    chromium: Browser, site: Site
) -> None:
    page = visit(chromium, site.url).open("/runs/digits")
    settled(page)
    tile = page.locator(".stat", has_text="Record epsilon")
    largest = 0.75 * math.sqrt(len(site.run.rounds))
    shown = f"{math.ceil(100 * largest) / 100:.2f}"
    expect(tile).to_contain_text(f"no guarantee at 1; most of 6 others: {shown}")
    card = page.locator(".card", has=page.get_by_role("heading", name="Record epsilon"))
    for text in (
        "silo-01",
        "silo-06",
        shown,
        "6 silos report it, at delta 1e-5 at most; none at 1 silo; not reported by 3 silos",
    ):
        expect(card).to_contain_text(text, ignore_case=True)
    expect(card).to_contain_text(COVERS)
    expect(card).not_to_contain_text("silo-07")
    page = visit(chromium, site.url).open("/runs/digits-mean")
    settled(page)
    expect(page.locator(".stat", has_text="Record epsilon")).to_contain_text("not reported")
    expect(page.get_by_text("No silo reports a record epsilon")).to_be_visible()
    page = visit(chromium, site.url).open("/runs/digits/silos")
    settled(page)
    for silo, said in (("silo-06", f"{shown} of 8.00"), ("silo-07", "none"), ("silo-08", "not reported")):
        row = page.locator("tr", has_text=silo)
        expect(row.locator("[data-label='Record epsilon']")).to_have_text(said)
    page = visit(chromium, site.url).open("/runs/digits-mean/silos")
    settled(page)
    expect(page.locator("[data-label='Epsilon']").first).to_have_text("none")
    for context in chromium.contexts:
        context.close()


def test_the_servers_death_shows_as_a_banner_and_its_return_clears_it(chromium: Browser, site: Site) -> None:
    visitor = visit(chromium, site.url)
    page = visitor.open("/runs/digits")
    settled(page)
    known = page.locator(".stat-value").first.text_content()
    site.server.die()
    expect(page.locator(".banner")).to_contain_text("The federation server is unreachable since")
    expect(page.locator(".live")).to_have_text("○ server down")
    assert page.locator(".stat-value").first.text_content() == known, "the last known figures stay"
    visitor.shoot("server-down")
    page.reload()
    expect(page.locator(".banner")).to_be_visible()
    expect(page.locator(".plot canvas")).to_have_count(9)
    site.server.start()
    expect(page.locator(".banner")).to_have_count(0)
    item = site.server.play_round(site.run)
    expect(page.locator(".events")).to_contain_text(f"Round {item.round} ")
    assert visitor.problems == []
    page.context.close()


def test_colours_follow_the_system_and_the_button_overrules_it(chromium: Browser, site: Site) -> None:
    page = visit(chromium, site.url, scheme="dark").page
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.get_by_role("button", name="Colours").click()
    assert page.evaluate(background) != dark
    page.reload()
    page.wait_for_selector("table.runs")
    assert page.evaluate(background) != dark, "the choice is remembered"
    page.get_by_role("button", name="Colours").click()
    assert page.evaluate(background) == dark
    page.context.close()


def test_charts_and_maps_can_be_read_with_the_keyboard_alone(chromium: Browser, site: Site) -> None:
    page = visit(chromium, site.url).open("/runs/digits")
    settled(page)
    page.locator(".plot").first.focus()
    page.keyboard.press("Home")
    expect(page.locator(".legend .where").first).to_have_text("round 1")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".legend .where").first).to_have_text("round 2")
    page.locator(".heat canvas").focus()
    page.keyboard.press("Home")
    expect(page.locator(".readout")).to_contain_text("buffer 0, round")
    page.context.close()


def test_a_suspected_buffer_names_its_members_and_weight_and_leads_to_its_round(chromium: Browser, site: Site) -> None:
    page = visit(chromium, site.url).open("/runs/digits")
    settled(page)
    number, buffer = next(
        (item.round, b) for item in site.run.rounds for b in item.buffers if set(b.members) & set(ATTACKERS) and b.opened
    )
    canvas, readout = page.locator(".heat canvas"), page.locator(".readout")
    canvas.focus()
    page.keyboard.press("Home")
    for _ in range(buffer.number):
        page.keyboard.press("ArrowDown")
    for _ in range(number - 1):
        page.keyboard.press("ArrowRight")
    told = f"buffer {buffer.number}, round {number}: suspected, distance {buffer.distance:#.3g}, weight 0.040, members "
    expect(readout).to_contain_text(told + ", ".join(buffer.members))
    frame = canvas.bounding_box()
    assert frame is not None
    page.mouse.move(frame["x"] + 3, frame["y"] + 18 * 4 + 9)
    expect(readout).to_contain_text("buffer 4, round 1:")
    expect(readout).to_contain_text("members " + ", ".join(site.run.rounds[0].buffers[4].members))
    readout.get_by_role("link").click()
    expect(page.get_by_role("heading", name="Round 1 applied")).to_be_visible()
    expect(page.get_by_text("no earlier round")).to_be_visible()
    page.get_by_role("link", name="Next round 2").click()
    expect(page.get_by_role("heading", name="Round 2 applied")).to_be_visible()
    page.get_by_role("link", name="Previous round 1").click()
    expect(page.get_by_role("heading", name="Round 1 applied")).to_be_visible()
    page = visit(chromium, site.url).open("/runs/digits")
    page.locator(".heat canvas").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Round 1 applied")).to_be_visible()
    page.go_back()
    page.locator(".waterfall").get_by_role("link").first.click()
    expect(page.get_by_role("heading", name=f"Round {len(site.run.rounds)} ")).to_be_visible()
    page.go_back()
    page.locator(".events").get_by_role("link", name="Open round").first.click()
    expect(page.locator(".neighbours")).to_be_visible()
    for context in chromium.contexts:
        context.close()


def test_charts_run_by_round_or_by_the_time_of_the_day_and_the_choice_is_kept(chromium: Browser, site: Site) -> None:
    page = visit(chromium, site.url).open("/runs/digits")
    settled(page)
    where = page.locator(".legend .where").first
    last = site.run.rounds[-1]
    expect(where).to_have_text(f"latest: round {last.round}")
    page.get_by_label("by time").check()
    ended = datetime.fromtimestamp(last.started_at + sum(last.phase_seconds), UTC)
    expect(where).to_have_text(f"latest: round {last.round}, {ended:%Y-%m-%d %H:%M} UTC")
    assert painted(page) == [True] * 10
    page.reload()
    expect(where).to_contain_text("UTC")
    page.get_by_label("by round").check()
    expect(where).to_have_text(f"latest: round {last.round}")
    page.context.close()


def test_an_admin_tags_a_run_and_finds_it_by_its_tag(chromium: Browser, site: Site) -> None:
    page = visit(chromium, site.url).open("/runs/digits-mean")
    page.get_by_role("button", name="Add tags").click()
    page.get_by_label("Tags, separated by spaces").fill("baseline, two<words>")
    page.get_by_role("button", name="Save tags").click()
    expect(page.get_by_role("alert")).to_contain_text("one word of at most 40")
    page.get_by_label("Tags, separated by spaces").fill("baseline night")
    page.get_by_role("button", name="Save tags").click()
    expect(page.get_by_role("list", name="Tags").locator("li")).to_have_text(["baseline", "night"])
    page = visit(chromium, site.url).page
    page.get_by_role("button", name="baseline").click()
    expect(page.locator("table.runs tbody .main-cell a")).to_have_text(["digits-mean"])
    page = visit(chromium, site.url, token=VIEWER).open("/runs/digits-mean")
    expect(page.get_by_role("list", name="Tags").locator("li")).to_have_count(2)
    expect(page.get_by_role("button", name="tags")).to_have_count(0)
    for context in chromium.contexts:
        context.close()


def test_runs_are_found_by_any_of_their_words(chromium: Browser, site: Site) -> None:
    page = visit(chromium, site.url).page
    names = page.locator("table.runs tbody .main-cell a")
    everybody = names.count()
    page.get_by_label("Search runs").fill("geometric wait empty")
    expect(names).to_have_text(["empty"])
    expect(page.locator(".search")).to_contain_text(f"1 of {everybody} runs")
    page.get_by_label("Search runs").fill("no such words")
    expect(page.get_by_text("No run matches")).to_be_visible()
    page.get_by_label("Search runs").fill("")
    expect(names).to_have_count(everybody)
    page.context.close()


def test_an_admin_pauses_and_resumes_with_a_reason(chromium: Browser, site: Site) -> None:
    page = visit(chromium, site.url).open("/runs/digits")
    page.get_by_role("button", name="Pause").click()
    page.get_by_label("Reason, shown to everyone").fill("changing a disk")
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.locator(".page-head .state")).to_contain_text("paused")
    expect(page.locator(".page-head")).to_contain_text("changing a disk")
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(page.locator(".page-head .state")).to_contain_text("running")
    page.context.close()


@pytest.fixture
def looking(site: Site) -> Iterator[str]:
    """A dashboard whose own certificate has the role viewer, for admins too."""
    with serving(settings_for(site.server.address), insecure(site.server.address, may_act=False)) as url:
        yield url


def test_a_dashboard_that_cannot_sign_says_so_and_shows_the_commands_to_copy(chromium: Browser, site: Site, looking: str) -> None:
    visitor = visit(chromium, looking)
    page = visitor.open("/runs/digits")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Roll back, amend").click()
    dialog, server = page.get_by_role("dialog"), f"--server {site.server.address}"
    expect(dialog).to_contain_text("This dashboard's own certificate has the role viewer")
    expect(dialog).to_contain_text("Kept versions: 0.")
    visitor.shoot("signed")
    dialog.get_by_role("button", name="Copy: rollback").click()
    expect(dialog.get_by_role("button", name="Copied: rollback")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == f"fedrep run rollback digits --to 0 {server}"
    dialog.get_by_role("button", name="Copy: amend").click()
    expect(dialog.get_by_role("button", name="Copied: amend")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == f"fedrep run amend digits --add SILO --remove SILO {server}"
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)
    page = visitor.open("/new")
    expect(page.locator(".empty")).to_contain_text("fedrep run create --config run.toml --model init.safetensors")
    assert visitor.problems == []
    page.context.close()


def test_without_a_clipboard_the_command_is_selected(chromium: Browser, site: Site, looking: str) -> None:
    """Browsers give one only to pages of HTTPS and of this machine."""
    page = visit(chromium, looking).open("/runs/digits/silos")
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.get_by_role("button", name="Roll back, amend").click()
    expect(page.get_by_text("Kept versions")).to_be_visible()
    page.get_by_role("button", name="Copy: rollback").click()
    expect(page.get_by_role("button", name="Press Ctrl-C: rollback")).to_be_visible()
    wanted = f"fedrep run rollback digits --to 0 --server {site.server.address}"
    assert page.evaluate("getSelection().toString()") == wanted
    page.context.close()


def test_an_admin_excludes_and_readmits_a_silo(chromium: Browser, site: Site) -> None:
    page = visit(chromium, site.url).open("/runs/digits/silos")
    page.get_by_role("button", name="Exclude silo-05").click()
    page.get_by_role("dialog").get_by_role("button", name="Exclude").click()
    expect(page.locator("tr", has_text="silo-05").locator(".state")).to_contain_text("excluded")
    page.get_by_role("button", name="Readmit silo-05").click()
    expect(page.get_by_role("dialog")).to_contain_text("from the next roster on")
    page.get_by_role("dialog").get_by_role("button", name="Readmit").click()
    expect(page.locator("tr", has_text="silo-05").locator(".state")).to_contain_text("present")
    page.context.close()


def test_a_run_is_created_from_the_form_once_the_preflight_is_content(chromium: Browser, site: Site) -> None:
    """The form begins with what the newest run has."""
    site.server.add(scripted_run("newest", private=6))
    page = visit(chromium, site.url).open("/new")
    button = page.get_by_role("button", name="Create run")
    expect(button).to_be_disabled()
    page.get_by_role("textbox", name="Name lower-case").fill("from-form")
    conclusion = page.locator(".conclusion")
    expect(conclusion).to_have_text("✓ This run can be created.")
    page.get_by_label("Record delta at most").fill("")
    expect(conclusion).to_contain_text("belong together")
    page.get_by_label("Record epsilon at most").fill("")
    expect(conclusion).to_contain_text("can be created")
    page.get_by_label("Byzantine silos at most").fill("4")
    expect(conclusion).to_contain_text("With f = 4 and s = 2 you need")
    expect(page.locator(".facts")).to_contain_text("lower f")
    expect(button).to_be_disabled()
    page.get_by_role("button", name="Set byzantine_count = 2").click()
    expect(page.get_by_label("Byzantine silos at most")).to_have_value("2")
    expect(button).to_be_enabled()
    button.click()
    page.get_by_role("dialog").get_by_role("button", name="Sign and create").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("from-form")
    expect(page.locator(".empty").first).to_contain_text("fedrep client --config client.toml")
    page.context.close()


def test_an_unknown_run_and_an_empty_run_say_what_to_do(chromium: Browser, site: Site) -> None:
    visitor = visit(chromium, site.url)
    visitor.page.goto(site.url + PAGES["unknown"])
    expect(visitor.page.get_by_role("alert")).to_contain_text("There is no run 'nobody'")
    page = visitor.open("/runs/empty")
    expect(page.locator(".empty").first).to_contain_text("fedrep client --config client.toml")
    page.context.close()


def test_nothing_is_offered_or_said_that_makes_no_sense_for_one_run_or_a_run_that_is_over(chromium: Browser, site: Site) -> None:
    visitor = visit(chromium, site.url)
    page = visitor.open("/compare?run=digits")
    expect(page.get_by_text("Choose another run above")).to_be_visible()
    page = visitor.open("/runs/digits-mean/silos")
    expect(page.locator("table.cards tbody tr")).to_have_count(10)
    expect(page.get_by_role("link", name="Clone")).to_be_visible()
    expect(page.get_by_role("button", name="Exclude")).to_have_count(0)
    expect(page.get_by_role("button", name="Roll back, amend")).to_have_count(0)
    page.context.close()


def test_a_figure_that_cannot_be_fetched_says_so_instead_of_loading_for_ever(chromium: Browser, site: Site) -> None:
    page = visit(chromium, site.url).page
    for pattern in ("**/digits/buffers?*", "**/digits/attendance?*", "**/digits/silos"):
        page.route(f"{pattern}", lambda route: route.abort() if "/api/" in route.request.url else route.continue_())
    page.goto(site.url + "/runs/digits")
    expect(page.get_by_role("alert")).to_contain_text("The dashboard itself does not answer")
    page.goto(site.url + "/runs/digits/silos")
    expect(page.get_by_role("alert")).to_have_count(2)
    expect(page.get_by_text("Loading…")).to_have_count(0)
    page.context.close()


def test_of_many_silos_records_the_largest_are_drawn_and_the_others_lie_in_a_band(chromium: Browser, site: Site) -> None:
    site.server.add(scripted_run("many", silos=12, private=11), 5)
    page = visit(chromium, site.url).open("/runs/many")
    settled(page)
    card = page.locator(".card", has=page.get_by_role("heading", name="Record epsilon"))
    expect(card.locator(".legend li")).to_have_count(8 + 2)
    expect(card).to_contain_text(f"all silos, least to most {math.ceil(50 * math.sqrt(5)) / 100:.2f} to 2.24")
    expect(card).not_to_contain_text("silo-03")
    expect(card).to_contain_text("The 8 largest are drawn one by one.")
    page.context.close()


def test_a_run_that_stands_still_says_whom_it_waits_for_and_is_not_green(chromium: Browser, site: Site) -> None:
    run = scripted_run("stalled")
    lost = pb.WaitedSilo(name="silo-04", reason="connection lost", since=1.7e9)
    waited = pb.Waiting(what="silos", silos=[pb.WaitedSilo(name="silo-03")], without=[lost], until=4e9, since=1.7e9)
    run.summary.waiting.CopyFrom(waited)
    site.server.add(run, 3)
    visitor = visit(chromium, site.url)
    page = visitor.open("/runs/stalled")
    settled(page)
    tile = page.locator(".stat", has_text="Round").first
    expect(tile).to_contain_text("waiting for silo-03, ")
    expect(page.locator(".page-head .state")).to_contain_text("running")
    run.summary.waiting.standing_still = True
    site.server.play_round(run)
    badge = page.locator(".page-head .state")
    expect(badge).to_contain_text("standing still")
    expect(badge).to_have_class(re.compile("warn"))
    told = page.locator(".standing-still")
    expect(told).to_contain_text("waiting for silo-03, ")
    expect(told).to_contain_text("going on without silo-04 (connection lost since")


def test_a_round_whose_details_are_no_longer_kept_says_so(chromium: Browser, site: Site) -> None:
    run = scripted_run("long-ago")
    site.server.add(run, 4)
    for item in run.rounds[:2]:
        item.ClearField("silos")
        item.ClearField("buffers")
    visitor = visit(chromium, site.url)
    page = visitor.open("/runs/long-ago/rounds/1")
    expect(page.locator(".empty", has_text="No longer kept")).to_contain_text("retention.details_days")
    expect(page.get_by_text("No buffer was formed")).to_have_count(0)
    page = visitor.open("/runs/long-ago/rounds/3")
    expect(page.get_by_role("heading", name="Silos of this round")).to_be_visible()
    expect(page.get_by_text("No longer kept")).to_have_count(0)
    page = visitor.open("/runs/long-ago")
    settled(page)
    assert visitor.problems == []
    page.context.close()
