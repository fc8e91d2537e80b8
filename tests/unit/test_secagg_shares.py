"""A sealed share opens for its holder, from its dealer, in its round, and for nobody else."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedrep.errors import CryptoError, InvalidInputError
from fedrep.secagg.keys import AgreementKey, expand
from fedrep.secagg.shares import SEALED_BYTES, open_share, seal_share
from fedrep.secagg.transcript import encode

C1 = b"\x01" * 32
SEED_SHARE = bytes(range(33))
KEY_SHARE = bytes(range(100, 133))
ANNA = AgreementKey.from_secret(b"a" * 32)
BERT = AgreementKey.from_secret(b"b" * 32)
CARL = AgreementKey.from_secret(b"c" * 32)


def sealed() -> bytes:
    return seal_share(ANNA.exchange(BERT.public), C1, "anna", "bert", SEED_SHARE, KEY_SHARE)


def test_the_holder_opens_what_the_dealer_sealed() -> None:
    assert open_share(BERT.exchange(ANNA.public), C1, "anna", "bert", sealed()) == (SEED_SHARE, KEY_SHARE)


def test_a_silo_holds_a_share_of_its_own() -> None:
    own = seal_share(ANNA.exchange(ANNA.public), C1, "anna", "anna", SEED_SHARE, KEY_SHARE)
    assert open_share(ANNA.exchange(ANNA.public), C1, "anna", "anna", own) == (SEED_SHARE, KEY_SHARE)


def test_the_ciphertext_is_aes_gcm_under_the_derived_key() -> None:
    key = expand(ANNA.exchange(BERT.public), "share", C1, "anna", "bert")
    expected = AESGCM(key).encrypt(bytes(12), SEED_SHARE + KEY_SHARE, encode(C1, "anna", "bert"))
    assert sealed() == expected
    assert len(expected) == SEALED_BYTES == 82


def test_a_ciphertext_reflected_to_its_dealer_does_not_open() -> None:
    with pytest.raises(CryptoError, match="does not open"):
        open_share(ANNA.exchange(BERT.public), C1, "bert", "anna", sealed())


@pytest.mark.parametrize(
    ("own", "peer", "c1", "dealer", "holder"),
    [
        pytest.param(CARL, ANNA, C1, "anna", "bert", id="another holder's key"),
        pytest.param(BERT, CARL, C1, "anna", "bert", id="another dealer's key"),
        pytest.param(BERT, ANNA, b"\x02" * 32, "anna", "bert", id="another round"),
        pytest.param(BERT, ANNA, C1, "carl", "bert", id="another dealer's name"),
        pytest.param(BERT, ANNA, C1, "anna", "carl", id="another holder's name"),
        pytest.param(BERT, ANNA, C1, "annab", "ert", id="a letter moved between the names"),
    ],
)
def test_any_other_context_is_refused(own: AgreementKey, peer: AgreementKey, c1: bytes, dealer: str, holder: str) -> None:
    with pytest.raises(CryptoError, match="does not open"):
        open_share(own.exchange(peer.public), c1, dealer, holder, sealed())


def test_every_damaged_byte_is_noticed() -> None:
    ciphertext = sealed()
    for index in range(len(ciphertext)):
        damaged = bytearray(ciphertext)
        damaged[index] ^= 1
        with pytest.raises(CryptoError, match="does not open"):
            open_share(BERT.exchange(ANNA.public), C1, "anna", "bert", bytes(damaged))


def test_a_ciphertext_of_another_length_is_refused_with_its_dealer() -> None:
    for wrong in (b"", sealed()[:-1], sealed() + b"\x00"):
        with pytest.raises(CryptoError, match=r"82 bytes.*'anna'"):
            open_share(BERT.exchange(ANNA.public), C1, "anna", "bert", wrong)


def test_two_dealers_never_share_a_key_and_two_rounds_neither() -> None:
    seals = {
        sealed(),
        seal_share(BERT.exchange(ANNA.public), C1, "bert", "anna", SEED_SHARE, KEY_SHARE),
        seal_share(ANNA.exchange(CARL.public), C1, "anna", "carl", SEED_SHARE, KEY_SHARE),
        seal_share(ANNA.exchange(BERT.public), b"\x02" * 32, "anna", "bert", SEED_SHARE, KEY_SHARE),
    }
    assert len({seal[:16] for seal in seals}) == 4


@pytest.mark.parametrize(("seed_share", "key_share"), [(b"", KEY_SHARE), (SEED_SHARE, KEY_SHARE + b"x")])
def test_a_share_of_another_length_is_not_sealed(seed_share: bytes, key_share: bytes) -> None:
    with pytest.raises(InvalidInputError, match="33 bytes"):
        seal_share(ANNA.exchange(BERT.public), C1, "anna", "bert", seed_share, key_share)
