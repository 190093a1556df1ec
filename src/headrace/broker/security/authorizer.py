"""Whether a principal may do something."""

from __future__ import annotations

from enum import IntEnum

from headrace.broker.context import Session

CLUSTER_NAME = "kafka-cluster"


class Operation(IntEnum):
    """What is to be done, by Kafka's numbers."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class Resource(IntEnum):
    """What it is done to, by Kafka's numbers."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Authorizer:
    """Everybody may do everything."""

    def allows(self, session: Session, operation: Operation, resource: Resource, name: str) -> bool:
        return True
