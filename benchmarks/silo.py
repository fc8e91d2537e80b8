"""What FedREP itself costs a silo per round, as a share of one training step of ResNet-20 with batch 25 on the same machine.

    python -m benchmarks.silo [--json PATH] [--repeats N]

The vector work (top-k, code, quantize, mask, error memory, update, writing g) grows with d; the work per roster member (keys,
MACs, shares) does not, and is shown apart. CPU time of one thread each, all parts in turn within each repeat, the minimum counts.

The floor is what no silo can do without: three vectors are read and one written for g, the model is hashed (rule N5), and g is
handed to the kernel before its values leave (a crash must not lose it). Nothing that is chosen, coded, masked or applied counts.
"""

from __future__ import annotations

import argparse
import secrets
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from blake3 import blake3
from rich.console import Console
from rich.table import Table

from benchmarks.machine import save
from benchmarks.measuring import Work, interleaved
from fedrep.coding import decode_coordinates, encode_coordinates
from fedrep.patched import Difference, Patch
from fedrep.protocol.clip_range import range_bits
from fedrep.protocol.error_memory import ErrorMemory, Fate, Pending, Place
from fedrep.protocol.manifests import RunHash, SiloName
from fedrep.protocol.messages import Outcome, Update
from fedrep.protocol.model_state import ModelState, ServerModel
from fedrep.protocol.thresholds import share_threshold
from fedrep.quantize import RingFormat, quantize, value_bits
from fedrep.secagg import shamir
from fedrep.secagg.keys import AgreementKey, SecretBytes
from fedrep.secagg.masking import MaskedCopy, pair_mask, self_mask
from fedrep.secagg.pairs import MAC_BYTES, RoundPairs, next_link
from fedrep.sparsify import gather, propose, union
from fedrep_runtime.tensor_files import overwrite_tensors

SIZES = (270_000, 1_000_000, 5_000_000, 20_000_000)
SILOS, BUFFER, FRACTION, ALPHA = 32, 4, 0.05, 0.5
LIMIT, LIMIT_AT = 0.10, 5_000_000  # share of a training step, and the size that it is asked for
NAME, C2 = "silo-00", b"\2" * 32


@dataclass(frozen=True)
class SizeResult:
    d: int
    consensus: int
    milliseconds: dict[str, float]
    total_ms: float
    ns_per_parameter: float
    share_of_training_step: float
    floor_ms: float
    floor_share_of_training_step: float


def floor_work(d: int, folder: Path) -> dict[str, Work]:
    rng = np.random.default_rng(d)
    first, second, third = (rng.standard_normal(d, dtype=np.float32) for _ in range(3))
    room = np.zeros(d, np.float32)
    file = (folder / f"{d}.floor").open("wb", buffering=0)

    def write() -> None:
        file.seek(0)
        file.write(first.data)

    return {
        "read three, write one": lambda: (np.add(first, second, out=room), third.max()),
        "hash": lambda: blake3(first.view(np.uint8).data, max_threads=1).digest(),
        "hand over to the kernel": write,
    }


def vector_work(d: int, folder: Path) -> tuple[dict[str, Work], int]:
    """The silo's steps of one round in their order, with the functions of its machine, on arrays as they are in a round."""
    rng = np.random.default_rng(d)
    k = int(FRACTION * d) // SILOS
    before, update = (rng.standard_normal(d, dtype=np.float32) for _ in range(2))
    sent_before = np.sort(rng.choice(d, int(FRACTION * d), replace=False))
    memory = ErrorMemory(before, patch=Patch(sent_before, np.zeros(sent_before.size, np.float32)))
    model = ModelState.initial(rng.standard_normal(d, dtype=np.float32))
    trained = Difference(model.vector, model.vector - update)
    room = np.empty(d, np.float32)
    contribution = memory.contribution(1, 0, trained, room, k)
    g, largest = contribution.g, contribution.largest
    assert largest is not None
    own = propose(g, k, ALPHA, rng, largest.places)
    consensus = union([own, *(rng.choice(d, k, replace=False) for _ in range(SILOS - 1))])
    coded = encode_coordinates(consensus, d)
    ring = RingFormat(16, value_bits(16, BUFFER))
    values = quantize(gather(g, consensus), 3.0, ring, rng)
    key, seed = AgreementKey.generate(), SecretBytes(secrets.token_bytes(32))
    mates = [AgreementKey.generate().public for _ in range(BUFFER - 1)]
    place = Place(RunHash(b""), 1, SiloName(NAME), 0, C2, C2, 2, 0, 0, {})
    pending = Pending(place, contribution, 3.0, consensus, values.dequantized, coded)
    waiting = replace(memory, pending=pending)
    server = ServerModel(replace(model, vector=model.vector.copy()), np.zeros(d, np.float32))
    followed, descent = server.apply(consensus, coded, values.dequantized, 16)
    answer = Update(RunHash(b""), 1, Outcome.APPLIED, "", followed.state.name, descent=descent)
    held = model.vector[consensus]

    def choose() -> None:
        propose(g, k, ALPHA, rng, largest.places)
        range_bits(g, 3.0, k, contribution.peak, largest)

    def submit() -> memoryview:
        masks = [self_mask(seed, NAME, C2, 0)]
        masks += [pair_mask(key, NAME, f"silo-{n:02}", mate, C2, 0) for n, mate in enumerate(mates, 1)]
        masked = MaskedCopy(masks, ring.dtype, consensus.size)
        quantize(gather(g, consensus), 3.0, ring, rng, masked.append)
        return masked.message()

    def follow() -> None:
        model.follow(answer, consensus, coded, in_place=True)
        model.vector[consensus] = held  # so that the next time is the same

    work: dict[str, Work] = {
        "g = u + update": lambda: memory.contribution(1, 0, trained, room, k),
        "top-k, obfuscate": lambda: (
            propose(g, k, ALPHA, rng, largest.places),
            range_bits(g, 3.0, k, contribution.peak, largest),
        ),
        "code": lambda: (encode_coordinates(own, d), decode_coordinates(coded, d, SILOS * k)),
        "quantize and mask": submit,
        "error memory": lambda: (replace(values).dequantized, waiting.settle(Fate.OPENED)),
        "update and hash": follow,
        "g to disk": lambda: overwrite_tensors(folder / f"{d}.safetensors", {"g": g}, {}),
    }
    return work, int(consensus.size)


def member_work() -> dict[str, Work]:
    """Once per roster member and round: the next link of the pair, MACs sent and checked, own shares, others' shares."""
    secret, threshold = secrets.token_bytes(32), share_threshold(SILOS)
    shares = shamir.split(secret, threshold, SILOS, secrets.token_bytes)
    names = [f"silo-{n:02}" for n in range(SILOS)]
    links = {name: SecretBytes(secrets.token_bytes(32)) for name in names}
    mine = RoundPairs(NAME, C2, links)
    sealed = [
        RoundPairs(name, C2, {NAME: links[name]}).seal(NAME, share, share) for name, share in zip(names, shares, strict=True)
    ]
    said = b"\3" * 64

    def pairs() -> RoundPairs:
        return RoundPairs(NAME, C2, {name: next_link(link) for name, link in links.items()})

    def vouch() -> None:
        fresh = replace(mine, _own_keys=[], _their_keys={})
        fresh.macs(said)  # of a submission, and of a confirmation
        fresh.macs(said)
        for name in names:
            fresh.vouched(name, bytes(MAC_BYTES), said)
            fresh.vouched(name, bytes(MAC_BYTES), said)

    def deal() -> None:
        seeds, keys = shamir.split_together((secret, secret), threshold, SILOS, secrets.token_bytes)
        for name, seed, key in zip(names, seeds, keys, strict=True):
            mine.seal(name, seed, key)

    def hold() -> None:
        for name, each in zip(names, sealed, strict=True):
            mine.open(name, each)

    return {"links": pairs, "MACs": vouch, "own shares": deal, "others' shares": hold}


def training_step() -> Work:
    """One local step of ResNet-20 on 25 made-up images, on one CPU thread, as a silo makes it."""
    import torch

    from fedrep_trainers.build import image_trainer
    from fedrep_trainers.datasets import ImageDataset
    from fedrep_trainers.images import Images
    from fedrep_trainers.settings import TrainerSettings

    rng = np.random.default_rng(0)
    images = Images(rng.integers(0, 256, (200, 3, 32, 32), dtype=np.uint8), rng.integers(0, 10, 200))
    dataset = ImageDataset(images, images, tuple("0123456789"), 255.0, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    settings = TrainerSettings(dataset="cifar10", model="resnet20", batch_size=25, threads=1, device="cpu")
    trainer = image_trainer(settings, dataset)
    assert torch.get_num_threads() == 1
    return lambda: trainer.local_steps(1)


def measure(d: int, step: Work, repeats: int, folder: Path) -> tuple[SizeResult, float]:
    """The training step takes its turn with the silo's work, so that a busy machine slows both alike."""
    work, consensus = vector_work(d, folder)
    floors = floor_work(d, folder)
    measured = interleaved({"training step": step, **work, **floors}, repeats)
    one_step = measured.pop("training step")
    floor = sum(measured.pop(name) for name in floors)
    total = sum(measured.values())
    return SizeResult(d, consensus, measured, total, 1e6 * total / d, total / one_step, floor, floor / one_step), one_step


def table(results: list[SizeResult], members: dict[str, float], one_step: float) -> Table:
    shown = Table(
        title=f"ms of CPU per round; m = {SILOS}, s = {BUFFER}, K/d = {FRACTION}; a training step takes {one_step:.1f} ms"
    )
    shown.add_column("d", justify="right")
    for name in results[0].milliseconds:
        shown.add_column(name, justify="right")
    for name in ("sum", "ns per parameter", "share of a step", "floor", "its share"):
        shown.add_column(name, justify="right")
    for result in results:
        cells = [f"{value:.2f}" for value in result.milliseconds.values()]
        ends = [f"{result.total_ms:.2f}", f"{result.ns_per_parameter:.1f}", f"{100 * result.share_of_training_step:.1f} %"]
        ends += [f"{result.floor_ms:.2f}", f"{100 * result.floor_share_of_training_step:.1f} %"]
        shown.add_row(f"{result.d:,}", *cells, *ends)
    per_member = ", ".join(f"{name} {value:.1f}" for name, value in members.items())
    shown.caption = f"besides, whatever d is, for the {SILOS} members: {per_member} ms"
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.silo", description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    step = training_step()
    step()  # the first one allocates
    members = interleaved(member_work(), arguments.repeats)
    results, steps = [], []
    with tempfile.TemporaryDirectory() as folder:
        for d in SIZES:
            repeats = arguments.repeats if d < 10**7 else max(arguments.repeats // 2, 1)
            result, one_step = measure(d, step, repeats, Path(folder))
            results.append(result)
            steps.append(one_step)
    Console(width=200).print(table(results, members, min(steps)))
    asked = next(result for result in results if result.d == LIMIT_AT)
    share = asked.share_of_training_step
    growth = max(r.ns_per_parameter for r in results) / results[0].ns_per_parameter
    print(f"at d = {LIMIT_AT:,}: {100 * share:.1f} % of a training step (at most {100 * LIMIT:.0f} %), ", end="")
    print(f"of which no silo can do without {100 * asked.floor_share_of_training_step:.1f} %; ", end="")
    print(f"largest cost per parameter against the smallest size: {growth:.2f}x")
    if arguments.json:
        figures = {
            "training_step_ms": min(steps),
            "per_member_ms": members,
            "share_of_training_step": share,
            "growth_of_cost_per_parameter": growth,
            "sizes": [result.__dict__ for result in results],
        }
        save(arguments.json, figures)
    return 0 if share <= LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main())
