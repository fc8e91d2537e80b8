"""Pending values and everything that can be said about their round, truly signed or not."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrep.protocol.error_memory import ErrorMemory, Pending
from fedrep.protocol.manifests import RunHash, SiloName
from fedrep.protocol.messages import (
    Evidence,
    ModelName,
    Outcome,
    Signatures,
    Statement,
    Survivor,
    SurvivorSet,
    Update,
    confirmation_message,
    statement_message,
)
from fedrep.secagg.keys import SigningKey, generate_signing_key

RUN = RunHash(b"r" * 32)
C2 = b"c" * 32


KEYS: dict[SiloName, SigningKey] = {SiloName(f"silo-{n}"): generate_signing_key("ed25519") for n in range(9)}


STRANGER = generate_signing_key("ed25519")


OWN = SiloName("silo-0")


def roster(m: int) -> list[SiloName]:
    return list(KEYS)[:m]


def pending_of(
    m: int = 6,
    *,
    round_number: int = 1,
    byzantine: int = 0,
    colluders: int = 0,
    indices: NDArray[np.int64] | None = None,
    sent: NDArray[np.float32] | None = None,
) -> Pending:
    """Own buffer: number 0 of two, with half of the silos in each."""
    where = np.array([1, 3]) if indices is None else indices
    return Pending(
        RUN,
        round_number,
        OWN,
        0,
        C2,
        colluders + 2,
        byzantine,
        colluders,
        {name: KEYS[name].verify_key for name in roster(m)},
        where,
        np.ones(where.size, np.float32) if sent is None else sent,
    )


def survivors(*buffers: list[SiloName]) -> SurvivorSet:
    return SurvivorSet(tuple(tuple(Survivor(name, b"") for name in buffer) for buffer in buffers))


def confirmed_by(names: list[SiloName], u: SurvivorSet, c2: bytes = C2) -> Signatures:
    return tuple((name, KEYS[name].sign(confirmation_message(c2, u))) for name in names)


def stated_by(names: list[SiloName], round_number: int = 1, run: RunHash = RUN) -> tuple[Statement, ...]:
    return tuple(Statement(n, run, round_number, KEYS[n].sign(statement_message(run, round_number, n))) for n in names)


def told(outcome: Outcome, round_number: int = 1, **evidence: Any) -> Update:
    return Update(RUN, round_number, outcome, "", ModelName(1, b"", b""), Evidence(**evidence))


def memory_with(pending: Pending) -> ErrorMemory:
    return ErrorMemory(np.zeros(6, np.float32), trained_version=0, pending=(pending,))


ALIVE = survivors(roster(6)[:3], roster(6)[3:])


OWN_MISSING = survivors(roster(6)[1:3], roster(6)[3:])


OWN_BUFFER_TOO_SMALL = survivors(roster(6)[:1], roster(6)[3:])
