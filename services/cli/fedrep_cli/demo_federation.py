"""The demo's federation: every part a process of its own with its own certificate, enrolled over the network like a stranger."""

from __future__ import annotations

import random
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import grpc

from fedrep.errors import FedrepError, SettingsError
from fedrep.privacy import COVERS
from fedrep.protocol.model_state import model_hash
from fedrep.protocol.plan import slack
from fedrep.record_privacy import COVERS as RECORD_COVERS
from fedrep.wire.v1 import observer_pb2 as pb
from fedrep_cli.demo_drops import Drops
from fedrep_cli.demo_enrolment import enrol_all
from fedrep_cli.demo_reference import Reference
from fedrep_cli.demo_settings import PRIVACY, DemoSettings, silo_name
from fedrep_cli.demo_view import SHOWN_ROUNDS, DemoView
from fedrep_cli.epsilon import number_or_none
from fedrep_cli.free_ports import free_ports
from fedrep_cli.main import main
from fedrep_cli.nursery import Nursery, can_fork
from fedrep_cli.processes import Processes, orderly_end
from fedrep_cli.run_costs import figures
from fedrep_cli.run_view import reckoned
from fedrep_identity.authority import CertificateAuthority
from fedrep_identity.certificates import Credentials
from fedrep_identity.names import Identity, Role
from fedrep_runtime.observer_client import ObserverClient
from fedrep_runtime.run_config import sign_run
from fedrep_runtime.toml_text import toml_document
from fedrep_trainers.build import build_trainer
from fedrep_trainers.settings import TrainerSettings
from fedrep_trainers.trainer import Trainer

FEDERATION = "demo"
START_SECONDS = 180.0
POLL_SECONDS = 0.5
ANSWER_SECONDS = 0.05
SILOS_NEED = ("fedrep_cli.client", "fedrep_silo.daemon", "fedrep_silo.evaluator")


@contextmanager
def play(settings: DemoSettings, *, quiet: bool, services: Nursery | None = None) -> Iterator[dict[str, Any]]:
    """Plays the run (twice with `compare`) and yields the result while server and dashboard are still up.

    Where there is a nursery for the services, there will be one for the silos, with what this process has loaded until then.
    """
    settings.check()
    trainer = build_trainer(TrainerSettings(**settings.trainer(0)))
    settings, note = settings.settled(trainer.initial().size)
    with ExitStack() as stack:
        nurseries: dict[str, Nursery] = {}
        if services is not None and can_fork():  # before anything starts a thread
            nurseries = dict.fromkeys(("ca", "server", "dashboard"), services)
            nurseries["client"] = stack.enter_context(closing(Nursery(SILOS_NEED, main)))
        stack.enter_context(orderly_end())
        folder = (settings.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedrep-demo-")))).resolve()
        processes = stack.enter_context(Processes(folder / "logs", nurseries))
        view = stack.enter_context(DemoView(quiet))
        reference = stack.enter_context(Reference(settings))
        result = _Demo(settings, trainer, folder, processes, view, reference).run(note)
        view.stop()
        yield result


class _Demo:
    def __init__(
        self,
        settings: DemoSettings,
        trainer: Trainer,
        folder: Path,
        processes: Processes,
        view: DemoView,
        reference: Reference,
    ) -> None:
        self._settings = settings
        self._trainer = trainer
        self._folder = folder
        self._processes = processes
        self._view = view
        self._reference = reference
        listening = ("enrolment", "certificates", "server", "health", "metrics", "dashboard")
        self._ports = dict(zip(listening, free_ports(len(listening)), strict=True))
        self._server = f"localhost:{self._ports['server']}"
        self._tokens = {role: secrets.token_urlsafe(24) for role in ("admin", "viewer")}
        self._reported: set[str] = set()
        self._names = [silo_name(index) for index in range(settings.silos)]

    def run(self, note: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._ports['dashboard']}/"
        self._view.say(f"Dashboard: {url}")
        for role, token in self._tokens.items():
            self._view.say(f"  as {role:<6} {url}#token={token}")
        self._view.say(f"Logs:      {self._folder / 'logs'}")
        if note:
            self._view.say(f"Note: {note}")
        authority = self._start_authority()
        self._view.step("enrolling server, admin, dashboard, evaluator and silos")
        self._enrol_all(authority)
        self._start_server()
        self._view.step("waiting for the server")
        self._retry("server", lambda: self._client.call("ListRuns", pb.ListRunsRequest()))
        self._start_dashboard()  # only now, or its first page would say that the server is away
        result = self._play("demo", self._settings.aggregator)
        if self._settings.compare:
            result["comparison"] = self._play("demo-mean", "mean")
        return {
            **result,
            "silos": self._settings.silos,
            "byzantine": self._settings.attackers,
            "attack": self._settings.attack if self._settings.attackers else "",
            "central_accuracy": self._reference.accuracy(),
            "dashboard_url": url,
            "folder": str(self._folder),
        }

    def _start_authority(self) -> CertificateAuthority:
        self._view.step("starting the certificate authority")
        passphrase = secrets.token_urlsafe(24)
        authority = CertificateAuthority.create(self._folder / "ca", FEDERATION, passphrase)
        ports = ["--enrolment-port", str(self._ports["enrolment"]), "--certificate-port", str(self._ports["certificates"])]
        self._processes.start(
            "ca",
            ["ca", "serve", "--folder", str(authority.folder), *ports],
            # Everybody enrols from one address here, and may have to ask again.
            {"FEDREP_CA_PASSPHRASE": passphrase, "FEDREP_CA__ENROLMENTS_PER_SOURCE": str(2 * self._settings.silos + 20)},
        )
        return authority

    def _enrol_all(self, authority: CertificateAuthority) -> None:
        others = [("server", Role.SERVER), ("admin", Role.ADMIN), ("dashboard", Role.ADMIN), ("evaluator", Role.EVALUATOR)]
        people = [*others, *((name, Role.SILO) for name in self._names)]
        enrol_all(
            authority,
            [Identity(name, role, FEDERATION) for name, role in people],
            self._folder / "identities",
            enrolment_address=f"localhost:{self._ports['enrolment']}",
            server_address=self._server,
            still_there=lambda: self._processes.require("ca"),
            limit=time.monotonic() + START_SECONDS,
        )

    def _identity(self, name: str) -> Path:
        return self._folder / "identities" / name

    def _start_server(self) -> None:
        document = {
            "host": "127.0.0.1",
            "port": self._ports["server"],
            "health_port": self._ports["health"],
            "metrics_port": self._ports["metrics"],
            "data": str(self._folder / "server"),
            "credentials": str(self._identity("server")),
            "gather_seconds": 20.0,
            "log_json": True,
        }
        self._processes.start("server", ["server", "--config", str(self._write("server", document))])
        credentials = Credentials.load(self._identity("admin"))
        self._admin, self._client = credentials, ObserverClient(self._server, credentials.root, credentials.key_pair)

    def _start_dashboard(self) -> None:
        document = {
            "port": self._ports["dashboard"],
            "server": self._server,
            "credentials": str(self._identity("dashboard")),
            "admin_token": self._tokens["admin"],
            "viewer_token": self._tokens["viewer"],
        }
        self._processes.start("dashboard", ["dashboard", "--config", str(self._write("dashboard", document))])

    def _play(self, run: str, aggregator: str) -> dict[str, Any]:
        self._create_run(run, aggregator)
        settings = self._settings
        self._warn_of_drops(aggregator)
        attackers = f"{settings.attackers} attack with {settings.attack}" if settings.attackers else "none attacks"
        self._view.step(f"starting {settings.silos} silos ({attackers}) for run {run}, {aggregator}")
        for index in range(settings.silos):
            self._start_silo(run, index)
        self._start_evaluator(run)
        self._reference.start()
        self._watch(run)
        return self._result(run)

    def _warn_of_drops(self, aggregator: str) -> None:
        manifest = self._settings.run_config("demo", aggregator).manifest(self._trainer.layout.size, bytes(32), bytes(32))
        if manifest.byzantine and self._settings.drop_rate * self._settings.silos > slack(manifest).lost_buffers:
            self._view.say(
                f"Note: {manifest.byzantine} attackers and so many dropouts are more than {len(manifest.silos)} silos can stand; "
                "expect the accuracy to suffer. Fewer attackers, more silos or a lower drop rate leave slack (`fedrep plan`)."
            )

    def _create_run(self, run: str, aggregator: str) -> None:
        config = self._settings.run_config(run, aggregator)
        vector, layout = self._trainer.initial(), self._trainer.layout
        manifest = config.manifest(vector.size, bytes.fromhex(layout.digest), model_hash(vector))
        signed = sign_run(manifest, self._admin.identity.name, self._admin.chain, self._admin.signing_key)
        problems = self._client.create_run(signed, config.options(layout.described), vector).problems
        if problems:
            raise SettingsError("the server refuses the run: " + "; ".join(problems))

    def _silo_document(self, run: str, name: str, index: int) -> dict[str, Any]:
        return {
            "server": self._server,
            "run": run,
            "credentials": str(self._identity(name)),
            "state": str(self._folder / "state" / run / name),
            "ledger": str(
                self._folder / "ledger" / run / name
            ),  # a comparison plays the same data again, as if for the first time
            "evaluate_every": 5,
            "log_json": True,
            "trainer": self._settings.trainer(index),
            "policy": {"allow_drills": True},
        }

    def _start_silo(self, run: str, index: int) -> None:
        name = silo_name(index)
        document = self._silo_document(run, name, index)
        document["trainer"] |= {"evaluation_shard": True}  # what it reports is its own view; the evaluator sees all
        if self._settings.private:
            document["privacy"] = PRIVACY
        else:
            document["report"] = "all"  # a demo's silos have nothing to hide, and the dashboard shows how far they lie apart
        if index < self._settings.attackers:
            # Their own place to meet, which neither the server nor any honest silo knows of.
            document["drill"] = self._settings.drill(self._folder / "attackers" / run).model_dump(mode="json")
        self._processes.start(f"{run}-{name}", ["client", "--config", str(self._write(f"{run}-{name}", document))])

    def _start_evaluator(self, run: str) -> None:
        document = {**self._silo_document(run, "evaluator", 0), "role": "evaluator", "evaluate_every": 1}
        self._processes.start(f"{run}-evaluator", ["client", "--config", str(self._write(f"{run}-evaluator", document))])

    def _watch(self, run: str) -> None:
        """Until the run is over; with a drop rate silos are killed and started again meanwhile."""
        seen = time.monotonic()
        drops = Drops(self._names, self._settings.drop_rate, random.SystemRandom())
        while True:
            summary = self._client.call("GetRun", pb.GetRunRequest(name=run))
            first = max(
                summary.summary.round - SHOWN_ROUNDS, 0
            )  # the table shows no more, and the whole run is work for the server
            rounds = self._client.call("ListRounds", pb.ListRoundsRequest(name=run, from_round=first)).rounds
            self._view.show(summary, list(rounds))
            over = summary.summary.state in ("finished", "stopped")
            if over and (_evaluated(rounds) or not self._processes.running(f"{run}-evaluator")):
                return
            self._processes.require("server")
            if summary.summary.round == 0 and time.monotonic() - seen > START_SECONDS:
                raise FedrepError(f"no round ended within {START_SECONDS:.0f} seconds; the logs are in {self._folder / 'logs'}")
            self._report_failures()
            if summary.summary.round and not over:
                self._drop(run, drops, summary)
            time.sleep(POLL_SECONDS)

    def _report_failures(self) -> None:
        for name in set(self._processes.failed()) - self._reported:
            self._reported.add(name)
            self._view.say(f"{name} ended with an error: {self._processes.last_words(name)}")

    def _drop(self, run: str, drops: Drops, status: pb.GetRunResponse) -> None:
        victim = drops.next_victim(time.time(), status.summary.round, {silo.name: silo.last_seen for silo in status.silos})
        if victim is not None and self._processes.running(f"{run}-{victim}"):
            self._processes.kill(f"{run}-{victim}")
            self._view.say(f"killed {victim}; it starts again")
            self._start_silo(run, self._names.index(victim))

    def _result(self, run: str) -> dict[str, Any]:
        answer = self._client.call("GetRun", pb.GetRunRequest(name=run))
        summary = answer.summary
        epsilon = summary.epsilon_total if summary.HasField("epsilon_total") else None
        return {
            "run": run,
            "aggregator": summary.aggregator,
            "final_accuracy": summary.accuracy,
            "best_accuracy": summary.best_accuracy,
            "rounds_applied": summary.rounds_applied,
            "rounds_skipped": summary.rounds_skipped,
            "bytes_up": summary.bytes_up,
            "bytes_down": summary.bytes_down,
            "epsilon_total": number_or_none(epsilon),
            "epsilon_covers": COVERS,
            **reckoned(answer, self._client.rounds(run)),
            **self._record_costs(run),
        }

    def _record_costs(self, run: str) -> dict[str, Any]:
        """The most that any silo says that one of its records has cost; none if any has no guarantee, or nobody says."""
        if not self._settings.private:
            return {}
        summary = self._client.call("GetRun", pb.GetRunRequest(name=run)).summary
        return {
            "record_epsilon": figures(summary).get("record_epsilon", "none"),
            "record_delta": PRIVACY["delta"],
            "record_budget": PRIVACY["epsilon"],
            "record_covers": RECORD_COVERS,
        }

    def _write(self, name: str, document: dict[str, Any]) -> Path:
        path = self._folder / "config" / f"{name}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(toml_document(document))
        path.chmod(0o600)
        return path

    def _retry(self, process: str, call: Callable[[], Any]) -> Any:
        """Until the process has opened its port."""
        limit = time.monotonic() + START_SECONDS
        while True:
            try:
                return call()
            except (FedrepError, OSError, grpc.RpcError) as error:
                self._processes.require(process)
                if time.monotonic() > limit:
                    raise FedrepError(f"{process} does not answer: {error}") from error
                time.sleep(ANSWER_SECONDS)


def _evaluated(rounds: Any) -> bool:
    """Whether the evaluator has reported on the last applied round."""
    applied = [item for item in rounds if item.outcome == 1]
    return not applied or applied[-1].HasField("accuracy")
