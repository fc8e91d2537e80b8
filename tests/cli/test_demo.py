"""The demo as a person meets it: impossible settings, what it shows, and that nothing is left behind, however it ends."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedrep.errors import FedrepError
from fedrep.protocol.preflight import preflight
from fedrep.wire.v1 import observer_pb2 as pb
from fedrep_cli import demo
from fedrep_cli import free_ports as free_ports_module
from fedrep_cli.demo_settings import DemoSettings
from fedrep_cli.demo_view import picture
from fedrep_cli.free_ports import free_ports
from fedrep_cli.main import main
from fedrep_cli.processes import Processes, orderly_end
from fedrep_identity.settings import AuthoritySettings
from tests.cli.endings import descendants, until_ended
from tests.harness.processes import python

DEMO = [sys.executable, "-m", "fedrep_cli.main", "demo"]
IN_TWO_THREADS = """
import sys, threading
from fedrep_cli.main import main

threading.Thread(target=threading.Event().wait, daemon=True).start()
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--silos", "4", "--byzantine", "1"],
            "with f = 1 and s = 2 you need 8 silos; you have 4: take --silos 8, or take --byzantine 0",
        ),
        (["--silos", "3"], "you need 4 silos; you have 3: take --silos 4, or take --aggregator mean"),
        (
            ["--buffer-size", "9"],
            "you need 18 silos; you have 10: take --silos 18, or take --buffer-size 5, or take --aggregator",
        ),
        (["--silos", "8", "--attack", "minmax"], "take more attackers"),
        (["--silos", "8", "--attack", "minmax"], "(for 2 take --silos 10)"),
        (["--silos", "20", "--attack", "alie"], "take more attackers, fewer silos, or the option z"),
        (["--attack", "nonfinite", "--attack-option", "kind=nan"], "use the option kind = 'huge'"),
        (["--attack", "foe", "--attack-option", "z=1"], "the attack 'foe' has no option 'z'; it has epsilon"),
        (["--attack", "nonsense"], "there is no attack 'nonsense' to drill; choose one of alie, bitflip,"),
        (["--aggregator", "nonsense"], "aggregator 'nonsense' is unknown: choose one of centered_clipping,"),
        (["--dataset", "nonsense"], "there is no dataset 'nonsense'; choose one of digits, fashion_mnist, cifar10"),
        (["--dataset", "fashion_mnist"], "needs data_dir"),
        (["--dataset", "cifar10", "--data-dir", "/nowhere"], "'/nowhere' is not a folder"),
        (["--rounds", "0"], "Invalid value for '--rounds'"),
        (["--silos", "1"], "Invalid value for '--silos'"),
        (["--alpha", "2"], "Invalid value for '--alpha'"),
        (["--drop-rate", "3"], "Invalid value for '--drop-rate'"),
        (["--drop-rate", "0.5"], "leaves fewer than the quorum of 7 silos; take 0.3 at most"),
    ],
)
def test_impossible_settings_are_one_line_before_anything_starts(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--exit", "--folder", str(tmp_path / "demo"), *arguments]) in (1, 2)
    output = capsys.readouterr()
    assert said in output.err
    assert output.err.count("\n") == 1
    assert output.out == ""
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize(
    ("given", "attackers", "remark"),
    [
        ({}, 2, ""),
        ({"silos": 8}, 1, "8 silos in buffers of 2 withstand 1 attacker (for 2 take --silos 10)"),
        ({"silos": 4}, 0, "4 silos in buffers of 2 withstand no attacker, so nobody attacks (for 2 take --silos 10)"),
        ({"silos": 5}, 0, "5 silos in buffers of 2 withstand no attacker, so nobody attacks (for 2 take --silos 10)"),
        ({"silos": 7}, 0, "7 silos in buffers of 2 withstand no attacker, so nobody attacks (for 2 take --silos 10)"),
        ({"buffer_size": 3}, 0, "10 silos in buffers of 3 withstand no attacker, so nobody attacks (for 2 take --silos 15)"),
        ({"buffer_size": 4}, 0, "10 silos in buffers of 4 withstand no attacker, so nobody attacks (for 2 take --silos 20)"),
        ({"buffer_size": 5}, 0, "10 silos in buffers of 5 withstand no attacker, so nobody attacks (for 2 take --silos 25)"),
        ({"silos": 4, "aggregator": "mean"}, 1, ""),
    ],
)
def test_too_few_silos_for_the_usual_attackers_play_with_as_many_as_they_withstand(
    given: dict[str, Any], attackers: int, remark: str
) -> None:
    chosen, said = DemoSettings(compare=True, **given).settled(4810)
    assert (chosen.attackers, said) == (attackers, remark)
    assert preflight(chosen.manifest(chosen.aggregator, 4810)) == []


def test_the_live_picture_fits_eighty_columns_and_names_a_skipped_round() -> None:
    summary = pb.RunSummary(
        name="demo",
        state="running",
        round=58,
        rounds_planned=60,
        accuracy=0.9722,
        silos_present=10,
        silos_allowed=10,
        aggregator="geometric_median",
        bytes_up=2_234_567,
        bytes_down=4_567_890,
        epsilon_total=549.65,
    )
    applied = pb.Round(round=57, outcome="OUTCOME_APPLIED", accuracy=0.97, bytes_up=38_700, bytes_down=644_100, epsilon=9.161)
    skipped = pb.Round(round=58, outcome="OUTCOME_SKIPPED", reason="QUORUM")
    skipped.silos.add(silo="silo-01", status="dropped")
    text = io.StringIO()
    Console(file=text, width=80).print(picture(pb.GetRunResponse(summary=summary), [applied, skipped]))
    shown = text.getvalue()
    assert "…" not in shown
    assert "0.972" in shown
    assert re.search(r"58 .* 0 +1 +skipped: QUORUM", shown)
    assert "training record" not in shown
    summary.records.CopyFrom(pb.RecordTotals(epsilon=7.83401, delta=1e-5, reporting=10))
    text = io.StringIO()
    Console(file=text, width=80).print(picture(pb.GetRunResponse(summary=summary), []))
    assert "one training record: epsilon 7.835 at most, delta 1e-05" in text.getvalue()
    summary.records.without = 1
    text = io.StringIO()
    Console(file=text, width=80).print(picture(pb.GetRunResponse(summary=summary), []))
    assert "one training record: epsilon none, without guarantee at 1 of the silos" in text.getvalue()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux shows a process's children in /proc.")
@pytest.mark.parametrize(
    ("number", "moment", "least"),
    [
        (signal.SIGINT, "enrolling", 1),
        (signal.SIGTERM, "enrolling", 1),
        (signal.SIGKILL, "enrolling", 1),
        (signal.SIGINT, r"round \d\d+ of", 8),  # a line may tell of several rounds at once
        (signal.SIGKILL, r"round \d\d+ of", 8),
    ],
)
def test_a_demo_ended_at_any_moment_leaves_no_process_behind(
    number: signal.Signals, moment: str, least: int, tmp_path: Path
) -> None:
    """The moment is a line that it prints; when rounds are played, four silos, evaluator, server, authority and dashboard run."""
    small = ["--silos", "4", "--byzantine", "0", "--aggregator", "median", "--rounds", "500"]
    command = ["-m", "fedrep_cli.main", "demo", *small, "--folder", str(tmp_path / "demo")]
    with python(*command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert any(re.search(moment, line) for line in process.stderr)
        found = descendants(process.pid)
        process.send_signal(number)
        code = process.wait(120)
    assert len(found) >= least
    until_ended(found)
    assert code in (-number, 128 + number)


def test_a_child_that_will_not_end_is_killed_and_all_share_one_period_of_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stubborn = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    monkeypatch.setattr("fedrep_cli.processes.GRACE_SECONDS", 0.2)
    real = subprocess.Popen
    monkeypatch.setattr(
        "fedrep_cli.processes.subprocess.Popen", lambda _command, **rest: real([sys.executable, "-c", stubborn], **rest)
    )
    with Processes(tmp_path) as processes:
        for name in ("one", "two"):
            processes.start(name, [])
        pids = descendants(os.getpid())
        while not all("ready" in processes.last_words(name) for name in ("one", "two")):
            time.sleep(0.05)
    assert len(pids) >= 2
    assert not processes.running("one")
    assert not processes.running("two")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("started\nfedrep server: port 7443 is taken\nstopped\n", "fedrep server: port 7443 is taken"),
        ("started\nlistening\n", "listening"),
        ("", "it said nothing"),
    ],
)
def test_the_last_words_of_a_process_are_its_reason_and_none_of_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, words: str
) -> None:
    (tmp_path / "server.log").write_text("fedrep server: an error of yesterday\n")
    real = subprocess.Popen
    speaking = [sys.executable, "-c", f"import sys; sys.stdout.write({said!r}); sys.exit(1)"]
    monkeypatch.setattr("fedrep_cli.processes.subprocess.Popen", lambda _command, **rest: real(speaking, **rest))
    with Processes(tmp_path) as processes:
        processes.start("server", [])
        while processes.running("server"):
            time.sleep(0.01)
        with pytest.raises(FedrepError, match=f"server ended with code 1: {words}$"):
            processes.require("server")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_through_the_same_doors_as_ctrl_c(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as ending, orderly_end():
        signal.raise_signal(number)
    assert ending.value.code == 128 + number
    assert signal.getsignal(number) is before


def test_the_parts_of_a_demo_and_a_second_one_beside_it_get_different_ports() -> None:
    ports = free_ports(400)
    assert len(set(ports)) == 400
    with socket.create_server(("127.0.0.1", ports[0])):
        assert ports[0] not in free_ports(400)
    other = "from fedrep_cli.free_ports import free_ports; print(*free_ports(400))"
    second = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=True).stdout.split()
    assert not set(ports) & set(map(int, second)), "although nobody listens yet"


def test_a_port_that_was_given_is_not_given_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens on it yet."""
    monkeypatch.setattr(free_ports_module, "_own", deque())
    given = [port for _ in range(20) for port in (*free_ports(1), *free_ports(3))]
    assert len(set(given)) == 80


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells the range in /proc.")
def test_no_port_is_given_that_the_system_may_give_to_whoever_connects(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not any(low <= port <= high for port in free_ports(400))
    narrow = tmp_path / "range"
    narrow.write_text("1024 60999")  # no room below: better than none
    monkeypatch.setattr(free_ports_module, "_SYSTEM_RANGE", narrow)
    monkeypatch.setattr(free_ports_module, "_own", deque())
    assert len(set(free_ports(50))) == 50


def test_many_who_share_one_address_can_enrol_at_once_where_the_authority_says_so() -> None:
    limit = AuthoritySettings.model_validate({"enrolments_per_source": 14}).limits().enrol_per_source
    assert [limit.allows("127.0.0.1") for _ in range(15)] == [True] * 14 + [False]


def test_a_private_demo_says_what_a_training_record_has_cost(tmp_path: Path) -> None:
    small = ["--silos", "4", "--byzantine", "0", "--aggregator", "median", "--rounds", "3", "--private"]
    done = subprocess.run(
        [*DEMO, *small, "--exit", "--json", "--folder", str(tmp_path / "demo")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert 0 < result["record_epsilon"] <= result["record_budget"] == 8.0
    assert "everything that leaves this silo" in result["record_covers"]
    for silo in ("silo-01", "silo-04"):
        ledger = json.loads((tmp_path / "demo" / "ledger" / "demo" / silo / "records.json").read_text())
        assert 1 <= sum(charge["trainings"] for charge in ledger["charges"]) <= 3, "a round that was skipped sends the same again"


def test_a_small_demo_ends_by_itself_and_prints_one_object(tmp_path: Path) -> None:
    """Real processes throughout; stdout is a pipe, the links go to stderr, and each token is shown once."""
    small = ["--silos", "4", "--byzantine", "0", "--aggregator", "median", "--rounds", "3", "--alpha", "0", "--compare"]
    done = subprocess.run(
        [*DEMO, *small, "--exit", "--json", "--folder", str(tmp_path / "demo")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    wanted = {"final_accuracy", "rounds_applied", "rounds_skipped", "bytes_up", "bytes_down", "epsilon_total", "dashboard_url"}
    assert wanted <= result.keys()
    assert result["rounds_applied"] + result["rounds_skipped"] == 3
    assert result["traffic"]["sent"] <= result["bytes_up"] + result["bytes_down"]
    assert f"{result['traffic']['dense'] / result['traffic']['sent']:.1f}x less than dense" == result["traffic"]["sentence"]
    other = result["comparison"]
    assert (other["run"], other["aggregator"]) == ("demo-mean", "mean")
    assert other["rounds_applied"] + other["rounds_skipped"] == 3
    assert other["final_accuracy"] > 0.1
    assert result["epsilon_total"] == "none", "alpha = 0: no guarantee is never a number, nor a null that reads like one"
    assert (result["dashboard_url"], result["folder"]) == (None, str(tmp_path / "demo")), "one is gone, the other stays"
    shown = re.match(r"Dashboard: (\S+)\n", done.stderr)
    assert shown is not None
    tokens = re.findall(rf"{shown[1]}#token=(\S+)", done.stderr)
    assert len(tokens) == 2
    assert all((done.stdout + done.stderr).count(token) == 1 for token in tokens)


def test_a_demo_that_has_ended_names_nothing_that_is_gone(tmp_path: Path) -> None:
    result: dict[str, object] = {"dashboard_url": "http://127.0.0.1:1/", "folder": str(tmp_path), "final_accuracy": 0.5}
    assert demo.what_stays(result, None) == {"dashboard_url": None, "folder": None, "final_accuracy": 0.5}
    assert demo.what_stays(result, tmp_path)["folder"] == str(tmp_path)


def test_attackers_of_a_demo_act_together_in_a_folder_of_their_own(tmp_path: Path) -> None:
    """A silo's log says with how many it attacked: both, unless a busy machine made one miss a round.

    With a second thread, as on systems that cannot fork, every part is a plain new process.
    """
    small = ["--silos", "4", "--byzantine", "2", "--aggregator", "mean", "--attack", "minmax", "--rounds", "2"]
    done = subprocess.run(
        [sys.executable, "-c", IN_TWO_THREADS, "demo", *small, "--exit", "--folder", str(tmp_path / "demo")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "2 of 4 silos attacked with minmax." in done.stdout
    for silo, plays in {"silo-01": True, "silo-02": True, "silo-03": False, "silo-04": False}.items():
        said = (tmp_path / "demo" / "logs" / f"demo-{silo}.log").read_text().splitlines()
        lines = [json.loads(line) for line in said if line.startswith("{")]
        together = [line["attackers"] for line in lines if line["event"] == "drill"]
        assert 2 in together if plays else together == []
    assert (tmp_path / "demo" / "attackers" / "demo").is_dir()
