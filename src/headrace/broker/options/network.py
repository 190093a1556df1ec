"""Options of the broker's identity, listeners, membership and connections."""

from __future__ import annotations

from headrace.config import INT_MAX, Between, NotEmpty, OneOf, Option

_FROM_0 = Between(0)
_FROM_1 = Between(1)

IDENTITY = (
    Option(
        "node.id",
        "int",
        1,
        "The id of this broker, unique in the cluster (required in Kafka).",
        _FROM_0,
        "high",
    ),
    Option("broker.id", "int", -1, "The former name of node.id, used if that is not set.", None, "high"),
    Option(
        "process.roles",
        "list",
        ("broker",),
        "broker: it has partitions, and is the controller of brokers that join it. controller: a separate controller "
        "without partitions, so that any broker can fail. Kafka's broker,controller is the same as broker.",
        NotEmpty(),
        "high",
    ),
    Option(
        "headrace.controller",
        "str",
        None,
        "HOST:PORT of the controller of the cluster to join, or of any of its brokers, which returns the address of "
        "the controller. Not set: this broker is the controller, and others may join it.",
        None,
        "high",
    ),
    Option("broker.rack", "str", None, "The rack of this broker, returned to clients with its address."),
)

LISTENERS = (
    Option(
        "listeners",
        "list",
        ("PLAINTEXT://127.0.0.1:9092",),
        "The addresses to listen on: NAME://host:port, comma-separated. Without a host: all interfaces. Port 0: a free "
        "port. The default is on the loopback interface only (Kafka: PLAINTEXT://:9092), so that other machines "
        "cannot connect unless you allow it.",
        NotEmpty(),
        "high",
    ),
    Option(
        "advertised.listeners",
        "list",
        None,
        "The addresses for clients, by listener name. Not set: those of `listeners`.",
        None,
        "high",
    ),
    Option(
        "listener.security.protocol.map",
        "str",
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        "The security protocol of each listener. Options with the prefix listener.name.<name>. are for one listener.",
        NotEmpty(),
    ),
    Option(
        "controller.listener.names",
        "list",
        (),
        "Listeners of Kafka's controllers. They are ignored, so that a server.properties of Kafka can be used.",
        None,
        "high",
    ),
    Option("inter.broker.listener.name", "str", None, "The listener for connections between brokers."),
    Option(
        "security.inter.broker.protocol",
        "str",
        "PLAINTEXT",
        "The protocol for connections between brokers, if inter.broker.listener.name is not set.",
        OneOf("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    ),
)

MEMBERSHIP = (
    Option(
        "broker.heartbeat.interval.ms",
        "int",
        500,
        "The interval of heartbeats to the controller (Kafka: 2000).",
        _FROM_1,
        "high",
    ),
    Option(
        "broker.session.timeout.ms",
        "int",
        6_000,
        "How long a broker stays unfenced without heartbeats (Kafka: 9000). If its connection is closed too, it is "
        "fenced after half a second.",
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
    Option("controlled.shutdown.enable", "bool", True, "Hand over leaderships before stopping."),
    Option("auto.leader.rebalance.enable", "bool", True, "Move leaderships to preferred replicas.", None, "high"),
    Option("leader.imbalance.check.interval.seconds", "long", 300, "How often that is checked.", _FROM_1, "high"),
)

SOCKETS = (
    Option(
        "socket.request.max.bytes",
        "int",
        104_857_600,
        "The maximum size of a request; a connection with a larger one is closed.",
        _FROM_1,
        "high",
    ),
    Option(
        "socket.send.buffer.bytes",
        "int",
        -1,
        "The send buffer of sockets; -1: the system's default, which adapts (Kafka: 102400).",
        Between(-1),
        "high",
    ),
    Option(
        "socket.receive.buffer.bytes",
        "int",
        -1,
        "The receive buffer of sockets; -1: the system's default, which adapts (Kafka: 102400).",
        Between(-1),
        "high",
    ),
    Option(
        "socket.listen.backlog.size",
        "int",
        1024,
        "Connections that the system queues before they are accepted (Kafka: 50, which is too few for a thousand "
        "clients at once).",
        _FROM_1,
    ),
    Option(
        "queued.max.requests",
        "int",
        500,
        "Requests in progress or queued; no more are read from the network until one of them completes.",
        _FROM_1,
        "high",
    ),
    Option("queued.max.request.bytes", "long", -1, "The same in bytes; -1: unlimited."),
    Option(
        "connections.max.idle.ms",
        "long",
        600_000,
        "Idle connections are closed after this time; negative: never.",
    ),
    Option("max.connections", "int", INT_MAX, "The maximum number of connections; further ones are closed.", _FROM_0),
    Option("max.connections.per.ip", "int", INT_MAX, "The maximum number of connections per IP address.", _FROM_0),
    Option(
        "max.connections.per.ip.overrides",
        "str",
        "",
        "Other maxima for some addresses or host names: host:number, comma-separated.",
    ),
    Option(
        "max.connection.creation.rate",
        "int",
        INT_MAX,
        "The maximum rate of new connections per second; further ones wait.",
        _FROM_0,
    ),
    Option(
        "connection.failed.authentication.delay.ms",
        "int",
        100,
        "The delay of the response to a failed authentication, to slow down guessing. Must be less than "
        "connections.max.idle.ms.",
        _FROM_0,
        "low",
    ),
    Option(
        "request.timeout.ms",
        "int",
        30_000,
        "The timeout of requests to other brokers.",
        None,
        "high",
    ),
    Option(
        "fetch.max.bytes",
        "int",
        57_671_680,
        "The maximum size of records in a fetch response, whatever the client requests (the first batch is complete).",
        Between(1024),
    ),
    Option(
        "max.incremental.fetch.session.cache.slots",
        "int",
        1_000,
        "Fetch sessions that are kept; without a session clients send all partitions with every request.",
        _FROM_0,
    ),
    Option(
        "max.request.partition.size.limit",
        "int",
        2_000,
        "The maximum number of partitions in a DescribeTopicPartitions response.",
        _FROM_1,
    ),
)

SCHEMA_REGISTRY = (
    Option(
        "headrace.schema.registry.listener",
        "str",
        None,
        "HOST:PORT of a schema registry in the process of the broker, with Confluent's REST API; port 0: a free port. "
        "Its schemas are in the topic _schemas. Not set: there is none. For a standalone broker.",
        None,
    ),
    Option(
        "headrace.schema.registry.users",
        "password",
        None,
        "The users of the schema registry (HTTP Basic): alice:secret,bob:other, or a JSON object. In Python also a "
        "dict. Not set: everybody who can connect may use it.",
        accepts_mapping=True,
    ),
)

CLIENT_METRICS = (
    Option(
        "headrace.metrics.listener",
        "str",
        None,
        "HOST:PORT of an HTTP listener with the path /metrics: counters of the broker, and the metrics that clients "
        "push (KIP-714), in the text format of Prometheus; port 0: a free port. Not set: there is none.",
        None,
    ),
    Option("telemetry.max.bytes", "int", 1_048_576, "The maximum size of metrics that a client pushes.", _FROM_1),
)

NETWORK = IDENTITY + LISTENERS + MEMBERSHIP + SOCKETS + SCHEMA_REGISTRY + CLIENT_METRICS
