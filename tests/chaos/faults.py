"""How each kind of fault strikes the federation, and how it is over."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import cast

from fedrep.errors import FedrepError
from fedrep_identity.authority import CertificateAuthority
from fedrep_identity.enrolment_client import renew
from fedrep_silo.training import in_thread
from tests.chaos.plan import Fault
from tests.chaos.stage import PASSPHRASE, SERVERS, Stage
from tests.harness.link import Way

Over = Callable[[], Awaitable[None]]


class Faults:
    """`strike` returns what ends the fault; `revoked` are the silos that may not come back."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.revoked: set[str] = set()
        self.skipped: dict[str, str] = {}

    async def strike(self, fault: Fault) -> Over:
        """Where this machine cannot play the fault, the reason is in `skipped`."""
        stage, kind = self._stage, fault.kind
        if kind in ("delay", "throttle", "black hole", "refuse"):
            return self._change_link(fault)
        if kind in ("reset", "half-close", "reset everybody"):
            self._break_links(fault)
        elif kind.startswith("kill "):
            stage.members[await self._whom(fault)].signal(signal.SIGKILL)
        elif kind == "hand over":
            stage.members[await stage.leader()].signal(signal.SIGTERM)
        elif kind.startswith("pause "):
            return await self._pause(fault)
        elif kind.startswith("full disk"):
            return await self._fill(fault)
        elif kind.startswith("clock "):
            return await self._set_clock(fault)
        elif kind in ("restart database", "crash database"):
            return await self._stop_database(fault)
        elif kind == "renew certificate":
            await self._renew(fault)
        elif kind == "revoke silo":
            await self._revoke(fault)
        elif kind == "attack":
            self._attack(fault)
        else:
            raise ValueError(f"no such fault: {kind}")
        return _nothing

    async def _whom(self, fault: Fault) -> str:
        part = fault.kind.split(" ", 1)[1]
        if part == "silo":
            return fault.victim
        if part in ("leader", "standby"):
            leader = await self._stage.leader()
            return leader if part == "leader" else next(name for name in SERVERS if name != leader)
        return part

    def _change_link(self, fault: Fault) -> Over:
        links = self._stage.links
        good, bad = {
            "delay": ({"delay": 0.0}, {"delay": fault.value}),
            "throttle": ({"bytes_per_second": None}, {"bytes_per_second": fault.value}),
            "black hole": ({"black_hole": False}, {"black_hole": True}),
            "refuse": ({"refuse": False}, {"refuse": True}),
        }[fault.kind]
        links.set(fault.victim, **cast(dict[str, object], bad))
        if fault.kind == "refuse":
            links.reset(fault.victim)

        async def over() -> None:
            links.set(fault.victim, **cast(dict[str, object], good))

        return over

    def _break_links(self, fault: Fault) -> None:
        links = self._stage.links
        if fault.kind == "half-close":
            links.half_close(fault.victim, cast(Way, fault.note))
        elif fault.kind == "reset":
            links.reset(fault.victim)
        else:
            for name in (*self._stage.names, "evaluator", "dashboard"):
                links.reset(name)

    async def _pause(self, fault: Fault) -> Over:
        member = self._stage.members[await self._whom(fault)]
        member.signal(signal.SIGSTOP)

        async def over() -> None:
            member.signal(signal.SIGCONT)

        return over

    async def _fill(self, fault: Fault) -> Over:
        database = fault.kind == "full disk of database"
        disk = self._stage.postgres.disk if database else self._stage.disks.get(fault.victim)
        if disk is None:
            self.skipped[fault.kind] = "this user may not mount a tmpfs"
            return _nothing
        await in_thread(disk.fill)

        async def over() -> None:
            await in_thread(disk.free)
            if database:
                await in_thread(self._stage.postgres.start)  # it may have ended over it

        return over

    async def _set_clock(self, fault: Fault) -> Over:
        victim = fault.victim or await self._stage.leader()
        clock = self._stage.clocks.get(victim)
        if clock is None:
            self.skipped[fault.kind] = "there is no C compiler"
            return _nothing
        clock.set(int(fault.value))

        async def over() -> None:
            clock.set(0)

        return over

    async def _stop_database(self, fault: Fault) -> Over:
        postgres = self._stage.postgres
        await in_thread(lambda: postgres.stop("fast" if fault.kind == "restart database" else "immediate"))

        async def over() -> None:
            await in_thread(postgres.start)

        return over

    async def _renew(self, fault: Fault) -> None:
        """As an operator does with `fedrep renew`; the silo takes the new certificate with its next connection."""
        folder = self._stage.federation.identity_folder(fault.victim)
        for _ in range(5):
            try:
                await renew(folder)
                break
            except FedrepError:
                await asyncio.sleep(0.5)  # the authority may be down as well
        self._stage.links.reset(fault.victim)

    async def _revoke(self, fault: Fault) -> None:
        """As `fedrep silo revoke` does: on the authority's machine, whose list the servers fetch."""
        self.revoked.add(fault.victim)
        self._stage.members[fault.victim].wanted = False
        folder = self._stage.federation.people.folder / "ca"

        def revoke() -> None:
            CertificateAuthority.open(folder, PASSPHRASE).revoke(fault.victim)

        await in_thread(revoke)

    def _attack(self, fault: Fault) -> None:
        """The attackers change their attack, and are started anew with it."""
        for name in self._stage.attackers:
            self._stage.drills[name] = fault.note
            self._stage.members[name].signal(signal.SIGKILL)


async def _nothing() -> None:
    pass
