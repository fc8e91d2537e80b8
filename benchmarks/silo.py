"""What FedREP itself costs a silo per round, as a share of one training step of ResNet-20 with batch 25 on the same machine.

    python -m benchmarks.silo [--json PATH] [--repeats N]

The vector work (top-k, code, quantize, mask, error memory, update) grows with d; the work per roster member (signatures,
shares) does not, and is shown apart. CPU time of one thread each, all parts in turn within each repeat, the minimum counts.
"""

from __future__ import annotations

import argparse
import platform
import secrets
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.machine import save
from benchmarks.measuring import Work, interleaved
from fedrep.coding import decode_coordinates, encode_coordinates
from fedrep.protocol.manifests import RunHash
from fedrep.protocol.messages import Outcome, Update
from fedrep.protocol.model_state import ModelState, ServerModel
from fedrep.protocol.thresholds import share_threshold
from fedrep.quantize import RingFormat, quantize, value_bits
from fedrep.secagg import shamir
from fedrep.secagg.keys import AgreementKey, SecretBytes, generate_signing_key
from fedrep.secagg.masking import MaskedCopy, pair_mask, self_mask
from fedrep.secagg.shares import open_share, seal_share
from fedrep.sparsify import gather, propose, residual, union

SIZES = (270_000, 1_000_000, 5_000_000, 20_000_000)
SILOS, BUFFER, FRACTION, ALPHA = 32, 4, 0.05, 0.5
LIMIT = 0.10  # of a training step, at the smallest size
NAME, C2 = "silo-00", b"\2" * 32


@dataclass(frozen=True)
class SizeResult:
    d: int
    consensus: int
    milliseconds: dict[str, float]
    total_ms: float
    ns_per_parameter: float
    share_of_training_step: float


def vector_work(d: int) -> tuple[dict[str, Work], int]:
    """The silo's steps of one round in their order, on arrays as they are in a round."""
    rng = np.random.default_rng(d)
    k = int(FRACTION * d) // SILOS
    before, update = (rng.standard_normal(d, dtype=np.float32) for _ in range(2))
    g = before + update
    own = propose(g, k, ALPHA, rng)
    consensus = union([own, *(rng.choice(d, k, replace=False) for _ in range(SILOS - 1))])
    coded = encode_coordinates(consensus, d)
    ring = RingFormat(16, value_bits(16, BUFFER))
    values = quantize(gather(g, consensus), 3.0, ring, rng)
    key, seed = AgreementKey.generate(), SecretBytes(secrets.token_bytes(32))
    mates = [AgreementKey.generate().public for _ in range(BUFFER - 1)]
    model = ModelState.initial(rng.standard_normal(d, dtype=np.float32))
    server, descent = ServerModel(model, np.zeros(d, np.float32)).apply(consensus, coded, values.dequantized, 16)
    answer = Update(RunHash(b""), 1, Outcome.APPLIED, "", server.state.name, descent=descent)

    def submit() -> memoryview:
        masks = [self_mask(seed, NAME, C2, 0)]
        masks += [pair_mask(key, NAME, f"silo-{n:02}", mate, C2, 0) for n, mate in enumerate(mates, 1)]
        masked = MaskedCopy(masks, ring.dtype, consensus.size)
        quantize(gather(g, consensus), 3.0, ring, rng, masked.append)
        return masked.message()

    work: dict[str, Work] = {
        "g = u + update": lambda: before + update,
        "top-k, obfuscate": lambda: propose(g, k, ALPHA, rng),
        "code": lambda: (encode_coordinates(own, d), decode_coordinates(coded, d, SILOS * k)),
        "quantize and mask": submit,
        "error memory": lambda: residual(g, consensus, replace(values).dequantized),  # a copy that has not worked it out yet
        "update and hash": lambda: model.follow(answer, consensus),
    }
    return work, int(consensus.size)


def member_work() -> dict[str, Work]:
    """Once per roster member and round: session keys, own shares, others' shares, survivors' and holders' signatures."""
    signer, message = generate_signing_key(), b"\3" * 32
    signature = signer.sign(message)
    own, others = AgreementKey.generate(), [AgreementKey.generate() for _ in range(SILOS)]
    secret, threshold = secrets.token_bytes(32), share_threshold(SILOS)
    share = shamir.split(secret, threshold, SILOS, secrets.token_bytes)[0]
    shared = [own.exchange(other.public) for other in others]
    sealed = [seal_share(each, C2, f"silo-{n:02}", NAME, share, share) for n, each in enumerate(shared)]

    def verify() -> None:
        for _ in range(3 * SILOS):
            signer.verify_key.verify(signature, message)

    def deal() -> None:
        seeds = shamir.split(secret, threshold, SILOS, secrets.token_bytes)
        keys = shamir.split(secret, threshold, SILOS, secrets.token_bytes)
        for n, each in enumerate(shared):
            seal_share(each, C2, NAME, f"silo-{n:02}", seeds[n], keys[n])

    def hold() -> None:
        for n, each in enumerate(shared):
            open_share(each, C2, f"silo-{n:02}", NAME, sealed[n])

    return {"signatures": verify, "own shares": deal, "others' shares": hold}


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


def measure(d: int, step: Work, repeats: int) -> tuple[SizeResult, float]:
    """The training step takes its turn with the silo's work, so that a busy machine slows both alike."""
    work, consensus = vector_work(d)
    measured = interleaved({"training step": step, **work}, repeats)
    one_step = measured.pop("training step")
    total = sum(measured.values())
    return SizeResult(d, consensus, measured, total, 1e6 * total / d, total / one_step), one_step


def table(results: list[SizeResult], members: dict[str, float], one_step: float) -> Table:
    shown = Table(
        title=f"ms of CPU per round; m = {SILOS}, s = {BUFFER}, K/d = {FRACTION}; a training step takes {one_step:.1f} ms"
    )
    shown.add_column("d", justify="right")
    for name in results[0].milliseconds:
        shown.add_column(name, justify="right")
    for name in ("sum", "ns per parameter", "share of a step"):
        shown.add_column(name, justify="right")
    for result in results:
        cells = [f"{value:.2f}" for value in result.milliseconds.values()]
        ends = (f"{result.total_ms:.2f}", f"{result.ns_per_parameter:.1f}", f"{100 * result.share_of_training_step:.1f} %")
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
    for d in SIZES:
        result, one_step = measure(d, step, arguments.repeats if d < 10**7 else max(arguments.repeats // 2, 1))
        results.append(result)
        steps.append(one_step)
    Console(width=180).print(table(results, members, min(steps)))
    share = results[0].share_of_training_step
    growth = max(r.ns_per_parameter for r in results) / results[0].ns_per_parameter
    print(f"at d = {SIZES[0]:,}: {100 * share:.1f} % of a training step (at most {100 * LIMIT:.0f} %); ", end="")
    print(f"largest cost per parameter against the smallest size: {growth:.2f}x")
    if arguments.json:
        figures = {
            "machine": platform.machine(),
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
