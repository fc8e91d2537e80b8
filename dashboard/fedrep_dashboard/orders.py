"""What silos take on an admin's signature alone: another list of silos, an older model. Signed with the dashboard's own key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from fastapi import APIRouter
from pydantic import BaseModel, Field

from fedrep.protocol.advice import advise
from fedrep.wire.v1 import observer_pb2 as pb
from fedrep_dashboard import schema, view
from fedrep_dashboard.actions import Admin, Signing
from fedrep_dashboard.api import PROBLEMS, AllFeeds, RunName
from fedrep_dashboard.observer import Observer, ServerRefusedError
from fedrep_identity.certificates import Credentials
from fedrep_runtime.run_orders import AMENDABLE, ORDER_TRIES, OVERTAKEN, Signer, amend_request, amended_manifest, rollback_request

T = TypeVar("T")

log = structlog.get_logger()
router = APIRouter(prefix="/api/v1", tags=["actions"], responses=PROBLEMS)


class Amendment(BaseModel):
    add: list[schema.Name] = Field(default=[], max_length=1000, description="Silos to list.")
    remove: list[schema.Name] = Field(default=[], max_length=1000, description="Silos to take off the list.")
    quorum: int | None = Field(default=None, ge=1, le=1000, description="Silos a round needs; absent: the least that works.")
    dry_run: bool = Field(default=False, description="Say what would happen.")


class Amended(schema.Shape):
    done: bool
    from_round: int = Field(description="First round with the new list, which begins an epoch.")
    silos: list[str]
    quorum: int
    replaces: list[str] = Field(description="The list that waits for its epoch and never comes into force, if there is one.")
    problems: list[str] = Field(description="What the preflight found; nothing is changed unless this is empty.")
    conclusion: str = Field(description="What to do, in one sentence.")


class Rollback(BaseModel):
    version: int = Field(ge=0, le=2**53 - 1, description="A kept version of the run's model.")


@router.post("/runs/{name}/amend")
async def amend_run(name: RunName, body: Amendment, who: Admin, key: Signing, feeds: AllFeeds) -> Amended:
    """Change the list of silos from the next epoch on, or say what that would do."""
    run = await feeds.observer.run(name)
    planned = amended_manifest(run, body.add, body.remove, body.quorum)
    advice = await asyncio.to_thread(advise, planned, may_change=AMENDABLE)
    done = not advice.problems and not body.dry_run
    if done:
        signed = await _ordered(
            feeds.observer,
            name,
            lambda seen: amend_request(seen, body.add, body.remove, body.quorum, _signer(key)),
            feeds.observer.amend,
        )
        planned = amended_manifest(signed, body.add, body.remove, body.quorum)
        log.info("amend", run=name, add=body.add, remove=body.remove, from_round=planned.from_round, user=who.user)
    return Amended(
        done=done,
        from_round=planned.from_round,
        silos=list(planned.silos),
        quorum=planned.quorum,
        replaces=list(run.amendment.manifest.silos) if run.HasField("amendment") else [],
        problems=advice.problems,
        conclusion=advice.conclusion,
    )


@router.post("/runs/{name}/rollback")
async def roll_back_run(name: RunName, body: Rollback, who: Admin, key: Signing, feeds: AllFeeds) -> schema.Run:
    """Skip the open round and go on from a kept model."""
    await _ordered(
        feeds.observer, name, lambda seen: rollback_request(seen, body.version, *_signer(key)), feeds.observer.roll_back
    )
    log.info("rollback", run=name, version=body.version, user=who.user)
    return view.run_of((await feeds.observer.run(name)).summary)


def _signer(key: Credentials) -> Signer:
    return key.identity.name, key.chain, key.signing_key


async def _ordered(
    observer: Observer, name: str, sign: Callable[[pb.GetRunResponse], T], send: Callable[[T], Awaitable[object]]
) -> pb.GetRunResponse:
    """The run as it stood when the order that the server took was signed."""
    for tries_left in reversed(range(ORDER_TRIES)):
        run = await observer.run(name)
        try:
            await send(sign(run))
            return run
        except ServerRefusedError as error:
            if error.reason not in OVERTAKEN or not tries_left:
                raise
    raise AssertionError("the last try returns or raises")
