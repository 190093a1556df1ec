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
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


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

    keeps_rules = False
    """Whether access rules mean anything here: else they can be neither made nor listed."""

    def allows(self, session: Session, operation: Operation, resource: Resource, name: str) -> bool:
        return True

    def allows_any(self, session: Session, operation: Operation, resource: Resource) -> bool:
        """Whether there is anything of the kind that it may be done to, perhaps something yet to be made."""
        return True

    def allows_idempotent_write(self, session: Session) -> bool:
        """Whether a producer without transactions may have an id: it needs a topic to write to, or the older right."""
        return self.allows_any(session, Operation.WRITE, Resource.TOPIC) or self.allows(
            session, Operation.IDEMPOTENT_WRITE, Resource.CLUSTER, CLUSTER_NAME
        )
