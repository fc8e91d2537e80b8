"""Ten seconds in a real browser: sign in, see a run, watch a round arrive."""

from __future__ import annotations

from playwright.sync_api import Browser, expect

from tests.browser.conftest import Site, visit


def test_a_person_signs_in_opens_a_run_and_sees_the_next_round_arrive(chromium: Browser, site: Site) -> None:
    visitor = visit(chromium, site.url)
    page = visitor.page
    assert "token" not in page.url, "the token must not stay in the address"
    page.locator("table.runs").get_by_role("link", name="digits", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("digits")
    expect(page.locator(".plot canvas")).to_have_count(9)
    expect(page.locator(".events li").first).to_contain_text("Round 46")
    site.server.play_round(site.run)
    expect(page.locator(".stat", has_text="Round").locator(".stat-value").first).to_have_text("47")
    assert visitor.problems == []
    assert visitor.foreign == []
    page.context.close()
