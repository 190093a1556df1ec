"""Who the broker is, where it listens, and how much it takes from the network."""

from __future__ import annotations

from headrace.config import INT_MAX, Between, NotEmpty, OneOf, Option

_FROM_0 = Between(0)
_FROM_1 = Between(1)

IDENTITY = (
    Option(
        "node.id",
        "int",
        1,
        "The number of this broker, different from those of all others in the cluster (in Kafka it has to be given).",
        _FROM_0,
        "high",
    ),
    Option("broker.id", "int", -1, "The older name of node.id, used if that is not given.", None, "high"),
    Option(
        "process.roles",
        "list",
        ("broker",),
        "broker: it has partitions, and is the controller of those who join it. controller, alone: it is that and no "
        "more, so that any of the others can be lost. Kafka's broker,controller means what broker means.",
        NotEmpty(),
        "high",
    ),
    Option(
        "headrace.controller",
        "str",
        None,
        "HOST:PORT of the controller of the cluster to join, or of a broker of that cluster, which tells where the "
        "controller is. Not set: this broker is the controller, and others may join it.",
        None,
        "high",
    ),
    Option("broker.rack", "str", None, "Where this broker stands; told to clients with its address."),
)

LISTENERS = (
    Option(
        "listeners",
        "list",
        ("PLAINTEXT://127.0.0.1:9092",),
        "Where to listen, as NAME://host:port with commas between them. No host: all addresses of the machine. "
        "Port 0: a free one. The default is on the loopback only (in Kafka it is PLAINTEXT://:9092): nobody but this "
        "machine gets in unless told so.",
        NotEmpty(),
        "high",
    ),
    Option(
        "advertised.listeners",
        "list",
        None,
        "The addresses that clients are told, by the names of listeners. Not set: those of `listeners`.",
        None,
        "high",
    ),
    Option(
        "listener.security.protocol.map",
        "str",
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        "What is spoken on a listener, by its name. An option with listener.name.<name>. before it is of one only.",
        NotEmpty(),
    ),
    Option(
        "controller.listener.names",
        "list",
        (),
        "Listeners of Kafka's controllers: they are not opened, so that a server.properties of Kafka can be used.",
        None,
        "high",
    ),
    Option("inter.broker.listener.name", "str", None, "The listener that brokers use among themselves."),
    Option(
        "security.inter.broker.protocol",
        "str",
        "PLAINTEXT",
        "The protocol that brokers use among themselves, if inter.broker.listener.name is not set.",
        OneOf("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    ),
)

MEMBERSHIP = (
    Option(
        "broker.heartbeat.interval.ms",
        "int",
        500,
        "How often a broker tells the controller that it lives (Kafka: 2000).",
        _FROM_1,
        "high",
    ),
    Option(
        "broker.session.timeout.ms",
        "int",
        6_000,
        "How long it counts as living without (Kafka: 9000). When its connection is gone too, half a second is enough.",
        _FROM_1,
        "high",
    ),
    Option(
        "initial.broker.registration.timeout.ms",
        "int",
        60_000,
        "How long a broker waits for the controller when it joins.",
        _FROM_1,
    ),
    Option("controlled.shutdown.enable", "bool", True, "Give leadership away before stopping."),
    Option("auto.leader.rebalance.enable", "bool", True, "Give leadership back to the first replica.", None, "high"),
    Option("leader.imbalance.check.interval.seconds", "long", 300, "How often to look whether to.", _FROM_1, "high"),
)

SOCKETS = (
    Option(
        "socket.request.max.bytes",
        "int",
        104_857_600,
        "The largest request; a connection that announces a larger one is closed.",
        _FROM_1,
        "high",
    ),
    Option(
        "socket.send.buffer.bytes",
        "int",
        -1,
        "The socket's buffer for sending; -1 leaves it to the system, which tunes it as it goes (Kafka: 102400).",
        Between(-1),
        "high",
    ),
    Option(
        "socket.receive.buffer.bytes",
        "int",
        -1,
        "The socket's buffer for receiving; -1 leaves it to the system, which tunes it as it goes (Kafka: 102400).",
        Between(-1),
        "high",
    ),
    Option(
        "socket.listen.backlog.size",
        "int",
        1024,
        "Connections that the system holds before they are accepted (Kafka: 50, which turns clients away "
        "that come a thousand at once).",
        _FROM_1,
    ),
    Option(
        "queued.max.requests",
        "int",
        500,
        "Requests that may be in work or wait for it; no more is read from the network until one of them is over.",
        _FROM_1,
        "high",
    ),
    Option("queued.max.request.bytes", "long", -1, "The same in bytes; -1: no limit but the number."),
    Option(
        "connections.max.idle.ms",
        "long",
        600_000,
        "A connection that carried nothing for this long is closed; negative: never.",
    ),
    Option("max.connections", "int", INT_MAX, "Connections to this broker; one more is closed at once.", _FROM_0),
    Option("max.connections.per.ip", "int", INT_MAX, "Connections from one address.", _FROM_0),
    Option(
        "max.connections.per.ip.overrides",
        "str",
        "",
        "Other numbers for some addresses or host names, as host:number with commas between them.",
    ),
    Option(
        "max.connection.creation.rate",
        "int",
        INT_MAX,
        "New connections a second that are accepted; further ones wait.",
        _FROM_0,
    ),
    Option(
        "connection.failed.authentication.delay.ms",
        "int",
        100,
        "How long after a failed authentication the answer is held back, so that guessing takes time. "
        "Less than connections.max.idle.ms.",
        _FROM_0,
        "low",
    ),
    Option(
        "request.timeout.ms",
        "int",
        30_000,
        "How long this broker waits for an answer of another one.",
        None,
        "high",
    ),
    Option(
        "fetch.max.bytes",
        "int",
        57_671_680,
        "Bytes of records in the answer to a fetch, whatever the client allows (the first batch comes whole).",
        Between(1024),
    ),
    Option(
        "max.incremental.fetch.session.cache.slots",
        "int",
        1_000,
        "Fetch sessions that are kept; beyond them clients send the whole list of partitions each time.",
        _FROM_0,
        no_effect="every fetch names all its partitions; sessions are not kept",
    ),
    Option(
        "max.request.partition.size.limit",
        "int",
        2_000,
        "Partitions in one answer of DescribeTopicPartitions.",
        _FROM_1,
    ),
)

NETWORK = IDENTITY + LISTENERS + MEMBERSHIP + SOCKETS
