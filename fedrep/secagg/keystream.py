"""AES-256-CTR keystreams (NIST SP 800-38A), read piece by piece and from any block.

One open encryptor per stream, encrypting a shared buffer of zeros straight into the caller's scratch memory: no
allocation per piece, and the key schedule is paid once. A long stream that starts at its first block runs through OpenSSL's
GCM: under an IV of zeros that is counter mode from block 2 on, the same bytes, and it uses the widest AES instructions that the
processor has, which its plain counter mode does not. Its tag is never asked for.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR, GCM
from numpy import frombuffer, uint8
from numpy.typing import NDArray

from fedrep.errors import InvalidInputError
from fedrep.secagg.keys import SecretBytes

BLOCK_BYTES = 16
# Zeros, scratch and the piece of the vector being masked stay in the second-level cache together.
PIECE_BYTES = 128 * 1024

LONG_STREAM = 2 * PIECE_BYTES  # below, a second cipher costs more than it saves

_ZEROS = memoryview(bytes(PIECE_BYTES))
_ZERO_IV = bytes(12)
_BEFORE_GCM = 2 * BLOCK_BYTES  # GCM keeps its first two counters, for the hash key and the tag


class Keystream:
    """The bytes AES-256-CTR gives for a zero IV, from block `first_block` on. A key serves one stream only."""

    __slots__ = ("_encryptor", "_head")

    def __init__(self, key: SecretBytes, first_block: int = 0, expected: int = 0) -> None:
        """`expected` is about how many bytes will be read, as far as that is known; it changes none of them."""
        if len(key) != 32:
            raise InvalidInputError(f"an AES-256 key has 32 bytes, this one has {len(key)}")
        aes = AES(key.reveal())
        counter = Cipher(aes, CTR(first_block.to_bytes(BLOCK_BYTES, "big"))).encryptor()
        self._head = b""
        self._encryptor = counter
        if first_block == 0 and expected >= LONG_STREAM:
            self._head = counter.update(_ZEROS[:_BEFORE_GCM])
            self._encryptor = Cipher(aes, GCM(_ZERO_IV)).encryptor()

    def fill(self, scratch: NDArray[uint8]) -> None:
        """Overwrites `scratch`, at most PIECE_BYTES long, with the next bytes of the stream."""
        if self._head:
            taken = min(len(self._head), scratch.size)
            scratch[:taken] = frombuffer(self._head, uint8, taken)
            self._head = self._head[taken:]
            scratch = scratch[taken:]
        self._encryptor.update_into(_ZEROS[: scratch.size], scratch.data)
