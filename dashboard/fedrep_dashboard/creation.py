"""Create a run from the form: the settings are checked here and by the server, then signed with the dashboard's own key."""

from __future__ import annotations

import asyncio

import structlog
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from fedrep.aggregators import AGGREGATORS
from fedrep.errors import InvalidInputError
from fedrep.protocol.advice import advise
from fedrep.protocol.model_state import model_hash
from fedrep.wire import codec
from fedrep_dashboard import schema
from fedrep_dashboard.actions import Admin, Signing
from fedrep_dashboard.api import PROBLEMS, AllFeeds, Feed, Viewer
from fedrep_dashboard.planning import Plan, Preflight, plan_of, preflight_of
from fedrep_dashboard.starting_models import ModelSource, starting_model
from fedrep_runtime.observer_client import create_run_requests
from fedrep_runtime.run_config import RunConfig, sign_run

log = structlog.get_logger()
router = APIRouter(prefix="/api/v1", tags=["actions"], responses=PROBLEMS)


class NewRun(BaseModel):
    config: RunConfig
    model: ModelSource
    dry_run: bool = Field(default=False, description="Check only.")


class Created(schema.Shape):
    created: bool
    hash: str
    problems: list[str] = Field(description="What the preflight found; nothing is created unless this is empty.")
    preflight: Preflight
    plan: Plan


class Choices(schema.Shape):
    aggregators: list[str]
    defaults: RunConfig = Field(description="Settings of a run that says nothing else; its name and silos are missing.")
    largest_model: int = Field(description="Most bytes of a model file that is uploaded.")


@router.get("/choices")
def get_choices(request: Request, _who: Viewer) -> Choices:
    """What a run's settings may name, and what they are by default."""
    return Choices(
        aggregators=sorted(AGGREGATORS),
        defaults=RunConfig(name="", silos=()),
        largest_model=request.app.state.uploads.largest,
    )


@router.get("/runs/{name}/config")
async def get_config(_who: Viewer, feed: Feed) -> RunConfig:
    """All settings of a run, as another one like it would be created."""
    answer = await feed.refresh()
    return RunConfig.of_run(codec.run_manifest_from_wire(answer.manifest.manifest), answer.options)


@router.post("/runs")
async def create_run(request: Request, body: NewRun, who: Admin, key: Signing, feeds: AllFeeds) -> Created:
    """Check a run's settings, all problems at once, and create it if there are none."""
    start = await starting_model(body.model, feeds.observer, request.app.state.uploads)
    manifest = body.config.manifest(start.parameters, start.layout_hash, start.model_hash)
    advice = await asyncio.to_thread(advise, manifest)  # looks for settings that would work, which takes a while
    problems = advice.problems
    vector = None
    if not problems and not body.dry_run:
        vector = await start.fetch()
        if model_hash(vector, start.model_hash) != start.model_hash:
            raise InvalidInputError("The model that came is not the one whose hash was named. Try again, or choose another.")
    if not problems:
        options = body.config.options(start.layout)
        signed = sign_run(manifest, key.identity.name, key.chain, key.signing_key)
        answer = await feeds.observer.create(create_run_requests(signed, options, vector))
        problems = list(answer.problems)
    created = not problems and not body.dry_run
    if created:
        log.info("run created", run=manifest.name, user=who.user)
    return Created(
        created=created,
        hash=manifest.digest().hex(),
        problems=problems,
        preflight=preflight_of(advice),
        plan=plan_of(manifest),
    )
