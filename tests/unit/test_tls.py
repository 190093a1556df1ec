"""TLS handshakes on loopback, with generated certificates."""

from __future__ import annotations

import os
import select
import shutil
import socket
import ssl
import struct
import subprocess
import threading
from contextlib import contextmanager
from typing import Any

import pytest

from headrace.client import tls
from headrace.client.tls import TlsSettings
from headrace.errors import AuthenticationError, ConfigError, TlsError

OPENSSL = shutil.which("openssl")
SECONDS_MAX = 10

pytestmark = pytest.mark.skipif(
    OPENSSL is None, reason="the openssl command makes the certificates, and it is not here"
)


def openssl(*args, **options):
    assert OPENSSL is not None
    subprocess.run([OPENSSL, *map(str, args)], check=True, capture_output=True, timeout=SECONDS_MAX, **options)


class Certificates:
    """Two independent authorities; the first signs certificates for `broker.test` and 127.0.0.2."""

    def __init__(self, folder):
        self.folder = folder
        for authority in ("ca", "stranger"):
            self.key(authority)
            openssl(
                *("req", "-x509", "-key", self[f"{authority}.key"], "-out", self[f"{authority}.pem"]),
                *("-subj", f"/CN=test {authority}", "-days", "2"),
            )
        self.signed("server", "ca", "subjectAltName=DNS:broker.test,IP:127.0.0.2")
        self.signed("client", "ca", "subjectAltName=DNS:client.test")
        self.signed("outsider", "stranger", "subjectAltName=DNS:client.test")
        self["both.pem"].write_text(self["client.pem"].read_text() + self["client.key"].read_text())
        openssl("pkcs8", "-topk8", "-in", self["client.key"], "-out", self["locked.key"], "-passout", "pass:hush")
        openssl(
            *("pkcs12", "-export", "-in", self["client.pem"], "-inkey", self["client.key"]),
            *("-out", self["store.p12"], "-passout", "pass:hush"),
        )
        self["store.jks"].write_bytes(b"\xfe\xed\xfe\xed" + bytes(40))

    def __getitem__(self, name):
        return self.folder / name

    def key(self, name):
        openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", self[f"{name}.key"])

    def signed(self, name, authority, extension):
        self.key(name)
        openssl("req", "-new", "-key", self[f"{name}.key"], "-out", self[f"{name}.csr"], "-subj", f"/CN={name}")
        self["extension"].write_text(extension)
        openssl(
            *("x509", "-req", "-in", self[f"{name}.csr"], "-out", self[f"{name}.pem"], "-days", "2"),
            *("-CA", self[f"{authority}.pem"], "-CAkey", self[f"{authority}.key"], "-CAcreateserial"),
            *("-extfile", self["extension"]),
        )


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


@contextmanager
def peer(serve):
    """Return a socket to a thread that runs `serve(socket)`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), timeout=SECONDS_MAX)
        server, _ = listener.accept()
    server.settimeout(SECONDS_MAX)
    thread = threading.Thread(target=serve, args=(server,))
    thread.start()
    try:
        yield client
    finally:
        client.close()
        thread.join(SECONDS_MAX)
        server.close()
        assert not thread.is_alive()


def tls_server(certificates, *, client_certificate=False, maximum=None, talk=lambda connection: None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates["server.pem"], certificates["server.key"])
    if client_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates["ca.pem"])
    if maximum is not None:
        context.maximum_version = maximum

    def serve(sock):
        try:
            with context.wrap_socket(sock, server_side=True) as connection:
                talk(connection)
        except OSError:
            pass  # the tests check the client's side

    return serve


def wait(sock, outcome):
    reading, writing = ([sock], []) if outcome == "want_read" else ([], [sock])
    assert any(select.select(reading, writing, [], SECONDS_MAX)), f"{outcome} for {SECONDS_MAX} s"


def shake_hands(sock):
    outcomes: list[str] = []
    while not outcomes or outcomes[-1] != "done":
        outcomes.append(tls.handshake(sock))
        if outcomes[-1] != "done":
            wait(sock, outcomes[-1])
    return outcomes


def read_all(sock):
    """Read until the end of the stream."""
    parts: list[bytes] = []
    while True:
        data = tls.receive(sock, 1 << 20)
        if data == b"":
            return b"".join(parts)
        if data is None:
            wait(sock, "want_read")
        else:
            parts.append(data)


def trusting(certificates, **options):
    return TlsSettings(ca_file=str(certificates["ca.pem"]), **options)


def connect(settings, serve, host="broker.test"):
    """Handshake, then read to the end: with TLS 1.3 a certificate is rejected only then."""
    with peer(serve) as sock:
        wrapped = tls.wrap(sock, tls.context(settings), host)
        with wrapped:
            shake_hands(wrapped)
            return read_all(wrapped)


def say_hello(connection):
    connection.sendall(b"hello")


# -- handshakes --------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["broker.test", "broker.test.", "127.0.0.2"])
def test_a_broker_with_a_trusted_certificate_for_its_name_is_accepted(certificates, host):
    assert connect(trusting(certificates), tls_server(certificates, talk=say_hello), host) == b"hello"


def test_the_authority_may_be_given_as_text(certificates):
    settings = TlsSettings(ca_pem=certificates["ca.pem"].read_text())
    assert connect(settings, tls_server(certificates, talk=say_hello)) == b"hello"


@pytest.mark.parametrize(
    ("authority", "expected"), [("stranger.pem", "stranger.pem"), (None, "the system's certificate authorities")]
)
def test_an_untrusted_broker_is_rejected_with_the_trusted_authorities(certificates, authority, expected):
    settings = TlsSettings(ca_file=str(certificates[authority])) if authority else TlsSettings()
    with pytest.raises(TlsError, match=r"the certificate of broker.test is not trusted") as caught:
        connect(settings, tls_server(certificates))
    assert expected in str(caught.value)
    assert isinstance(caught.value, AuthenticationError)


@pytest.mark.parametrize("host", ["other.test", "127.0.0.3"])
def test_a_broker_certificate_for_other_names_is_rejected(certificates, host):
    with pytest.raises(TlsError, match=rf"the certificate of {host} is for other host names"):
        connect(trusting(certificates), tls_server(certificates), host)


def test_without_identification_any_name_of_a_trusted_authority_is_accepted(certificates):
    settings = trusting(certificates, check_hostname=False)
    assert connect(settings, tls_server(certificates, talk=say_hello), "other.test") == b"hello"
    stranger = TlsSettings(ca_file=str(certificates["stranger.pem"]), check_hostname=False)
    with pytest.raises(TlsError, match="not trusted"):
        connect(stranger, tls_server(certificates))


def own_certificates(certificates):
    def text(name):
        return certificates[name].read_text()

    def path(name):
        return str(certificates[name])

    return {
        "files": {"cert_file": path("client.pem"), "key_file": path("client.key")},
        "one file": {"cert_file": path("both.pem")},
        "texts": {"cert_pem": text("client.pem"), "key_pem": text("client.key")},
        "one text": {"cert_pem": text("both.pem")},
        "encrypted": {"cert_pem": text("client.pem"), "key_file": path("locked.key"), "key_password": "hush"},
    }


@pytest.mark.parametrize("how", ["files", "one file", "texts", "one text", "encrypted"])
def test_a_client_certificate_authenticates(certificates, how, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    settings = trusting(certificates, **own_certificates(certificates)[how])
    assert connect(settings, tls_server(certificates, client_certificate=True, talk=say_hello)) == b"hello"
    assert not list(tmp_path.iterdir()), "a key was left behind"


@pytest.mark.parametrize("maximum", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_missing_client_certificate_is_explained(certificates, maximum):
    serve = tls_server(certificates, client_certificate=True, maximum=maximum)
    with pytest.raises(
        TlsError, match=r"broker.test (rejected the client certificate|failed: sslv3 alert handshake)"
    ) as caught:
        connect(trusting(certificates), serve)
    assert "ssl." in str(caught.value)


def test_an_untrusted_client_certificate_is_rejected(certificates):
    settings = trusting(
        certificates, cert_file=str(certificates["outsider.pem"]), key_file=str(certificates["outsider.key"])
    )
    with pytest.raises(TlsError, match="rejected the client certificate"):
        connect(settings, tls_server(certificates, client_certificate=True))


@pytest.mark.parametrize(
    "reply", [b"HTTP/1.1 400 Bad Request\r\n\r\n", struct.pack(">iih", 6, 0, 35)], ids=["http", "kafka"]
)
def test_a_peer_that_responds_in_plain_text_is_recognized(certificates, reply):
    def serve(sock):
        sock.recv(1000)
        sock.sendall(reply)

    with pytest.raises(TlsError, match=r"broker.test does not use TLS on this port"):
        connect(trusting(certificates), serve)


def test_a_disconnect_in_the_handshake_is_a_retriable_error(certificates):
    # As a plaintext listener of Kafka does, which reads the first bytes as a request of 369 MB.
    def serve(sock):
        sock.recv(1000)
        sock.close()

    with pytest.raises(ConnectionError, match=r"closed the connection in the TLS handshake: does it use TLS"):
        connect(trusting(certificates), serve)


def test_a_slow_peer_never_blocks_us(certificates):
    go_on = threading.Event()
    handshaking = tls_server(certificates, talk=say_hello)

    def serve(sock):
        go_on.wait(SECONDS_MAX)
        handshaking(sock)

    with peer(serve) as sock, tls.wrap(sock, tls.context(trusting(certificates)), "broker.test") as wrapped:
        assert [tls.handshake(wrapped) for _ in range(3)] == ["want_read"] * 3
        go_on.set()
        assert shake_hands(wrapped)[-1] == "done"
        assert read_all(wrapped) == b"hello"


def test_the_configured_protocols_are_used(certificates):
    def version(connection):
        connection.sendall(connection.version().encode())

    for name in ("TLSv1.2", "TLSv1.3"):
        settings = trusting(certificates, protocols=(name,))
        assert connect(settings, tls_server(certificates, talk=version)) == name.encode()
    with pytest.raises(TlsError, match=r"TLS with broker.test failed: .*ssl.enabled.protocols"):
        connect(
            trusting(certificates, protocols=("TLSv1.3",)), tls_server(certificates, maximum=ssl.TLSVersion.TLSv1_2)
        )


# -- after the handshake -----------------------------------------------------------------------


def test_buffers_of_all_sizes_arrive_at_a_slow_peer(certificates):
    received = bytearray()
    sent_before_reading = threading.Event()

    def talk(connection):
        sent_before_reading.wait(SECONDS_MAX)
        while data := connection.recv(1 << 16):
            received.extend(data)

    sizes = [1, 0, 10, 16384, 3, tls.SEND_BYTES, 7, 1_000_000, 100, 3_000_000, 5, 5]
    buffers = [os.urandom(size) for size in sizes]
    expected = b"".join(buffers)
    blocked = 0
    with peer(tls_server(certificates, talk=talk)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20_000)
        with tls.wrap(sock, tls.context(trusting(certificates)), "broker.test") as wrapped:
            shake_hands(wrapped)
            queue: list = [memoryview(buffer) for buffer in buffers if buffer]
            while queue:
                sent = tls.send(wrapped, queue)
                if not sent:
                    blocked += 1
                    queue.append(memoryview(b"more"))  # the list may grow during a write
                    expected += b"more"
                    sent_before_reading.set()
                    wait(wrapped, "want_write")
                while sent:
                    taken = min(sent, len(queue[0]))
                    sent -= taken
                    if taken == len(queue[0]):
                        queue.pop(0)
                    else:
                        queue[0] = queue[0][taken:]
            wrapped.shutdown(socket.SHUT_WR)
    assert blocked
    assert bytes(received) == expected


def test_a_connection_that_breaks_later_is_a_connection_error(certificates):
    def talk(connection):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    def read_and_write(wrapped):
        assert read_all(wrapped) == b""  # until Python 3.12, a reset between two records counts as the end
        tls.send(wrapped, [b"more"])

    with peer(tls_server(certificates, talk=talk)) as sock:
        wrapped = tls.wrap(sock, tls.context(trusting(certificates)), "broker.test")
        with wrapped:
            shake_hands(wrapped)
            with pytest.raises(ConnectionError, match=r"TLS connection to broker.test failed"):
                read_and_write(wrapped)


# -- settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ca_file": "nowhere.pem"}, "ssl.truststore.location: cannot read .*nowhere.pem: No such file"),
        ({"ca_file": "store.jks"}, r"expected PEM in .*store.jks, found a Java keystore \(JKS\); convert it: keytool"),
        ({"ca_file": "store.p12"}, "expected PEM in .*store.p12, found a PKCS12 keystore or DER"),
        ({"cert_file": "store.p12"}, "ssl.keystore.location: expected PEM"),
        ({"ca_file": "client.key"}, "cannot read certificate authorities from .*client.key"),
        ({"cert_file": "client.pem"}, "expected a PEM certificate chain and its private key"),
        ({"cert_file": "client.pem", "key_file": "server.key"}, "its key belongs to another certificate"),
        ({"cert_file": "client.pem", "key_file": "locked.key"}, "its key needs ssl.key.password"),
        (
            {"cert_file": "client.pem", "key_file": "locked.key", "key_password": "wrong"},
            "ssl.key.password is wrong",
        ),
        ({"key_file": "client.key"}, "client key without a certificate"),
    ],
)
def test_invalid_certificates_are_rejected_before_connecting(certificates, options, message):
    paths: dict[str, Any] = {
        name: str(certificates[value]) if name.endswith("_file") else value for name, value in options.items()
    }
    with pytest.raises(ConfigError, match=message):
        tls.context(TlsSettings(**paths))


def test_text_that_is_not_a_certificate_is_rejected():
    with pytest.raises(ConfigError, match=r"cannot read certificate authorities from ssl\.truststore\.certificates"):
        tls.context(TlsSettings(ca_pem="nonsense"))


@pytest.mark.parametrize("names", [(), ("SSLv3",), ("TLSv1.2", "TLSv1.1")])
def test_only_secure_protocols_are_supported(names):
    with pytest.raises(ConfigError, match=r"ssl.enabled.protocols: expected TLSv1.2, TLSv1.3"):
        tls.context(TlsSettings(protocols=names))


def test_cipher_suites_have_java_or_openssl_names():
    for names in (
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"),
        ("ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305"),
    ):
        made = tls.context(TlsSettings(ciphers=names))
        enabled = {cipher["name"] for cipher in made.get_ciphers() if not cipher["name"].startswith("TLS_")}
        assert enabled == {"ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305"}
        # No suite of TLS 1.3 is configured, so none may be used.
        assert made.maximum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("java", "expected"),
    [
        ("TLS_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA"),
        ("TLS_DHE_RSA_WITH_AES_256_GCM_SHA384", "DHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256", "ECDHE-RSA-AES128-SHA256"),
    ],
)
def test_a_cipher_name_of_java_is_translated(java, expected):
    made = tls.context(TlsSettings(ciphers=(java,)))
    assert expected in {cipher["name"] for cipher in made.get_ciphers()}


def test_tls_1_3_suites_are_all_or_none():
    modern = tuple(c["name"] for c in tls.context(TlsSettings()).get_ciphers() if c["name"].startswith("TLS_"))
    made = tls.context(TlsSettings(ciphers=modern))
    assert made.minimum_version == ssl.TLSVersion.TLSv1_3
    with pytest.raises(ConfigError, match=f"cannot disable .*{modern[-1]}.*TLSv1.2"):
        tls.context(TlsSettings(ciphers=modern[:1]))
    with pytest.raises(ConfigError, match="OpenSSL supports none of NO-SUCH"):
        tls.context(TlsSettings(ciphers=("NO-SUCH",)))


def test_settings_show_no_secret():
    shown = repr(TlsSettings(cert_pem="chain", key_pem="hush", key_password="hush"))
    assert "chain" in shown
    assert "hush" not in shown
