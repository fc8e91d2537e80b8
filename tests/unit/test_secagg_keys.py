"""Published vectors for every primitive, and what must be refused."""

from __future__ import annotations

import copy
import hashlib
import hmac
import pickle
from typing import cast

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from fedrep.errors import CryptoError, InvalidInputError
from fedrep.secagg.keys import (
    AgreementKey,
    KeyKind,
    SecretBytes,
    check_agreement_public,
    commitment,
    derive,
    generate_signing_key,
    load_verify_key,
    signing_key_from_private,
    verify_key_from_public,
)
from fedrep.secagg.transcript import encode

FIELD_PRIME = 2**255 - 19
LOW_ORDER = [
    0,
    1,
    FIELD_PRIME - 1,
    int.from_bytes(bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"), "little"),
    int.from_bytes(bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"), "little"),
]
KINDS: list[KeyKind] = ["p256", "ed25519"]


def test_a_secret_hides_itself_in_every_text() -> None:
    secret = SecretBytes(b"top secret bytes")
    for text in (repr(secret), str(secret), f"{secret}", repr([secret]), repr({"k": secret})):
        assert "top" not in text
        assert b"top secret bytes".hex() not in text
        assert "hidden" in text
    assert secret.reveal() == b"top secret bytes"
    assert len(secret) == 16


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_secret_and_a_private_key_are_never_pickled(protocol: int) -> None:
    for secret in (SecretBytes(b"s"), AgreementKey.generate()):
        with pytest.raises(TypeError, match="never pickled"):
            pickle.dumps(secret, protocol)


@pytest.mark.parametrize("kind", KINDS)
def test_a_signing_key_is_never_pickled(kind: KeyKind) -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(generate_signing_key(kind))


def test_a_secret_and_a_private_key_are_never_copied() -> None:
    for secret in (SecretBytes(b"s"), AgreementKey.generate()):
        for duplicate in (copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="never pickled or copied"):
                duplicate(secret)


def test_secrets_compare_by_value_in_constant_time_and_are_no_dictionary_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[bytes, bytes]] = []
    original = hmac.compare_digest

    def spy(left: bytes, right: bytes) -> bool:
        calls.append((left, right))
        return original(left, right)

    monkeypatch.setattr(hmac, "compare_digest", spy)
    assert SecretBytes(b"a") == SecretBytes(b"a")
    assert SecretBytes(b"a") != SecretBytes(b"b")
    assert SecretBytes(b"a") != cast(object, b"a")
    assert calls == [(b"a", b"a"), (b"a", b"b")]
    with pytest.raises(TypeError):
        hash(SecretBytes(b"a"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_signature_holds_for_its_own_message_and_key_only(kind: KeyKind) -> None:
    key, other = generate_signing_key(kind), generate_signing_key(kind)
    signature = key.sign(b"message")
    key.verify_key.verify(signature, b"message")
    load_verify_key(key.verify_key.encoded).verify(signature, b"message")
    flipped = signature[:-1] + bytes([signature[-1] ^ 1])
    for verify_key, candidate, message in [
        (key.verify_key, signature, b"massage"),
        (key.verify_key, flipped, b"message"),
        (key.verify_key, b"", b"message"),
        (key.verify_key, signature[:-1], b"message"),
        (other.verify_key, signature, b"message"),
    ]:
        with pytest.raises(CryptoError, match="signature"):
            verify_key.verify(candidate, message)


@pytest.mark.parametrize(("kind", "wrong"), [("p256", "ed25519"), ("ed25519", "p256")])
def test_a_signature_of_the_other_kind_is_refused(kind: KeyKind, wrong: KeyKind) -> None:
    signature = generate_signing_key(wrong).sign(b"m")
    with pytest.raises(CryptoError):
        generate_signing_key(kind).verify_key.verify(signature, b"m")


@pytest.mark.parametrize("kind", KINDS)
def test_a_retry_signs_identical_bytes(kind: KeyKind) -> None:
    key = generate_signing_key(kind)
    assert key.sign(b"again") == key.sign(b"again")


def test_ecdsa_p256_follows_rfc_6979() -> None:
    scalar = int("C9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721", 16)
    key = signing_key_from_private(ec.derive_private_key(scalar, ec.SECP256R1()))
    assert decode_dss_signature(key.sign(b"sample")) == (
        int("EFD48B2AACB6A8FD1140DD9CD45E81D69D2C877B56AAF991C34D0EA84EAF3716", 16),
        int("F7CB1C942D657C41D436C7A1B6E29F65F3E900DBB9AFF4064DC4AB2F843ACDA8", 16),
    )


def test_ed25519_follows_rfc_8032() -> None:
    secret = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    key = signing_key_from_private(ed25519.Ed25519PrivateKey.from_private_bytes(secret))
    assert key.sign(b"").hex() == (
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_verify_keys_are_equal_by_their_encoding_and_can_be_looked_up(kind: KeyKind) -> None:
    key = generate_signing_key(kind).verify_key
    again = load_verify_key(key.encoded)
    assert key == again
    assert {key: "silo"}[again] == "silo"
    assert key != generate_signing_key(kind).verify_key


@pytest.mark.parametrize("kind", KINDS)
def test_a_signing_key_does_not_show_its_private_part(kind: KeyKind) -> None:
    assert "private" not in repr(generate_signing_key(kind)).lower()


def test_keys_of_another_kind_are_refused() -> None:
    p384 = ec.generate_private_key(ec.SECP384R1())
    rsa_key = rsa.generate_private_key(65537, 2048)
    for private in (p384, rsa_key):
        public = private.public_key()
        der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        with pytest.raises(CryptoError, match=r"P-256 or Ed25519"):
            signing_key_from_private(private)
        with pytest.raises(CryptoError, match=r"P-256 or Ed25519"):
            verify_key_from_public(public)
        with pytest.raises(CryptoError, match=r"P-256 or Ed25519"):
            load_verify_key(der)
    with pytest.raises(InvalidInputError, match="p256"):
        generate_signing_key(cast(KeyKind, "rsa"))


@pytest.mark.parametrize("garbage", [b"", b"\x00" * 40, b"not a key at all"])
def test_bytes_that_are_no_public_key_are_refused(garbage: bytes) -> None:
    with pytest.raises(CryptoError, match="SubjectPublicKeyInfo"):
        load_verify_key(garbage)


def test_a_truncated_public_key_is_refused() -> None:
    der = generate_signing_key("p256").verify_key.encoded
    for damaged in (der[:-1], der + b"\x00"):
        with pytest.raises(CryptoError):
            load_verify_key(damaged)


def test_x25519_follows_rfc_7748() -> None:
    alice = AgreementKey.from_secret(bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"))
    bob = AgreementKey.from_secret(bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"))
    shared = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    assert alice.public.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert bob.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    assert alice.exchange(bob.public).reveal() == bob.exchange(alice.public).reveal() == shared


def test_a_key_rebuilt_from_its_secret_is_the_same_key() -> None:
    key, peer = AgreementKey.generate(), AgreementKey.generate()
    again = AgreementKey.from_secret(key.secret().reveal())
    assert again.public == key.public
    assert again.exchange(peer.public) == key.exchange(peer.public)
    assert key.exchange(peer.public) == key.exchange(peer.public)


def test_a_key_comes_from_the_entropy_it_is_given() -> None:
    key = AgreementKey.generate(lambda size: bytes([9]) * size)
    assert key.secret().reveal() == bytes([9]) * 32
    assert AgreementKey.generate().public != AgreementKey.generate().public


def test_a_silo_can_agree_with_itself() -> None:
    key = AgreementKey.generate()
    assert any(key.exchange(key.public).reveal())


def test_a_private_key_shows_its_public_part_only() -> None:
    key = AgreementKey.from_secret(bytes(range(32)))
    assert bytes(range(32)).hex() not in repr(key)
    assert key.public.hex() in repr(key)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_of_wrong_length_is_refused(size: int) -> None:
    with pytest.raises(CryptoError, match="32 bytes"):
        AgreementKey.from_secret(bytes(size))
    with pytest.raises(CryptoError, match="32 bytes"):
        check_agreement_public(b"\x09" * size)
    with pytest.raises(CryptoError, match="32 bytes"):
        AgreementKey.generate().exchange(b"\x09" * size)


def spellings(u: int) -> list[bytes]:
    """Every string of 32 bytes that RFC 7748 reads as u: not reduced, with and without the ignored top bit."""
    reduced = [value for value in (u, u + FIELD_PRIME) if value < 2**255]
    return [(value | top << 255).to_bytes(32, "little") for value in reduced for top in (0, 1)]


@pytest.mark.parametrize("u", LOW_ORDER)
def test_a_point_of_low_order_is_refused_in_every_spelling(u: int) -> None:
    key = AgreementKey.generate()
    for public in spellings(u):
        with pytest.raises(CryptoError):
            check_agreement_public(public)
        with pytest.raises(CryptoError):
            key.exchange(public)


@pytest.mark.parametrize("u", LOW_ORDER)
def test_the_canonical_low_order_points_are_named_as_such(u: int) -> None:
    with pytest.raises(CryptoError, match="low order"):
        check_agreement_public(u.to_bytes(32, "little"))


def test_a_second_spelling_of_an_honest_key_is_refused() -> None:
    key = AgreementKey.generate()
    check_agreement_public(key.public)
    second = key.public[:-1] + bytes([key.public[-1] | 0x80])
    with pytest.raises(CryptoError, match="canonical"):
        check_agreement_public(second)
    for u in range(2, 19):
        check_agreement_public(u.to_bytes(32, "little"))
        with pytest.raises(CryptoError, match="canonical"):
            check_agreement_public((u + FIELD_PRIME).to_bytes(32, "little"))


def test_derive_is_hkdf_sha256_with_the_context_as_info() -> None:
    secret = SecretBytes(bytes(range(32)))
    extracted = hmac.new(bytes(32), secret.reveal(), hashlib.sha256).digest()
    expanded = hmac.new(extracted, encode("pair", b"c2", 4, "a", "b") + b"\x01", hashlib.sha256).digest()
    assert derive(secret, "pair", b"c2", 4, "a", "b") == expanded


def test_every_part_of_the_context_changes_the_derived_key() -> None:
    secret = SecretBytes(bytes(32))
    keys = [
        derive(secret, "pair", b"c", 0, "a", "b"),
        derive(secret, "self", b"c", 0, "a", "b"),
        derive(secret, "pair", b"d", 0, "a", "b"),
        derive(secret, "pair", b"c", 1, "a", "b"),
        derive(secret, "pair", b"c", 0, "b", "a"),
        derive(secret, "pair", b"c", 0, "ab", ""),
        derive(SecretBytes(bytes(31) + b"\x01"), "pair", b"c", 0, "a", "b"),
    ]
    assert len(set(keys)) == len(keys)


def test_a_commitment_is_a_tagged_hash_of_the_secret() -> None:
    assert commitment(b"seed") == hashlib.sha256(encode("fedrep/v1", "commitment", b"seed")).digest()
    assert commitment(b"seed") != commitment(b"Seed")


@given(secret=st.binary(min_size=1, max_size=80), label=st.text(max_size=20), context=st.binary(max_size=40))
def test_derived_keys_are_hkdf_sha256(secret: bytes, label: str, context: bytes) -> None:
    """The reference is `cryptography`'s."""
    kdf = HKDF(algorithm=SHA256(), length=32, salt=None, info=encode(label, context))
    assert derive(SecretBytes(secret), label, context) == kdf.derive(secret)
