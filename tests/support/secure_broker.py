"""A headrace broker with listeners of every security protocol, and certificates."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.broker import EmbeddedBroker
from headrace.broker.ports import free_port

OPENSSL = shutil.which("openssl")
SECONDS = 20
LISTENERS = ("PLAINTEXT", "SSL", "MTLS", "SASL_PLAINTEXT", "SASL_SSL")


def _openssl(*arguments: object) -> None:
    assert OPENSSL is not None
    subprocess.run([OPENSSL, *map(str, arguments)], check=True, capture_output=True, timeout=SECONDS)


def make_certificates(folder: Path) -> None:
    """Create PEM files: an authority, certificates of a server and a client, and an untrusted one."""
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for name in ("ca", "stranger"):
        key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
        _openssl("req", "-x509", *curve, "-subj", f"/CN={name}", "-days", 2, "-keyout", key, "-out", certificate)
        (folder / f"{name}-both.pem").write_text(key.read_text() + certificate.read_text())
    (folder / "extension").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    for name, subject in (("server", "/CN=server"), ("client", "/C=DE/O=Mill, Ltd/CN=client")):
        key, request, certificate = (folder / f"{name}.{kind}" for kind in ("key", "csr", "pem"))
        _openssl("req", "-new", *curve, "-subj", subject, "-keyout", key, "-out", request)
        _openssl(
            *("x509", "-req", "-in", request, "-out", certificate, "-days", 2, "-extfile", folder / "extension"),
            *("-CA", folder / "ca.pem", "-CAkey", folder / "ca.key", "-CAcreateserial"),
        )
        (folder / f"{name}-both.pem").write_text(key.read_text() + certificate.read_text())


class SecureBroker:
    """A broker with addresses by listener in `at`. Clients of PLAINTEXT are User:ANONYMOUS."""

    def __init__(self, certificates: Path, options: Mapping[str, object]) -> None:
        self.certificates = certificates
        self.at = {name: f"127.0.0.1:{free_port()}" for name in LISTENERS}
        protocols = ",".join(f"{name}:{'SSL' if name == 'MTLS' else name}" for name in LISTENERS)
        self.embedded = EmbeddedBroker(
            {
                "listeners": ",".join(f"{name}://{address}" for name, address in self.at.items()),
                "listener.security.protocol.map": protocols,
                "ssl.keystore.location": str(certificates / "server-both.pem"),
                "ssl.truststore.location": str(certificates / "ca.pem"),
                "listener.name.mtls.ssl.client.auth": "required",
                **options,
            }
        )

    def __enter__(self) -> Self:
        self.embedded.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.embedded.close()
