"""A server that keeps everything it sees and shows every silo what it likes. It reads a silo if it can take off all its masks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrep.coding import encode_coordinates
from fedrep.errors import RefusedError
from fedrep.protocol.manifests import SiloName
from fedrep.protocol.messages import (
    Assigned,
    Assignment,
    Consensus,
    Evidence,
    Outcome,
    Proposal,
    Reveal,
    Secret,
    Signatures,
    Statement,
    Submission,
    Survivor,
    SurvivorSet,
    Update,
    consensus_context,
    statement_message,
)
from fedrep.protocol.seats import seats
from fedrep.protocol.silo_round import Confirmed, Proposed, Submitted
from fedrep.secagg import shamir
from fedrep.secagg.keys import AgreementKey, SecretBytes
from fedrep.secagg.masking import Mask, add_masks, pair_mask, ring_dtype, self_mask
from fedrep.sparsify import union
from tests.protocol.federation import Federation, Silo

Groups = Sequence[Sequence[Silo]]


@dataclass
class LyingServer:
    """The silos of `federation` propose honestly; from there on this object speaks to each of them alone."""

    federation: Federation
    colluders: frozenset[SiloName] = frozenset()
    proposals: dict[SiloName, Proposal] = field(default_factory=dict)
    submissions: dict[SiloName, tuple[Submission, Assignment, bytes]] = field(default_factory=dict)
    shares: dict[tuple[SiloName, Secret], dict[int, bytes]] = field(default_factory=dict)

    @classmethod
    def with_proposals(cls, federation: Federation, colluders: Iterable[Silo] = ()) -> LyingServer:
        federation.open_round()
        for silo in federation.members:
            federation.propose(silo)
        proposals = {silo.name: silo.proposed.message for silo in federation.members if silo.proposed is not None}
        return cls(federation, frozenset(silo.name for silo in colluders), proposals)

    @property
    def c1(self) -> bytes:
        return self.federation.round.c1

    def indices(self) -> NDArray[np.int64]:
        return union(silo.proposed.coordinates for silo in self.federation.members if silo.proposed is not None)

    def assignment(self, groups: Groups) -> Assignment:
        return tuple(
            tuple(Assigned(silo.name, self.proposals[silo.name].record.digest(self.c1)) for silo in group) for group in groups
        )

    def consensus(self, silo: Silo, groups: Groups, indices: NDArray[np.int64] | None = None) -> Consensus:
        """What an honest server would tell this silo if these were the buffers and this the set."""
        chosen = self.indices() if indices is None else indices
        number = self.federation.members.index(silo)
        mates = next((group for group in groups if silo in group), ())
        manifest = self.federation.manifest
        assert manifest is not None
        return Consensus(
            manifest.run,
            manifest.round,
            encode_coordinates(chosen, manifest.parameters),
            self.assignment(groups),
            tuple(self.proposals[mate.name].record for mate in mates if mate is not silo),
            tuple((dealer.name, self.proposals[dealer.name].sealed_shares[number]) for group in groups for dealer in group),
        )

    def show(self, silo: Silo, groups: Groups, indices: NDArray[np.int64] | None = None) -> Submitted:
        """The silo submits under this consensus, or raises what it has against it."""
        consensus = self.consensus(silo, groups, indices)
        assert silo.proposed is not None
        silo.submitted = submitted_of(silo.proposed, consensus, silo)
        c2 = consensus_context(self.c1, consensus.coordinates, consensus.assignment)
        self.submissions[silo.name] = (silo.submitted.message, consensus.assignment, c2)
        return silo.submitted

    def survivors(self, groups: Groups, without: Iterable[Silo] = ()) -> SurvivorSet:
        gone = list(without)
        return SurvivorSet(
            tuple(
                tuple(
                    Survivor(silo.name, self.submissions[silo.name][0].signature)
                    for silo in group
                    if silo not in gone and silo.name in self.submissions
                )
                for group in groups
            )
        )

    def confirm(self, silo: Silo, survivors: SurvivorSet) -> Confirmed:
        step = silo.submitted or silo.observing
        assert step is not None
        silo.confirmed = step.on_survivors(survivors)
        return silo.confirmed

    def try_to_confirm(self, silos: Iterable[Silo], survivors: SurvivorSet) -> list[Silo]:
        """Those who sign."""
        signed = []
        for silo in silos:
            try:
                self.confirm(silo, survivors)
            except RefusedError:
                continue
            signed.append(silo)
        return signed

    def signatures(self) -> Signatures:
        return tuple(
            (silo.name, silo.confirmed.message.signature) for silo in self.federation.members if silo.confirmed is not None
        )

    def try_to_reveal(self, silos: Iterable[Silo]) -> list[Silo]:
        """Those who reveal, with every signature there is."""
        revealed = []
        for silo in silos:
            assert silo.confirmed is not None
            try:
                silo.revealed = silo.confirmed.on_signatures(self.signatures())
            except RefusedError:
                continue
            self.learn(silo.revealed.message)
            revealed.append(silo)
        return revealed

    def learn(self, reveal: Reveal) -> None:
        number = [silo.name for silo in self.federation.members].index(reveal.silo) + 1
        for share in reveal.shares:
            self.shares.setdefault((share.dealer, share.secret), {})[number] = share.share

    def secret(self, dealer: SiloName, kind: Secret) -> bytes | None:
        """A colluder tells its secrets; of everyone else t shares are needed, the colluders' own among them."""
        silo = self.federation.silos[dealer]
        if dealer in self.colluders:
            assert silo.proposed is not None
            secrets = silo.proposed.secrets
            return secrets.seed.reveal() if kind is Secret.SEED else secrets.mask_key.secret().reveal()
        known = dict(self.shares.get((dealer, kind), {}))
        for number, holder in enumerate(self.federation.members, start=1):
            step = holder.submitted or holder.observing
            if holder.name in self.colluders and step is not None and dealer in step.agreement.held:
                known[number] = step.agreement.held[dealer][0 if kind is Secret.SEED else 1]
        assert self.federation.manifest is not None
        threshold = self.federation.manifest.threshold
        return shamir.combine(known, threshold) if len(known) >= threshold else None

    def read(self, victim: Silo) -> NDArray[np.unsignedinteger] | None:
        """The victim's own levels if every mask on them is known, else None."""
        submission, assignment, c2 = self.submissions[victim.name]
        place = next(n for n, buffer in enumerate(assignment) if any(p.silo == victim.name for p in buffer))
        masks = self._known_masks(victim.name, [p.silo for p in assignment[place] if p.silo != victim.name], c2, place)
        if masks is None:
            return None
        values = np.frombuffer(submission.masked, ring_dtype(self.federation.run.ring_bits)).copy()
        add_masks(values, masks, negate=True)
        return values

    def _known_masks(self, victim: SiloName, mates: Sequence[SiloName], c2: bytes, place: int) -> list[Mask] | None:
        seed, own = self.secret(victim, Secret.SEED), self.secret(victim, Secret.KEY)
        if seed is None:
            return None
        masks = [self_mask(SecretBytes(seed), victim, c2, place)]
        for mate in mates:
            theirs = self.secret(mate, Secret.KEY)
            if own is not None:
                key = AgreementKey.from_secret(own)
                masks.append(pair_mask(key, victim, mate, self.proposals[mate].record.mask_key, c2, place))
            elif theirs is not None:
                key = AgreementKey.from_secret(theirs)
                mask = pair_mask(key, mate, victim, self.proposals[victim].record.mask_key, c2, place)
                masks.append(Mask(mask.key, -mask.sign))
            else:
                return None
        return masks


def submitted_of(proposed: Proposed, consensus: Consensus, silo: Silo) -> Submitted:
    """The silo's own step on a consensus, which must have a place for it."""
    step = proposed.on_consensus(consensus, silo.g, silo.rng)
    assert isinstance(step, Submitted)
    return step


def plain(silo: Silo) -> bytes:
    """What nobody but the silo may know."""
    assert silo.submitted is not None
    return silo.submitted.values.levels.tobytes()


def solved_from_three_groups(
    sums: Mapping[tuple[str, str], NDArray[np.float64]], victim: str, a: str, b: str
) -> NDArray[np.float64]:
    """(v + a) + (v + b) - (a + b) = 2v, if everybody sent the same values three times."""
    pair = {frozenset(names): total for names, total in sums.items()}
    total = pair[frozenset((victim, a))] + pair[frozenset((victim, b))] - pair[frozenset((a, b))]
    return np.asarray(total / 2)


def seated(federation: Federation) -> list[list[Silo]]:
    """The buffers that the run's seed gives for the current round: all that a silo accepts."""
    return [[federation.silos[name] for name in seat] for seat in seats(federation.run, federation.round_number)]


def leaving_out(silo: Silo, groups: Groups) -> list[list[Silo]]:
    """The same seats as if this silo had not proposed: the one other assignment that a server can still show."""
    return [[member for member in group if member is not silo] for group in groups]


def outcome(federation: Federation, kind: Outcome = Outcome.SKIPPED, **evidence: Any) -> Update:
    """An outcome of the current round with no more proof than given; the model does not change."""
    run, number = federation.run.digest(), federation.round_number
    return Update(run, number, kind, "", federation.model.state.name, Evidence(**evidence))


def statement_of(federation: Federation, silo: Silo) -> Statement:
    """ "Not revealed in this round, and never will": true or not."""
    assert federation.manifest is not None
    run, number, c1 = federation.run.digest(), federation.round_number, federation.manifest.context()
    return Statement(silo.name, run, number, silo.signing_key.sign(statement_message(run, number, c1, silo.name)), c1)
