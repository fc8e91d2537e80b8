"""AES-256-CTR keystreams (NIST SP 800-38A), read piece by piece and from any block.

One open encryptor per stream, encrypting a shared buffer of zeros straight into the caller's scratch memory: no
allocation per piece, and the key schedule is paid once.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy import uint8
from numpy.typing import NDArray

from fedrep.errors import InvalidInputError
from fedrep.secagg.keys import SecretBytes

BLOCK_BYTES = 16
# Zeros, scratch and the piece of the vector being masked stay in the second-level cache together.
PIECE_BYTES = 128 * 1024

_ZEROS = memoryview(bytes(PIECE_BYTES))


class Keystream:
    """The bytes AES-256-CTR gives for a zero IV, from block `first_block` on. A key serves one stream only."""

    __slots__ = ("_encryptor",)

    def __init__(self, key: SecretBytes, first_block: int = 0) -> None:
        if len(key) != 32:
            raise InvalidInputError(f"an AES-256 key has 32 bytes, this one has {len(key)}")
        self._encryptor = Cipher(AES(key.reveal()), CTR(first_block.to_bytes(BLOCK_BYTES, "big"))).encryptor()

    def fill(self, scratch: NDArray[uint8]) -> None:
        """Overwrites `scratch`, at most PIECE_BYTES long, with the next bytes of the stream."""
        self._encryptor.update_into(_ZEROS[: scratch.size], scratch.data)
