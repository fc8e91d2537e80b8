"""All finished rounds of one run, with running totals, thinned for charts so that extremes survive."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise

from fedrep import suspicion
from fedrep.communication import paper_bits
from fedrep.wire.v1 import federation_pb2, observer_pb2
from fedrep_dashboard import schema
from fedrep_dashboard.view import optional
from fedrep_runtime.observed_rounds import seated

UNTHINNED_TAIL = 20  # the phase chart shows the latest rounds one by one
# Worst last: a cell that stands for several rounds shows the worst of them.
ATTENDANCE = ("absent", "on_time", "abstained", "sitting_out", "excluded", "late", "dropped")
BUFFER_MARKS = ("used", "suspected", "discarded")
Marks = dict[int, tuple[str, float | None]]  # by buffer number: mark, and distance if it was opened


class History:
    """Rounds in ascending order. `coordinates` is the paper's K, `dense` the bytes of one silo's dense round, and an epoch has
    `reshuffle_every` rounds."""

    def __init__(self) -> None:
        self.coordinates = 0
        self.dense = 0
        self.reshuffle_every = 1
        self._numbers: list[int] = []
        self._rounds: list[observer_pb2.Round] = []
        self._rows: list[schema.RoundRow] = []  # valid up to its length; cut when an earlier round changes
        self._statuses: list[dict[str, str]] = []  # by silo
        self._marks: list[Marks] = []
        self._tally: suspicion.Tally | None = None
        self._tallied = 0  # rounds that are in it

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def last(self) -> int:
        return self._numbers[-1] if self._numbers else 0

    def clear(self) -> None:
        self._numbers.clear()
        self._rounds.clear()
        self._rows.clear()
        self._statuses.clear()
        self._marks.clear()
        self._tally = None

    def put(self, item: observer_pb2.Round) -> bool:
        """Add a round, or replace it: reports may arrive after a round has ended. False if nothing changed."""
        at = bisect_left(self._numbers, item.round)
        same = int(at < len(self._numbers) and self._numbers[at] == item.round)
        if same and self._rounds[at] == item:
            return False
        if at < self._tallied and not (same and self._rounds[at].buffers == item.buffers):
            self._tally = None
        self._numbers[at : at + same] = [item.round]
        self._rounds[at : at + same] = [item]
        self._statuses[at : at + same] = [{s.silo: sys.intern(s.status) for s in item.silos}]
        self._marks[at : at + same] = [marks_of(item)]
        del self._rows[at:]
        return True

    def rows(self) -> Sequence[schema.RoundRow]:
        while len(self._rows) < len(self._rounds):
            before = self._rows[-1] if self._rows else None
            self._rows.append(self._row(self._rounds[len(self._rows)], before))
        return self._rows

    def row(self, number: int) -> schema.RoundRow | None:
        at = bisect_left(self._numbers, number)
        if at == len(self._numbers) or self._numbers[at] != number:
            return None
        return self.rows()[at]

    def detail(self, number: int) -> schema.RoundDetail | None:
        row = self.row(number)
        if row is None:
            return None
        at = bisect_left(self._numbers, number)
        item = self._rounds[at]
        silos = [
            schema.SiloInRound(
                silo=s.silo,
                status=s.status,
                bytes_up=s.bytes_up,
                bytes_down=s.bytes_down,
                record_epsilon=optional(s, "record_epsilon"),
                record_none=s.record_none,
            )
            for s in item.silos
        ]
        return schema.RoundDetail(
            row=row,
            buffers=buffers_of(item),
            silos=silos,
            previous=self._numbers[at - 1] if at else None,
            following=self._numbers[at + 1] if at + 1 < len(self) else None,
        )

    def thinned(self, points: int, from_round: int = 0) -> list[schema.RoundRow]:
        """At most about `points` rows: of each group the last, and those with extreme accuracy, loss and bytes."""
        rows = self.rows()[bisect_left(self._numbers, from_round) :]
        if len(rows) <= points or len(rows) <= UNTHINNED_TAIL:
            return list(rows)
        kept = {0, *range(len(rows) - UNTHINNED_TAIL, len(rows))}
        for group in groups(len(rows), max(points // 4, 1)):
            kept.add(group[-1])
            kept.add(max(group, key=lambda i: rows[i].bytes_up + rows[i].bytes_down))
            scored = [i for i in group if rows[i].accuracy is not None]
            if scored:
                kept.add(min(scored, key=lambda i: rows[i].accuracy or 0.0))
                kept.add(max(scored, key=lambda i: rows[i].loss or 0.0))
        return [rows[i] for i in sorted(kept)]

    def attendance(self, columns: int, last: int | None = None) -> schema.HeatMap:
        spans = self._spans(columns, last)
        names = sorted(set().union(*self._statuses))
        cells = [[worst(ATTENDANCE, {self._statuses[i].get(name, "") for i in span}) for span in spans] for name in names]
        return self._map(names, spans, cells)

    def buffer_map(self, columns: int, last: int | None = None) -> schema.HeatMap:
        spans = self._spans(columns, last)
        numbers = sorted(set().union(*self._marks))
        mine = [[[self._marks[i][n] for i in span if n in self._marks[i]] for span in spans] for n in numbers]
        cells = [[worst(BUFFER_MARKS, {mark for mark, _ in found}) for found in row] for row in mine]
        values = [[max((d for _, d in found if d is not None), default=None) for found in row] for row in mine]
        found = self._map([f"buffer {number}" for number in numbers], spans, cells, values)
        return found.model_copy(update={"details": [[self._worst_seat(n, span) for span in spans] for n in numbers]})

    def _worst_seat(self, number: int, span: range) -> schema.SeatDetail | None:
        """Of a buffer in a group of rounds the round that its cell shows: the worst, and of these the one farthest away."""
        there = [i for i in span if number in self._marks[i]]
        if not there:
            return None
        at = max(there, key=lambda i: (BUFFER_MARKS.index(self._marks[i][number][0]), self._marks[i][number][1] or 0.0))
        buffer = next(b for b in self._rounds[at].buffers if b.number == number)
        return schema.SeatDetail(
            round=self._numbers[at], members=list(buffer.members), weight=optional(buffer, "weight"), why=buffer.discarded
        )

    def _spans(self, columns: int, last: int | None) -> list[range]:
        start = 0 if last is None else max(0, len(self) - last)
        return [range(start + span.start, start + span.stop) for span in groups(len(self) - start, columns)]

    def _map(
        self, names: list[str], spans: list[range], cells: list[list[str]], values: list[list[float | None]] | None = None
    ) -> schema.HeatMap:
        return schema.HeatMap(
            rows=names,
            first_round=[self._numbers[span[0]] for span in spans],
            last_round=[self._numbers[span[-1]] for span in spans],
            cells=cells,
            values=values or [],
        )

    def suspicion(self, over: bool) -> schema.Suspicion:
        """Who sat in suspected buffers, and whether the seats explain it."""
        if self._tally is None:
            self._tally, self._tallied = suspicion.Tally(self.reshuffle_every), 0
        for item in self._rounds[self._tallied :]:
            self._tally.add(seated(item))
        self._tallied = len(self._rounds)
        found = self._tally.standings(over)
        return schema.Suspicion(
            sentence=suspicion.sentence(found),
            caution=suspicion.CAUTION,
            suspected=sum(mark == "suspected" for marks in self._marks for mark, _ in marks.values()),
            silos=[schema.Standing(**asdict(one), stands_out=one.stands_out) for one in found],
        )

    def raw(self) -> Iterator[tuple[observer_pb2.Round, Marks]]:
        """Every round as the server sent it, with its buffers' marks: the quick way through a long run."""
        return zip(self._rounds, self._marks, strict=True)

    def _row(self, item: observer_pb2.Round, before: schema.RoundRow | None) -> schema.RoundRow:
        up = item.bytes_up + (before.bytes_up_total if before else 0)
        down = item.bytes_down + (before.bytes_down_total if before else 0)
        dense = self.dense * item.proposed
        paper = paper_bits(self.coordinates, max(item.roster_size, 1)) / 8 * item.proposed
        exact, theorem2 = optional(item, "epsilon"), optional(item, "epsilon_theorem2")
        # Nobody proposed, and so nothing was spent. Of a round that a restart cut off nobody knows: it has no roster.
        nothing_left = item.proposed == 0 and item.roster_size > 0
        accuracy, loss = _three(item.silo_accuracy), _three(item.silo_loss)
        return schema.RoundRow(
            round=item.round,
            outcome="applied" if item.outcome == federation_pb2.OUTCOME_APPLIED else "skipped",
            reason=item.reason,
            started_at=item.started_at,
            phase_seconds=list(item.phase_seconds),
            consensus_size=item.consensus_size,
            roster_size=item.roster_size,
            proposed=item.proposed,
            survivors=item.survivors,
            bytes_up=item.bytes_up,
            bytes_down=item.bytes_down,
            bytes_up_total=up,
            bytes_down_total=down,
            bytes_total=up + down,
            dense_bytes=dense,
            dense_total=dense + (before.dense_total if before else 0),
            paper_bytes=paper,
            paper_total=paper + (before.paper_total if before else 0.0),
            epsilon=exact,
            epsilon_theorem2=theorem2,
            epsilon_sum=_added(before.epsilon_sum if before else 0.0, 0.0 if nothing_left else exact),
            epsilon_theorem2_sum=_added(before.epsilon_theorem2_sum if before else 0.0, 0.0 if nothing_left else theorem2),
            clip_range=item.clip_range,
            clip_rate=optional(item, "clip_rate"),
            update_norm=optional(item, "update_norm"),
            accuracy=optional(item, "accuracy"),
            loss=optional(item, "loss"),
            metrics=dict(item.metrics),
            records={s.silo: s.record_epsilon for s in item.silos if optional(s, "record_epsilon") is not None},
            silo_accuracy_min=accuracy[0],
            silo_accuracy_median=accuracy[1],
            silo_accuracy_max=accuracy[2],
            silo_loss_min=loss[0],
            silo_loss_median=loss[1],
            silo_loss_max=loss[2],
            model_version=item.model_version,
            tolerated=item.tolerated,
        )


def marks_of(item: observer_pb2.Round) -> Marks:
    """What the heat map shows of each buffer: a mark, and the distance of its mean from the update."""
    distances = {seat.number: seat.distance for seat in seated(item).seats}
    far = suspicion.far_away(distances)
    return {b.number: (_mark(b, b.number in far), distances[b.number]) for b in item.buffers}


def _mark(buffer: observer_pb2.BufferRound, far: bool) -> str:
    return "discarded" if buffer.discarded or not buffer.opened else "suspected" if far else "used"


def buffers_of(item: observer_pb2.Round) -> list[schema.Buffer]:
    marks = marks_of(item)
    return [
        schema.Buffer(
            number=b.number,
            members=list(b.members),
            survivors=b.survivors,
            opened=b.opened,
            discarded=b.discarded,
            distance=optional(b, "distance"),
            weight=optional(b, "weight"),
            mark=marks[b.number][0],
        )
        for b in item.buffers
    ]


def groups(count: int, wanted: int) -> list[range]:
    """`count` neighbours in at most `wanted` groups of almost equal size."""
    wanted = min(count, wanted)
    edges = [i * count // wanted for i in range(wanted + 1)] if wanted else [0]
    return [range(a, b) for a, b in pairwise(edges)]


def worst(order: Sequence[str], words: set[str]) -> str:
    return max(words, key=lambda word: order.index(word) if word in order else -1, default="")


def _three(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    if len(values) != 3:
        return None, None, None
    return values[0], values[1], values[2]


def _added(total: float | None, cost: float | None) -> float | None:
    """A round without guarantee makes the sum meaningless from there on."""
    return None if total is None or cost is None else total + cost
