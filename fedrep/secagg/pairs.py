"""What each two silos share for a session of some rounds: one key agreement, then a chain of hashes, one link a round.

A link gives the keys of one round and the next link, and no way back: whoever learns the secrets that a silo holds now cannot
open what was sealed in earlier rounds. The private keys of an agreement are erased with it. Those of the next session may wait
beside it, announced with proposals; the session after that starts from keys that nobody could have learned in this one.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fedrep.secagg.keys import AgreementKey, SecretBytes, derive, expand_encoded
from fedrep.secagg.shares import open_share, seal_share
from fedrep.secagg.transcript import encode, encode_context, encode_text

MAC_BYTES = 16
_NEXT = encode("next")


def link(agreed: SecretBytes, run: bytes, first: int, number: int) -> SecretBytes:
    """The secret of round `number`, in a session that begins with round `first`, from what two session keys agree on."""
    chain = SecretBytes(derive(agreed, "session", run, first))
    for _ in range(number - first):
        chain = next_link(chain)
    return chain


def next_link(chain: SecretBytes) -> SecretBytes:
    return SecretBytes(expand_encoded(chain, _NEXT))


class Pairs:
    """The links of one silo in its session, by the others' session keys. Links only go forward."""

    def __init__(self) -> None:
        self._session: tuple[bytes, bytes, int] | None = None
        self._links: dict[bytes, SecretBytes] = {}
        self._number = 0

    @property
    def own(self) -> bytes:
        """This silo's session key, whose private half may be erased already; empty before its first session."""
        return self._session[1] if self._session is not None else b""

    def at(
        self, session: tuple[bytes, bytes, int], number: int, peers: Iterable[bytes], key: AgreementKey | None
    ) -> dict[bytes, SecretBytes] | None:
        """The secrets of round `number` with these peers. `session` is the run, the own session key and the first round.

        None if there is no link to one of them, and no private key to make one: it was erased, or belongs to another process.
        """
        if session != self._session or number < self._number:
            self._session, self._links = session, {}
        for _ in range(number - self._number if self._links else 0):
            self._links = {peer: next_link(chain) for peer, chain in self._links.items()}
        self._number = number
        run, _, first = session
        shared: dict[bytes, SecretBytes] = {}
        for peer in peers:
            chain = self._links.get(peer)
            if chain is None:
                if key is None:
                    return None
                chain = self._links[peer] = link(key.exchange(peer), run, first, number)
            shared[peer] = chain
        return shared

    def forget(self) -> None:
        self._session, self._links = None, {}


@dataclass(frozen=True, slots=True)
class RoundPairs:
    """What one silo shares with each holder in one round: it seals and opens shares, and vouches for messages."""

    own: str
    c1: bytes
    secrets: Mapping[str, SecretBytes] = field(repr=False)
    _own_keys: list[bytes] = field(default_factory=list, repr=False)
    _their_keys: dict[str, bytes] = field(default_factory=dict, repr=False)

    def seal(self, holder: str, seed_share: bytes, key_share: bytes) -> bytes:
        return seal_share(self.secrets[holder], self.c1, self.own, holder, seed_share, key_share)

    def open(self, dealer: str, ciphertext: bytes) -> tuple[bytes, bytes]:
        return open_share(self.secrets[dealer], self.c1, dealer, self.own, ciphertext)

    def macs(self, message: bytes) -> bytes:
        """One for each holder, in their order: for the holder it is as good as a signature, and for nobody else."""
        if not self._own_keys:
            self._own_keys.extend(self._mac_key(holder, self.own, holder) for holder in self.secrets)
        return b"".join([hmac.digest(key, message, "sha256")[:MAC_BYTES] for key in self._own_keys])

    def vouched(self, sender: str, mac: bytes, message: bytes) -> bool:
        """Whether the sender itself made this for this silo. Nobody can who does not know the secret of the two."""
        if len(mac) != MAC_BYTES or sender not in self.secrets:
            return False
        key = self._their_keys.get(sender)
        if key is None:
            key = self._their_keys[sender] = self._mac_key(sender, sender, self.own)
        return hmac.compare_digest(hmac.digest(key, message, "sha256")[:MAC_BYTES], mac)

    def _mac_key(self, peer: str, sender: str, receiver: str) -> bytes:
        info = encode_text("mac") + encode_context(self.c1) + encode_text(sender) + encode_text(receiver)
        return expand_encoded(self.secrets[peer], info)
