"""The operator's commands as processes, and how a silo connects, renews and leaves."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import re
import signal
import subprocess
import sys
import threading
import tomllib
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import structlog
import torch
from rich.console import Console
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from fedrep.errors import CryptoError
from fedrep.privacy import shown
from fedrep.protocol.model_state import ModelState
from fedrep_cli.client import take_part
from fedrep_cli.client_view import phase_line, round_line, show_rounds
from fedrep_cli.main import main
from fedrep_cli.settings_file import commented_toml
from fedrep_identity.authority import certificate_request
from fedrep_identity.authority_server import Addresses, AuthorityServer
from fedrep_identity.certificates import Role
from fedrep_identity.enrolment import EnrolmentDesk
from fedrep_identity.folder import FederationAddresses
from fedrep_runtime.files import write_atomically
from fedrep_server.config import ServerSettings
from fedrep_silo.config import SiloSettings, load_silo_settings
from fedrep_silo.state import StateFolder
from fedrep_silo.status_file import read_status
from fedrep_silo.training import in_thread
from fedrep_trainers.settings import TrainerSettings
from tests.harness.federation import Federation, StubTrainer
from tests.harness.forward_proxy import proxy_to
from tests.harness.processes import REPOSITORY, run_scenario, start_process


async def fedrep(*arguments: str) -> tuple[int, Any]:
    """Exit code and JSON answer of a command in a process of its own."""

    def call() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fedrep_cli.main", *arguments, "--json"]
        return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)

    done = await in_thread(call)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_init_asks_for_what_it_was_not_told_and_writes_settings_that_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("typer.prompt", lambda text, default=None, **_: {"Run to take part in": "spring"}.get(text, default))
    path = tmp_path / "silo" / "client.toml"
    assert main(["client", "init", str(path), "--folder", str(tmp_path / "keys"), "--trainer", "hospital:build"]) == 0
    settings = load_silo_settings(path, {})
    assert (settings.server, settings.run, settings.trainer.user_code) == ("localhost:8550", "spring", "hospital:build")
    assert settings.credentials.resolve() == tmp_path / "keys"
    assert settings.state == path.parent / "state"
    assert settings.trainer.user_code_dir == path.parent
    assert "fedrep client check" in capsys.readouterr().out
    assert main(["client", "init", str(path), "--run", "x", "--server", "x:1", "--trainer", ""]) == 1, "never overwrites"


@pytest.mark.parametrize("settings", [SiloSettings, ServerSettings])
def test_every_commented_line_of_a_settings_file_may_be_uncommented(settings: type[Any]) -> None:
    text = commented_toml(settings, "Title.")
    uncommented = re.sub(r"(?m)^# (\w+ = )", r"\1", text)
    assert uncommented != text
    settings.model_validate(tomllib.loads(uncommented))


def test_relative_paths_start_at_the_settings_file(tmp_path: Path) -> None:
    path = tmp_path / "client.toml"
    path.write_text('run = "r"\nstate = "s"\n[trainer]\ndata_dir = "d"\n[policy]\nroster_file = "pins"\n')
    settings = load_silo_settings(path, {"FEDREP_CLIENT__CREDENTIALS": "/elsewhere"})
    assert (settings.state, settings.trainer.data_dir) == (tmp_path / "s", tmp_path / "d")
    assert (settings.policy.roster_file, settings.credentials) == (tmp_path / "pins", Path("/elsewhere"))


def test_a_round_is_one_calm_line() -> None:
    status = {"last_round": 7, "outcome": "applied", "reason": "", "train_loss": 0.25, "bytes_sent": 2048, "epsilon_left": 1.5}
    assert round_line(status) == "round 7  applied  loss 0.2500  2,048 bytes sent  epsilon left 1.50"
    assert round_line(status | {"epsilon_left": None, "epsilon_total": "none"}).endswith("epsilon spent none")
    assert round_line(status | {"epsilon_left": 1.509}).endswith("left 1.50"), "rounded towards less"
    private = status | {"record_epsilon": 0.40001, "record_budget": 8.0}
    assert round_line(private).endswith("epsilon left 1.50  records 0.401 of 8"), "and never shown smaller than it is"
    assert phase_line({"round": 8, "phase": "training"}) == "round 8: training"


def test_an_operator_checks_runs_looks_back_and_leaves(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, silos=3)
    config = federation.write_client_toml(0)

    async def scenario() -> None:
        async with federation.serving():
            code, report = await fedrep("client", "check", "--config", str(config))
            found = {row["check"]: row for row in report["findings"]}
            assert (code, found["run"]["outcome"]) == (1, "failed"), "there is no run yet"
            assert found["trainer: repeatable"]["outcome"] == "ok"
            await federation.create_run(rounds=2)
            code, report = await fedrep("client", "check", "--config", str(config))
            assert code == 0, report
            found = {row["check"]: row for row in report["findings"]}
            assert {"TLS", "certificate", "one training", "model of the run", "policy", "epsilon"} <= set(found)
            assert found["records"]["outcome"] == "warning", "this trainer states nothing"
            silo = federation.start_silo_process(0)
            others = [asyncio.create_task(federation.daemon(number).run()) for number in (1, 2)]
            assert await silo.wait() == 0, silo.log.read_text()
            await asyncio.gather(*others)
            _, status = await fedrep("client", "status", "--config", str(config))
            assert (status["last_round"], status["model_version"], status["running"]) == (2, 2, False)
            assert status["phase"] == "run finished"
            assert status["record_epsilon"] == "none"
            assert status["epsilon_data_set"] == status["epsilon_total"]
            _, audit = await fedrep("client", "audit", "--round", "2", "--config", str(config))
            assert {"ProposeCoordinates", "SubmitMaskedShare"} <= {entry["what"] for entry in audit["entries"]}
            assert audit["bytes"] == sum(entry["bytes"] for entry in audit["entries"])
            _, left = await fedrep("client", "leave", "--purge", "--config", str(config))
            assert left == {"told_server": True, "purged": True, "why": ""}
            assert [path.name for path in federation.settings(0).state.iterdir()] == [".lock"]
            _, purged = await fedrep("client", "status", "--config", str(config))
            assert (purged["epsilon_total"], purged["epsilon_data_set"]) == (0.0, status["epsilon_data_set"])
            assert (await federation.status()).silos[0].state == "left"

    run_scenario(scenario())


def test_check_shows_red_what_does_not_fit_the_run(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, silos=3)
    config = federation.write_client_toml(
        0,
        policy={"least_alpha": 0.9},
        trainer={"user_code": "stub_code:build", "user_code_dir": tmp_path, "options": {"parameters": 100}},
    )

    async def scenario() -> None:
        async with federation.serving():
            await federation.create_run()
            code, report = await fedrep("client", "check", "--config", str(config))
            red = {row["check"]: row["text"] for row in report["findings"] if row["outcome"] == "failed"}
            assert code == 1
            assert set(red) == {"model of the run", "policy"}
            assert "200 parameters, this trainer 100" in red["model of the run"]
            assert "0.9" in red["policy"]

    run_scenario(scenario())


async def checked(config: Path) -> dict[str, dict[str, str]]:
    _, report = await fedrep("client", "check", "--config", str(config))
    return {row["check"]: row for row in report["findings"]}


def test_check_says_so_when_the_run_is_signed_by_an_admin_who_is_not_pinned(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, silos=3)
    trust, pins = federation.credentials("silo-0").trust_store(), tmp_path / "admins.txt"
    config = federation.write_client_toml(0, policy={"admins_file": pins})

    async def scenario() -> None:
        async with federation.serving():
            await federation.create_run()
            pins.write_text("00" * 32)
            found = (await checked(config))["run"]
            assert found["outcome"] == "failed"
            assert "'admin' is not among the admins this silo has pinned" in found["text"]
            pins.write_text(trust.verify(federation.credentials("admin").chain).fingerprint.hex())
            assert (await checked(config))["run"]["outcome"] == "ok"
            pins.write_text("the admin of spring")
            found = (await checked(config))["run"]
            assert (found["outcome"], "is not a key fingerprint" in found["text"]) == ("failed", True)

    run_scenario(scenario())


def test_check_refuses_a_memory_without_a_journal_and_counts_what_all_runs_over_the_data_have_cost(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, silos=3)
    ledger = tmp_path / "ledger of the data"
    config = federation.write_client_toml(0, ledger=ledger, policy={"epsilon_budget": 1000.0})
    other = federation.write_client_toml(0, "other", ledger=ledger, policy={"epsilon_budget": 1000.0})

    async def scenario() -> None:
        async with federation.serving():
            await federation.create_run(rounds=2)
            await federation.create_run("other", rounds=2, buffer_size=3)
            assert ", 0.000 spent" in (await checked(other))["epsilon"]["text"]
            await federation.run_silos([federation.daemon(0, ledger=ledger), *map(federation.daemon, (1, 2))])
            journal = federation.settings(0).state / "journal.json"
            spent = StateFolder(journal.parent).journal().ledger.total
            assert spent
            assert f", {shown(spent)} spent" in (await checked(other))["epsilon"]["text"], "by the first run, over the same data"
            found = await checked(config)
            assert (found["state folder"]["outcome"], f", {shown(spent)} spent" in found["epsilon"]["text"]) == ("ok", True)
            journal.unlink()
            found = await checked(config)
            assert found["state folder"]["outcome"] == "failed"
            assert "a memory and no journal" in found["state folder"]["text"]
            assert f", {shown(spent)} spent" in found["epsilon"]["text"], "what was lost with the journal is in the ledger"
            next(ledger.glob("silo-0-*.json")).write_text("{}")
            found = await checked(config)
            assert (found["epsilon"]["outcome"], "cannot be read" in found["epsilon"]["text"]) == ("failed", True)

    run_scenario(scenario())


def test_sigterm_leaves_politely_even_from_a_long_training(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, silos=3)
    endless = {"user_code": "stub_code:build", "user_code_dir": tmp_path, "options": {"number": 0, "seconds": 600}}

    async def scenario() -> None:
        async with federation.serving():
            await federation.create_run(rounds=1)
            silo = federation.start_silo_process(0, trainer=endless)
            others = [asyncio.create_task(federation.daemon(number).run()) for number in (1, 2)]
            status = federation.settings(0).state / "status.json"
            while not status.exists() or read_status(status)["phase"] != "training":
                assert silo.process.poll() is None, silo.log.read_text()
                await asyncio.sleep(0.1)
            silo.process.send_signal(signal.SIGTERM)
            assert await silo.wait() == 0
            assert (await federation.status()).silos[0].state == "left"
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    run_scenario(scenario())


def test_an_https_proxy_in_the_environment_is_honoured(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, silos=3)
    asked: list[str] = []

    async def scenario() -> None:
        async with federation.serving(), proxy_to(federation.port, asked) as port:
            await federation.create_run(rounds=1)
            config = federation.write_client_toml(0)
            log = config.with_suffix(".log")
            arguments = ["-m", "fedrep_cli.main", "client", "--config", str(config)]
            silo = start_process(arguments, log, {"HTTPS_PROXY": f"http://127.0.0.1:{port}", "NO_PROXY": ""})
            others = [asyncio.create_task(federation.daemon(number).run()) for number in (1, 2)]
            assert await in_thread(lambda: silo.wait(120)) == 0, log.read_text()
            await asyncio.gather(*others)
            assert (await federation.summary()).rounds_applied == 1
        assert asked
        assert {request.split("\r\n")[0] for request in asked} == {f"CONNECT {federation.address} HTTP/1.1"}

    run_scenario(scenario())


def test_a_renewed_certificate_is_used_without_a_restart_or_a_lost_round(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, silos=3)

    async def scenario() -> None:
        async with federation.serving():
            await federation.create_run(rounds=3)
            renewed = threading.Event()

            def until_it_is_renewed(round_number: int) -> None:
                assert renewed.wait(120)

            trainers = [StubTrainer(number, before_training=until_it_is_renewed) for number in range(3)]
            daemons = [federation.daemon(number, trainer=trainers[number]) for number in range(3)]
            running = asyncio.ensure_future(federation.run_silos(daemons))
            before = await federation.until(lambda status: status.open_round == 1)
            old = federation.credentials("silo-0")
            identity = old.identity
            assert identity.role is Role.SILO
            chain = federation.authority.sign(certificate_request(old.private_key), identity, 90)
            write_atomically(federation.identity_folder("silo-0") / "cert.pem", chain, 0o644)
            await daemons[0].connection.renew()
            renewed.set()
            await running
            after = await federation.status()
            assert after.summary.rounds_applied == 3
            assert after.silos[0].certificate_expires > before.silos[0].certificate_expires
            assert [row.silos[0].status for row in await federation.rounds()] == ["on_time"] * 3

    run_scenario(scenario())


def test_the_daemon_renews_its_certificate_by_itself_and_joins_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Federation.create(tmp_path, silos=3)
    folder = federation.identity_folder("silo-0")
    due = [dt.datetime.min.replace(tzinfo=dt.UTC)]  # the first certificate's two thirds are over, the next one's are not
    later = dt.datetime.max.replace(tzinfo=dt.UTC)
    monkeypatch.setattr("fedrep_identity.upkeep.renewal_time", lambda _: due.pop() if due else later)

    async def scenario() -> None:
        authority = AuthorityServer(EnrolmentDesk(federation.authority), Addresses("127.0.0.1", 0, 0, 0))
        await authority.start()
        certificates = f"127.0.0.1:{authority.certificate_port}"
        FederationAddresses("testers", federation.address, "", certificates).save(folder)
        before = (folder / "cert.pem").read_bytes()
        async with federation.serving():
            await federation.create_run(rounds=2)
            federation.write_client_toml(0)
            trainer = TrainerSettings(user_code="stub_code:build", user_code_dir=tmp_path)
            silo = asyncio.create_task(take_part(federation.settings(0, trainer=trainer)))
            while (folder / "cert.pem").read_bytes() == before:
                assert not silo.done()
                await asyncio.sleep(0.05)
            others = [asyncio.create_task(federation.daemon(number).run()) for number in (1, 2)]
            await asyncio.gather(silo, *others)
            assert (await federation.summary()).rounds_applied == 2
        await authority.stop(0)

    run_scenario(scenario())


def test_a_silo_that_is_told_to_wait_stays_idle_when_its_run_is_over_and_ends_when_asked(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, silos=3)

    async def scenario() -> None:
        async with federation.serving():
            await federation.create_run(rounds=1)
            federation.write_client_toml(0)
            trainer = TrainerSettings(user_code="stub_code:build", user_code_dir=tmp_path)
            settings = federation.settings(0, trainer=trainer).model_copy(update={"when_done": "wait"})
            with structlog.testing.capture_logs() as lines:
                silo = asyncio.create_task(take_part(settings))
                await asyncio.gather(*(federation.daemon(number).run() for number in (1, 2)))
                while "idle" not in [line["event"] for line in lines]:
                    assert not silo.done()
                    await asyncio.sleep(0.02)
            signal.raise_signal(signal.SIGTERM)
            await silo

    run_scenario(scenario())


def test_a_revoked_silo_stops_with_the_reason(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, silos=3)

    async def scenario() -> None:
        async with federation.serving():
            await federation.create_run(rounds=1)
            waiting = asyncio.create_task(federation.daemon(0).run())
            await federation.until(lambda status: status.silos[0].state == "present")
            federation.authority.revoke("silo-0")
            crl = (federation.authority.folder / "crl.pem").read_bytes()
            write_atomically(federation.identity_folder("server") / "crl.pem", crl, 0o644)
            with pytest.raises(CryptoError, match="revoked"):
                await waiting

    run_scenario(scenario())


def test_the_terminal_goes_on_with_the_next_run_of_a_silo_that_follows_runs() -> None:
    """Between two runs there is nobody to report, and the next one counts its rounds from the start."""

    def reported(run: str, over: int) -> SimpleNamespace:
        status = {"phase": f"in {run}", "last_round": over, "outcome": "applied", "bytes_sent": 1, "epsilon_total": 0.0}
        return SimpleNamespace(rounds_over=over, status=status)

    daemon, screen = SimpleNamespace(reports=reported("first", 5), status={"phase": "looking for a run"}), StringIO()

    async def scenario() -> None:
        view = asyncio.create_task(show_rounds(daemon, Console(file=screen, force_terminal=True, width=120)))  # type: ignore[arg-type]
        for reports, seen in ((daemon.reports, "in first"), (None, "looking for a run"), (reported("second", 1), "in second")):
            daemon.reports = reports
            while seen not in screen.getvalue():
                assert not view.done()
                await asyncio.sleep(0.02)
        view.cancel()
        await asyncio.gather(view, return_exceptions=True)

    asyncio.run(scenario())
    assert screen.getvalue().count("round 5  applied") == 1
    assert screen.getvalue().count("round 1  applied") == 1


def test_the_terminal_shows_each_finished_round_once() -> None:
    reports = SimpleNamespace(rounds_over=0, status={"phase": "training", "round": 1})
    screen, looks = StringIO(), list[None]()

    class Daemon:
        @property
        def reports(self) -> SimpleNamespace:
            looks.append(None)
            return reports

    async def scenario() -> None:
        daemon = Daemon()
        view = asyncio.create_task(show_rounds(daemon, Console(file=screen, force_terminal=True, width=120)))  # type: ignore[arg-type]
        while "round 1: training" not in screen.getvalue():
            await asyncio.sleep(0.02)
        daemon.reports.status |= {"problem": "no [/key] 5", "last_round": 1, "outcome": "applied"}
        daemon.reports.status |= {"bytes_sent": 10, "epsilon_total": 2.0}
        daemon.reports.rounds_over = 1
        while "problem: no" not in screen.getvalue():
            await asyncio.sleep(0.02)
        looked = len(looks)
        while len(looks) < looked + 5:  # two or more each time
            await asyncio.sleep(0.02)
        view.cancel()
        await asyncio.gather(view, return_exceptions=True)

    asyncio.run(scenario())
    assert screen.getvalue().count("round 1  applied  10 bytes sent  epsilon spent 2") == 1
    assert "round 1: training" in screen.getvalue()
    assert "problem: no [/key] 5" in screen.getvalue()


def test_a_silo_exports_its_model_by_name_without_asking_the_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, target = tmp_path / "client.toml", tmp_path / "model.safetensors"
    config.write_text('run = "digits"\n[trainer]\nmodel = "logistic"\nthreads = 1\n')
    export = ["client", "--config", str(config), "export", str(target)]
    assert main(export) == 1
    assert "it gets one when it joins its run" in capsys.readouterr().err
    vector = np.arange(650, dtype=np.float32)
    model = replace(ModelState.initial(vector), version=4)
    StateFolder(tmp_path / "state").save_model(model)
    assert main([*export, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["version"], said["hash"], said["format"]) == (4, model.hash.hex(), "safetensors")
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    module.load_state_dict(load_file(target))
    assert torch.equal(module.get_parameter("1.bias"), torch.arange(640.0, 650.0))
    with safe_open(target, "np") as file:
        assert (file.metadata()["fedrep.run"], file.metadata()["fedrep.version"]) == ("digits", "4")


@pytest.mark.parametrize(("role", "spends"), [("silo", True), ("evaluator", False)])
def test_only_who_trains_shows_what_was_spent(
    role: str, spends: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "client.toml"
    config.write_text(f'run = "digits"\nrole = "{role}"\n')
    assert main(["client", "--config", str(config), "status", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert ({"epsilon_total", "record_epsilon", "last_spoken_round"} & said.keys() != set()) == spends
    assert said["running"] is False
