"""The `ssl.*` options of clients, with Kafka's names. Certificates are PEM, the only format that Python reads."""

from __future__ import annotations

from dataclasses import replace

from headrace.config.option import NotEmpty, OneOf, Option

NO_EFFECT_WITH_OPENSSL = "TLS is OpenSSL's"
_PEM = "PEM files have no password; keys have one (ssl.key.password)"

TLS_OPTIONS = (
    Option(
        "ssl.truststore.location",
        "str",
        None,
        "A PEM file with the trusted certificate authorities. Without it and ssl.truststore.certificates, those of the "
        "system are used.",
        None,
        "high",
    ),
    Option("ssl.truststore.certificates", "password", None, "The certificate authorities as PEM text.", None, "high"),
    Option("ssl.truststore.type", "str", "PEM", "The truststore's format.", OneOf("PEM", ignore_case=True)),
    Option("ssl.truststore.password", "password", None, "The truststore's password.", None, "high", _PEM),
    Option(
        "ssl.keystore.location",
        "str",
        None,
        "A PEM file with the client's certificate chain, and its private key if ssl.key.location is not set.",
        None,
        "high",
    ),
    Option("ssl.key.location", "str", None, "A PEM file with the client's private key.", None, "high"),
    Option(
        "ssl.keystore.certificate.chain", "password", None, "The client's certificate chain as PEM text.", None, "high"
    ),
    Option("ssl.keystore.key", "password", None, "The client's private key as PEM text.", None, "high"),
    Option("ssl.key.password", "password", None, "The password of the client's private key.", None, "high"),
    Option("ssl.keystore.type", "str", "PEM", "The keystore's format.", OneOf("PEM", ignore_case=True)),
    Option("ssl.keystore.password", "password", None, "The keystore's password.", None, "high", _PEM),
    Option("ssl.enabled.protocols", "list", ("TLSv1.2", "TLSv1.3"), "The versions of TLS to offer.", NotEmpty()),
    Option(
        "ssl.cipher.suites",
        "list",
        (),
        "The cipher suites to offer, by Java's names or OpenSSL's. Empty: OpenSSL's default.",
        None,
        "low",
    ),
    Option(
        "ssl.endpoint.identification.algorithm",
        "str",
        "https",
        "`https` verifies that the server's certificate is for its host name; empty disables that, and with it most of "
        "the protection.",
        OneOf("https", "", ignore_case=True),
        "low",
    ),
    Option("ssl.protocol", "str", "TLSv1.3", "Java's TLS context.", None, "medium", NO_EFFECT_WITH_OPENSSL),
    Option("ssl.provider", "str", None, "Java's TLS provider.", None, "medium", NO_EFFECT_WITH_OPENSSL),
    Option(
        "ssl.engine.factory.class", "class", None, "The factory of TLS engines.", None, "low", NO_EFFECT_WITH_OPENSSL
    ),
    Option("ssl.keymanager.algorithm", "str", "SunX509", "Java's key manager.", None, "low", NO_EFFECT_WITH_OPENSSL),
    Option("ssl.trustmanager.algorithm", "str", "PKIX", "Java's trust manager.", None, "low", NO_EFFECT_WITH_OPENSSL),
    Option(
        "ssl.secure.random.implementation", "str", None, "Java's random numbers.", None, "low", NO_EFFECT_WITH_OPENSSL
    ),
)


def prefixed(prefix: str) -> tuple[Option, ...]:
    """Return the options that have an effect with a prefix before their names, for a server other than the brokers."""
    return tuple(replace(option, name=prefix + option.name) for option in TLS_OPTIONS if not option.no_effect)
