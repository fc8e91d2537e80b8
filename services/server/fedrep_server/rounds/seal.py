"""The server's signature under round manifests."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from fedrep.errors import FedrepError
from fedrep.protocol.manifests import RoundManifest, SignedRoundManifest, round_manifest_message
from fedrep_identity.certificates import Credentials


class Seal:
    """A certificate that is renewed while the server runs is used from the next round on, and sent along, because silos know
    only the one that Join named."""

    def __init__(self, folder: Path, first: Credentials) -> None:
        self._folder = folder
        self._first = first
        self._now = first
        self._seen = self._stamp()

    def sign(self, manifest: RoundManifest) -> SignedRoundManifest:
        now = self._current()
        renewed = b"" if now.chain == self._first.chain else now.chain
        return SignedRoundManifest(manifest, now.signing_key.sign(round_manifest_message(manifest)), renewed)

    def _current(self) -> Credentials:
        """A folder that is half replaced leaves the old pair in use."""
        stamp = self._stamp()
        if stamp != self._seen:
            with suppress(FedrepError, OSError):
                self._now = Credentials.load(self._folder)
                self._seen = stamp
        return self._now

    def _stamp(self) -> tuple[int, ...]:
        return tuple(path.stat().st_mtime_ns for path in sorted(self._folder.glob("*.pem")))
