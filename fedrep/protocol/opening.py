"""Opening buffers on the server: shares to secrets, masks off the sum, sums to means, means to the update.

Only sums ever exist here: a submission is added to its buffer on arrival and forgotten, so memory is that of the buffers.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrep.aggregators import Aggregate, AggregatorWarning, ConfiguredRule, build_rule, rows_needed
from fedrep.errors import CryptoError, FedrepError, InvalidInputError, SettingsError
from fedrep.protocol.manifests import RoundManifest, RunManifest, SiloName
from fedrep.protocol.messages import Proposal, Secret, SurvivorSet, share_hash
from fedrep.protocol.thresholds import expected_byzantine
from fedrep.quantize import RingFormat, open_mean
from fedrep.secagg import shamir
from fedrep.secagg.keys import AgreementKey, SecretBytes, commitment
from fedrep.secagg.masking import Mask, add_masks, pair_mask, self_mask


@dataclass(frozen=True, slots=True)
class Recovered:
    """The one secret of a proposer that the round may know: b of a survivor, x of a silo that vanished."""

    dealer: SiloName
    secret: Secret
    value: SecretBytes


def share_matches(proposal: Proposal, secret: Secret, holder_number: int, share: bytes) -> bool:
    """Whether a revealed share is the one its dealer committed to. Holders count from 1."""
    hashes = proposal.seed_share_hashes if secret is Secret.SEED else proposal.key_share_hashes
    return share_hash(share) == hashes[holder_number - 1]


def recover(proposal: Proposal, secret: Secret, shares: Mapping[int, bytes], threshold: int) -> Recovered:
    """CryptoError if the shares give something else than the dealer announced: then the dealer cheated."""
    value = shamir.combine(shares, threshold)
    if secret is Secret.SEED:
        fits = commitment(value) == proposal.record.seed_commitment
    else:
        fits = AgreementKey.from_secret(value).public == proposal.record.mask_key
    if not fits:
        raise CryptoError(f"{proposal.silo}'s shares do not give the secret it announced", reason="WRONG_SECRET")
    return Recovered(proposal.silo, secret, SecretBytes(value))


def masks_left_in_sum(
    buffer: int,
    survivors: Sequence[SiloName],
    recovered: Mapping[SiloName, Recovered],
    proposals: Mapping[SiloName, Proposal],
    c2: bytes,
) -> list[Mask]:
    """What the sum over the survivors still carries: their self masks, and their pair masks with those who vanished."""
    masks = [self_mask(recovered[name].value, name, c2, buffer) for name in survivors]
    for name, secret in recovered.items():
        if secret.secret is not Secret.KEY:
            continue
        gone = AgreementKey.from_secret(secret.value.reveal())
        for mate in survivors:
            mask = pair_mask(gone, name, mate, proposals[mate].record.mask_key, c2, buffer)
            masks.append(Mask(mask.key, -mask.sign))  # the mate's side of the pair
    return masks


def open_buffer(
    masked_sum: NDArray[np.unsignedinteger],
    masks: Sequence[Mask],
    survivors: int,
    manifest: RoundManifest,
) -> NDArray[np.float32]:
    """The mean of the survivors' values, unmasked in place; refused if the sum lies outside what honest silos can send."""
    add_masks(masked_sum, masks, negate=True, threads=2)
    return open_mean(masked_sum, survivors, manifest.clip_range, RingFormat(manifest.ring_bits, manifest.value_bits))


@dataclass(frozen=True, slots=True)
class Combined:
    """The aggregate over the opened buffers, and how far each stood from it (shown to admins, per buffer)."""

    vector: NDArray[np.float32]
    distances: Mapping[int, float]
    weights: Mapping[int, float]
    byzantine: int
    notes: tuple[str, ...]


def aggregator_options(settings: str) -> tuple[dict[str, object], list[Mapping[str, object] | str]]:
    """The manifest's JSON object as (the rule's own keys, the steps to run before it, which are its `pre`)."""
    try:
        values = json.loads(settings)
    except (ValueError, RecursionError) as error:  # nested without end
        raise SettingsError(f"the aggregator's settings are not JSON: {error}") from error
    pre = values.pop("pre", []) if isinstance(values, dict) else None
    if not isinstance(pre, list) or not all(isinstance(step, (str, dict)) for step in pre):
        raise SettingsError("the aggregator's settings are a JSON object, its `pre` a list of steps (a name, or an object)")
    return values, pre


def configured_rule(aggregator: str, settings: str) -> ConfiguredRule:
    return build_rule(aggregator, *aggregator_options(settings))


def why_skipped(run: RunManifest, buffers: int) -> str:
    """Why the run's rule cannot combine so many buffers, known before they are opened; empty if it can."""
    try:
        return _too_few(configured_rule(run.aggregator, run.aggregator_settings), run.byzantine, buffers)
    except FedrepError as error:  # settings that an earlier release took
        return str(error)


def _too_few(rule: ConfiguredRule, byzantine: int, buffers: int) -> str:
    """On so few rows the rule might run, and protect nobody."""
    expected = expected_byzantine(byzantine, buffers)
    rows, needed = rule.rows_after(buffers), rows_needed(rule.name, expected)
    if rows >= needed:
        return ""
    return f"{rule.name} needs {needed} rows to withstand {expected} bad ones, and {buffers} buffers give {rows}"


def combine_buffers(
    means: Mapping[int, NDArray[np.float32]],
    survivors: SurvivorSet,
    aggregator: str,
    settings: str,
    byzantine: int,
    rng: np.random.Generator,
) -> Combined:
    """Run the robust rule with f' = min(f, floor((opened - 1) / 2)); refused where it does not withstand that many."""
    order = sorted(means)
    stack = np.stack([means[number] for number in order])
    expected = expected_byzantine(byzantine, len(order))
    rule = configured_rule(aggregator, settings)
    if lacking := _too_few(rule, byzantine, len(order)):
        raise SettingsError(lacking)
    weights = np.array([len(survivors.buffers[number]) for number in order], float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AggregatorWarning)  # the same words stand in the result's notes
        result: Aggregate = rule(stack, byzantine_count=expected, weights=weights, rng=rng)
    if not np.isfinite(result.vector).all():
        raise InvalidInputError("the aggregate is not finite")
    distances = {n: float(np.linalg.norm(stack[i] - result.vector)) for i, n in enumerate(order)}
    given = result.weights
    shown = {n: float(given[i]) for i, n in enumerate(order)} if given is not None else {}
    return Combined(result.vector, distances, shown, expected, tuple(result.notes))
