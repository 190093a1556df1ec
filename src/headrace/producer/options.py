"""Every producer option of Kafka 2.4 and 4.3, declared once, and the profiles that bring older defaults back.

Names, types, defaults and ranges are those of Kafka 4.3. Where Python differs it says so:

    key.serializer, value.serializer   default to bytes, instead of being required
    ssl.*store.type                    is PEM, the one format that OpenSSL reads here
    sasl.username, sasl.password, ssl.key.location   are ours, for what Java hides in JAAS texts and key stores
    view.url, view.token               are ours: where the live view is
    `no_effect`                        marks what only means something in Java; setting it is warned of, once
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.config import INT_MAX, Between, NotEmpty, OneOf, Option, Options

_NO_JMX = "Python has no JMX"
_NO_PROVIDERS = "values are taken as they are"
_OPENSSL = "TLS here is OpenSSL's"
_PEM = "PEM files have no password of their own, only keys do (ssl.key.password)"
_NO_KERBEROS = "Kerberos is not supported"
_NO_LOGIN_CLASS = "logging in needs no plug-in; tokens come from sasl.login.callback.handler.class"
_PROVIDER = "tokens come from sasl.login.callback.handler.class"
_NOT_OURS = "it is the broker that checks tokens"
_RENEWAL = "a token is renewed after 80 % of its life"

_FROM_0 = Between(0)
_FROM_1 = Between(1)
_BUFFER = Between(-1)

_COMMON = (
    Option(
        "bootstrap.servers",
        "list",
        None,
        "Brokers to ask first, as host:port with commas between them; the rest of the cluster is learned from them.",
        None,
        "high",
    ),
    Option(
        "client.id",
        "str",
        "",
        "Who we say we are: shown in the broker's logs and metrics, and used for quotas. "
        "Made up if it is not set: from the transactional id, or by counting.",
    ),
    Option(
        "client.dns.lookup",
        "str",
        "use_all_dns_ips",
        "What to make of a host with many addresses: try them one by one, or replace a bootstrap server by the full "
        "names of its addresses. `default` is the word of Kafka 2.4, and tries them all too.",
        OneOf("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only", "default"),
    ),
    Option(
        "metadata.max.age.ms",
        "long",
        300_000,
        "Metadata is fetched anew when it is this old, even if nothing seems wrong with it.",
        _FROM_0,
        "low",
    ),
    Option(
        "metadata.recovery.strategy",
        "str",
        "rebootstrap",
        "What to do when no known broker answers: start over from the bootstrap servers, or keep trying.",
        OneOf("rebootstrap", "none", ignore_case=True),
        "low",
    ),
    Option(
        "metadata.recovery.rebootstrap.trigger.ms",
        "long",
        300_000,
        "How long fetching metadata may fail before the bootstrap servers are asked again.",
        _FROM_0,
        "low",
    ),
    Option(
        "send.buffer.bytes",
        "int",
        -1,
        "The socket's buffer for sending; -1 leaves it to the system, which tunes it as it goes (Java: 131072).",
        _BUFFER,
    ),
    Option(
        "receive.buffer.bytes",
        "int",
        -1,
        "The socket's buffer for receiving; -1 leaves it to the system, which tunes it as it goes (Java: 32768).",
        _BUFFER,
    ),
    Option(
        "reconnect.backoff.ms",
        "long",
        50,
        "The wait before a broker is dialled again after a failure; it doubles with each further one.",
        _FROM_0,
        "low",
    ),
    Option(
        "reconnect.backoff.max.ms",
        "long",
        1_000,
        "The longest wait between two attempts to connect. If only reconnect.backoff.ms is set, the wait is constant.",
        _FROM_0,
        "low",
    ),
    Option(
        "retry.backoff.ms",
        "long",
        100,
        "The wait before a failed request is sent again; it doubles with each further failure.",
        _FROM_0,
        "low",
    ),
    Option(
        "retry.backoff.max.ms",
        "long",
        1_000,
        "The longest wait before a request is sent again. Not more than retry.backoff.ms: the wait is constant.",
        _FROM_0,
        "low",
    ),
    Option(
        "request.timeout.ms",
        "int",
        30_000,
        "How long a broker may take to answer; then the connection is given up and the request sent again.",
        _FROM_0,
    ),
    Option(
        "connections.max.idle.ms",
        "long",
        540_000,
        "A connection that carried nothing for this long is closed; negative: never.",
    ),
    Option(
        "socket.connection.setup.timeout.ms",
        "long",
        10_000,
        "How long opening a connection may take; it doubles with each failure in a row.",
    ),
    Option(
        "socket.connection.setup.timeout.max.ms",
        "long",
        30_000,
        "The longest time that opening a connection is given.",
    ),
    Option(
        "metrics.num.samples", "int", 2, "How many windows of time a rate or an average is taken over.", _FROM_1, "low"
    ),
    Option("metrics.sample.window.ms", "long", 30_000, "How long each of these windows is.", _FROM_0, "low"),
    Option(
        "metrics.recording.level",
        "str",
        "INFO",
        "How much is measured.",
        OneOf("INFO", "DEBUG", "TRACE", ignore_case=True),
        "low",
        "every metric of a producer has the level INFO, as in Kafka, and is always recorded",
    ),
    Option("metric.reporters", "classes", (), "Plug-ins that are told of every metric.", None, "low"),
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
        "Send metrics to the cluster if its administrator has subscribed to them (KIP-714).",
        None,
        "low",
        "metrics are not sent to brokers; metric.reporters has other ways out",
    ),
    Option("auto.include.jmx.reporter", "bool", True, "Kafka 3: report through JMX.", None, "low", _NO_JMX),
    Option("config.providers", "list", (), "Where to look up values given as references.", None, "low", _NO_PROVIDERS),
    Option(
        "security.protocol",
        "str",
        "PLAINTEXT",
        "How to talk to brokers: with or without TLS, with or without SASL.",
        OneOf("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", ignore_case=True),
    ),
    Option("security.providers", "str", None, "Java security providers to install.", None, "low", _OPENSSL),
)

_SENDING = (
    Option(
        "acks",
        "str",
        "all",
        "Who must have a record before it counts as sent: all in-sync replicas (all, -1), the leader (1), nobody (0).",
        OneOf("all", "-1", "0", "1"),
        "low",
    ),
    Option(
        "batch.size",
        "int",
        16_384,
        "Bytes of records for one partition that are collected into a batch; 0 sends each record by itself.",
        _FROM_0,
    ),
    Option(
        "linger.ms",
        "long",
        5,
        "How long a batch that is not full waits for more records. 0 sends as soon as the connection is free.",
        _FROM_0,
    ),
    Option(
        "buffer.memory",
        "long",
        33_554_432,
        "Bytes of records that may wait to be sent; when they are used up, `send` blocks for max.block.ms at most.",
        _FROM_0,
        "high",
    ),
    Option(
        "max.block.ms",
        "long",
        60_000,
        "How long `send` and the calls of a transaction may block, for metadata and for buffer memory together.",
        _FROM_0,
    ),
    Option(
        "delivery.timeout.ms",
        "int",
        120_000,
        "The time from `send` to success or failure: waiting, sending, and all retries. "
        "At least linger.ms + request.timeout.ms.",
        _FROM_0,
    ),
    Option(
        "retries",
        "int",
        INT_MAX,
        "How often a record is sent again after a failure that may pass. Better left alone: delivery.timeout.ms is "
        "the bound that matters.",
        Between(0, INT_MAX),
        "high",
    ),
    Option(
        "max.in.flight.requests.per.connection",
        "int",
        5,
        "Requests on their way to a broker before one of them is answered. Without idempotence, more than one may "
        "reorder records when one fails; with it, at most five are allowed.",
        _FROM_1,
        "low",
    ),
    Option(
        "max.request.size",
        "int",
        1_048_576,
        "Bytes of a request, and with it of the largest record, before compression. The broker has a limit too.",
        _FROM_0,
    ),
    Option(
        "compression.type",
        "str",
        "none",
        "How batches are compressed; the fuller they are, the better it works.",
        OneOf("none", "gzip", "snappy", "lz4", "zstd"),
        "high",
    ),
    Option("compression.gzip.level", "int", -1, "How hard gzip tries; -1 is its default.", Between(1, 9, also=-1)),
    Option(
        "compression.lz4.level",
        "int",
        9,
        "How hard lz4 tries. 9 stands for the fast mode, as in Kafka; all others are the high compression mode.",
        Between(1, 17),
    ),
    Option("compression.zstd.level", "int", 3, "How hard zstd tries.", Between(-131_072, 22)),
    Option(
        "enable.idempotence",
        "bool",
        True,
        "Each record is written once and in order, whatever is sent again. Needs acks=all, retries, and at most five "
        "requests in flight.",
        None,
        "low",
    ),
    Option(
        "transactional.id",
        "str",
        None,
        "Turns on transactions. The same id after a restart ends what the older instance left open, and shuts it out.",
        NotEmpty(),
        "low",
    ),
    Option(
        "transaction.timeout.ms",
        "int",
        60_000,
        "The coordinator aborts a transaction that has been open for this long.",
        None,
        "low",
    ),
    Option(
        "transaction.two.phase.commit.enable",
        "bool",
        False,
        "Transactions that only the application may end (KIP-939). No released broker offers it: true is refused.",
        None,
        "low",
    ),
    Option(
        "metadata.max.idle.ms",
        "long",
        300_000,
        "A topic that nothing was sent to for this long is forgotten, until the next record for it.",
        Between(5_000),
        "low",
    ),
)

_PLUGINS = (
    Option("key.serializer", "class", "bytes", "What turns keys into bytes.", None, "high"),
    Option("value.serializer", "class", "bytes", "What turns values into bytes.", None, "high"),
    Option(
        "partitioner.class",
        "class",
        None,
        "What chooses a record's partition. Not set: by key, and keyless records by the built-in adaptive sticky one.",
    ),
    Option(
        "partitioner.ignore.keys",
        "bool",
        False,
        "Records with keys are spread like those without. Only without partitioner.class.",
    ),
    Option(
        "partitioner.adaptive.partitioning.enable",
        "bool",
        True,
        "Keyless records go more often to partitions whose brokers keep up. Only without partitioner.class.",
        None,
        "low",
    ),
    Option(
        "partitioner.availability.timeout.ms",
        "long",
        0,
        "A partition whose broker has taken nothing for this long gets no keyless records; 0: never mind. "
        "Only with adaptive partitioning.",
        _FROM_0,
        "low",
    ),
    Option(
        "interceptor.classes",
        "classes",
        (),
        "Plug-ins that see every record before it is sent, and hear how it ended.",
        None,
        "low",
    ),
)

_SASL = (
    Option(
        "sasl.mechanism",
        "str",
        "GSSAPI",
        "How to authenticate: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER. The default is Kafka's, and has "
        "to be changed: Kerberos is not supported.",
    ),
    Option("sasl.username", "str", None, "The user, for PLAIN and SCRAM; wins over sasl.jaas.config."),
    Option("sasl.password", "password", None, "The password, for PLAIN and SCRAM; wins over sasl.jaas.config."),
    Option(
        "sasl.jaas.config",
        "password",
        None,
        "Java's way to give user and password: a login module and its options. The module is not looked at.",
    ),
    Option(
        "sasl.login.callback.handler.class",
        "class",
        None,
        "For OAUTHBEARER: a function, or the path of one, that returns a token.",
    ),
    Option(
        "sasl.client.callback.handler.class", "class", None, "What answers a SASL client.", None, "medium", _PROVIDER
    ),
    Option("sasl.login.class", "class", None, "What logs in.", None, "medium", _NO_LOGIN_CLASS),
    Option("sasl.login.connect.timeout.ms", "int", None, "Connecting to a token endpoint.", None, "low", _PROVIDER),
    Option("sasl.login.read.timeout.ms", "int", None, "Reading from a token endpoint.", None, "low", _PROVIDER),
    Option("sasl.login.retry.backoff.ms", "long", 100, "The first wait for a token endpoint.", None, "low", _PROVIDER),
    Option("sasl.login.retry.backoff.max.ms", "long", 10_000, "The longest of these waits.", None, "low", _PROVIDER),
    Option(
        "sasl.login.refresh.window.factor",
        "double",
        0.8,
        "After which part of its life a token is renewed.",
        Between(0.5, 1.0),
        "low",
        _RENEWAL,
    ),
    Option(
        "sasl.login.refresh.window.jitter",
        "double",
        0.05,
        "How much chance is added to that.",
        Between(0.0, 0.25),
        "low",
        _RENEWAL,
    ),
    Option(
        "sasl.login.refresh.min.period.seconds",
        "short",
        60,
        "The shortest time between two renewals.",
        Between(0, 900),
        "low",
        _RENEWAL,
    ),
    Option(
        "sasl.login.refresh.buffer.seconds",
        "short",
        300,
        "How long before its end a token is renewed at the latest.",
        Between(0, 3600),
        "low",
        _RENEWAL,
    ),
    Option("sasl.kerberos.service.name", "str", None, "The brokers' principal.", None, "medium", _NO_KERBEROS),
    Option("sasl.kerberos.kinit.cmd", "str", "/usr/bin/kinit", "How to run kinit.", None, "low", _NO_KERBEROS),
    Option(
        "sasl.kerberos.min.time.before.relogin",
        "long",
        60_000,
        "The shortest time between two logins.",
        None,
        "low",
        _NO_KERBEROS,
    ),
    Option(
        "sasl.kerberos.ticket.renew.window.factor",
        "double",
        0.8,
        "After which part of its life a ticket is renewed.",
        None,
        "low",
        _NO_KERBEROS,
    ),
    Option(
        "sasl.kerberos.ticket.renew.jitter",
        "double",
        0.05,
        "How much chance is added to that.",
        None,
        "low",
        _NO_KERBEROS,
    ),
    Option("sasl.oauthbearer.token.endpoint.url", "str", None, "Where tokens are fetched.", None, "medium", _PROVIDER),
    Option("sasl.oauthbearer.scope", "str", None, "The scope to ask for.", None, "medium", _PROVIDER),
    Option(
        "sasl.oauthbearer.client.credentials.client.id",
        "str",
        None,
        "The client's id at the token endpoint.",
        None,
        "medium",
        _PROVIDER,
    ),
    Option(
        "sasl.oauthbearer.client.credentials.client.secret",
        "password",
        None,
        "The client's secret at the token endpoint.",
        None,
        "medium",
        _PROVIDER,
    ),
    Option(
        "sasl.oauthbearer.header.urlencode", "bool", False, "Encode id and secret as URLs do.", None, "low", _PROVIDER
    ),
    Option("sasl.oauthbearer.jwt.retriever.class", "class", None, "What fetches a token.", None, "medium", _PROVIDER),
    Option("sasl.oauthbearer.jwt.validator.class", "class", None, "What checks a token.", None, "medium", _NOT_OURS),
    Option(
        "sasl.oauthbearer.assertion.algorithm",
        "str",
        "RS256",
        "How an assertion is signed.",
        OneOf("ES256", "RS256", ignore_case=True),
        "medium",
        _PROVIDER,
    ),
    Option("sasl.oauthbearer.assertion.claim.aud", "str", None, "Whom it is for.", None, "medium", _PROVIDER),
    Option(
        "sasl.oauthbearer.assertion.claim.exp.seconds",
        "int",
        300,
        "How long it holds.",
        Between(0, 86_400),
        "low",
        _PROVIDER,
    ),
    Option("sasl.oauthbearer.assertion.claim.iss", "str", None, "Whom it is from.", None, "medium", _PROVIDER),
    Option(
        "sasl.oauthbearer.assertion.claim.jti.include",
        "bool",
        False,
        "Give it an id of its own.",
        None,
        "medium",
        _PROVIDER,
    ),
    Option(
        "sasl.oauthbearer.assertion.claim.nbf.seconds",
        "int",
        60,
        "How long before now it begins to hold.",
        Between(0, 3600),
        "low",
        _PROVIDER,
    ),
    Option("sasl.oauthbearer.assertion.claim.sub", "str", None, "Whom it is about.", None, "medium", _PROVIDER),
    Option("sasl.oauthbearer.assertion.file", "str", None, "A ready-made assertion.", None, "medium", _PROVIDER),
    Option(
        "sasl.oauthbearer.assertion.private.key.file", "str", None, "The key to sign with.", None, "medium", _PROVIDER
    ),
    Option(
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "password",
        None,
        "What opens that key.",
        None,
        "medium",
        _PROVIDER,
    ),
    Option("sasl.oauthbearer.assertion.template.file", "str", None, "Claims to start from.", None, "medium", _PROVIDER),
    Option("sasl.oauthbearer.clock.skew.seconds", "int", 30, "How far clocks may be apart.", None, "low", _NOT_OURS),
    Option("sasl.oauthbearer.expected.audience", "list", (), "Audiences to accept.", None, "low", _NOT_OURS),
    Option("sasl.oauthbearer.expected.issuer", "str", None, "The issuer to accept.", None, "low", _NOT_OURS),
    Option("sasl.oauthbearer.jwks.endpoint.url", "str", None, "Where keys are fetched.", None, "medium", _NOT_OURS),
    Option("sasl.oauthbearer.jwks.endpoint.refresh.ms", "long", 3_600_000, "How often.", None, "low", _NOT_OURS),
    Option(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        "long",
        100,
        "The first wait for these keys.",
        None,
        "low",
        _NOT_OURS,
    ),
    Option(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        "long",
        10_000,
        "The longest of these waits.",
        None,
        "low",
        _NOT_OURS,
    ),
    Option("sasl.oauthbearer.scope.claim.name", "str", "scope", "The claim with the scope.", None, "low", _NOT_OURS),
    Option("sasl.oauthbearer.sub.claim.name", "str", "sub", "The claim with the subject.", None, "low", _NOT_OURS),
)

_SSL = (
    Option(
        "ssl.truststore.location",
        "str",
        None,
        "A PEM file with the certificate authorities to trust. Neither this nor ssl.truststore.certificates: those "
        "of the system.",
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
    Option("ssl.key.password", "password", None, "What decrypts the client's private key.", None, "high"),
    Option("ssl.keystore.type", "str", "PEM", "The keystore's format.", OneOf("PEM", ignore_case=True)),
    Option("ssl.keystore.password", "password", None, "The keystore's password.", None, "high", _PEM),
    Option("ssl.enabled.protocols", "list", ("TLSv1.2", "TLSv1.3"), "The versions of TLS to offer.", NotEmpty()),
    Option(
        "ssl.cipher.suites",
        "list",
        (),
        "The cipher suites to offer, by Java's names or OpenSSL's. Empty: the library's choice.",
        None,
        "low",
    ),
    Option(
        "ssl.endpoint.identification.algorithm",
        "str",
        "https",
        "`https` checks that the broker's certificate is for its name; empty turns that off, and with it most of the "
        "protection.",
        OneOf("https", "", ignore_case=True),
        "low",
    ),
    Option("ssl.protocol", "str", "TLSv1.3", "Java's TLS context.", None, "medium", _OPENSSL),
    Option("ssl.provider", "str", None, "Java's TLS provider.", None, "medium", _OPENSSL),
    Option("ssl.engine.factory.class", "class", None, "What makes TLS engines.", None, "low", _OPENSSL),
    Option("ssl.keymanager.algorithm", "str", "SunX509", "Java's key manager.", None, "low", _OPENSSL),
    Option("ssl.trustmanager.algorithm", "str", "PKIX", "Java's trust manager.", None, "low", _OPENSSL),
    Option("ssl.secure.random.implementation", "str", None, "Java's random numbers.", None, "low", _OPENSSL),
)

PRODUCER_OPTIONS = Options(*_COMMON, *_SENDING, *_PLUGINS, *_SASL, *_SSL)

PROFILES: Mapping[str, Mapping[str, object]] = {
    # TLS 1.0 and 1.1, which Kafka 2.4 still offered, do not come back.
    "2.4": {
        "acks": "1",
        "client.dns.lookup": "default",
        "enable.idempotence": False,
        "enable.metrics.push": False,
        "linger.ms": 0,
        "metadata.recovery.strategy": "none",
        "partitioner.class": "headrace.producer.partitioners.DefaultPartitioner24",
        "socket.connection.setup.timeout.ms": 10_000,
        "socket.connection.setup.timeout.max.ms": 10_000,
    },
}
"""Defaults of an older Kafka, by its version. A constant retry backoff is part of it: see `settings.resolve`."""
