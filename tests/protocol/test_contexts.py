"""C1, C2 and the names of rosters and survivors: however they are put together, they are the digests that docs/protocol.md names.

Silos and servers of two versions meet in one round, so none of these may ever change.
"""

from __future__ import annotations

from fedrep.protocol.manifests import (
    Deadlines,
    RecordPromise,
    RosterEntry,
    RoundManifest,
    RunHash,
    SiloName,
    roster_digest,
)
from fedrep.protocol.messages import Assigned, Survivor, SurvivorSet, consensus_context
from fedrep.secagg.transcript import digest

RUN = RunHash(b"\1" * 32)
NAMES = tuple(SiloName(name) for name in ("berlin", "köln", "oslo"))
ROSTER = tuple(
    RosterEntry(name, bytes([number]) * 32, b"k" * 32, bytes([number]) * 70, RecordPromise(3.5, 1e-6) if number == 1 else None)
    for number, name in enumerate(NAMES)
)
PLAIN_ROSTER = tuple(
    (
        ("name", entry.name),
        ("fingerprint", entry.fingerprint),
        ("session_key", entry.session_key),
        ("session_signature", entry.session_signature),
        *((("promise", (("epsilon", 3.5), ("delta", 1e-6))),) if entry.promise else ()),
    )
    for entry in ROSTER
)


def test_a_roster_is_named_by_all_of_its_entries() -> None:
    for _ in range(2):  # the second time from what the entries remember
        assert roster_digest(ROSTER) == digest("fedrep/roster", PLAIN_ROSTER)
    assert roster_digest(()) == digest("fedrep/roster", ())


def test_c1_is_the_digest_of_the_whole_manifest() -> None:
    deadlines = Deadlines(1.0, 2.0, 3.0, 4.0)
    manifest = RoundManifest(
        RUN, 7, 3, b"m" * 32, b"c" * 32, ROSTER, 1000, 50, 16, 0.95, 4, 16, 12, 0.1, 1, deadlines,
    )  # fmt: skip
    fields = (
        ("run", RUN), ("round", 7), ("model_version", 3), ("model_hash", b"m" * 32), ("chain", b"c" * 32),
        ("roster", PLAIN_ROSTER), ("parameters", 1000), ("coordinates", 50), ("per_silo", 16), ("alpha", 0.95),
        ("buffer_size", 4), ("ring_bits", 16), ("value_bits", 12), ("clip_range", 0.1), ("byzantine", 1),
        ("deadlines", (("propose", 1.0), ("submit", 2.0), ("confirm", 3.0), ("reveal", 4.0))),
    )  # fmt: skip
    assert manifest.context() == digest("fedrep/c1", RUN, 7, fields)


def test_c2_is_the_digest_of_c1_the_coordinates_and_every_place() -> None:
    assignment = ((Assigned(NAMES[0], b"a" * 32), Assigned(NAMES[1], b"b" * 200)), (), (Assigned(NAMES[2], b""),))
    places = (((NAMES[0], b"a" * 32), (NAMES[1], b"b" * 200)), (), ((NAMES[2], b""),))
    assert consensus_context(b"1" * 32, b"I", assignment) == digest(
        "fedrep/c2", b"1" * 32, digest("fedrep/consensus", b"I"), digest("fedrep/assignment", places)
    )


def test_survivors_are_named_buffer_by_buffer() -> None:
    survivors = SurvivorSet(((Survivor(NAMES[0], b"1"), Survivor(NAMES[1], b"2")), (), (Survivor(NAMES[2], b"3"),)))
    assert survivors.digest() == digest("fedrep/survivors", ((NAMES[0], NAMES[1]), (), (NAMES[2],)))
