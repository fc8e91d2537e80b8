"""The demo's people enrol all at once, each with an invitation of its own, over the network like strangers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fedrep.errors import FedrepError
from fedrep_identity import enrolment_client
from fedrep_identity.authority import REGISTER_FILE, CertificateAuthority
from fedrep_identity.invitations import invite
from fedrep_identity.names import Identity, Role
from fedrep_identity.register import Hosts, Register

PAUSE_SECONDS = 0.1
PASSING = ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")
_SERVER_HOSTS = Hosts(("localhost",), ("127.0.0.1",))


def enrol_all(
    authority: CertificateAuthority,
    people: Sequence[Identity],
    folder: Path,
    *,
    enrolment_address: str,
    server_address: str,
    still_there: Callable[[], None],
    limit: float,
) -> None:
    """Into FOLDER/NAME each; `still_there` raises when the authority has ended, and until then it may still be starting."""
    register = Register(authority.folder / REGISTER_FILE)
    tokens = {
        person.name: invite(
            register,
            authority.root,
            person,
            enrolment_address=enrolment_address,
            server_address=server_address,
            hosts=_SERVER_HOSTS if person.role is Role.SERVER else Hosts((), ()),
        ).token()
        for person in people
    }

    async def enrol(name: str, token: str) -> None:
        while True:
            try:
                await enrolment_client.enrol(token, folder / name)
                return
            except FedrepError as error:
                still_there()
                if error.status not in PASSING or time.monotonic() > limit:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)

    async def enrol_everybody() -> None:
        await asyncio.gather(*(enrol(name, token) for name, token in tokens.items()))

    asyncio.run(enrol_everybody())
