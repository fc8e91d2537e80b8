"""What happens next on the silo's side: phase x event -> action, and the phases that may follow.

An action is a method of `silo_machine.SiloMachine`. A rule of the silo's own that refuses something during a round leads to the
same phases as the server's refusal there: the silo leaves the round, and waits for how it ends. docs/protocol.md's diagram is
printed from this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from fedrep.protocol.messages import Consensus, SurvivorSet
from fedrep.protocol.silo_effects import (
    Accepted,
    Certificates,
    Concluded,
    Confirmations,
    FetchedModel,
    Joined,
    Refusal,
    Started,
    TimePassed,
    Trained,
    TrainingFailed,
)


class Phase(Enum):
    OUTSIDE = "outside"
    ASKING = "asking for news"
    ANNOUNCING = "announcing itself"
    LOOKING_BACK = "asking about the last round it spoke in"
    IDLE = "waiting for a round"
    FETCHING = "fetching the model"
    MEETING = "fetching certificates"
    SETTLING = "asking what became of its last values"
    TRAINING = "training"
    ABSTAINING = "abstaining"
    PROPOSING = "proposing"
    AGREEING = "waiting for the consensus"
    SUBMITTING = "submitting"
    SURVIVING = "waiting for the survivors"
    CONFIRMING = "confirming"
    REVEALING = "revealing"
    REJOINING = "announcing a new session key"
    CONCLUDING = "waiting for the update"
    RENOUNCING = "renouncing"
    ENDED = "ended"


class Row(NamedTuple):
    """What happens (a method of the machine), and the phases it may lead to."""

    action: str
    to: tuple[Phase, ...]


P = Phase
_NEXT = (P.IDLE, P.ASKING, P.ENDED)  # between rounds
_ROUND = (P.FETCHING, P.MEETING, P.SETTLING, P.TRAINING, P.ABSTAINING, P.PROPOSING, P.CONCLUDING, P.REJOINING, P.ENDED)
_LEFT = (P.CONCLUDING, P.REJOINING)  # the silo leaves the round, and waits for how it ends
_AFTER = (*_NEXT, *_ROUND)

IN_ROUND = frozenset(
    {
        P.FETCHING,
        P.MEETING,
        P.SETTLING,
        P.TRAINING,
        P.ABSTAINING,
        P.PROPOSING,
        P.AGREEING,
        P.SUBMITTING,
        P.SURVIVING,
        P.CONFIRMING,
        P.REVEALING,
    }
)

TABLE: Mapping[tuple[Phase, type], Row] = {
    (P.OUTSIDE, Started): Row("_ask_for_news", (P.ASKING,)),
    (P.ASKING, Joined): Row("_consider_run", (P.ANNOUNCING, *_NEXT, *_ROUND)),
    (P.ASKING, Refusal): Row("_wait_for_run", (P.IDLE, P.ENDED)),
    (P.ANNOUNCING, Joined): Row("_has_joined", (P.LOOKING_BACK, *_NEXT, *_ROUND)),
    (P.ANNOUNCING, Refusal): Row("_wait_for_run", (P.IDLE, P.ENDED)),
    (P.LOOKING_BACK, Concluded): Row("_look_back", (P.RENOUNCING, *_AFTER)),
    (P.LOOKING_BACK, Refusal): Row("_cannot_look_back", (*_NEXT, *_ROUND)),
    (P.IDLE, TimePassed): Row("_ask_for_news", (P.ASKING,)),
    (P.FETCHING, FetchedModel): Row("_keep_model", _ROUND),
    (P.FETCHING, Refusal): Row("_leave_round", _LEFT),
    (P.MEETING, Certificates): Row("_meet", _ROUND),
    (P.MEETING, Refusal): Row("_leave_round", _LEFT),
    (P.SETTLING, Concluded): Row("_settle_late", _ROUND),
    (P.SETTLING, Refusal): Row("_settle_late", _ROUND),
    (P.TRAINING, Trained): Row("_take_training", (P.TRAINING, P.PROPOSING)),
    (P.TRAINING, TrainingFailed): Row("_count_failure", (P.TRAINING, P.ABSTAINING)),
    (P.TRAINING, TimePassed): Row("_ask_while_training", (P.TRAINING,)),
    (P.TRAINING, Consensus): Row("_watch_consensus", (P.SURVIVING, *_LEFT)),
    (P.TRAINING, Refusal): Row("_leave_round", _LEFT),
    (P.ABSTAINING, Accepted): Row("_has_abstained", (P.AGREEING,)),
    (P.ABSTAINING, Refusal): Row("_has_abstained", (P.AGREEING,)),
    (P.PROPOSING, Accepted): Row("_has_proposed", (P.AGREEING, P.SUBMITTING, P.SURVIVING, *_LEFT)),
    (P.PROPOSING, Consensus): Row("_keep_consensus", (P.PROPOSING,)),
    (P.PROPOSING, Refusal): Row("_proposed_too_late", (P.PROPOSING, P.AGREEING, P.SUBMITTING, P.SURVIVING, *_LEFT)),
    (P.AGREEING, Consensus): Row("_agree", (P.SUBMITTING, P.SURVIVING, *_LEFT)),
    (P.AGREEING, Refusal): Row("_leave_round", _LEFT),
    (P.SUBMITTING, Accepted): Row("_has_submitted", (P.SURVIVING,)),
    (P.SUBMITTING, Refusal): Row("_submitted_too_late", (P.SURVIVING,)),
    (P.SURVIVING, SurvivorSet): Row("_confirm", (P.CONFIRMING, *_LEFT)),
    (P.SURVIVING, Refusal): Row("_leave_round", _LEFT),
    (P.CONFIRMING, Confirmations): Row("_reveal", (P.REVEALING, *_LEFT)),
    (P.CONFIRMING, Refusal): Row("_leave_round", _LEFT),
    (P.REVEALING, Accepted): Row("_has_revealed", (P.CONCLUDING,)),
    (P.REVEALING, Refusal): Row("_has_revealed", (P.CONCLUDING,)),
    (P.REJOINING, Joined): Row("_has_rejoined", (P.CONCLUDING,)),
    (P.REJOINING, Refusal): Row("_has_rejoined", (P.CONCLUDING,)),
    (P.CONCLUDING, Concluded): Row("_learn_outcome", (P.RENOUNCING, *_AFTER)),
    (P.CONCLUDING, Refusal): Row("_lose_track", (P.IDLE, P.ENDED)),
    (P.RENOUNCING, Concluded): Row("_settle", _AFTER),
    (P.RENOUNCING, Refusal): Row("_lose_track", (P.IDLE, P.ENDED)),
}
