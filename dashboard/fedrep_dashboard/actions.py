"""What an admin may do to a run: pause, resume, stop, tag it, keep a silo out and let it back in."""

from __future__ import annotations

from pathlib import Path as FolderPath
from typing import Annotated

import structlog
from fastapi import APIRouter, Depends, Path, Request

from fedrep_dashboard import schema, view
from fedrep_dashboard.api import PROBLEMS, AllFeeds, RunName, principal
from fedrep_dashboard.auth import Gate, NotAllowedError, Principal
from fedrep_identity.certificates import Credentials

log = structlog.get_logger()


def admin(request: Request) -> Principal:
    found = principal(request)
    gate: Gate = request.app.state.gate
    gate.require_own_page(request, found)
    if found.role != "admin":
        raise NotAllowedError(f"{found.user} may look but not steer. Sign in with the admin token.")
    if not request.app.state.connection.may_act:
        raise NotAllowedError(
            "This dashboard's own certificate has the role viewer, so the server would refuse. Give it one of role admin."
        )
    return found


Admin = Annotated[Principal, Depends(admin)]


def signing(request: Request, _who: Admin) -> Credentials:
    """The dashboard's own key, for what silos take on an admin's signature only; read anew, since certificates are renewed."""
    known: Credentials | None = request.app.state.connection.credentials
    folder: FolderPath | None = request.app.state.settings.credentials
    if known is None:
        raise NotAllowedError(
            "This dashboard has no admin key to sign with. On the command line, fedrep run create, amend and rollback do it."
        )
    return Credentials.load(folder) if folder is not None else known


Signing = Annotated[Credentials, Depends(signing)]
SiloName = Annotated[str, Path(pattern=schema.NAME)]
router = APIRouter(prefix="/api/v1", tags=["actions"], responses=PROBLEMS)


@router.post("/runs/{name}/pause")
async def pause_run(name: RunName, body: schema.Reason, who: Admin, feeds: AllFeeds) -> schema.Run:
    """Let the open round end and start no other."""
    log.info("pause", run=name, user=who.user)
    return view.run_of(await feeds.observer.pause(name, body.reason))


@router.post("/runs/{name}/resume")
async def resume_run(name: RunName, who: Admin, feeds: AllFeeds) -> schema.Run:
    """Go on with a paused run."""
    log.info("resume", run=name, user=who.user)
    return view.run_of(await feeds.observer.resume(name))


@router.post("/runs/{name}/stop")
async def stop_run(name: RunName, body: schema.Reason, who: Admin, feeds: AllFeeds) -> schema.Run:
    """End a run for good."""
    log.info("stop", run=name, user=who.user)
    return view.run_of(await feeds.observer.stop(name, body.reason))


@router.post("/runs/{name}/tags")
async def tag_run(name: RunName, body: schema.Tags, who: Admin, feeds: AllFeeds) -> schema.Run:
    """Set the tags by which people find a run."""
    log.info("tag", run=name, user=who.user)
    return view.run_of(await feeds.observer.tag(name, body.tags))


@router.post("/runs/{name}/silos/{silo}/exclude")
async def exclude_silo(name: RunName, silo: SiloName, body: schema.Reason, who: Admin, feeds: AllFeeds) -> schema.Silo:
    """Keep a silo out of the next rosters."""
    log.info("exclude", run=name, silo=silo, user=who.user)
    return view.silo_of(await feeds.observer.exclude(name, silo, body.reason))


@router.post("/runs/{name}/silos/{silo}/readmit")
async def readmit_silo(name: RunName, silo: SiloName, who: Admin, feeds: AllFeeds) -> schema.Silo:
    """Let an excluded or sitting-out silo back in."""
    log.info("readmit", run=name, silo=silo, user=who.user)
    return view.silo_of(await feeds.observer.readmit(name, silo))
