"""Options of TLS, SASL and ACLs. `ssl.*` and `sasl.*` can be set for one listener: listener.name.<name>.…"""

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
    Option("ssl.key.password", "password", None, "The password of the encrypted key."),
    Option("ssl.keystore.type", "str", "PEM", "Only PEM is supported (Kafka: JKS).", OneOf("PEM")),
    Option(
        "ssl.truststore.location",
        "str",
        None,
        "A PEM file with the certificate authorities for client certificates. Not set: those of the system.",
    ),
    Option("ssl.truststore.certificates", "password", None, "The certificate authorities, as PEM text."),
    Option("ssl.truststore.type", "str", "PEM", "Only PEM is supported (Kafka: JKS).", OneOf("PEM")),
    Option(
        "ssl.client.auth",
        "str",
        "none",
        "Whether clients need a certificate. `requested`: it is optional, but must be valid.",
        OneOf("required", "requested", "none"),
    ),
    Option("ssl.enabled.protocols", "list", ("TLSv1.2", "TLSv1.3"), "The enabled TLS versions."),
    Option(
        "ssl.endpoint.identification.algorithm",
        "str",
        "https",
        "How the host names of other brokers are verified; empty: not at all.",
    ),
    Option("ssl.cipher.suites", "list", (), "Allowed suites, named as in Java or OpenSSL. Empty: OpenSSL's default."),
    Option(
        "ssl.principal.mapping.rules",
        "str",
        "DEFAULT",
        "Rules that map the name in a certificate to a user: RULE:pattern/replacement/[LU], comma-separated; the first "
        "match applies. DEFAULT: the whole name.",
        None,
        "low",
    ),
)

SASL = (
    Option(
        "sasl.enabled.mechanisms",
        "list",
        ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
        "The enabled mechanisms: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, GSSAPI (Kerberos, Kafka's default; "
        "needs the extra `kerberos`). There are no users until you add them.",
    ),
    Option(
        "sasl.jaas.config",
        "password",
        None,
        'The users of PLAIN in Java\'s format: a login module, then user_alice="secret" for each user, and '
        'username="…" password="…" for connections to other brokers, also with SCRAM. As in Kafka, with the prefix '
        "listener.name.<name>.<mechanism>., or without it for all listeners. For OAUTHBEARER: the options of Kafka's "
        'unsecured tokens. For GSSAPI: keyTab="…" principal="kafka/host@REALM".',
    ),
    Option(
        "sasl.plain.users",
        "password",
        None,
        "The users of PLAIN (headrace only): alice:secret,bob:other, or a JSON object. In Python also a dict.",
        accepts_mapping=True,
    ),
    Option(
        "sasl.server.callback.handler.class",
        "class",
        None,
        "For one listener and mechanism (listener.name.<name>.<mechanism>.…): a function or its path. PLAIN: it gets "
        "user and password and returns whether they are valid. OAUTHBEARER: it gets a token and returns a BearerToken "
        "or raises; not needed with sasl.oauthbearer.jwks.endpoint.url. A function that waits must be async. "
        "`unsecured` accepts unsigned tokens, for tests.",
    ),
    Option(
        "sasl.kerberos.principal.to.local.rules",
        "list",
        ("DEFAULT",),
        "Rules that name the user of a Kerberos principal, in the form of Hadoop's auth_to_local; the first match "
        "applies. DEFAULT: the first part of a principal of the broker's realm.",
        None,
        "low",
    ),
    Option(
        "sasl.oauthbearer.jwks.endpoint.url",
        "str",
        None,
        "Where the keys are that tokens of OAUTHBEARER are signed with: http, https or file. Needs the extra `oauth`.",
    ),
    Option("sasl.oauthbearer.jwks.endpoint.refresh.ms", "long", 3_600_000, "How often keys are fetched.", None, "low"),
    Option("sasl.oauthbearer.expected.audience", "list", (), "A token must be for one of these.", None, "low"),
    Option("sasl.oauthbearer.expected.issuer", "str", None, "A token must be of this issuer.", None, "low"),
    Option(
        "sasl.oauthbearer.clock.skew.seconds", "int", 30, "The maximum clock difference to the issuer.", None, "low"
    ),
    Option("sasl.oauthbearer.scope.claim.name", "str", "scope", "The claim with the scopes of a token.", None, "low"),
    Option("sasl.oauthbearer.sub.claim.name", "str", "sub", "The claim with the user of a token.", None, "low"),
    Option("sasl.server.max.receive.size", "int", 524_288, "The maximum request size before authentication."),
    Option(
        "connections.max.reauth.ms",
        "long",
        0,
        "The lifetime of an authentication; then the client has to reauthenticate (KIP-368). 0: unlimited, unless its "
        "token expires.",
    ),
    Option(
        "sasl.mechanism.inter.broker.protocol",
        "str",
        "SCRAM-SHA-512",
        "The mechanism for connections between brokers, if their listener uses SASL: PLAIN or SCRAM (Kafka's default, "
        "Kerberos, is for clients only). The user is in sasl.jaas.config.",
    ),
)

ACCESS = (
    Option(
        "authorizer.class.name",
        "str",
        "",
        "Empty: no authorization. `acl`, or Kafka's org.apache.kafka.metadata.authorizer.StandardAuthorizer: ACLs.",
        None,
        "low",
    ),
    Option(
        "super.users",
        "str",
        "",
        "Users that are authorized for everything: User:alice;User:bob. The separator is a semicolon, because names in "
        "certificates contain commas.",
        None,
        "low",
    ),
    Option(
        "allow.everyone.if.no.acl.found",
        "bool",
        False,
        "Authorize everybody for resources without ACLs.",
        None,
        "low",
    ),
)

SECURITY = TLS + SASL + ACCESS
