"""The security options of a listener: certificates, mechanisms, users, and errors at start."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from headrace.broker.broker_options import resolve
from headrace.broker.catalog.security import Users
from headrace.broker.security.authenticator import Authenticator
from headrace.broker.security.mechanisms import BearerToken
from headrace.broker.security.sasl import sasl_of
from headrace.broker.server.listener import Listener
from headrace.errors import BrokerError, Code, ConfigError
from tests.support.fake_internal import HandClock

OPENSSL = shutil.which("openssl")
NAME = "INSIDE"


def prepared(protocol: str, **options: object) -> tuple[Authenticator, Listener]:
    """`a__b` stands for the option a.b of the listener, `a_b` for the option a.b of all."""
    given = {
        f"listener.name.inside.{name.replace('__', '.')}" if "__" in name else name.replace("_", "."): value
        for name, value in options.items()
    }
    authenticator = Authenticator(resolve(("argument", given)), Users(), HandClock())
    listener = Listener(NAME, "127.0.0.1", 0, protocol, "127.0.0.1", 0)
    authenticator.prepare(listener)
    return authenticator, listener


def logged_in(made: tuple[Authenticator, Listener], mechanism: str, token: bytes) -> str | Code:
    """Return the principal after one token, or the error code."""

    async def scenario() -> str | Code:
        authenticator, listener = made
        session = authenticator.session(listener)
        sasl = sasl_of(session)
        assert sasl is not None
        await sasl.choose(mechanism, bare_tokens=False)
        try:
            await sasl.token(token)
        except BrokerError as error:
            return Code(error.code)
        return session.principal

    return asyncio.run(scenario())


def test_a_listener_without_sasl_has_anonymous_sessions() -> None:
    authenticator, listener = prepared("PLAINTEXT")
    assert sasl_of(authenticator.session(listener)) is None
    assert authenticator.tls(listener) is None


@pytest.mark.parametrize(
    "options",
    [
        {"sasl_plain_users": "ann:secret"},
        {"sasl_plain_users": {"ann": "secret"}},
        {"sasl_jaas_config": 'PlainLoginModule required user_ann="secret";'},
        {"plain__sasl__jaas__config": 'PlainLoginModule required user_ann="secret";'},
        {"plain__sasl__server__callback__handler__class": lambda user, password: (user, password) == ("ann", "secret")},
        {"plain__sasl__server__callback__handler__class": "plain_checks.check"},
        {"plain__sasl__server__callback__handler__class": "plain_checks.Checker"},
    ],
)
def test_the_users_of_plain_come_from_options(options, tmp_path, monkeypatch) -> None:
    (tmp_path / "plain_checks.py").write_text(
        "def check(user, password):\n"
        "    return (user, password) == ('ann', 'secret')\n"
        "class Checker:\n"
        "    def __call__(self, user, password):\n"
        "        return check(user, password)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    made = prepared("SASL_PLAINTEXT", connection_failed_authentication_delay_ms=0, **options)
    clock = made[0]._clock
    monkeypatch.setattr(clock, "call_later", lambda _, callback, *arguments: callback(*arguments))
    assert logged_in(made, "PLAIN", b"\0ann\0secret") == "User:ann"
    assert logged_in(made, "PLAIN", b"\0ann\0wrong") == Code.SASL_AUTHENTICATION_FAILED


def test_without_users_every_login_fails(monkeypatch) -> None:
    made = prepared("SASL_PLAINTEXT")
    monkeypatch.setattr(made[0]._clock, "call_later", lambda _, callback, *arguments: callback(*arguments))
    assert logged_in(made, "PLAIN", b"\0ann\0secret") == Code.SASL_AUTHENTICATION_FAILED


def test_tokens_are_checked_by_the_configured_validator() -> None:
    made = prepared(
        "SASL_PLAINTEXT",
        sasl_enabled_mechanisms="OAUTHBEARER",
        sasl_server_callback_handler_class=lambda token: BearerToken(token.upper()),
    )
    assert logged_in(made, "OAUTHBEARER", b"n,,\x01auth=Bearer ann\x01\x01") == "User:ANN"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sasl_enabled_mechanisms": ""}, "is empty: set some of PLAIN"),
        ({"sasl_enabled_mechanisms": "NTLM"}, "expected one of PLAIN"),
        ({"sasl_enabled_mechanisms": "OAUTHBEARER"}, "needs a token validator"),
        ({"sasl_plain_users": "verysecret"}, "expected user:password pairs"),
        ({"sasl_jaas_config": "verysecret"}, "expected `<login module> required"),
        ({"plain__sasl__server__callback__handler__class": "no.such.thing"}, "cannot import no.such.thing"),
        ({"plain__sasl__server__callback__handler__class": "os.sep"}, "expected a function"),
    ],
)
def test_invalid_options_are_reported_without_secrets(options, words) -> None:
    with pytest.raises(ConfigError) as caught:
        prepared("SASL_PLAINTEXT", **options)
    assert words in str(caught.value)
    assert "verysecret" not in str(caught.value)


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if OPENSSL is None:
        pytest.skip("the openssl command makes the certificates")
    folder = tmp_path_factory.mktemp("pems")

    def openssl(*arguments: object) -> None:
        subprocess.run([OPENSSL, *map(str, arguments)], check=True, capture_output=True, timeout=20)

    for name in ("one", "two"):
        openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", 2),
            *("-subj", f"/CN={name}", "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem"),
        )
    (folder / "both.pem").write_text((folder / "one.key").read_text() + (folder / "one.pem").read_text())
    locked = folder / "locked.key"
    openssl("pkcs8", "-topk8", "-in", folder / "one.key", "-out", locked, "-passout", "pass:sesame")
    (folder / "store.jks").write_bytes(b"\xfe\xed\xfe\xed" + bytes(20))
    return folder


def test_a_certificate_may_be_a_file_two_files_or_text(pems) -> None:
    text = {"keystore": (pems / "one.pem").read_text(), "key": (pems / "one.key").read_text()}
    for options in (
        {"ssl_keystore_location": str(pems / "both.pem")},
        {"ssl_keystore_location": str(pems / "one.pem"), "ssl_key_location": str(pems / "one.key")},
        {"ssl_keystore_certificate_chain": text["keystore"], "ssl_keystore_key": text["key"]},
        {"ssl__keystore__location": str(pems / "both.pem")},
        {
            "ssl_keystore_location": str(pems / "one.pem"),
            "ssl_key_location": str(pems / "locked.key"),
            "ssl_key_password": "sesame",
        },
    ):
        _, listener = prepared("SSL", **options)
        assert listener.tls is not None
        assert listener.tls.verify_mode == ssl.CERT_NONE
        assert listener.tls.minimum_version == ssl.TLSVersion.TLSv1_2


def test_ssl_client_auth_selects_the_verify_mode(pems) -> None:
    for word, mode in (("requested", ssl.CERT_OPTIONAL), ("required", ssl.CERT_REQUIRED)):
        _, listener = prepared(
            "SSL",
            ssl_keystore_location=str(pems / "both.pem"),
            ssl_truststore_location=str(pems / "one.pem"),
            ssl_client_auth=word,
        )
        assert listener.tls is not None
        assert listener.tls.verify_mode == mode


def test_protocols_and_suites_are_limited(pems) -> None:
    def context(**options: str) -> ssl.SSLContext:
        _, listener = prepared("SSL", ssl_keystore_location=str(pems / "both.pem"), **options)
        assert listener.tls is not None
        return listener.tls

    assert context(ssl_enabled_protocols="TLSv1.3").minimum_version == ssl.TLSVersion.TLSv1_3
    old = context(ssl_cipher_suites="TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384")
    assert old.maximum_version == ssl.TLSVersion.TLSv1_2
    assert "ECDHE-ECDSA-AES256-GCM-SHA384" in {cipher["name"] for cipher in old.get_ciphers()}
    assert context(ssl_cipher_suites="TLS_AES_256_GCM_SHA384").minimum_version == ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "has no certificate"),
        ({"ssl_keystore_location": "{}/nowhere.pem"}, "cannot read"),
        ({"ssl_keystore_location": "{}/store.jks"}, "expected PEM"),
        ({"ssl_keystore_location": "{}/one.pem"}, "cannot be used"),
        (
            {"ssl_keystore_location": "{}/one.pem", "ssl_key_location": "{}/two.key"},
            "its key belongs to another",
        ),
        (
            {"ssl_keystore_location": "{}/one.pem", "ssl_key_location": "{}/locked.key"},
            "needs ssl.key.password",
        ),
        (
            {"ssl_keystore_location": "{}/both.pem", "ssl_enabled_protocols": "SSLv3"},
            "expected some of TLSv1.2, TLSv1.3",
        ),
        ({"ssl_keystore_location": "{}/both.pem", "ssl_cipher_suites": "NO_WITH_SUCH"}, "OpenSSL supports none"),
        (
            {
                "ssl_keystore_location": "{}/both.pem",
                "ssl_client_auth": "required",
                "ssl_truststore_certificates": "-----BEGIN nonsense",
            },
            "cannot read certificate authorities",
        ),
    ],
)
def test_invalid_certificates_are_rejected_at_start(pems, options, words) -> None:
    with pytest.raises(ConfigError, match=words):
        prepared("SSL", **{name: value.format(pems) for name, value in options.items()})
