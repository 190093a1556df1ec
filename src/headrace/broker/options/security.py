"""TLS, SASL and access rules. Each of the `ssl.*` and `sasl.*` may be set for one listener: listener.name.<name>.…"""

from __future__ import annotations

from headrace.config import OneOf, Option

TLS = (
    Option(
        "ssl.keystore.location",
        "str",
        None,
        "A PEM file with the broker's certificate chain, and its key unless ssl.key.location is set.",
    ),
    Option("ssl.key.location", "str", None, "A PEM file with the key of the certificate (not in Kafka)."),
    Option("ssl.keystore.certificate.chain", "password", None, "The certificate chain itself, as PEM text."),
    Option("ssl.keystore.key", "password", None, "The key itself, as PEM text."),
    Option("ssl.key.password", "password", None, "What the key is encrypted with."),
    Option("ssl.keystore.type", "str", "PEM", "PEM is all that OpenSSL reads here (Kafka: JKS).", OneOf("PEM")),
    Option(
        "ssl.truststore.location",
        "str",
        None,
        "A PEM file with the authorities that client certificates are checked by. Not set: those of the system.",
    ),
    Option("ssl.truststore.certificates", "password", None, "These authorities themselves, as PEM text."),
    Option("ssl.truststore.type", "str", "PEM", "PEM is all that OpenSSL reads here (Kafka: JKS).", OneOf("PEM")),
    Option(
        "ssl.client.auth",
        "str",
        "none",
        "Whether clients need a certificate. `requested`: one that is shown has to be good, none is as well.",
        OneOf("required", "requested", "none"),
    ),
    Option("ssl.enabled.protocols", "list", ("TLSv1.2", "TLSv1.3"), "Versions of TLS that are spoken."),
    Option(
        "ssl.endpoint.identification.algorithm",
        "str",
        "https",
        "How host names of other brokers are checked; empty: they are not.",
    ),
    Option("ssl.cipher.suites", "list", (), "Allowed suites, named as in Java or OpenSSL. Empty: OpenSSL's choice."),
    Option(
        "ssl.principal.mapping.rules",
        "str",
        "DEFAULT",
        "How the name in a certificate becomes a user: RULE:pattern/replacement/[LU] with commas between them, the "
        "first that matches wins. DEFAULT takes the whole name.",
        None,
        "low",
    ),
)

SASL = (
    Option(
        "sasl.enabled.mechanisms",
        "list",
        ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
        "What clients may choose from: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER (Kafka's default is Kerberos, "
        "which is not supported). Whom a mechanism lets in is said elsewhere; at first that is nobody.",
    ),
    Option(
        "sasl.jaas.config",
        "password",
        None,
        'The users of PLAIN, as Java has it: a login module, then user_alice="secret" for each of them, and '
        'username="…" password="…" for who the broker is to others of its cluster, also with SCRAM. With '
        "listener.name.<name>.<mechanism>. before it, as in Kafka, or alone for all listeners. For OAUTHBEARER the "
        "options of Kafka's unsecured tokens.",
    ),
    Option(
        "sasl.plain.users",
        "password",
        None,
        "The users of PLAIN in short (not in Kafka): alice:secret,bob:other, or a JSON object. In Python it may be a "
        "dict.",
    ),
    Option(
        "sasl.server.callback.handler.class",
        "class",
        None,
        "For one listener and mechanism (listener.name.<name>.<mechanism>.…): a function, or the path of one. PLAIN: "
        "user and password in, whether they are right out. OAUTHBEARER: a token in, a BearerToken out, or an "
        "exception. One that has to wait for something has to be async. `unsecured` takes tokens that nobody has "
        "signed, for tests.",
    ),
    Option("sasl.server.max.receive.size", "int", 524_288, "The largest frame before a client is authenticated."),
    Option(
        "connections.max.reauth.ms",
        "long",
        0,
        "How long an authentication counts; then the client has to prove itself again (KIP-368). 0: for ever, unless "
        "its token ends before.",
    ),
    Option(
        "sasl.mechanism.inter.broker.protocol",
        "str",
        "SCRAM-SHA-512",
        "How brokers authenticate among themselves, where their listener has SASL: PLAIN or SCRAM (Kafka's default is "
        "Kerberos, which is not supported). Who they are is in sasl.jaas.config.",
    ),
)

ACCESS = (
    Option(
        "authorizer.class.name",
        "str",
        "",
        "Empty: everybody may do everything. `acl`, or Kafka's own class of the name "
        "org.apache.kafka.metadata.authorizer.StandardAuthorizer: access rules decide.",
        None,
        "low",
    ),
    Option(
        "super.users",
        "str",
        "",
        "Who may do everything whatever the rules say, as User:alice;User:bob. Semicolons, because names in "
        "certificates have commas.",
        None,
        "low",
    ),
    Option(
        "allow.everyone.if.no.acl.found",
        "bool",
        False,
        "Whether everybody may use what no rule is about.",
        None,
        "low",
    ),
)

SECURITY = TLS + SASL + ACCESS
