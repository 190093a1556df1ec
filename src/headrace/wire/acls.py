"""The numbers of ACLs in requests: resource types, pattern types, operations and permissions."""

from __future__ import annotations

from enum import IntEnum

CLUSTER_NAME = "kafka-cluster"
"""The name of the resource CLUSTER."""


class Resource(IntEnum):
    """A type of resource."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Pattern(IntEnum):
    """How an ACL's name is compared with a resource's. MATCH is for filters: all ACLs that apply to a name."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """An operation on a resource."""

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


class Permission(IntEnum):
    """Whether an ACL permits or denies its operation."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3
