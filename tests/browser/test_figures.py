"""Every figure on a page is the store's: what the server holds, written as people read it, compared with what Chromium shows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from fedrep import privacy, suspicion
from fedrep.communication import paper_bits
from fedrep.wire.v1 import observer_pb2 as pb
from fedrep_runtime.observed_rounds import against_dense, seated
from tests.browser.conftest import Site, visit
from tests.browser.figures import NONE, decimal, epsilon, percent, record, seconds, sized, span
from tests.browser.test_pages import settled
from tests.harness import dashboard_server
from tests.harness.dashboard_server import COORDINATES, ScriptedRun, finished_round, scripted_run


@pytest.fixture(scope="module")
def page(chromium: Browser, site: Site) -> Iterator[Page]:
    found = visit(chromium, site.url).page
    yield found
    found.context.close()


def shown(page: Page, site: Site, path: str) -> Page:
    page.goto(site.url + path)
    page.wait_for_selector("h1")
    settled(page)
    return page


def texts(rows: Locator) -> list[list[str]]:
    """A table's cells, line by line, with a line of its own for small print."""
    found: list[list[str]] = rows.evaluate_all(
        "rows => rows.map(r => [...r.children].map(c => c.innerText.replace(/\\s+/g, ' ').trim()))"
    )
    return found


def tiles(page: Page) -> dict[str, list[str]]:
    found: list[list[str]] = page.locator(".stat").evaluate_all(
        "all => all.map(s => [s.querySelector('dt'), ...s.querySelectorAll('dd span')].map(x => x.innerText))"
    )
    return {label: figures for label, *figures in found}


def optional(message: Any, name: str) -> float | None:
    return getattr(message, name) if message.HasField(name) else None


def legend(page: Page, title: str) -> dict[str, str]:
    """Label and value of each line of a chart, as its legend has them without a cursor."""
    card = page.locator(".card", has=page.get_by_role("heading", name=title, exact=True))
    found: list[list[str]] = card.locator(".legend li:has(b)").evaluate_all(
        "all => all.map(li => [li.innerText, li.querySelector('b').innerText])"
    )
    return {whole.removesuffix(value).strip(): value for whole, value in found}


def latest(run: ScriptedRun, name: str) -> float:
    return float(next(getattr(item, name) for item in reversed(run.rounds) if item.HasField(name)))


def test_the_overview_says_what_the_store_says_of_each_run(page: Page, site: Site) -> None:
    shown(page, site, "/")
    lines = {line[0].split()[0]: line for line in texts(page.locator("table.runs tbody tr"))}
    for name, run in site.server.runs.items():
        s = run.summary
        line = lines[name]
        skipped = f" {s.rounds_skipped} skipped" if s.rounds_skipped else ""
        best = f" best {percent(s.best_accuracy)}" if s.HasField("best_accuracy") else ""
        assert line[1] == {"running": "▶", "waiting": "…", "finished": "✓"}[s.state] + " " + s.state
        assert line[2] == f"{s.round} of {s.rounds_planned}{skipped}"
        assert line[3] == percent(optional(s, "accuracy")) + best
        assert line[4] == decimal(optional(s, "loss"))
        assert line[5] == f"{sized(s.bytes_up)} · {sized(s.bytes_down)}"
        budget = f" of {epsilon(s.epsilon_budget)}" if s.HasField("epsilon_budget") else ""
        spent = NONE if s.round == 0 else epsilon(optional(s, "epsilon_total"))
        assert line[6].startswith(spent + budget)
        assert line[6].endswith("records none") == bool(s.records.without)
        assert ("records" in line[6]) == bool(s.records.reporting)
        assert line[7] == f"{s.silos_present} of {s.silos_allowed}"
        alerts = sum(entry.event.severity == "alert" for entry in run.log)
        assert line[8] == (f"! {alerts}" if alerts else "none")


def test_the_runs_tiles_are_the_stores_figures(page: Page, site: Site) -> None:
    found = tiles(shown(page, site, "/runs/digits"))
    run, s, last = site.run, site.run.summary, site.run.rounds[-1]
    traffic = against_dense(run.answer, run.rounds)
    ended = last.started_at + sum(last.phase_seconds)
    rate = 20 / (ended - run.rounds[-20].started_at)
    left = (s.rounds_planned - s.round) / rate
    there = "the last round was skipped" if last.reason else f"{last.survivors} in the last round"
    assert found == {
        "Accuracy": [percent(s.accuracy), f"best {percent(s.best_accuracy)}"],
        "Loss": [decimal(s.loss)],
        "auroc": [decimal(s.metrics["auroc"])],
        "Round": [str(s.round), f"of {s.rounds_planned}, {s.rounds_skipped} skipped; propose in {s.round + 1} now"],
        "Time in rounds": [span(ended - run.rounds[0].started_at), f"{round(3600 * rate):,} rounds an hour, {span(left)} left"],
        "Silos": ["10 of 10", there],
        "Traffic, up and down": [sized(s.bytes_up + s.bytes_down), f"in rounds {sized(traffic.sent)}, {traffic.sentence}"],
        "Epsilon": [epsilon(s.epsilon_total), f"most of any silo, in all its runs; budget {epsilon(s.epsilon_budget)}"],
        "Record epsilon": ["none", f"no guarantee at 1; most of {s.records.reporting} others: {epsilon(s.records.epsilon)}"],
    }
    assert traffic.sent == sum(i.bytes_up + i.bytes_down for i in run.rounds)
    assert traffic.dense == run.answer.dense_bytes_per_silo_round * sum(i.proposed for i in run.rounds)


def test_no_guarantee_in_other_runs_is_none_beside_the_figures_of_this_one(page: Page, site: Site) -> None:
    run = scripted_run("spent-before")
    site.server.add(run, 3)
    run.summary.ClearField("epsilon_total")
    run.answer.silos[0].ClearField("epsilon_total")
    site.server.say(run, "joined", "silo-01 joined.", silo="silo-01")
    assert tiles(shown(page, site, "/runs/spent-before"))["Epsilon"] == ["none", "no guarantee"]
    said = "A silo has no guarantee in all its runs: another run over its data had alpha = 0."
    expect(page.locator(".card", has=page.get_by_role("heading", name="Epsilon in total"))).to_contain_text(said)
    expect(page.get_by_text("With alpha = 0 there is no guarantee")).to_have_count(0)
    shown(page, site, "/runs/spent-before/silos")
    assert [line[5] == "none" for line in texts(page.locator("table.cards tbody tr"))] == [True] + [False] * 9


def test_where_theorem_2_is_no_bound_the_pages_say_so(page: Page, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_one_coordinate(run: ScriptedRun) -> pb.Round:
        item = finished_round(run)
        item.epsilon = privacy.coordinate_epsilon(650, 1, 0.1) or math.nan
        item.epsilon_theorem2 = privacy.theorem2_epsilon(650, 1, 0.1) or math.nan
        return item

    monkeypatch.setattr(dashboard_server, "finished_round", of_one_coordinate)
    item = site.server.add(scripted_run("one-coordinate"), 3).rounds[-1]
    assert item.epsilon > item.epsilon_theorem2
    why = "too small: the theorem fails for k = 1 and this alpha"
    shown(page, site, "/runs/one-coordinate")
    for title in ("Epsilon per round", "Epsilon in total"):
        card = page.locator(".card", has=page.get_by_role("heading", name=title))
        expect(card).to_contain_text(f"Theorem 2 is {why}.")
    found = tiles(shown(page, site, "/runs/one-coordinate/rounds/3"))
    assert found["Epsilon of a proposal"] == [epsilon(item.epsilon), f"Theorem 2: {epsilon(item.epsilon_theorem2)} ({why})"]
    shown(page, site, "/runs/digits")
    expect(page.get_by_text(why)).to_have_count(0)


def test_more_than_dense_is_said_to_be_more_and_why(page: Page, site: Site) -> None:
    small = scripted_run("small")
    small.answer.dense_bytes_per_silo_round = 3600
    small.answer.manifest.manifest.coordinates = 20
    site.server.add(small, 5)
    told = tiles(shown(page, site, "/runs/small"))["Traffic, up and down"][1]
    sent = sum(i.bytes_up + i.bytes_down for i in small.rounds)
    more = sent / (3600 * sum(i.proposed for i in small.rounds))
    assert more > 1
    why = "too small a model for the fixed costs (keys, shares, signatures)"
    assert told == f"in rounds {sized(sent)}, {more:.1f}x more than dense: {why}"


def test_the_charts_latest_values_are_those_of_the_last_rounds(page: Page, site: Site) -> None:
    shown(page, site, "/runs/digits")
    run, last = site.run, site.run.rounds[-1]
    own = [item for item in run.rounds if item.silo_accuracy][-1]
    assert legend(page, "Accuracy") == {
        "evaluator": percent(latest(run, "accuracy")),
        "silos' median": percent(own.silo_accuracy[1]),
        "silos' own, least to most": f"{percent(own.silo_accuracy[0])} to {percent(own.silo_accuracy[2])}",
    }
    assert legend(page, "Loss") == {
        "evaluator": decimal(latest(run, "loss")),
        "silos' median": decimal(own.silo_loss[1]),
        "silos' own, least to most": f"{decimal(own.silo_loss[0])} to {decimal(own.silo_loss[2])}",
    }
    assert legend(page, "auroc") == {"evaluator": decimal(own.metrics["auroc"])}
    dense = run.answer.dense_bytes_per_silo_round
    formula = paper_bits(COORDINATES, 10) / 8
    assert legend(page, "Bytes per round") == {
        "up": sized(last.bytes_up),
        "down": sized(last.bytes_down),
        "paper's formula": sized(formula * last.proposed),
        "dense": sized(dense * last.proposed),
    }
    proposed, up, down = (sum(getattr(i, name) for i in run.rounds) for name in ("proposed", "bytes_up", "bytes_down"))
    assert legend(page, "Bytes in total") == {
        "up and down": sized(up + down),
        "up": sized(up),
        "down": sized(down),
        "paper's formula": sized(formula * proposed),
        "dense": sized(dense * proposed),
    }
    assert legend(page, "Epsilon per round") == {"exact": epsilon(last.epsilon), "Theorem 2": epsilon(last.epsilon_theorem2)}
    assert legend(page, "Epsilon in total") == {
        "exact": epsilon(sum(i.epsilon for i in run.rounds)),
        "Theorem 2": epsilon(sum(i.epsilon_theorem2 for i in run.rounds)),
    }
    assert legend(page, "Norm of the update") == {"norm": decimal(latest(run, "update_norm"))}
    assert legend(page, "Record epsilon") == {
        s.silo: epsilon(s.record_epsilon) for s in last.silos if s.HasField("record_epsilon")
    }
    bars = page.locator(".waterfall li")
    for index, item in enumerate(reversed(run.rounds[-12:])):
        expect(bars.nth(index).locator(".waterfall-round")).to_contain_text(str(item.round))
        expect(bars.nth(index).locator(".waterfall-total")).to_have_text(seconds(sum(item.phase_seconds)))


@pytest.mark.parametrize("number", [11, 23, 30])
def test_a_rounds_page_shows_that_round_and_no_other(page: Page, site: Site, number: int) -> None:
    """A round with a discarded buffer, a skipped one, and a plain one."""
    found = tiles(shown(page, site, f"/runs/digits/rounds/{number}"))
    item = site.run.rounds[number - 1]
    accuracy, loss = optional(item, "accuracy"), optional(item, "loss")
    assert found == {
        "Proposed": [f"{item.proposed} of {item.roster_size}", f"values of {item.survivors} in the sums"],
        "Coordinates agreed on": [str(item.consensus_size), "|I|"],
        "Sent up": [sized(item.bytes_up), f"down {sized(item.bytes_down)}"],
        "Dense would be": [
            sized(site.run.answer.dense_bytes_per_silo_round * item.proposed),
            "float32, up and down, who proposed",
        ],
        "Epsilon of a proposal": [epsilon(item.epsilon), f"Theorem 2: {epsilon(item.epsilon_theorem2)}"],
        "Norm of the update": [
            decimal(optional(item, "update_norm")),
            f"clipped {percent(item.clip_rate, 2)} at {decimal(item.clip_range)}",
        ],
        "Accuracy": [percent(accuracy), *([f"loss {decimal(loss)}"] if loss is not None else [])],
        "Model version": [str(item.model_version), f"the rule expected {item.tolerated} bad buffers at most"],
    }
    if item.reason:
        expect(page.get_by_text(f"Skipped: {item.reason}.", exact=True)).to_be_visible()
    buffers = page.locator(".card", has=page.get_by_role("heading", name="Buffers of this round"))
    far = suspicion.far_away({seat.number: seat.distance for seat in seated(item).seats})
    lines = [[cell.replace(" ⚑", "") for cell in line] for line in texts(buffers.locator("tbody tr"))]
    assert lines == [
        [
            str(b.number),
            ", ".join(b.members),
            f"△ discarded: {b.discarded}" if b.discarded else "! suspected" if b.number in far else "used",
            f"{b.survivors} of {len(b.members)}",
            f"{b.distance:#.3g}" if b.HasField("distance") else NONE,
            f"{b.weight:.3f}",
        ]
        for b in item.buffers
    ]
    silos = page.locator(".card", has=page.get_by_role("heading", name="Silos of this round"))
    seat = {member: str(b.number) for b in item.buffers for member in b.members}
    assert texts(silos.locator("tbody tr")) == [
        [
            s.silo,
            s.status.replace("_", " "),
            seat.get(s.silo, NONE),
            f"{sized(s.bytes_up)} · {sized(s.bytes_down)}",
            record(optional(s, "record_epsilon"), s.record_none),
        ]
        for s in item.silos
    ]
    assert page.locator(".phases .waterfall-total").all_text_contents() == [seconds(s) for s in item.phase_seconds]
    told = [entry.event.text for entry in site.run.log if entry.event.round == number]
    assert [line.strip() for line in page.locator(".events li > span:last-child").all_text_contents()] == told


def test_the_silos_page_shows_the_stores_rows_and_the_tally_of_all_rounds(page: Page, site: Site) -> None:
    shown(page, site, "/runs/digits/silos")
    run = site.run
    said = {entry.event.silo: entry.event.text for entry in run.log if entry.event.silo}
    lines = texts(page.locator("table.cards tbody tr"))
    for line, silo in zip(lines, run.answer.silos, strict=True):
        budget = f" of {epsilon(silo.record_budget)}" if silo.HasField("record_epsilon") else ""
        assert (line[0], line[1], line[3]) == (silo.name, "● present", silo.software_version)
        assert line[4:7] == [
            f"{sized(silo.bytes_up)} · {sized(silo.bytes_down)}",
            epsilon(silo.epsilon_total),
            record(optional(silo, "record_epsilon"), silo.record_none) + budget,
        ]
        assert line[8] == str(silo.strikes)
        assert line[9].endswith(said[silo.name])
    found = suspicion.standings((seated(item) for item in run.rounds), 1, over=False)
    total = sum(len(suspicion.far_away({s.number: s.distance for s in seated(item).seats})) for item in run.rounds)
    tally = texts(page.locator("table.tally tbody tr"))
    assert [line[:3] for line in tally] == [
        [
            f"! {one.silo}" if one.stands_out else one.silo,
            f"{one.suspected} of {one.judged}",
            f"{one.suspected} of {total}",
        ]
        for one in found
    ]
    assert [line[4].startswith("stands out: under 1 in") for line in tally] == [one.stands_out for one in found]
    assert [one.ratio >= following.ratio for one, following in pairwise(found)] == [True] * 9
    expect(page.get_by_text(suspicion.sentence(found))).to_be_visible()
    expect(page.get_by_text(suspicion.CAUTION)).to_be_visible()


def test_the_comparison_shows_both_runs_figures_side_by_side(page: Page, site: Site) -> None:
    names = ["digits", "digits-mean"]
    shown(page, site, "/compare?" + "&".join(f"run={name}" for name in names))
    runs = [site.server.runs[name] for name in names]
    lines = {line[0]: line[1:] for line in texts(page.locator("table.side-by-side tbody tr"))}
    both = [run.summary for run in runs]
    assert lines["accuracy now"] == [percent(s.accuracy) for s in both]
    assert lines["best accuracy"] == [percent(s.best_accuracy) for s in both]
    assert lines["rounds applied, skipped"] == [f"{s.rounds_applied}, {s.rounds_skipped}" for s in both]
    assert lines["traffic, up and down"] == [sized(s.bytes_up + s.bytes_down) for s in both]
    assert lines["epsilon in total"] == [epsilon(optional(s, "epsilon_total")) for s in both]
    assert lines["record epsilon, most of any silo"] == ["none", "not reported"]
    assert lines["alpha"] == ["0.5", "0"]
    assert lines["record epsilon at most"] == ["8", "not asked for"]
    assert legend(page, "Accuracy by the evaluator") == {
        name: percent(latest(run, "accuracy")) for name, run in zip(names, runs, strict=True)
    }
    assert legend(page, "Bytes in total") == {
        name: sized(sum(i.bytes_up + i.bytes_down for i in run.rounds)) for name, run in zip(names, runs, strict=True)
    }


def test_the_settings_are_those_of_the_signed_manifest_and_the_models_those_that_are_kept(page: Page, site: Site) -> None:
    shown(page, site, "/runs/digits")
    manifest, models = site.run.answer.manifest.manifest, site.run.answer.models
    found: dict[str, str] = dict(
        page.locator(".pairs > div").evaluate_all("all => all.map(d => [...d.children].map(c => c.innerText))")
    )
    deadlines = manifest.deadlines
    assert found == {
        "Aggregator": manifest.aggregator.replace("_", " "),
        "Aggregator's settings": "defaults",
        "Byzantine silos at most (f)": str(manifest.byzantine),
        "Colluding silos at most (c)": str(manifest.colluders),
        "Buffer size (s)": str(manifest.buffer_size),
        "New buffers every": "round",
        "Survivors to open a buffer": str(manifest.min_survivors),
        "Quorum": str(manifest.quorum),
        "Parameters (d)": f"{manifest.parameters:,}",
        "Coordinates (K)": f"{manifest.coordinates} ({percent(manifest.coordinates / manifest.parameters, 2)} of d)",
        "Obfuscation (alpha)": str(manifest.alpha),
        "Ring (B)": f"{manifest.ring_bits} bits",
        "Value (q)": f"{manifest.value_bits} bits",
        "Downlink": f"{manifest.downlink_bits} bits",
        "Deadlines": ", ".join(
            f"{phase} {getattr(deadlines, phase):g} s" for phase in ("propose", "submit", "confirm", "reveal")
        ),
        "Record epsilon at most": epsilon(manifest.record_epsilon_at_most),
        "Record delta at most": "1e-5",
    }
    kept = [" ".join(text.split()) for text in page.locator(".models li").all_text_contents()]
    assert kept == [f"version {model.version} {sized(model.size)}" for model in models]


def test_events_can_be_narrowed_to_one_silo_or_to_the_run_itself(page: Page, site: Site) -> None:
    shown(page, site, "/runs/digits")
    card = page.locator(".card", has=page.get_by_role("heading", name="Events"))
    for choice, silo in (("silo-04", "silo-04"), ("the run itself", "")):
        card.get_by_label("about").select_option(choice)
        told = [entry.event.text for entry in reversed(site.run.log) if entry.event.silo == silo][:60]
        lines = card.locator(".events li:not(.more) > span:last-child").all_text_contents()
        assert [line.split(" Open round")[0].strip() for line in lines] == told
