"""SASL mechanisms of the broker against our client, the RFC's example and invalid messages."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from pathlib import Path

import pytest

from headrace.broker.broker_options import resolve
from headrace.broker.catalog import Catalog
from headrace.broker.catalog.security import Credential, Users
from headrace.broker.security.mechanisms import (
    BearerToken,
    OAuthBearer,
    Plain,
    ServerMechanism,
    UnsecuredTokens,
    check_against,
    jaas_users,
    plain_users,
)
from headrace.broker.security.scram import Scram, derive, from_salted
from headrace.config import Secret, jaas_options
from headrace.errors import AuthenticationError, ConfigError
from headrace.wire import sasl as client
from headrace.wire.sasl import SCRAM_SHA_256, SCRAM_SHA_512
from tests.support.fake_internal import START_MS, HandClock

SECRET = "pencil,=§"
MECHANISMS = pytest.mark.parametrize("mechanism", [SCRAM_SHA_256, SCRAM_SHA_512])


def step(mechanism: ServerMechanism, token: bytes) -> bytes:
    return asyncio.run(mechanism.step(token))


def users_with(mechanism: str, name: str = "ann", password: str = SECRET) -> Users:
    users = Users()
    users.apply(Users.change(name, mechanism, derive(mechanism, password)))
    return users


def converse(server: Scram, ours: client.ScramMechanism) -> None:
    """Run both sides to the end; raise the error of either."""
    response: bytes | None = ours.first()
    while response is not None:
        response = ours.step(step(server, response))


@MECHANISMS
@pytest.mark.parametrize("name", ["ann", "a,n=n", "ännchen"])
def test_a_valid_password_authenticates_both_sides(mechanism, name) -> None:
    server = Scram(mechanism, users_with(mechanism, name))
    converse(server, client.ScramMechanism("host", mechanism, name, SECRET))
    assert server.user == name


@MECHANISMS
def test_a_wrong_password_and_an_unknown_user_fail_alike(mechanism) -> None:
    users = users_with(mechanism)
    errors, firsts = [], []
    for name, password in (("ann", "wrong"), ("nobody", SECRET)):
        server = Scram(mechanism, users)
        ours = client.ScramMechanism("host", mechanism, name, password)
        firsts.append(step(server, ours.first()).decode())
        with pytest.raises(AuthenticationError) as caught:
            step(server, ours.step(firsts[-1].encode()) or b"")
        errors.append(str(caught.value))
        assert server.user is None
    assert errors[0] == errors[1]
    known, unknown = ([len(part) for part in first.split(",")] for first in firsts)
    assert known == unknown
    again = step(Scram(mechanism, users), b"n,,n=nobody,r=abc").decode()
    assert again.split(",")[1] == firsts[1].split(",")[1], "the salt of a name that nobody has stays the same"


def test_the_example_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4096)
    users = Users()
    users.apply(Users.change("user", SCRAM_SHA_256, from_salted(SCRAM_SHA_256, salted, salt, 4096)))
    server = Scram(SCRAM_SHA_256, users, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = step(server, b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = step(
        server,
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    )
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize(
    "final",
    [
        b"c=biws,r=other,p=dHzb",  # a nonce of another exchange
        b"c=biws,r=abcSERVERx,p=dHzb",
        b"c=eSws,r=abcSERVER,p=dHzb",  # another header than the first message had
        b"c=biws,r=abcSERVER,p=dHzb",  # a proof with a wrong length
        b"c=biws,r=abcSERVER,p=!!!",
        b"c=biws,r=abcSERVER",
        b"",
        b"\xff\xfe",
    ],
)
def test_a_final_message_of_another_exchange_is_rejected(final) -> None:
    server = Scram(SCRAM_SHA_256, users_with(SCRAM_SHA_256), nonce="SERVER")
    step(server, b"n,,n=ann,r=abc")
    with pytest.raises(AuthenticationError):
        step(server, final)
    assert server.user is None
    with pytest.raises(AuthenticationError):
        step(server, final)


@pytest.mark.parametrize(
    "first",
    [b"", b"y,,n=ann,r=abc", b"n,a=bob,n=ann,r=abc", b"n,,n=a=x,r=abc", b"n,,n=\xff,r=a", b"n,,n=,r=a", b"\0\0"],
)
def test_an_invalid_first_message_is_rejected(first) -> None:
    with pytest.raises(AuthenticationError):
        step(Scram(SCRAM_SHA_256, users_with(SCRAM_SHA_256)), first)


def test_credentials_do_not_reveal_secrets(tmp_path: Path) -> None:
    credential = derive(SCRAM_SHA_256, "verysecret")
    assert repr(credential) == "Credential(iterations=4096)"
    catalog = Catalog(tmp_path / "catalog")
    catalog.record(Users.change("ann", SCRAM_SHA_256, credential), Users.change("bob", SCRAM_SHA_512, credential))
    catalog.record(Users.deletion("bob", SCRAM_SHA_512))
    catalog.close()
    assert b"verysecret" not in (tmp_path / "catalog").read_bytes()
    again = Catalog(tmp_path / "catalog")
    assert again.users.by_name == {"ann": {SCRAM_SHA_256: credential}}
    assert again.users.credential("ann", SCRAM_SHA_512) is None
    assert isinstance(again.users.credential("ann", SCRAM_SHA_256), Credential)


def plain(**users: str) -> Plain:
    return Plain(check_against({name: Secret(password) for name, password in users.items()}))


@pytest.mark.parametrize("identity", [b"", b"ann"])
def test_plain_accepts_a_valid_password(identity) -> None:
    mechanism = plain(ann=SECRET)
    assert step(mechanism, identity + b"\0ann\0" + SECRET.encode()) == b""
    assert mechanism.user == "ann"


@pytest.mark.parametrize(
    "token",
    [b"\0ann\0wrong", b"\0bob\0secret", b"bob\0ann\0secret", b"\0ann\0", b"\0\0secret", b"ann", b"\0\0\0\0", b"\xff"],
)
def test_plain_rejects_others_without_quoting_their_input(token) -> None:
    mechanism = plain(ann="secret")
    with pytest.raises(AuthenticationError) as caught:
        step(mechanism, token)
    assert "wrong'" not in str(caught.value)
    assert "secret" not in str(caught.value)
    assert mechanism.user is None


def test_a_custom_password_check_may_be_async() -> None:
    async def check(user: str, password: str) -> bool:
        await asyncio.sleep(0)
        return password == user * 2

    mechanism = Plain(check)
    step(mechanism, b"\0ab\0abab")
    assert mechanism.user == "ab"


def unsecured(algorithm="none", signature="", **claims) -> str:
    def part(value) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part({'alg': algorithm})}.{part(claims)}.{signature}"


def first_message(token: str) -> bytes:
    return client.OAuthBearerMechanism("host", lambda: client.Token(token, extensions={"traceId": "12"})).first()


NOW = START_MS / 1000


def test_an_unsecured_token_has_a_user_and_an_expiry() -> None:
    mechanism = OAuthBearer(UnsecuredTokens(HandClock()))
    assert step(mechanism, first_message(unsecured(sub="ann", exp=NOW + 60, iat=NOW, scope=["a", "b"]))) == b""
    assert mechanism.user == "ann"
    assert mechanism.expires_ms == START_MS + 60_000


GOOD = {"sub": "ann", "exp": NOW + 60, "scope": "read write"}


@pytest.mark.parametrize(
    "token",
    [
        unsecured(**{**GOOD, "exp": NOW}),
        unsecured(**{**GOOD, "exp": None}),
        unsecured(**{**GOOD, "exp": "soon"}),
        unsecured(**{**GOOD, "sub": None}),
        unsecured(**{**GOOD, "iat": NOW + 50}),
        unsecured(**{**GOOD, "scope": "read"}),
        unsecured("HS256", "c2ln", **GOOD),
        unsecured("none", "c2ln", **GOOD),
        "no.token",
        "a.b.c",
    ],
)
def test_an_invalid_token_fails_in_two_steps(token) -> None:
    validator = UnsecuredTokens(HandClock(), required_scope=frozenset({"write"}))
    assert validator(unsecured(**GOOD)).principal == "ann"
    mechanism = OAuthBearer(validator)
    assert step(mechanism, first_message(token)) == b'{"status":"invalid_token"}'
    with pytest.raises(AuthenticationError, match="invalid token"):
        step(mechanism, b"\x01")
    assert mechanism.user is None


def test_a_custom_validator_is_used() -> None:
    async def validator(token: str) -> BearerToken:
        if token != "good":
            raise LookupError(token)
        return BearerToken("ann", 5)

    good, bad = OAuthBearer(validator), OAuthBearer(validator)
    assert step(good, first_message("good")) == b""
    assert (good.user, good.expires_ms) == ("ann", 5)
    assert step(bad, first_message("bad")) == b'{"status":"invalid_token"}'


@pytest.mark.parametrize(
    "message", [b"", b"n,,\x01\x01", b"n,,\x01auth=Basic abc\x01\x01", b"y,,\x01auth=Bearer a\x01\x01"]
)
def test_a_message_without_bearer_token_is_rejected_at_once(message) -> None:
    with pytest.raises(AuthenticationError):
        step(OAuthBearer(UnsecuredTokens(HandClock())), message)


def test_users_are_parsed_from_jaas() -> None:
    text = (
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" password="a" '
        'user_ann="with \\"quotes\\" and spaces" user_b.o-b=plain;'
    )
    assert jaas_users(text) == {"ann": Secret('with "quotes" and spaces'), "b.o-b": Secret("plain")}
    assert jaas_options(text)["username"] == "admin"
    with pytest.raises(ConfigError) as caught:
        jaas_options('nonsense user_ann="verysecret"')
    assert "verysecret" not in str(caught.value)


def test_users_are_parsed_from_sasl_plain_users() -> None:
    assert plain_users("ann:a, bob:b:c") == {"ann": Secret("a"), "bob": Secret("b:c")}
    made = {"ann": "a,b:c", "b:o,b": '"'}
    for name in ("sasl.plain.users", "sasl_plain_users"):
        text = resolve(("argument", {name: made})).of(Secret, "sasl.plain.users").reveal()
        assert plain_users(text) == {user: Secret(password) for user, password in made.items()}
    for wrong in ("ann", "ann:", ":a", "ann:a,,bob:b", "{", '{"ann": 5}', '{"": "a"}'):
        with pytest.raises(ConfigError, match="expected user:password pairs"):
            plain_users(wrong)
