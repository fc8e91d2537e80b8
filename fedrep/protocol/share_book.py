"""The shares that holders revealed in one round: which ones match their dealer's hashes, and which secrets they give.

Only a share whose dealer committed to it is used, so a holder that reveals garbage breaks no reconstruction. When matching shares
give another secret than announced, it is therefore the dealer who cheated.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedrep.errors import CryptoError, FedrepError, InvalidInputError
from fedrep.protocol.manifests import SiloName
from fedrep.protocol.messages import Proposal, Reveal, Secret
from fedrep.protocol.opening import Recovered, recover, share_matches


class ShareBook:
    """Filled while a round reveals. `proposals` holds the dealers' hashes and commitments."""

    def __init__(self, proposals: Mapping[SiloName, Proposal], threshold: int) -> None:
        self._proposals = proposals
        self._threshold = threshold
        self._shares: dict[SiloName, dict[int, bytes]] = {}  # of the one secret of each dealer that a round may know
        self._lacking: dict[SiloName, set[SiloName]] = {}
        self._cheats: set[SiloName] = set()

    def add(self, reveal: Reveal, number: int, wanted: Mapping[SiloName, Secret]) -> list[SiloName]:
        """Keep what matches; the wanted dealers of whom holder `number` has no matching share are noted and returned."""
        matched = [
            share
            for share in reveal.shares
            if wanted.get(share.dealer) is share.secret
            and share_matches(self._proposals[share.dealer], share.secret, number, share.share)
        ]
        for share in matched:
            self._shares.setdefault(share.dealer, {})[number] = share.share
        lacking = sorted(wanted.keys() - {share.dealer for share in matched}) if len(matched) < len(wanted) else []
        for dealer in lacking:
            self._lacking.setdefault(dealer, set()).add(reveal.silo)
        return lacking

    def suffices(self, wanted: Mapping[SiloName, Secret]) -> bool:
        return all(len(self._shares.get(dealer, ())) >= self._threshold for dealer in wanted)

    def recover(self, wanted: Mapping[SiloName, Secret]) -> dict[SiloName, Recovered]:
        """Every secret or an error; all dealers are tried, so that each one that cheated is known afterwards."""
        recovered: dict[SiloName, Recovered] = {}
        problems: list[FedrepError] = []
        for dealer, secret in wanted.items():
            shares = self._shares.get(dealer, {})
            if len(shares) < self._threshold:
                problems.append(InvalidInputError(f"{len(shares)} matching shares of {dealer}, {self._threshold} are needed"))
                continue
            try:
                recovered[dealer] = recover(self._proposals[dealer], secret, shares, self._threshold)
            except CryptoError as error:
                self._cheats.add(dealer)
                problems.append(error)
        if problems:
            raise problems[0]
        return recovered

    def bad_dealers(self, byzantine: int) -> set[SiloName]:
        """A wrong secret, or more holders without a matching share than may lie: f of them, and one at least."""
        return self._cheats | {dealer for dealer, holders in self._lacking.items() if len(holders) > max(byzantine, 1)}

    def forget(self) -> None:
        """The round is over: the shares were secrets of others."""
        self._shares = {}
