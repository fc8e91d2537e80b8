"""Session keys of this process, oldest first: shares are sealed to them. A restarted process has none, and joins again."""

from __future__ import annotations

from fedrep.protocol.manifests import session_key_message
from fedrep.secagg.keys import AgreementKey, SigningKey


class Sessions:
    def __init__(self) -> None:
        self.keys: dict[bytes, AgreementKey] = {}

    def new(self) -> AgreementKey:
        key = AgreementKey.generate()
        self.keys[key.public] = key
        return key

    def announced(self, run: bytes, signing_key: SigningKey) -> tuple[bytes, bytes]:
        """The newest key and its signature, for Join."""
        if not self.keys:
            self.new()
        newest = next(reversed(self.keys))
        return newest, signing_key.sign(session_key_message(run, newest))

    def forget_before(self, listed: bytes) -> None:
        """A key is erased once a manifest lists its successor."""
        for public in list(self.keys):
            if public == listed:
                return
            del self.keys[public]
