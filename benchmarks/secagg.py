"""Secure aggregation against flwr's own SecAgg+ functions, interleaved in one run: `python -m benchmarks.secagg [--json PATH]`.

The peer lives in `.bench/flwr` and answers as a process that idles between requests. Times are processor time, the minimum over
repeats. Agreeing on pairwise keys has a row of its own, so the silo's rows are about vectors only, and the floor is bare
AES-256-CTR over the bytes of all masks. Neither clock covers a residual: flwr keeps none, and a silo works its own out once the
vector is masked. With a dropout, the server agrees on the missing keys inside the clock. Both sides use their defaults: flwr 22
of 32 bits in 64-bit integers, we a 16-bit ring.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.environment import ROOT
from benchmarks.machine import save
from benchmarks.measuring import Worker, timed
from benchmarks.rival_systems import FLOWER, flower_python
from fedrep.protocol.messages import Outcome, Update
from fedrep.quantize import RingFormat, open_mean, quantize, value_bits
from fedrep.secagg import shamir
from fedrep.secagg.keys import AgreementKey, SecretBytes
from fedrep.secagg.masking import Mask, MaskedCopy, add_masks, pair_mask, self_mask
from fedrep.wire import codec
from tests.protocol.federation import Federation, Silo

RESULTS = ROOT / "benchmarks" / "results" / "secagg.json"
C2 = bytes(range(32))
CLIP = 0.1
FLOOR_PIECE = 128 * 1024
KEYS = [AgreementKey.generate() for _ in range(16)]
NAMES = [f"silo-{number:02d}" for number in range(16)]


@dataclass(frozen=True)
class Row:
    work: str
    ours_ms: float
    peer_ms: float
    ratio: float
    target: float | None
    floor_ms: float | None = None
    times_floor: float | None = None
    floor_target: float | None = None


@dataclass(frozen=True)
class Round:
    """One secure aggregation of the same model: cost over all silos and the server, bytes per silo."""

    system: str
    silos: int
    parameters: int
    values_sent: int
    ms: float
    up_bytes: int
    down_bytes: int


def fresh(number: int) -> AgreementKey:
    """The same key without the secrets it has agreed on before, so that the agreement is paid for in the clock."""
    return AgreementKey.from_secret(KEYS[number].secret())


def agree(mates: int) -> Callable[[], list[Mask]]:
    own = fresh(0)

    def work() -> list[Mask]:
        masks = [self_mask(SecretBytes(bytes(32)), NAMES[0], C2, 0)]
        return masks + [pair_mask(own, NAMES[0], NAMES[mate], KEYS[mate].public, C2, 0) for mate in range(1, mates + 1)]

    return work


def silo(update: NDArray[np.float32], ring: RingFormat, mates: int) -> Callable[[], memoryview]:
    masks, rng = agree(mates)(), np.random.default_rng()

    def work() -> memoryview:
        masked = MaskedCopy(masks, ring.dtype, update.size)
        quantize(update, CLIP, ring, rng, masked.append)
        return masked.message()

    return work


def floor(d: int, masks: int) -> Callable[[], None]:
    """Nothing but the cipher: as many bytes as the masks have, over one cached buffer."""
    zeros, target = bytes(FLOOR_PIECE), bytearray(FLOOR_PIECE)

    def work() -> None:
        for _ in range(masks):
            encryptor = Cipher(AES(bytes(32)), CTR(bytes(16))).encryptor()
            whole, rest = divmod(2 * d, FLOOR_PIECE)
            for _ in range(whole):
                encryptor.update_into(zeros, target)
            encryptor.update_into(zeros[:rest], target)

    return work


def time_server(d: int, s: int, dropped: int, ring: RingFormat) -> float:
    """From the sum of the survivors' submissions and the rebuilt secrets to their mean, which is checked after the clock."""
    survivors = range(dropped, s)
    levels = np.random.default_rng(1).integers(-9, 9, d).astype(np.int16)
    total = levels.view(ring.dtype).copy()
    add_masks(total, _left_in_sum(survivors, dropped))
    opened: list[NDArray[np.float32]] = []

    def work() -> None:
        add_masks(total, _left_in_sum(survivors, dropped), negate=True)
        opened.append(open_mean(total, len(survivors), CLIP, ring))

    spent = timed(work)
    assert np.allclose(opened[0], levels * np.float32(CLIP / ring.limit / len(survivors)))
    return spent


def _left_in_sum(survivors: range, dropped: int) -> list[Mask]:
    masks = [self_mask(SecretBytes(bytes([silo]) * 32), NAMES[silo], C2, 0) for silo in survivors]
    for lost in range(dropped):
        gone = fresh(lost)
        for silo in survivors:
            mask = pair_mask(gone, NAMES[lost], NAMES[silo], KEYS[silo].public, C2, 0)
            masks.append(Mask(mask.key, -mask.sign))
    return masks


def measure_silo(peer: Worker, d: int, mates: int, repeats: int) -> Row:
    update = np.random.default_rng(d).normal(0, 0.01, d).astype(np.float32)
    ring = RingFormat(16, value_bits(16, mates + 1))
    ours, theirs, bare = np.inf, np.inf, np.inf
    for _ in range(repeats):
        for _ in range(5):
            ours = min(ours, timed(silo(update, ring, mates)))
            bare = min(bare, timed(floor(d, mates + 1)))
        theirs = min(theirs, peer.ask(case="client", d=d, mates=mates)["ms"])
    work = f"silo: quantize, mask, serialize {d:,} values, {mates} mates"
    return Row(work, ours, theirs, theirs / ours, 10, bare, ours / bare, 3)


def measure_agreement(peer: Worker, mates: int, repeats: int) -> Row:
    ours, theirs = np.inf, np.inf
    for _ in range(repeats):
        ours = min(ours, *(timed(agree(mates)) for _ in range(5)))
        theirs = min(theirs, peer.ask(case="agree", mates=mates)["ms"])
    return Row(f"silo: agree on keys with {mates} mates", ours, theirs, theirs / ours, None)


def measure_server(peer: Worker, d: int, s: int, dropped: int, repeats: int) -> Row:
    ring = RingFormat(16, value_bits(16, s))
    ours, theirs, bare = np.inf, np.inf, np.inf
    masks = s - dropped + dropped * (s - dropped)
    for _ in range(repeats):
        for _ in range(2):
            ours = min(ours, time_server(d, s, dropped, ring))
            bare = min(bare, timed(floor(d, masks)))
        theirs = min(theirs, peer.ask(case="server", d=d, s=s, dropped=dropped)["ms"])
    work = f"server: unmask and average {d:,} values, s = {s}" + (f", {dropped} dropout" if dropped else "")
    return Row(work, ours, theirs, theirs / ours, 10, bare, ours / bare)


def measure_shamir(peer: Worker, holders: int, threshold: int, repeats: int) -> list[Row]:
    secret = os.urandom(32)
    shares = dict(enumerate(shamir.split(secret, threshold, holders), start=1))
    works: dict[str, Callable[[], object]] = {
        "create": lambda: shamir.split(secret, threshold, holders),
        "combine": lambda: shamir.combine(shares, threshold),
    }
    rows = []
    for name, work in works.items():
        ours, theirs = np.inf, np.inf
        for _ in range(repeats):
            ours = min(ours, timed(lambda work=work: [work() for _ in range(100)]) / 100)  # type: ignore[misc]
            theirs = min(theirs, peer.ask(case=f"shamir_{name}", holders=holders, threshold=threshold)["ms"])
        rows.append(Row(f"Shamir {name}, {threshold} of {holders}", ours, theirs, theirs / ours, 100))
    return rows


def measure_round(peer: Worker, d: int, silos: int, repeats: int) -> list[Round]:
    """Dense there, K = 0.05 d consensus coordinates here; neither side trains, both run in one process without a network."""
    # P-256 identities, as certificates have. Sizes of buffers and neighbourhoods are alike: eight here, seven there.
    federation = Federation.of(silos, parameters=d, buffer_size=8, coordinates=d // 20, key_kind="p256")
    ours, theirs = np.inf, np.inf
    answer: dict[str, Any] = {}
    for _ in range(repeats):
        for silo in federation.silos.values():
            federation.train(silo)
        begun = time.process_time()
        update = federation.play()
        ours = min(ours, 1e3 * (time.process_time() - begun))
        if update.outcome is not Outcome.APPLIED:
            raise SystemExit(f"the round was not applied: {update.reason}")
        answer = peer.ask(case="round", d=d, silos=silos, shares=7, threshold=5)
        theirs = min(theirs, answer["ms"])
        if answer["error"] > 1e-4:
            raise SystemExit(f"flwr's round did not give the mean: off by {answer['error']}")
    up, down = _traffic(federation, update)
    result = federation.round.result
    assert result is not None
    return [
        Round("fedrep", silos, d, result.indices.size, ours, up, down),
        Round("flwr SecAgg+", silos, d, d, theirs, answer["up"], answer["down"]),
    ]


def _traffic(federation: Federation, update: Update) -> tuple[int, int]:
    """Bytes of one round per silo, as protobuf messages: the mean over the silos that took part in every step.

    The round ends as soon as enough holders revealed, so the last silos send less than these.
    """
    server = federation.round
    header, values = codec.update_to_wire(update)
    assert federation.manifest is not None
    to_all = codec.round_manifest_to_wire(federation.manifest).ByteSize() + header.ByteSize() + len(values)
    to_all += codec.survivors_to_wire(server.survivors()).ByteSize()
    to_all += sum(signature.ByteSize() for signature in codec.signatures_to_wire(server.confirmations()))
    up, down = 0, 0
    complete = [silo for silo in federation.silos.values() if silo.revealed is not None]
    for silo in complete:
        consensus = server.consensus_for(silo.name)
        up += _sent(silo)
        down += to_all + codec.consensus_to_wire(consensus).ByteSize() + len(consensus.coordinates)
    return up // len(complete), down // len(complete)


def _sent(silo: Silo) -> int:
    assert silo.proposed is not None
    assert silo.submitted is not None
    assert silo.confirmed is not None
    assert silo.revealed is not None
    proposal, submission = silo.proposed.message, silo.submitted.message
    total = codec.proposal_to_wire(proposal).ByteSize() + len(proposal.coordinates)
    total += codec.submission_to_wire(submission).ByteSize() + len(submission.masked)
    total += codec.confirmation_to_wire(silo.confirmed.message).ByteSize()
    return total + codec.reveal_to_wire(silo.revealed.message).ByteSize()


def _table(rows: list[Row]) -> Table:
    table = Table(title="processor time, minimum over interleaved repeats")
    for column in ("work", "ours ms", "flwr ms", "ratio", "target", "AES-CTR floor ms", "times floor", "at most"):
        table.add_column(column, justify="left" if column == "work" else "right")
    for row in rows:
        ratio, target = f"{row.ratio:.1f}x", ""
        if row.target is not None:
            ratio, target = f"[{'green' if row.ratio >= row.target else 'red'}]{ratio}[/]", f"{row.target:g}x"
        limits = ["", "", ""]
        if row.floor_ms is not None and row.times_floor is not None and row.floor_target is not None:
            colour = "green" if row.times_floor <= row.floor_target else "red"
            limits = [f"{row.floor_ms:.2f}", f"[{colour}]{row.times_floor:.2f}x[/]", f"{row.floor_target:g}x"]
        table.add_row(row.work, f"{row.ours_ms:.3f}", f"{row.peer_ms:.2f}", ratio, target, *limits)
    return table


def _round_table(rounds: list[Round]) -> Table:
    table = Table(title="one secure aggregation end to end, without training and network")
    for column in ("system", "silos", "parameters", "values per silo", "ms, all silos and server", "bytes up", "bytes down"):
        table.add_column(column, justify="left" if column == "system" else "right")
    for r in rounds:
        numbers = (r.silos, r.parameters, r.values_sent, round(r.ms), r.up_bytes, r.down_bytes)
        table.add_row(r.system, *(f"{number:,}" for number in numbers))
    return table


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Secure aggregation against flwr's SecAgg+, interleaved.")
    parser.add_argument("--quick", action="store_true", help="270k values only, fewer repeats")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the numbers go")
    options = parser.parse_args(arguments)
    peer = Worker([str(flower_python()), str(Path(__file__).with_name("secagg_flwr.py"))])
    console = Console(width=None if sys.stdout.isatty() else 150)
    sizes = [(270_000, 10)] if options.quick else [(270_000, 20), (5_000_000, 5)]
    rows = [measure_silo(peer, d, 7, repeats) for d, repeats in sizes]
    rows.append(measure_agreement(peer, 7, 5))
    openings = [(270_000, 10)] if options.quick else [(270_000, 20), (5_000_000, 3)]
    rows += [measure_server(peer, d, 16, dropped, repeats) for d, repeats in openings for dropped in (0, 1)]
    rows += measure_shamir(peer, 16, 11, 5)
    rounds = measure_round(peer, 270_000, 32, 1 if options.quick else 3)
    peer.close()
    console.print(_table(rows))
    console.print(_round_table(rounds))
    report: dict[str, object] = {"peer": list(FLOWER), "python": platform.python_version(), "numpy": np.__version__}
    report |= {"cryptography": version("cryptography")}
    report |= {"rows": [asdict(row) for row in rows], "rounds": [asdict(one) for one in rounds]}
    save(options.json, report)


if __name__ == "__main__":
    main()
