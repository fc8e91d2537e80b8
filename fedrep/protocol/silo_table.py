"""What happens next on the silo's side: phase x event -> action, and the phases that may follow.

An action is a method of `silo_machine.SiloMachine`. A rule of the silo's own that refuses something during a round leads where
the server's refusal does: the silo leaves the round, and waits for how it ends. docs/protocol.md prints this table.
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
    TrainingRefused,
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

# Where the silo's own choices lead, so that rows can share them: whether it trains, after a manifest that it checked, and on to
# whatever comes next.
_DECIDE = (P.TRAINING, P.ABSTAINING, P.PROPOSING, P.CONCLUDING)
_ENTER = (P.SETTLING, *_DECIDE, P.REJOINING)
GO_ON = (P.IDLE, P.ASKING, P.ENDED, P.FETCHING, P.MEETING, *_ENTER)

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
    (P.ASKING, Joined): Row("_consider_run", (P.ANNOUNCING, *GO_ON)),
    (P.ASKING, Refusal): Row("_wait_for_run", (P.IDLE, P.ENDED)),
    (P.ANNOUNCING, Joined): Row("_has_joined", (P.LOOKING_BACK, *GO_ON)),
    (P.ANNOUNCING, Refusal): Row("_wait_for_run", (P.IDLE, P.ENDED)),
    (P.LOOKING_BACK, Concluded): Row("_look_back", (P.RENOUNCING, *GO_ON)),
    (P.LOOKING_BACK, Refusal): Row("_cannot_look_back", GO_ON),
    (P.IDLE, TimePassed): Row("_ask_for_news", (P.ASKING,)),
    (P.FETCHING, FetchedModel): Row("_keep_model", (P.MEETING, *_ENTER)),
    (P.FETCHING, Refusal): Row("_leave_round", (P.CONCLUDING,)),
    (P.MEETING, Certificates): Row("_meet", _ENTER),
    (P.MEETING, Refusal): Row("_leave_round", (P.CONCLUDING,)),
    (P.SETTLING, Concluded): Row("_settle_late", _DECIDE),
    (P.SETTLING, Refusal): Row("_settle_late", _DECIDE),
    (P.TRAINING, Trained): Row("_take_training", _DECIDE),
    (P.TRAINING, TrainingFailed): Row("_count_failure", (P.TRAINING, P.ABSTAINING)),
    (P.TRAINING, TrainingRefused): Row("_stop_training", (P.ABSTAINING,)),
    (P.TRAINING, TimePassed): Row("_ask_while_training", (P.TRAINING,)),
    (P.TRAINING, Consensus): Row("_watch_consensus", (P.SURVIVING, P.CONCLUDING)),
    (P.TRAINING, Refusal): Row("_leave_round", (P.CONCLUDING,)),
    (P.ABSTAINING, Accepted): Row("_has_abstained", (P.AGREEING,)),
    (P.ABSTAINING, Refusal): Row("_has_abstained", (P.AGREEING,)),
    (P.PROPOSING, Accepted): Row("_has_proposed", (P.AGREEING, P.SUBMITTING, P.SURVIVING, P.CONCLUDING)),
    (P.PROPOSING, Consensus): Row("_keep_consensus", (P.PROPOSING,)),
    (P.PROPOSING, Refusal): Row("_proposed_too_late", (P.PROPOSING, P.AGREEING, P.SUBMITTING, P.SURVIVING, P.CONCLUDING)),
    (P.AGREEING, Consensus): Row("_agree", (P.SUBMITTING, P.SURVIVING, P.CONCLUDING)),
    (P.AGREEING, Refusal): Row("_leave_round", (P.CONCLUDING,)),
    (P.SUBMITTING, Accepted): Row("_has_submitted", (P.SURVIVING, P.CONFIRMING, P.CONCLUDING)),
    (P.SUBMITTING, SurvivorSet): Row("_keep_survivors", (P.SUBMITTING,)),
    (P.SUBMITTING, Refusal): Row("_submitted_too_late", (P.SUBMITTING, P.SURVIVING, P.CONFIRMING, P.CONCLUDING)),
    (P.SURVIVING, SurvivorSet): Row("_confirm", (P.CONFIRMING, P.CONCLUDING)),
    (P.SURVIVING, Refusal): Row("_leave_round", (P.CONCLUDING,)),
    (P.CONFIRMING, Confirmations): Row("_reveal", (P.REVEALING, P.CONCLUDING)),
    (P.CONFIRMING, Refusal): Row("_leave_round", (P.CONCLUDING,)),
    (P.REVEALING, Accepted): Row("_has_revealed", GO_ON),
    (P.REVEALING, Concluded): Row("_keep_outcome", (P.REVEALING,)),
    (P.REVEALING, Refusal): Row("_has_revealed", (P.REVEALING, *GO_ON)),
    (P.REJOINING, Joined): Row("_has_rejoined", (P.CONCLUDING,)),
    (P.REJOINING, Refusal): Row("_has_rejoined", (P.CONCLUDING,)),
    (P.CONCLUDING, Concluded): Row("_learn_outcome", (P.RENOUNCING, *GO_ON)),
    (P.CONCLUDING, Refusal): Row("_lose_track", (P.IDLE,)),
    (P.RENOUNCING, Concluded): Row("_settle", GO_ON),
    (P.RENOUNCING, Refusal): Row("_lose_track", (P.IDLE,)),
}
