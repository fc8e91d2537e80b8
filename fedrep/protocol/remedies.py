"""Which changes make a run work that the preflight refuses. None is guessed: each has passed the whole preflight itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from fedrep.protocol.manifests import RunManifest, SiloName
from fedrep.protocol.preflight import sizes_work
from fedrep.protocol.seats import largest_seat
from fedrep.protocol.thresholds import (
    default_colluders,
    default_min_survivors,
    default_quorum,
    least_min_survivors,
    least_quorum,
)
from fedrep.quantize import check_bit_budget, value_bits
from fedrep.secagg.masking import RING_BITS
from fedrep.secagg.shamir import MAX_HOLDERS

SILOS: Final = "silos"
ROBUST: Final = "geometric_median"
MEAN: Final = "mean"

Changes = Mapping[str, Any]


def remedies(run: RunManifest) -> list[dict[str, Any]]:
    """Settings as the run file calls them (`silos`: how many), the least change of each kind; none where names are wrong."""
    m = len(run.silos)
    if len(set(run.silos)) != m or run.byzantine < 0 or run.colluders < 0:
        return []
    if (alone := _least(run, [{}])) is not None:
        return [alone] if alone else []  # what follows from the sizes was given wrongly, and nothing else
    fewer: list[dict[str, Any]] = [{"byzantine": lower} for lower in range(run.byzantine - 1, -1, -1)]
    smaller: list[dict[str, Any]] = [{"buffer_size": lower} for lower in range(min(run.buffer_size, m + 1) - 1, 1, -1)]
    invited = [{SILOS: more} for more in range(max(m + 1, run.buffer_size), MAX_HOLDERS + 1)]
    kinds: list[list[dict[str, Any]]] = [
        [{"quorum": higher} for higher in range(max(run.quorum, 1) + 1, m + 1)],
        [{"colluders": lower} for lower in range(run.colluders - 1, -1, -1)],
        fewer,
        smaller,
        [{"aggregator": rule} for rule in (ROBUST, MEAN) if rule != run.aggregator],
    ]
    found = [least for kind in kinds if (least := _least(run, kind))]
    if not found:  # one change is not enough: the most attackers, then the largest buffers, that work together
        plain: dict[str, Any] = {"byzantine": 0, "aggregator": MEAN}
        both = [{**attackers, **size} for attackers in fewer for size in smaller]
        found = [least for kind in (both, [plain], [{**plain, **size} for size in smaller]) if (least := _least(run, kind))][:1]
    more = _least(run, invited)
    return [more, *found] if more else found


def _least(run: RunManifest, kind: Iterable[Changes]) -> dict[str, Any] | None:
    """The first of these changes that works, with whatever else it takes."""
    for changes in kind:
        changed = _resized(run, changes)
        if changed is not None and sizes_work(changed):
            return _settings(run, changed)
    return None


def _resized(run: RunManifest, changes: Changes) -> RunManifest | None:
    """With these sizes; what was a default before is one again, and what no longer fits becomes one."""
    m = changes.get(SILOS, len(run.silos))
    s, f = changes.get("buffer_size", run.buffer_size), changes.get("byzantine", run.byzantine)
    if not (2 <= s <= m <= MAX_HOLDERS and f >= 0):
        return None
    c = changes.get("colluders", default_colluders(s) if _default_colluders(run) else run.colluders)
    least = run.min_survivors
    if _default_survivors(run) or not least_min_survivors(c) <= least <= s:
        least = default_min_survivors(s, c)
    quorum = changes.get("quorum", run.quorum)
    if "quorum" not in changes and (_default_quorum(run) or not least_quorum(m, s, f) <= quorum <= m):
        quorum = default_quorum(m, s, f)
    changed = replace(
        run,
        silos=tuple(SiloName(str(number)) for number in range(m)),
        buffer_size=s,
        byzantine=f,
        colluders=c,
        min_survivors=least,
        quorum=quorum,
        aggregator=changes.get("aggregator", run.aggregator),
        coordinates=_coordinates(run, m, quorum),
    )
    return _with_bits(changed)


def _with_bits(run: RunManifest) -> RunManifest:
    largest = largest_seat(run)
    wide_enough = (bits for bits in RING_BITS if bits >= run.ring_bits and not check_bit_budget(bits, largest))
    ring = next(wide_enough, run.ring_bits)
    return replace(run, ring_bits=ring, value_bits=max(value_bits(ring, largest), 0))


def _coordinates(run: RunManifest, silos: int, quorum: int) -> int:
    if 0 < run.coordinates < silos:
        return round(_rounded_up(silos / max(run.parameters, 1)) * run.parameters)
    return run.parameters if run.coordinates // max(quorum, 1) >= run.parameters else run.coordinates


def _rounded_up(share: float) -> float:
    """To two digits, so that it can be typed."""
    unit = 10.0 ** (math.floor(math.log10(share)) - 1)
    return float(f"{math.ceil(share / unit) * unit:.2g}")


def _settings(run: RunManifest, changed: RunManifest) -> dict[str, Any]:
    """What a person has to write; what the run file leaves to its defaults goes without saying."""
    found: dict[str, Any] = {}
    if len(changed.silos) != len(run.silos):
        found[SILOS] = len(changed.silos)
    names = {"byzantine": "byzantine_count", "buffer_size": "buffer_size", "aggregator": "aggregator", "ring_bits": "ring_bits"}
    found |= {name: getattr(changed, field) for field, name in names.items() if getattr(changed, field) != getattr(run, field)}
    by_default = {"colluders": _default_colluders, "min_survivors": _default_survivors, "quorum": _default_quorum}
    for name, is_default in by_default.items():
        if getattr(changed, name) != getattr(run, name) and not (is_default(run) and is_default(changed)):
            found[name] = getattr(changed, name)
    if changed.coordinates != run.coordinates:
        found["fraction"] = _rounded_up(changed.coordinates / changed.parameters)
    return found


def _default_colluders(run: RunManifest) -> bool:
    return run.colluders == default_colluders(run.buffer_size)


def _default_survivors(run: RunManifest) -> bool:
    return run.min_survivors == default_min_survivors(run.buffer_size, run.colluders)


def _default_quorum(run: RunManifest) -> bool:
    return run.quorum == default_quorum(len(run.silos), run.buffer_size, run.byzantine)
