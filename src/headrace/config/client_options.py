"""Options that the producer and the consumer share: connections, metadata, metrics, SASL.

Names, types, defaults and ranges are those of Kafka 4.3; see the options of each client for the exceptions.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.config.option import Between, OneOf, Option
from headrace.config.tls_options import NO_EFFECT_WITH_OPENSSL

_NO_JMX = "Python has no JMX"
_NO_PROVIDERS = "values are used literally"

FROM_0 = Between(0)
FROM_1 = Between(1)
_BUFFER = Between(-1)

COMMON_OPTIONS = (
    Option(
        "bootstrap.servers",
        "list",
        None,
        "The brokers to contact first, as comma-separated host:port; the other brokers are discovered from them.",
        None,
        "high",
    ),
    Option(
        "client.id",
        "str",
        "",
        "The client's name in the broker's logs, metrics and quotas. "
        "The default is made from the transactional id, or from a counter.",
    ),
    Option(
        "client.dns.lookup",
        "str",
        "use_all_dns_ips",
        "How to use a host with several addresses: try all of them, or replace a bootstrap server by the canonical "
        "names of its addresses. `default` (Kafka 2.4) tries all of them, too.",
        OneOf("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only", "default"),
    ),
    Option(
        "metadata.max.age.ms",
        "long",
        300_000,
        "The age after which metadata is updated, even without errors.",
        FROM_0,
        "low",
    ),
    Option(
        "metadata.recovery.strategy",
        "str",
        "rebootstrap",
        "What to do when no known broker responds: use the bootstrap servers again, or keep trying.",
        OneOf("rebootstrap", "none", ignore_case=True),
        "low",
    ),
    Option(
        "metadata.recovery.rebootstrap.trigger.ms",
        "long",
        300_000,
        "How long metadata updates may fail before the bootstrap servers are used again.",
        FROM_0,
        "low",
    ),
    Option(
        "send.buffer.bytes",
        "int",
        -1,
        "The size of the socket's send buffer; -1: chosen by the operating system (Java's default: 131072).",
        _BUFFER,
    ),
    Option(
        "receive.buffer.bytes",
        "int",
        -1,
        "The size of the socket's receive buffer; -1: chosen by the operating system (Java's default: 32768).",
        _BUFFER,
    ),
    Option(
        "reconnect.backoff.ms",
        "long",
        50,
        "The back-off before reconnecting to a broker; it doubles with each failure.",
        FROM_0,
        "low",
    ),
    Option(
        "reconnect.backoff.max.ms",
        "long",
        1_000,
        "The maximum back-off before reconnecting. If only reconnect.backoff.ms is set, the back-off is constant.",
        FROM_0,
        "low",
    ),
    Option(
        "retry.backoff.ms",
        "long",
        100,
        "The back-off before a failed request is retried; it doubles with each failure.",
        FROM_0,
        "low",
    ),
    Option(
        "retry.backoff.max.ms",
        "long",
        1_000,
        "The maximum back-off before a retry. If it is not above retry.backoff.ms, the back-off is constant.",
        FROM_0,
        "low",
    ),
    Option(
        "request.timeout.ms",
        "int",
        30_000,
        "How long to wait for a response; then the connection is closed and the request retried.",
        FROM_0,
    ),
    Option(
        "connections.max.idle.ms",
        "long",
        540_000,
        "The time after which an idle connection is closed; negative: never.",
    ),
    Option(
        "socket.connection.setup.timeout.ms",
        "long",
        10_000,
        "The timeout for opening a connection; it doubles with each consecutive failure.",
    ),
    Option(
        "socket.connection.setup.timeout.max.ms",
        "long",
        30_000,
        "The maximum timeout for opening a connection.",
    ),
    Option(
        "metrics.num.samples",
        "int",
        2,
        "The number of windows over which rates and averages are computed.",
        FROM_1,
        "low",
    ),
    Option("metrics.sample.window.ms", "long", 30_000, "The length of a window.", FROM_0, "low"),
    Option(
        "metrics.recording.level",
        "str",
        "INFO",
        "The level of metrics that are recorded.",
        OneOf("INFO", "DEBUG", "TRACE", ignore_case=True),
        "low",
        "all metrics have the level INFO",
    ),
    Option("metric.reporters", "classes", (), "Plug-ins that get the metrics.", None, "low"),
    Option(
        "view.url",
        "str",
        "http://127.0.0.1:9080",
        "URL of the live view that metric.reporters=view reports to; printed by `headrace ui`.",
        None,
        "low",
    ),
    Option("view.token", "password", None, "Token of the live view, if it requires one.", None, "low"),
    Option(
        "enable.metrics.push",
        "bool",
        True,
        "Send metrics to the cluster if its administrator subscribes to them (KIP-714).",
        None,
        "low",
        "metrics are not sent to brokers; use metric.reporters",
    ),
    Option("auto.include.jmx.reporter", "bool", True, "Kafka 3: report through JMX.", None, "low", _NO_JMX),
    Option("config.providers", "list", (), "Providers that resolve references in values.", None, "low", _NO_PROVIDERS),
    Option(
        "security.protocol",
        "str",
        "PLAINTEXT",
        "The protocol for connections to brokers: with or without TLS and SASL.",
        OneOf("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", ignore_case=True),
    ),
    Option(
        "security.providers", "str", None, "Java security providers to install.", None, "low", NO_EFFECT_WITH_OPENSSL
    ),
)

SASL_OPTIONS = (
    Option(
        "sasl.mechanism",
        "str",
        "GSSAPI",
        "The authentication mechanism: GSSAPI (Kerberos; needs the extra `kerberos`), PLAIN, SCRAM-SHA-256, "
        "SCRAM-SHA-512 or OAUTHBEARER.",
    ),
    Option("sasl.username", "str", None, "The user name for PLAIN and SCRAM; takes precedence over sasl.jaas.config."),
    Option("sasl.password", "password", None, "The password for PLAIN and SCRAM; takes precedence, too."),
    Option(
        "sasl.jaas.config",
        "password",
        None,
        "User name and password, or principal and keyTab, in Java's format: a login module and its options. The module "
        "is ignored.",
    ),
    Option(
        "sasl.login.callback.handler.class",
        "class",
        None,
        "For OAUTHBEARER: a function, or the path of one, that returns a token.",
    ),
    Option(
        "sasl.kerberos.service.name",
        "str",
        None,
        "The first part of the brokers' Kerberos principal: kafka of kafka/host@REALM.",
    ),
    Option(
        "sasl.kerberos.principal",
        "str",
        None,
        "The client's Kerberos principal (as in librdkafka); takes precedence over sasl.jaas.config. Not set: that of "
        "the ticket cache or keytab.",
    ),
    Option(
        "sasl.kerberos.keytab",
        "str",
        None,
        "The keytab with the client's keys (as in librdkafka); takes precedence, too. Not set: the tickets of kinit.",
    ),
    Option(
        "sasl.oauthbearer.token.endpoint.url",
        "str",
        None,
        "For OAUTHBEARER: where tokens are requested with the client credentials (http, https), or a file with one "
        "(file).",
    ),
    Option("sasl.oauthbearer.client.credentials.client.id", "str", None, "The client id at the token endpoint."),
    Option("sasl.oauthbearer.client.credentials.client.secret", "password", None, "The client secret there."),
    Option("sasl.oauthbearer.scope", "str", None, "The scope to request."),
    Option("sasl.oauthbearer.header.urlencode", "bool", False, "URL-encode client id and secret.", None, "low"),
    Option(
        "sasl.login.read.timeout.ms", "int", None, "The time limit for a token endpoint; not set: 10 s.", None, "low"
    ),
    Option("sasl.login.retry.backoff.ms", "long", 100, "The first back-off for a token endpoint.", None, "low"),
    Option("sasl.login.retry.backoff.max.ms", "long", 10_000, "The maximum of that back-off.", None, "low"),
    Option(
        "sasl.login.refresh.window.factor",
        "double",
        0.8,
        "The share of a token's lifetime after which it is renewed.",
        Between(0.5, 1.0),
        "low",
    ),
)


def _inert(reason: str, *options: Option) -> tuple[Option, ...]:
    """Mark options as having no effect."""
    return tuple(replace(option, no_effect=reason) for option in options)


INERT_SASL_OPTIONS = (
    *_inert(
        "tokens come from sasl.login.callback.handler.class",
        Option("sasl.client.callback.handler.class", "class", None, "The SASL client callback handler."),
        Option("sasl.login.class", "class", None, "The class that logs in."),
        Option(
            "sasl.login.connect.timeout.ms", "int", None, "The connection timeout of a token endpoint.", None, "low"
        ),
        Option("sasl.oauthbearer.jwt.retriever.class", "class", None, "The class that fetches a token."),
        Option(
            "sasl.oauthbearer.assertion.algorithm",
            "str",
            "RS256",
            "The signature algorithm of an assertion.",
            OneOf("ES256", "RS256", ignore_case=True),
        ),
        Option("sasl.oauthbearer.assertion.claim.aud", "str", None, "The audience of an assertion."),
        Option(
            "sasl.oauthbearer.assertion.claim.exp.seconds",
            "int",
            300,
            "The lifetime of an assertion.",
            Between(0, 86_400),
            "low",
        ),
        Option("sasl.oauthbearer.assertion.claim.iss", "str", None, "The issuer of an assertion."),
        Option("sasl.oauthbearer.assertion.claim.jti.include", "bool", False, "Give an assertion an id."),
        Option(
            "sasl.oauthbearer.assertion.claim.nbf.seconds",
            "int",
            60,
            "How long before now an assertion becomes valid.",
            Between(0, 3600),
            "low",
        ),
        Option("sasl.oauthbearer.assertion.claim.sub", "str", None, "The subject of an assertion."),
        Option("sasl.oauthbearer.assertion.file", "str", None, "A file with an assertion."),
        Option("sasl.oauthbearer.assertion.private.key.file", "str", None, "The key that signs an assertion."),
        Option("sasl.oauthbearer.assertion.private.key.passphrase", "password", None, "The passphrase of that key."),
        Option("sasl.oauthbearer.assertion.template.file", "str", None, "A file with initial claims."),
    ),
    *_inert(
        "a token is renewed after 80 % of its lifetime",
        Option("sasl.login.refresh.window.jitter", "double", 0.05, "The jitter of it.", Between(0.0, 0.25), "low"),
        Option(
            "sasl.login.refresh.min.period.seconds",
            "short",
            60,
            "The minimum time between two renewals.",
            Between(0, 900),
            "low",
        ),
        Option(
            "sasl.login.refresh.buffer.seconds",
            "short",
            300,
            "The minimum time between a renewal and the token's expiry.",
            Between(0, 3600),
            "low",
        ),
    ),
    *_inert(
        "the Kerberos library gets and renews tickets by itself",
        Option("sasl.kerberos.kinit.cmd", "str", "/usr/bin/kinit", "The kinit command.", None, "low"),
        Option("sasl.kerberos.min.time.before.relogin", "long", 60_000, "The time between two logins.", None, "low"),
        Option(
            "sasl.kerberos.ticket.renew.window.factor",
            "double",
            0.8,
            "The share of a ticket's lifetime after which it is renewed.",
            None,
            "low",
        ),
        Option("sasl.kerberos.ticket.renew.jitter", "double", 0.05, "The jitter of it.", None, "low"),
    ),
    *_inert(
        "the broker validates tokens",
        Option("sasl.oauthbearer.jwt.validator.class", "class", None, "The class that validates a token."),
        Option("sasl.oauthbearer.clock.skew.seconds", "int", 30, "The tolerated clock skew.", None, "low"),
        Option("sasl.oauthbearer.expected.audience", "list", (), "The accepted audiences.", None, "low"),
        Option("sasl.oauthbearer.expected.issuer", "str", None, "The accepted issuer.", None, "low"),
        Option("sasl.oauthbearer.jwks.endpoint.url", "str", None, "The URL of the key set."),
        Option("sasl.oauthbearer.jwks.endpoint.refresh.ms", "long", 3_600_000, "Its refresh interval.", None, "low"),
        Option("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", "long", 100, "Its first back-off.", None, "low"),
        Option("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", "long", 10_000, "The maximum.", None, "low"),
        Option("sasl.oauthbearer.scope.claim.name", "str", "scope", "The claim with the scope.", None, "low"),
        Option("sasl.oauthbearer.sub.claim.name", "str", "sub", "The claim with the subject.", None, "low"),
    ),
)
