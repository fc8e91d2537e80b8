"""What a silo's message must say about itself before the rest of it is taken: run, round, phase, roster, and how much follows.

The round's machine checks all of it again, on what was decoded; here a message that it would refuse costs nothing but its
header. The limits are the run's and the round's: m holders, k coordinates of d, |I| values.
"""

from __future__ import annotations

import struct
from typing import Any

from fedrep.errors import DecodeError, OutOfPhaseError
from fedrep.protocol.manifests import SiloName
from fedrep.protocol.messages import Phase
from fedrep.protocol.server_round import ServerRound
from fedrep.protocol.server_rules import check_member
from fedrep.wire.chunks import Assembler
from fedrep.wire.v1 import federation_pb2 as pb
from fedrep_server.calls.limits import ENVELOPE, PER_HOLDER_PROPOSED, PER_SHARE_REVEALED
from fedrep_server.rounds.run_driver import RunDriver

_COUNT = struct.Struct("<I")  # what the code of a coordinate set starts with (`fedrep.coding`)


def proposal_to_come(driver: RunDriver, silo: SiloName, header: pb.ProposalHeader) -> Assembler:
    played = _round(driver, silo, header.round)
    if played.phase is not Phase.PROPOSE and silo not in played.proposed:
        raise _late("a proposal", played)
    manifest = played.manifest
    _check_size(header, ENVELOPE + PER_HOLDER_PROPOSED * len(manifest.roster), "the proposal's header")
    limit = longest_code(manifest.per_silo, manifest.parameters)
    return Assembler(header.coordinates_size, header.coordinates_sha256, limit, "the proposal's coordinates")


def submission_to_come(driver: RunDriver, silo: SiloName, header: pb.SubmissionHeader) -> Assembler:
    played = _round(driver, silo, header.round)
    if played.phase is Phase.PROPOSE:
        raise _late("a submission", played)
    if played.phase is not Phase.SUBMIT and not any(s.silo == silo for buffer in played.survivors().buffers for s in buffer):
        raise _late("a submission", played)
    (count,) = _COUNT.unpack_from(played.consensus_for(silo).coordinates)
    size = count * played.manifest.ring_bits // 8
    assembler = Assembler(header.masked_size, header.masked_sha256, size, "the masked values")
    if header.masked_size < size:
        raise DecodeError(f"the masked values: {header.masked_size} bytes announced, {count} values take {size}")
    return assembler


def reveal_to_come(driver: RunDriver, silo: SiloName, request: pb.RevealSharesRequest) -> bool:
    """False for the holder that comes when others were enough: nothing of its message is needed."""
    if request.round == driver.last_round:
        return False
    played = _round(driver, silo, request.round)
    if played.phase is not Phase.REVEAL:
        raise _late("a reveal", played)
    _check_size(request, ENVELOPE + PER_SHARE_REVEALED * len(played.manifest.roster), "the reveal")
    return True


def longest_code(k: int, d: int) -> int:
    """Bytes of the longest code of k coordinates in [0, d).

    With r = floor(log2(d/k)) the remainders take k r bits and the quotients at most k + d/2^r <= 3k; the code takes the
    cheapest r, so it is never longer. Its count and r, and the padding of both streams, take 7 bytes more; the rest lets
    the decoder say what is wrong with a set that is only a little too long.
    """
    r = max((d // max(k, 1)).bit_length() - 1, 0)
    return 64 + (k * (r + 3) + 7) // 8


def _round(driver: RunDriver, silo: SiloName, number: int) -> ServerRound:
    played = driver.machine.round_for(number)
    check_member(silo, played.manifest)
    return played


def _check_size(message: Any, limit: int, what: str) -> None:
    size = message.ByteSize()
    if size > limit:
        raise DecodeError(f"{what}: {size} bytes, at most {limit} are possible in this round", reason="TOO_LARGE")


def _late(what: str, played: ServerRound) -> OutOfPhaseError:
    return OutOfPhaseError(f"{what} for round {played.manifest.round} came during {played.phase.name}")
