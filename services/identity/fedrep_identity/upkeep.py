"""What a daemon does for its credentials while it runs: renews the certificate in time, and learns of revocations."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from fedrep.errors import FedrepError
from fedrep_identity.certificates import REVOCATIONS_FILE, Credentials
from fedrep_identity.enrolment_client import AuthorityRevocations, renew
from fedrep_identity.folder import FederationAddresses, renewal_time

READ_AGAIN_SECONDS = 60.0
OnRenewed = Callable[[Credentials], Awaitable[None]]
_log = structlog.get_logger(__name__)


async def tend_credentials(folder: Path, on_renewed: OnRenewed | None = None, *, list_every: float = 2.0) -> None:
    """Runs beside a daemon for as long as it lives. Returns at once in a folder that knows no authority to ask: there,
    an operator brings certificates and `crl.pem` by file.

    The newest revocation list is kept in the folder, where `RevocationsFile` finds it.
    """
    try:
        address = FederationAddresses.load(folder).certificates
    except FedrepError:
        address = ""
    if not address:
        _log.info("credentials_not_tended", why="no certificate authority is known here", folder=str(folder))
        return
    source = AuthorityRevocations(address, lambda: Credentials.load(folder), keep=folder / REVOCATIONS_FILE)
    try:
        await asyncio.gather(keep_renewed(folder, on_renewed), _keep_fetching(source, list_every))
    finally:
        await source.close()


async def keep_renewed(
    folder: Path,
    on_renewed: OnRenewed | None = None,
    *,
    check_every: float = 3600.0,
    now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
) -> None:
    """Renew at two thirds of life. A renewal that fails is tried again, and said each time; so is a pair that cannot be read,
    which somebody may be copying into place."""
    while True:
        try:
            certificate = Credentials.load(folder).certificate
        except (FedrepError, OSError) as error:
            _log.warning("credentials_not_read", problem=str(error), folder=str(folder))
            await asyncio.sleep(min(check_every, READ_AGAIN_SECONDS))
            continue
        if now() >= renewal_time(certificate):
            try:
                fresh = await renew(folder)
            except (FedrepError, OSError) as error:
                left = certificate.not_valid_after_utc - now()
                hours = round(left.total_seconds() / 3600, 1)
                reason = getattr(error, "reason", type(error).__name__)
                _log.warning("renewal_failed", problem=str(error), reason=reason, hours_left=hours)
            else:
                if on_renewed is not None:
                    await on_renewed(fresh)
        # Jitter, so that a federation enrolled on one day does not renew in one second; and a certificate that lives
        # for less than a day is looked at often enough.
        life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        await asyncio.sleep(min(check_every, life.total_seconds() / 20) * random.uniform(0.8, 1.2))


async def _keep_fetching(source: AuthorityRevocations, every: float) -> None:
    said: str | None = None
    while True:
        problem = None
        try:
            await source()
            source.believed()  # or it would not have been kept
        except (FedrepError, OSError) as error:
            problem = str(error)
        if problem != said:
            say = _log.info if problem is None else _log.warning
            say("authority_reached" if problem is None else "authority_not_reached", problem=problem)
            said = problem
        await asyncio.sleep(every)
