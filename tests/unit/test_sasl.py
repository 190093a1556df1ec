"""SASL mechanisms: examples of the RFCs, a test server, and other clients."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import pickle
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.client.credentials import SaslSettings, TokenCache
from headrace.config import jaas_options
from headrace.errors import AuthenticationError, ConfigError
from headrace.wire.api.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from headrace.wire.sasl import (
    ITERATIONS_MAX,
    OAUTHBEARER,
    PLAIN,
    ROUND_TRIPS_MAX,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    OAuthBearerMechanism,
    PlainMechanism,
    ScramMechanism,
    Token,
    authenticate,
)
from tests.support.examples import examples

SECRET = "pencil,=§"
HASHES = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}


class ScramServer:
    """The server side of RFC 5802, with stored credentials as in a broker."""

    def __init__(self, name, users, *, salt=b"salt of sixteen!", iterations=4096, nonce="server"):
        self.hash = HASHES[name]
        self.salt, self.iterations, self.nonce = salt, iterations, nonce
        self.users = {user: self._keys(password) for user, password in users.items()}

    def _keys(self, password):
        salted = hashlib.pbkdf2_hmac(self.hash, password.encode(), self.salt, self.iterations)
        client_key = hmac.digest(salted, b"Client Key", self.hash)
        return hashlib.new(self.hash, client_key).digest(), hmac.digest(salted, b"Server Key", self.hash)

    def first(self, message):
        gs2, _, bare = message.decode().partition(",,")
        assert gs2 == "n"
        fields = dict(part.split("=", 1) for part in bare.split(","))
        self.user = fields["n"].replace("=2C", ",").replace("=3D", "=")
        self.extensions = {name: value for name, value in fields.items() if name not in "nr"}
        self.full_nonce = fields["r"] + self.nonce
        reply = f"r={self.full_nonce},s={base64.b64encode(self.salt).decode()},i={self.iterations}"
        self.seen = f"{bare},{reply}"
        return reply.encode()

    def final(self, message):
        without_proof, _, proof = message.decode().rpartition(",p=")
        assert without_proof == f"c={base64.b64encode(b'n,,').decode()},r={self.full_nonce}"
        stored_key, server_key = self.users[self.user]
        seen = f"{self.seen},{without_proof}".encode()
        signature = hmac.digest(stored_key, seen, self.hash)
        client_key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        if hashlib.new(self.hash, client_key).digest() != stored_key:
            return b"e=invalid-proof"
        return b"v=" + base64.b64encode(hmac.digest(server_key, seen, self.hash))


def scram(name=SCRAM_SHA_256, username="user", password=SECRET, **options):
    return ScramMechanism("broker-1", name, username, password, **options)


def complete(mechanism, server):
    """Run the exchange and return the result of the last step."""
    return mechanism.step(server.final(mechanism.step(server.first(mechanism.first()))))


# -- PLAIN -------------------------------------------------------------------------------------


def test_plain_sends_user_and_password_after_nuls():
    mechanism = PlainMechanism("broker-1", "tim", "tanstaaftanstaaf")
    assert mechanism.first() == b"\0tim\0tanstaaftanstaaf"  # the example of RFC 4616, 4
    assert mechanism.step(b"") is None


def test_plain_has_one_message():
    with pytest.raises(AuthenticationError, match="expected an empty response to the password"):
        PlainMechanism("broker-1", "tim", SECRET).step(b"more")


# -- SCRAM -------------------------------------------------------------------------------------


def test_scram_sha_256_matches_the_example_of_rfc_7677():
    mechanism = scram(username="user", password="pencil", nonce="rOprNGfwEbeRWgbNEkqO")
    assert mechanism.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    final = mechanism.step(b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    assert final == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert mechanism.step(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None


@settings(deadline=None, max_examples=20)
@given(
    st.sampled_from(sorted(HASHES)),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8),
)
def test_scram_client_and_server_authenticate_each_other(name, username, password):
    server = ScramServer(name, {username: password})
    assert complete(scram(name, username, password), server) is None
    assert server.user == username


def test_two_exchanges_have_different_nonces():
    assert scram().first() != scram().first()


def test_a_delegation_token_sends_the_tokenauth_extension():
    server = ScramServer(SCRAM_SHA_512, {"token-id": "hmac"})
    assert complete(scram(SCRAM_SHA_512, "token-id", "hmac", token_auth=True), server) is None
    assert server.extensions == {"tokenauth": "true"}


def test_a_rejected_proof_is_an_error_without_the_password():
    server = ScramServer(SCRAM_SHA_256, {"user": "another"})
    with pytest.raises(AuthenticationError) as caught:
        complete(scram(), server)
    assert str(caught.value) == (
        "broker-1 did not accept user 'user' with SASL SCRAM-SHA-256: invalid-proof; check sasl.username, "
        "sasl.password, and that the broker has credentials of this mechanism for the user"
    )


def test_a_broker_that_does_not_know_the_password_is_rejected():
    server = ScramServer(SCRAM_SHA_256, {"user": SECRET})
    mechanism = scram()
    server.final(mechanism.step(server.first(mechanism.first())))
    with pytest.raises(AuthenticationError, match="may not be the broker it claims to be"):
        mechanism.step(b"v=" + base64.b64encode(bytes(32)))


@pytest.mark.parametrize(
    ("challenge", "message"),
    [
        (b"r=other,s=AAAA,i=4096", "nonce does not start with the client's"),
        (b"r=mine,s=AAAA,i=4096", "nonce does not start with the client's"),
        (b"r=mine+,s=AAAA,i=4095", "expected 4096 to 1000000 iterations, got 4095"),
        (f"r=mine+,s=AAAA,i={ITERATIONS_MAX + 1}".encode(), "more would block the client"),
        (b"r=mine+,s=AAAA,i=" + b"9" * 5000, "expected a number of iterations, got '9999"),
        (b"r=mine+,s=AAAA,i=-1", "expected a number of iterations, got '-1'"),
        (b"r=mine+,s=AAAA", "expected i= in its SCRAM message, got r, s"),
        (b"r=mine+,s=!!,i=4096", "expected base64 in s="),
        (b"m=x,r=mine+,s=AAAA,i=4096", "requires an unknown SCRAM extension"),
        (b"e=unknown-user", "expected r= in its SCRAM message, got e"),
        (b"", "got no fields"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_an_invalid_server_first_message_is_rejected(challenge, message):
    mechanism = scram(nonce="mine")
    mechanism.first()
    with pytest.raises(AuthenticationError, match=message):
        mechanism.step(challenge)


@pytest.mark.parametrize("final", [b"", b"v=", b"v=!!", b"x=1", b"\xff"])
def test_an_invalid_server_final_message_is_rejected(final):
    server, mechanism = ScramServer(SCRAM_SHA_256, {"user": SECRET}), scram()
    mechanism.step(server.first(mechanism.first()))
    with pytest.raises(AuthenticationError):
        mechanism.step(final)


def test_a_challenge_after_the_end_is_rejected():
    server, mechanism = ScramServer(SCRAM_SHA_256, {"user": SECRET}), scram()
    complete(mechanism, server)
    with pytest.raises(AuthenticationError, match="expected no challenge after the end of the exchange"):
        mechanism.step(b"v=AAAA")


@settings(deadline=None, max_examples=examples(300))
@given(st.binary(max_size=60) | st.text("rsiev=,0123456789+A", max_size=60).map(str.encode))
def test_any_challenge_raises_only_authentication_errors(challenge):
    mechanism = scram(nonce="r")
    mechanism.first()
    with suppress(AuthenticationError):
        mechanism.step(challenge)


@pytest.mark.parametrize("name", sorted(HASHES))
def test_scram_agrees_with_kafka_python(name):
    peer = pytest.importorskip("kafka.net.sasl.scram", reason="kafka-python is not installed")
    theirs = peer.ScramClient("user", SECRET, name)
    ours = scram(name, nonce=theirs.nonce.decode())
    assert ours.first() == theirs.first_message()
    server = ScramServer(name, {"user": SECRET})
    challenge = server.first(ours.first())
    theirs.process_server_first_message(challenge)
    final = ours.step(challenge)
    assert final == theirs.final_message()
    server_final = server.final(final)
    theirs.process_server_final_message(server_final)
    assert ours.step(server_final) is None


@pytest.mark.parametrize("name", sorted(HASHES))
def test_scram_agrees_with_aiokafka(name):
    peer = pytest.importorskip("aiokafka.conn", reason="aiokafka is not installed")
    theirs = peer.ScramAuthenticator(
        loop=None, sasl_plain_password=SECRET, sasl_plain_username="user", sasl_mechanism=name
    )
    message = theirs.first_message()
    nonce = message.rpartition("r=")[2]
    ours = scram(name, nonce=nonce)
    assert ours.first() == message.encode()
    server = ScramServer(name, {"user": SECRET})
    challenge = server.first(ours.first())
    theirs.process_server_first_message(challenge.decode())
    assert ours.step(challenge) == theirs.final_message().encode()


# -- OAUTHBEARER -------------------------------------------------------------------------------


def oauth(provider):
    return OAuthBearerMechanism("broker-1", provider)


def test_a_bearer_token_is_sent_as_in_rfc_7628():
    mechanism = oauth(lambda: "vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg==")
    assert mechanism.first() == b"n,,\x01auth=Bearer vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg==\x01\x01"
    assert mechanism.step(b"") is None


def test_extensions_follow_the_token():
    token = Token("abc", 1000, {"logicalCluster": "lkc-1", "traceId": "7 8"})
    assert oauth(lambda: token).first() == b"n,,\x01auth=Bearer abc\x01logicalCluster=lkc-1\x01traceId=7 8\x01\x01"


def test_a_rejected_token_is_acknowledged_and_the_error_has_the_reasons():
    mechanism = oauth(lambda: "abc")
    mechanism.first()
    assert mechanism.step(json.dumps({"status": "invalid_token", "scope": "kafka"}).encode()) == b"\x01"
    assert str(mechanism.failure("token expired.")) == (
        "broker-1 did not accept the bearer token with SASL OAUTHBEARER: token expired: status invalid_token, "
        "scope kafka; check that the token provider returns a token that is valid and intended for this broker"
    )
    with pytest.raises(AuthenticationError, match="invalid_token"):
        mechanism.step(b"")


@pytest.mark.parametrize("refusal", [b"no json", b"[1]", b"{}", b"\xff", b"[" * 100_000])
def test_a_rejection_that_is_not_json_is_an_error_too(refusal):
    mechanism = oauth(lambda: "abc")
    assert mechanism.step(refusal) == b"\x01"
    with pytest.raises(AuthenticationError) as caught:
        mechanism.step(b"")
    assert len(str(caught.value)) < 2000


def test_a_token_provider_that_fails_is_named_as_the_cause():
    def provider():
        raise OSError("identity server is away")

    with pytest.raises(AuthenticationError, match="raised OSError: identity server is away") as caught:
        oauth(provider).first()
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("token", ["", "two words", "a\x01b", "=", Token("Ä")])
def test_an_invalid_token_is_rejected_without_showing_it(token):
    with pytest.raises(AuthenticationError, match=r"returned \d+ characters that are not a bearer token"):
        oauth(lambda: token).first()


@pytest.mark.parametrize("extension", [{"auth": "x"}, {"a1": "x"}, {"": "x"}, {"a": ""}, {"a": "x\x01"}, {"a": "ä"}])
def test_invalid_extensions_are_rejected(extension):
    with pytest.raises(AuthenticationError, match="extension"):
        oauth(lambda: Token("abc", extensions=extension)).first()


def test_a_token_is_renewed_after_most_of_its_lifetime():
    now, fetched = [1000.0], []

    def provider():
        fetched.append(now[0])
        if len(fetched) == 3:
            raise OSError("away")
        return Token(f"t{len(fetched)}", int(now[0]) + 1000)

    cache = TokenCache(provider, lambda: now[0])
    seen = []
    for now[0] in (1000, 1799, 1800, 2599, 2600, 2799):
        seen.append(cache().value)  # type: ignore[union-attr]
        if len(fetched) == 3:
            break
    assert seen == ["t1", "t1", "t2", "t2", "t2"]  # the last time the provider fails, but the token is still valid
    assert fetched == [1000, 1800, 2600]


def test_an_expired_token_is_not_used_if_the_provider_fails():
    tokens = [Token("t1", 10)]
    now = [0.0]
    cache = TokenCache(lambda: tokens.pop(), lambda: now[0])
    cache()
    now[0] = 10
    with pytest.raises(IndexError):
        cache()


def test_a_token_without_a_lifetime_is_fetched_each_time():
    tokens = iter(["abc", "def"])
    cache = TokenCache(lambda: next(tokens), lambda: 0.0)
    assert [cache(), cache()] == ["abc", "def"]


# -- settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "NTLM"}, "'NTLM' is not one of PLAIN, .*GSSAPI"),
        ({"name": "plain"}, "'plain' is not one of PLAIN"),
        ({"name": PLAIN, "password": "p"}, "sasl.mechanism=PLAIN needs sasl.username"),
        ({"name": SCRAM_SHA_256, "username": "u"}, "needs sasl.password"),
        ({"name": PLAIN, "username": "u", "password": "p\0q"}, "sasl.password contains a NUL"),
        ({"name": OAUTHBEARER}, "needs a token provider"),
        ({"name": PLAIN, "username": "u", "password": "p", "token_auth": True}, "delegation tokens need SCRAM"),
    ],
)
def test_invalid_settings_are_rejected_at_once(options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        SaslSettings(**options)
    assert "p\0q" not in str(caught.value)


@pytest.mark.parametrize("name", [PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER])
def test_settings_create_a_mechanism_per_connection_and_show_no_secret(name):
    options = SaslSettings(name, "user", SECRET, lambda: SECRET)
    mechanism = options.mechanism("broker-1")
    assert mechanism.name == name
    assert mechanism is not options.mechanism("broker-1")
    for shown in (repr(options), repr(mechanism), str(mechanism.failure("no"))):
        assert SECRET not in shown
    assert SECRET not in repr(Token(SECRET))


def test_the_error_of_a_missing_mechanism_names_the_offered_ones():
    error = SaslSettings(PLAIN, "u", "p").mechanism("broker-1").not_offered(["SCRAM-SHA-512", "OAUTHBEARER"])
    assert "it offers OAUTHBEARER, SCRAM-SHA-512" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'org.apache.kafka.common.security.scram.ScramLoginModule required username="a" password="b;c d";',
            {"username": "a", "password": "b;c d"},
        ),
        ('M required\n  username = "a\\"b\\\\"\n  tokenauth=true ;\n', {"username": 'a"b\\', "tokenauth": "true"}),
        ("a.B$C Required", {}),
    ],
)
def test_a_jaas_entry_is_parsed_as_in_java(text, expected):
    assert jaas_options(text) == expected


@pytest.mark.parametrize(
    "text", ["", "M", 'username="hush"', 'M required password="hush', "M required hush;", "M sometimes"]
)
def test_an_invalid_jaas_entry_is_rejected_without_showing_it(text):
    with pytest.raises(ConfigError, match="expected `<login module> required") as caught:
        jaas_options(text)
    assert "hush" not in str(caught.value)


# -- the exchange ------------------------------------------------------------------------------


def test_the_exchange_returns_the_session_lifetime():
    exchange = authenticate(SaslSettings(PLAIN, "ann", "secret").mechanism("broker-1"), version=1)
    assert next(exchange) == (SaslHandshakeRequest(mechanism=PLAIN), 1)
    assert exchange.send(SaslHandshakeResponse()) == (SaslAuthenticateRequest(auth_bytes=b"\0ann\0secret"), 1)
    with pytest.raises(StopIteration) as completed:
        exchange.send(SaslAuthenticateResponse(session_lifetime_ms=1234))
    assert completed.value.value == 1234


def test_the_exchange_has_a_limit_of_round_trips(monkeypatch):
    mechanism = SaslSettings(PLAIN, "ann", "secret").mechanism("broker-1")
    monkeypatch.setattr(mechanism, "step", lambda challenge: b"more")
    exchange = authenticate(mechanism)
    next(exchange)
    exchange.send(SaslHandshakeResponse())
    for _ in range(ROUND_TRIPS_MAX - 1):
        exchange.send(SaslAuthenticateResponse())
    with pytest.raises(AuthenticationError, match="exceeded the limit of 4 SASL round trips"):
        exchange.send(SaslAuthenticateResponse())
