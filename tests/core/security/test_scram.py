"""SCRAM: the examples of the RFCs, another implementation on either side, and anything else that a peer may send."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from base64 import b64decode, b64encode

import pytest
import scramp
from hypothesis import given
from hypothesis import strategies as st

from krappy.core.security.sasl import Challenge, PasswordGiven, Proved, SaslExchange, SaslRefused, read_mechanisms
from krappy.core.security.scram import (
    HASHES,
    LONGEST,
    ScramClient,
    ScramCredential,
    ScramRefused,
    ScramServer,
    salted,
)

# RFC 7677, section 3.
SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT, SERVER = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
MESSAGES = [
    b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
]
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=30)
PASSWORDS = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=30)


def credential(mechanism: str, password: str = "pencil", iterations: int = 4096) -> ScramCredential:
    return ScramCredential.of(mechanism, password, SALT, iterations)


def test_the_example_of_rfc_7677() -> None:
    server = ScramServer("SCRAM-SHA-256", lambda user: credential("SCRAM-SHA-256"), SERVER)
    client = ScramClient("SCRAM-SHA-256", "user", "pencil", CLIENT)
    assert client.first() == MESSAGES[0]
    assert server.step(MESSAGES[0]) == MESSAGES[1]
    assert client.step(MESSAGES[1]) == MESSAGES[2]
    assert not server.proved
    assert server.step(MESSAGES[2]) == MESSAGES[3]
    assert server.proved
    assert server.user == "user"
    assert client.step(MESSAGES[3]) == b""
    assert client.done


def test_the_derivation_of_rfc_5802() -> None:
    """Its example uses SHA-1, which is not served: the same code must come to the example's numbers."""
    HASHES["SCRAM-SHA-1"] = "sha1"
    try:
        server = ScramServer(
            "SCRAM-SHA-1",
            lambda user: ScramCredential.of("SCRAM-SHA-1", "pencil", b64decode("QSXCR+Q6sek8bf92"), 4096),
            "3rfcNHYJY1ZVvWVs7j",
        )
        assert server.step(b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL").endswith(b",s=QSXCR+Q6sek8bf92,i=4096")
        final = b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="
        assert server.step(final) == b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ="
    finally:
        del HASHES["SCRAM-SHA-1"]


@pytest.mark.parametrize("mechanism", HASHES)
@given(user=NAMES, password=PASSWORDS)
def test_both_halves_meet(mechanism: str, user: str, password: str) -> None:
    stored = ScramCredential.read(mechanism, credential(mechanism, password).text())
    asked: list[str] = []

    def find(name: str) -> ScramCredential:
        asked.append(name)
        return stored

    server, client = ScramServer(mechanism, find, "s"), ScramClient(mechanism, user, password, "c")
    client.step(server.step(client.step(server.step(client.first()))))
    assert client.done
    assert server.proved
    assert set(asked) == {user}  # again at the end: the password may have been changed meanwhile


@pytest.mark.parametrize("mechanism", HASHES)
def test_scramp_as_a_client(mechanism: str) -> None:
    server = ScramServer(mechanism, lambda user: credential(mechanism), "nonce")
    client = scramp.ScramClient([mechanism], "a=b,c", "pencil")
    client.set_server_first(server.step(client.get_client_first().encode()).decode())
    client.set_server_final(server.step(client.get_client_final().encode()).decode())
    assert server.user == "a=b,c"


@pytest.mark.parametrize("mechanism", HASHES)
def test_scramp_as_a_server(mechanism: str) -> None:
    made = scramp.ScramMechanism(mechanism)
    stored = made.make_auth_info("pencil", iteration_count=4096, salt=SALT)
    server = made.make_server(lambda user: stored)
    client = ScramClient(mechanism, "user", "pencil", "mine")
    server.set_client_first(client.first().decode())
    server.set_client_final(client.step(server.get_server_first().encode()).decode())
    client.step(server.get_server_final().encode())
    assert client.done


def final_with(nonce: str, told: bytes, first: bytes) -> bytes:
    """A client's last message: it names this nonce, and proves the password "pencil"."""
    without = f"c=biws,r={nonce}"
    key = salted("SCRAM-SHA-512", "pencil", SALT, 4096)
    own = hmac.digest(key, b"Client Key", "sha512")
    signed = b",".join([first.removeprefix(b"n,,"), told, without.encode()])
    signature = hmac.digest(hashlib.sha512(own).digest(), signed, "sha512")
    proof = bytes(one ^ other for one, other in zip(own, signature, strict=True))
    return f"{without},p={b64encode(proof).decode()}".encode()


@pytest.mark.parametrize(("nonce", "taken"), [("cs", True), ("ccs", True), ("c", False), ("s", False), ("xcs", False)])
def test_the_nonce_that_a_client_proves_has_all_of_the_servers(nonce: str, taken: bool) -> None:
    """librdkafka before 2.6.1 sends "ccs"."""
    first, server = b"n,,n=user,r=c", ScramServer("SCRAM-SHA-512", lambda user: credential("SCRAM-SHA-512"), "s")
    final = final_with(nonce, server.step(first), first)
    with contextlib.nullcontext() if taken else pytest.raises(ScramRefused):
        server.step(final)
    assert server.proved is taken


def test_a_wrong_password_proves_nothing() -> None:
    server = ScramServer("SCRAM-SHA-512", lambda user: credential("SCRAM-SHA-512"), "s")
    client = ScramClient("SCRAM-SHA-512", "user", "pencils", "c")
    final = client.step(server.step(client.first()))
    with pytest.raises(ScramRefused):
        server.step(final)
    assert not server.proved


def test_a_server_that_does_not_know_the_password_is_found_out() -> None:
    client = ScramClient("SCRAM-SHA-256", "user", "pencil", CLIENT)
    client.step(MESSAGES[1])
    with pytest.raises(ScramRefused):
        client.step(b"v=" + b"A" * 43 + b"=")
    assert not client.done


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=user",
        b"n,,n=,r=x",
        b"n,,n=user,r=",
        b"p=tls-unique,,n=user,r=x",
        b"n,a=other,n=user,r=x",
        b"n,,m=ext,n=user,r=x",
        b"n,,n=us=er,r=x",
        b"n,,n=user,r=x,tokenauth=true",
        b"\xff\xfe",
        b"n,,n=user,r=" + bytes(LONGEST),
    ],
)
def test_invalid_first_messages(first: bytes) -> None:
    with pytest.raises(ScramRefused):
        ScramServer("SCRAM-SHA-256", lambda user: credential("SCRAM-SHA-256"), "s").step(first)


@pytest.mark.parametrize(
    "answer",
    [
        b"r=other,s=QQ==,i=4096",
        b"r=" + CLIENT.encode() + b",s=QQ==,i=4096",
        MESSAGES[1].replace(b"4096", b"1"),
        MESSAGES[1].replace(b"4096", b"99999999999"),
        MESSAGES[1].replace(b"s=W2", b"s=!"),
        b"e=other-error",
    ],
)
def test_answers_that_a_client_does_not_take(answer: bytes) -> None:
    with pytest.raises(ScramRefused):
        ScramClient("SCRAM-SHA-256", "user", "pencil", CLIENT).step(answer)


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_whatever_comes_nothing_else_escapes(one: bytes, two: bytes) -> None:
    for mechanism in (*HASHES, "PLAIN"):
        exchange = SaslExchange(mechanism, lambda user, mechanism: credential(mechanism), "s")
        for message in (one, two, b"n,,n=user,r=x", one, b"c=biws,r=xs," + two):
            with contextlib.suppress(SaslRefused):
                assert not isinstance(exchange.step(message), Proved)


def test_plain() -> None:
    exchange = SaslExchange("PLAIN", lambda user, mechanism: credential(mechanism), "s")
    assert exchange.step(b"\0ada\0secret") == PasswordGiven("ada", "secret")
    assert exchange.step(b"ada\0ada\0secret") == PasswordGiven("ada", "secret")
    assert "secret" not in repr(PasswordGiven("ada", "secret"))
    for wrong in (b"", b"ada\0secret", b"\0\0secret", b"\0ada\0", b"eve\0ada\0secret", b"\0ada\0a\0b", b"\0\xff\0x"):
        with pytest.raises(SaslRefused):
            exchange.step(wrong)


def test_a_challenge_comes_first() -> None:
    exchange = SaslExchange("SCRAM-SHA-256", lambda user, mechanism: credential(mechanism), SERVER)
    assert exchange.step(MESSAGES[0]) == Challenge(MESSAGES[1])
    assert exchange.step(MESSAGES[2]) == Proved("user", MESSAGES[3])
    with pytest.raises(SaslRefused):
        exchange.step(MESSAGES[2])


def test_what_is_stored_tells_no_password() -> None:
    made = credential("SCRAM-SHA-512", "pencil")
    assert made.fits("pencil")
    assert not made.fits("Pencil")
    assert "pencil" not in made.text()
    assert repr(made) == "<ScramCredential SCRAM-SHA-512, 4096 iterations>"
    for wrong in ("", "salt=QQ==", made.text().replace("iterations=", "i="), made.text().replace("salt=", "salt=!")):
        with pytest.raises(ValueError):  # noqa: PT011 - whichever of its parts is wrong
            ScramCredential.read("SCRAM-SHA-512", wrong)


def test_mechanisms_are_read() -> None:
    assert read_mechanisms("plain, SCRAM-SHA-512,PLAIN") == ["PLAIN", "SCRAM-SHA-512"]
    with pytest.raises(ValueError, match="GSSAPI"):
        read_mechanisms("PLAIN,GSSAPI")
    with pytest.raises(ValueError, match="no mechanism"):
        read_mechanisms("")
