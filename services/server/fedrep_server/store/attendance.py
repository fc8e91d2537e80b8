"""Attendance <-> plain JSON, as `Progress.attendance` keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedrep.protocol.attendance import Attendance, Standing
from fedrep.protocol.manifests import RecordPromise, RosterEntry, SiloName


def attendance_to_json(attendance: Attendance) -> dict[str, Any]:
    standings = {
        name: {
            "fingerprint": standing.entry.fingerprint.hex(),
            "session_key": standing.entry.session_key.hex(),
            "session_signature": standing.entry.session_signature.hex(),
            "promise": _promise_to_json(standing.entry.promise),
            "joined_in": standing.joined_in,
            "present": standing.present,
            "strikes": standing.strikes,
            "back_in_round": standing.back_in_round,
        }
        for name, standing in attendance.standings.items()
    }
    return {"standings": standings, "excluded": sorted(attendance.excluded)}


def attendance_from_json(data: Mapping[str, Any]) -> Attendance:
    """An empty mapping is an empty attendance: what a new run starts with."""
    standings = {
        SiloName(name): Standing(
            RosterEntry(
                SiloName(name),
                bytes.fromhex(entry["fingerprint"]),
                bytes.fromhex(entry["session_key"]),
                bytes.fromhex(entry["session_signature"]),
                _promise_from_json(entry.get("promise")),
            ),
            entry["joined_in"],
            entry["present"],
            entry["strikes"],
            entry["back_in_round"],
        )
        for name, entry in data.get("standings", {}).items()
    }
    return Attendance(standings, frozenset(SiloName(name) for name in data.get("excluded", ())))


def _promise_to_json(promise: RecordPromise | None) -> list[float] | None:
    return None if promise is None else [promise.epsilon, promise.delta]


def _promise_from_json(data: Any) -> RecordPromise | None:
    """Also from before promises existed."""
    return None if data is None else RecordPromise(*data)
