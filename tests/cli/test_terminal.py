"""Every command as its user sees it, in a terminal of 80 columns: help, tables, closed pipes, questions without an answer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from rich.console import Console

from fedrep.errors import SettingsError
from fedrep.wire.v1 import observer_pb2 as pb
from fedrep_cli import client
from fedrep_cli.client import AskedToStop, _until_asked_to_stop
from fedrep_cli.client_view import render_status
from fedrep_cli.findings import render_findings
from fedrep_cli.loading import load_command
from fedrep_cli.main import COMMANDS, main
from fedrep_cli.output import emit, folded
from fedrep_cli.run import _run_table, _runs_table
from fedrep_cli.run_costs import Costs, costs_text, figures
from fedrep_cli.server import _render_ledger
from fedrep_silo.config import PolicySettings, SiloSettings
from tests.harness.ports import ports

WIDTH = 80
FEDREP = [sys.executable, "-m", "fedrep_cli.main"]


def programs(words: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from programs((*words, name), inner)


ALL = [found for name, entry in COMMANDS.items() for found in programs((name,), load_command(entry.target))]


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))


def fits(text: str) -> bool:
    return all(len(line) <= WIDTH for line in text.splitlines())


@pytest.mark.parametrize(("words", "command"), ALL, ids=[" ".join(words) for words, _ in ALL])
def test_every_command_has_a_short_help_option_and_loses_no_word_of_its_help(
    words: tuple[str, ...], command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "-h"]) == 0
    short = capsys.readouterr()
    assert main([*words, "--help"]) == 0
    assert capsys.readouterr() == short
    assert fits(short.out)
    shown = "".join(short.out.split())
    for described in (command, *command.params, *getattr(command, "commands", {}).values()):
        told = (getattr(described, "help", None) or "").replace("Show this message and exit.", "")
        assert "".join((told.partition("\n\n")[0] if described is not command else told).split()) in shown
        assert all(option in short.out for option in getattr(described, "opts", ()) if option.startswith("-"))


def test_a_name_in_brackets_is_part_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "model", "--help"]) == 0
    assert "whose [trainer] makes" in " ".join(capsys.readouterr().out.split())


def test_the_first_help_fits_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert fits(capsys.readouterr().out)


PRINTING = [
    ["--help"],
    ["--version"],
    ["run", "--help"],
    ["lab", "list"],
    ["plan"],
    ["plan", "--json"],
    ["version"],
    ["completion", "bash"],
]


@pytest.mark.parametrize("words", PRINTING, ids=" ".join)
def test_a_reader_that_goes_away_is_no_news(words: list[str]) -> None:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen([*FEDREP, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=buffered) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 1


@pytest.mark.parametrize(
    "words",
    [
        ["plan"],
        ["plan", "--silos", "6", "--byzantine", "2"],
        ["plan", "--records", "5000", "--batch", "256", "--steps", "5", "--rounds", "300", "--epsilon", "8"],
        ["epsilon", "--d", "272474", "--k", "425", "--budget", "8", "--rounds", "100"],
        ["lab", "list"],
        ["version"],
    ],
    ids=" ".join,
)
def test_what_a_command_says_fits(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main(words)
    said = capsys.readouterr().out
    assert fits(said)
    assert "…" not in said


SUMMARY = {
    "name": "lungs-of-the-north-2026",
    "state": "running",
    "round": 1250,
    "rounds_planned": 10000,
    "rounds_skipped": 120,
    "accuracy": 0.97236,
    "silos_present": 28,
    "silos_allowed": 32,
    "bytes_up": 8_123_456_789,
    "bytes_down": 8_923_456_789,
    "epsilon_total": 123456.789,
}
SILO: dict[str, Any] = {
    "name": "university-hospital-of-the-far-north",
    "state": "sitting_out",
    "bytes_up": 123_456_789,
    "bytes_down": 223_456_789,
    "epsilon_total": 12345.678,
    "record_epsilon": 7.98765,
    "record_budget": 8.0,
    "record_delta": 1e-05,
    "problem": "the trainer raised ValueError: [3, 4] cannot be broadcast to (5,)",
}


def test_tables_of_runs_fit_and_cut_neither_headings_nor_figures(capsys: pytest.CaptureFixture[str]) -> None:
    emit({"runs": [SUMMARY, SUMMARY | {"name": "x" * 63}]}, False, _runs_table)
    listed = capsys.readouterr().out
    run = {"summary": SUMMARY | {"metrics": {"auroc": 0.5}}, "silos": [SILO], "models": [{"version": 7, "best": True}]}
    run |= {"suspicion": {"silos": [], "sentence": "", "caution": ""}, "traffic": {"sentence": "", "sent": 0, "dense": 0}}
    emit(run, False, _run_table)
    shown = capsys.readouterr().out
    for text in (listed, shown):
        assert fits(text)
        assert "…" not in text
        for word in ("running", "skipped", "accuracy", "1250/10000", "0.9724", "28/32", "8123/8923", "123456.790"):
            assert word in text
    assert SILO["name"] in "".join(shown.split())
    for word in ("sitting_out", "record epsilon", "7.988 of 8, delta 1e-05", SILO["problem"]):
        assert word in " ".join(shown.split())


def test_findings_fit_and_a_long_path_is_whole() -> None:
    path = "/var/lib/fedrep/" + "a-very-long-folder/" * 5
    rows = [
        {"check": "trainer: read-only input", "outcome": "failed", "text": f"in {path}[x]", "advice": "Correct it. " * 10},
        {"check": "clock", "outcome": "ok", "text": "fine", "advice": ""},
    ]
    console = Console(width=WIDTH, file=StringIO())
    console.print(render_findings({"findings": rows}))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert fits(text)
    assert f"{path}[x]" in "".join(text.split())
    assert "trainer: read-only input" in text


COPIED = "FEDREP_CLIENT__RUN=spring fedrep client check --config " + "a/long/path " * 5


def test_a_long_line_is_folded_under_its_own_beginning_and_a_command_is_not() -> None:
    text = folded("heading   " + "word " * 20 + "\n  - " + "item " * 20 + f"\n{COPIED}\n  {COPIED}", 40)
    lines = text.splitlines()
    assert lines[1].startswith(" " * 10 + "word")
    assert any(line.startswith("    item") for line in lines)
    assert lines[-2:] == [COPIED, f"  {COPIED}"]
    assert all(len(line) <= 40 for line in lines[:-2])


def test_what_programs_read_is_never_folded(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    emit({}, False, lambda _: "word " * 40, fold=False)
    assert capsys.readouterr().out.count("\n") == 1
    monkeypatch.delenv("COLUMNS")
    emit({}, False, lambda _: "word " * 40)
    assert capsys.readouterr().out.count("\n") == 1, "nor what goes into a pipe or a file"


def test_status_tells_times_and_figures_as_people_write_them() -> None:
    status = {"at": 1794866289.2, "seconds_ago": 0.1, "server_away": "connection refused", "away_since": 1794866280.5}
    status |= {"epsilon_total": 645.1825396, "reason": "", "metrics": {}, "running": True}
    status |= {"record_epsilon": "none", "train_loss": 0.123456789, "now": None}
    assert render_status(status).splitlines() == [
        "last sign of life: 2026-11-16 21:58:09 UTC (0.1 s ago)",
        "server out of reach: connection refused",
        "out of reach since: 2026-11-16 21:58:00 UTC",
        "epsilon of this run: 645.183",
        "this daemon is running: yes",
        "record epsilon: none",
        "train loss: 0.123457",
    ]


def test_a_check_of_the_server_prints_its_answer_and_no_log_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDREP_CA_PASSPHRASE", "an unusual sequence of words")
    assert main(["ca", "init", "lungs", "--folder", str(tmp_path / "ca")]) == 0
    certificate = ["server", "cert", "main", "--dns", "localhost", "--out", str(tmp_path / "credentials")]
    assert main([*certificate, "--folder", str(tmp_path / "ca")]) == 0
    done = subprocess.run([*FEDREP, "server", "--check"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("identity: server main\n")
    assert done.stderr == ""
    backup = subprocess.run([*FEDREP, "server", "backup", "b.tar"], cwd=tmp_path, capture_output=True, text=True)
    assert backup.stderr.count("\n") == 1, "there is no database yet, since a check makes none"
    assert backup.stderr.startswith("fedrep server")


def test_a_taken_port_of_the_dashboard_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fedrep_identity.authority import CertificateAuthority, issue_credentials
    from fedrep_identity.names import Identity, Role

    authority = CertificateAuthority.create(tmp_path / "ca", "lungs", "an unusual sequence of words")
    issue_credentials(authority, tmp_path / "credentials", Identity("eve", Role.VIEWER, "lungs"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = tmp_path / "dashboard.toml"
        settings.write_text(f'port = {taken.getsockname()[1]}\ncredentials = "{tmp_path / "credentials"}"\n')
        assert main(["dashboard", "--config", str(settings)]) == 1
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "another program uses the port" in captured.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["client", "init"], "a question stayed without an answer"),
        (["run", "delete", "spring", "--json"], "a question stayed without an answer"),
        (["ca", "init", "lungs"], "Set FEDREP_CA_PASSPHRASE, or give --passphrase-file"),
        (["init", "lungs"], "Set FEDREP_CA_PASSPHRASE, or give --passphrase-file"),
        (["enroll", "-"], "This is not an invitation"),
        (["join", "-"], "This is not an invitation"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.parametrize("closed", [False, True], ids=["empty", "closed"])
def test_a_question_that_nobody_can_answer_is_one_sentence(words: list[str], sentence: str, closed: bool, tmp_path: Path) -> None:
    shell = ["sh", "-c", 'exec "$@" <&-', "sh"] if closed else []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FEDREP_")}
    done = subprocess.run(
        [*shell, *FEDREP, *words, *(ports() if words[0] == "init" else [])],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        start_new_session=True,  # no terminal that could be asked instead
        check=False,
    )
    assert done.returncode == 1
    assert not done.stdout.strip(), "questions go to stderr"
    last = done.stderr.splitlines()[-1]
    assert sentence in last or (closed and "which is closed" in last)
    assert "Traceback" not in done.stderr


class Speaking:
    """A daemon in the middle of a round that never ends."""

    speaking = True
    status = {"round": 7, "phase": "submit"}  # noqa: RUF012 - never changed

    def __init__(self) -> None:
        self.connection = SimpleNamespace()
        self.left = False

    async def run(self) -> None:
        await asyncio.Event().wait()

    def stop(self) -> None:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)  # the person loses patience

    async def leave(self) -> None:
        self.left = True


def test_a_silo_that_is_asked_to_stop_says_what_it_waits_for_and_obeys_the_second_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    daemon: Any = Speaking()

    async def scenario() -> None:
        asked = AskedToStop()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, asked.hear)
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
        await _until_asked_to_stop(daemon, 1e6, asked, live=True)

    asyncio.run(scenario())
    assert daemon.left
    assert "Others count on this silo in round 7, which is now at 'submit'" in capsys.readouterr().err


def test_json_stays_one_line_whatever_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    json.loads(out)


def test_the_ledger_rounds_no_epsilon_down_and_tells_none_from_what_was_not_reported(capsys: pytest.CaptureFixture[str]) -> None:
    def line(epsilon: float | None, record_epsilon: float | None, record_none: bool) -> list[str]:
        row = {"run": "first", "silo": "a", "proposals": 3, "epsilon": epsilon, "deleted_at": None}
        emit({"spent": [row | {"record_epsilon": record_epsilon, "record_none": record_none}]}, False, _render_ledger)
        return [cell.strip() for cell in capsys.readouterr().out.splitlines()[3].strip("│").split("│")]

    assert line(12345.1231, 3.2001, record_none=False) == ["first", "a", "3", "12345.124", "3.201", ""]
    assert line(None, None, record_none=True)[3:5] == ["none", "none"]
    assert line(0.5, None, record_none=False)[3:5] == ["0.500", "not reported"]


def test_a_watched_round_tells_both_epsilons_of_now_and_asks_once_for_each() -> None:
    asked: list[str] = []
    now = pb.RunSummary(round=3, epsilon_total=1.5, records=pb.RecordTotals(epsilon=0.25, reporting=2))

    class Client:
        def call(self, method: str, _request: Any) -> pb.GetRunResponse:
            asked.append(method)
            return pb.GetRunResponse(summary=now)

    client: Any = Client()
    costs = Costs(client, "first")
    told = [costs.of(pb.Event(kind="round_applied", round=number)) for number in (1, 2, 3)]
    assert told == [{}, {}, {"epsilon_total": 1.5, "record_epsilon": 0.25}], "totals of now say nothing of rounds before"
    assert costs.of(pb.Event(kind="joined", round=3)) == {}
    assert asked == ["GetRun"] * 2, "the first round of the past, and the one of now"
    assert costs_text(told[2]) == "; epsilon so far 1.500 (most of any silo, in all its runs), 0.250 of a training record"
    now.records.without = 1
    now.ClearField("epsilon_total")
    assert figures(now) == {"epsilon_total": "none", "record_epsilon": "none"}
    assert figures(pb.RunSummary(epsilon_total=2.0)) == {"epsilon_total": 2.0}, "not reported is not none"


def test_a_spent_budget_lasts_for_no_more_rounds_and_never_for_fewer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from fedrep_cli import client_check

    monkeypatch.setattr(client_check, "_spent", lambda *_: 30.0)
    settings = SiloSettings(state=tmp_path, policy=PolicySettings(epsilon_budget=10.0))
    run = SimpleNamespace(parameters=400, coordinates=20, silos=("a", "b", "c", "d"), alpha=0.5, rounds=100)
    joined: Any = SimpleNamespace(run=SimpleNamespace(manifest=run), last_round=3)
    found = client_check._epsilon(settings, joined, "a")
    assert (found["outcome"], "lasts for 0 more rounds" in found["text"]) == ("warning", True)


def test_a_second_request_ends_the_goodbye_to_a_server_that_is_away() -> None:
    """In the middle of it, and if both came before."""
    goodbyes: list[str] = []

    class Idle(Speaking):
        speaking = False

        def stop(self) -> None:
            pass

        async def leave(self) -> None:
            goodbyes.append("begun")
            await asyncio.Event().wait()

    async def scenario(asked: AskedToStop, second: bool) -> None:
        asked.hear()
        if second:
            asked.hear()
        daemon: Any = Idle()
        task = asyncio.create_task(_until_asked_to_stop(daemon, 1e6, asked))
        while not goodbyes:
            await asyncio.sleep(0.01)
        if not second:
            asked.hear()
        await task

    for second in (False, True):
        goodbyes.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client, "LEAVE_SECONDS", 1e6)  # nobody waits that long: it hangs, or it ends at once
            patch.setattr(client, "HASTY_SECONDS", 0.01)
            asyncio.run(scenario(AskedToStop(), second))
        assert goodbyes == ["begun"]


def test_a_certificate_of_another_role_is_found_before_anything_is_done(tmp_path: Path) -> None:
    from fedrep_identity.authority import CertificateAuthority, issue_credentials
    from fedrep_identity.names import Identity, Role

    authority = CertificateAuthority.create(tmp_path / "ca", "lungs", "an unusual sequence of words")
    silo = issue_credentials(authority, tmp_path / "credentials", Identity("hospital-a", Role.SILO, "lungs"))
    client.check_role(SiloSettings(credentials=tmp_path / "credentials"), silo)
    settings = SiloSettings(credentials=tmp_path / "credentials", role="evaluator")
    with pytest.raises(SettingsError, match=r'role = "evaluator" in the settings, but .* is for the role of silo'):
        client.check_role(settings, silo)
    with pytest.raises(SettingsError, match='Set role = "silo"'):
        asyncio.run(client._play(settings, False, AskedToStop()))


def test_advice_about_the_lines_above_is_given_where_there_are_some() -> None:
    from fedrep_cli.client_check import _not_answered
    from fedrep_runtime.status import _BY_STATUS

    refused = _BY_STATUS[grpc.StatusCode.NOT_FOUND]("there is no run named 'x' here; known runs: none yet", reason="UNKNOWN_RUN")
    assert 'set run = "*" to wait for any run' in _not_answered("run", refused)["advice"]
    left_out = _BY_STATUS[grpc.StatusCode.PERMISSION_DENIED]("not on the list", reason="NOT_LISTED")
    assert _not_answered("run", left_out)["advice"] == ""
    assert _not_answered("run", TimeoutError())["advice"] == "Start with the lines above."


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"trainer": "trainer:build"}, "--trainer trainer:build where it has user_code = 'trainer:nix' under"),
        ({"part": (1, 4)}, "--part 1/4 where it has shard_index = 1 and shard_count = 4 under"),
        ({"run": "other"}, "--run other where it has run = 'first-run'"),
    ],
)
def test_options_that_settings_contradict_are_refused_and_the_same_again_are_not(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    from fedrep_cli.join import _check_options

    path = tmp_path / "client.toml"
    path.write_text(client.silo_toml("localhost:1", "first-run", "silo", Path("credentials"), "trainer:nix", (2, 4)))
    _check_options(path, "trainer:nix", (2, 4), "first-run")
    nothing: dict[str, Any] = {"trainer": None, "part": None, "run": None}
    _check_options(path, **nothing)
    with pytest.raises(SettingsError) as caught:
        _check_options(path, **(nothing | options))
    assert said in str(caught.value)
