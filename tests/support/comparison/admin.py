"""Other admin requests."""

from __future__ import annotations

from typing import Any

from tests.support.comparison.comparing import ID_OF_NOBODY, NOBODY, RequestCase

CASES = {
    "tokens that are not created": RequestCase("CreateDelegationToken", lambda w: {"max_lifetime_ms": -1}),
    "tokens that are not renewed": RequestCase("RenewDelegationToken", lambda w: {"hmac": b"x", "renew_period_ms": 1}),
    "tokens that do not expire": RequestCase(
        "ExpireDelegationToken", lambda w: {"hmac": b"x", "expiry_time_period_ms": 1}
    ),
    "tokens that nobody has": RequestCase("DescribeDelegationToken", lambda w: {"owners": None}),
    "described options": RequestCase(
        "DescribeConfigs",
        lambda w: {
            "include_synonyms": True,
            "resources": [{"resource_type": 2, "resource_name": w.topic, "configuration_keys": None}],
        },
    ),
    "described options of nobody": RequestCase(
        "DescribeConfigs",
        lambda w: {
            "resources": [
                {"resource_type": 2, "resource_name": NOBODY, "configuration_keys": None},
                {"resource_type": 4, "resource_name": "77", "configuration_keys": None},
                {"resource_type": 2, "resource_name": "no/name", "configuration_keys": None},
            ]
        },
    ),
    "topics that cannot be": RequestCase(
        "CreateTopics",
        lambda w: {
            "validate_only": False,
            "topics": [
                creatable(w.topic),
                creatable("a b"),
                creatable(""),
                creatable("x" * 250),
                creatable("."),
                creatable(w.topic + "-r", replication_factor=3),
                creatable(w.topic + "-p", num_partitions=0),
                creatable(w.topic + "-c", configs=[{"name": "no.such", "value": "1"}]),
                creatable(w.topic + "-v", configs=[{"name": "retention.ms", "value": "x"}]),
                creatable(
                    w.topic + "-a",
                    num_partitions=-1,
                    replication_factor=-1,
                    assignments=[{"partition_index": 1, "broker_ids": [1]}],
                ),
                creatable(
                    w.topic + "-n",
                    num_partitions=-1,
                    replication_factor=-1,
                    assignments=[{"partition_index": 0, "broker_ids": [9]}],
                ),
                creatable(w.topic + "-twice"),
                creatable(w.topic + "-twice"),
            ],
        },
        range(1, 100),
    ),
    "topics that could be": RequestCase(
        "CreateTopics",
        lambda w: {
            "validate_only": True,
            "topics": [
                creatable(w.topic + "-ok", num_partitions=3, configs=[{"name": "cleanup.policy", "value": "compact"}])
            ],
        },
        range(1, 100),
    ),
    "deleted topics": RequestCase(
        "DeleteTopics",
        lambda w: {
            "topic_names": [NOBODY],
            "topics": [{"name": NOBODY, "topic_id": bytes(16)}, {"name": None, "topic_id": ID_OF_NOBODY}],
            "timeout_ms": 5000,
        },
    ),
    "more partitions": RequestCase(
        "CreatePartitions",
        lambda w: {
            "validate_only": True,
            "timeout_ms": 5000,
            "topics": [
                {"name": w.topic, "partition_count": 1, "assignments": None},
                {"name": NOBODY, "partition_count": 3, "assignments": None},
            ],
        },
    ),
    "more partitions, as many": RequestCase(
        "CreatePartitions",
        lambda w: {
            "validate_only": True,
            "timeout_ms": 5000,
            "topics": [{"name": w.topic, "partition_count": 2, "assignments": None}],
        },
    ),
    "more partitions on a node that is not there": RequestCase(
        "CreatePartitions",
        lambda w: {
            "validate_only": True,
            "timeout_ms": 5000,
            "topics": [{"name": w.topic, "partition_count": 3, "assignments": [{"broker_ids": [9]}]}],
        },
    ),
    "deleted records": RequestCase(
        "DeleteRecords",
        lambda w: {
            "timeout_ms": 5000,
            "topics": [
                {
                    "name": w.topic,
                    "partitions": [{"partition_index": 0, "offset": 99}, {"partition_index": 7, "offset": 0}],
                },
                {"name": NOBODY, "partitions": [{"partition_index": 0, "offset": 0}]},
            ],
        },
    ),
    "changed options": RequestCase(
        "IncrementalAlterConfigs",
        lambda w: {
            "validate_only": True,
            "resources": [
                {
                    "resource_type": 2,
                    "resource_name": w.topic,
                    "configs": [{"name": "retention.ms", "config_operation": 0, "value": "x"}],
                },
                {
                    "resource_type": 2,
                    "resource_name": NOBODY,
                    "configs": [{"name": "retention.ms", "config_operation": 0, "value": "1"}],
                },
                {
                    "resource_type": 4,
                    "resource_name": "1",
                    "configs": [{"name": "node.id", "config_operation": 0, "value": "2"}],
                },
            ],
        },
    ),
    "changed options, twice": RequestCase(
        "IncrementalAlterConfigs",
        lambda w: {
            "validate_only": True,
            "resources": [
                {
                    "resource_type": 2,
                    "resource_name": w.topic,
                    "configs": [
                        {"name": "retention.ms", "config_operation": 0, "value": "1"},
                        {"name": "retention.ms", "config_operation": 1, "value": None},
                    ],
                }
            ],
        },
    ),
    "an option appended to that is no list": RequestCase(
        "IncrementalAlterConfigs",
        lambda w: {
            "validate_only": True,
            "resources": [
                {
                    "resource_type": 2,
                    "resource_name": w.topic,
                    "configs": [{"name": "retention.ms", "config_operation": 2, "value": "1"}],
                }
            ],
        },
    ),
    "an option set to nothing": RequestCase(
        "IncrementalAlterConfigs",
        lambda w: {
            "validate_only": True,
            "resources": [
                {
                    "resource_type": 2,
                    "resource_name": w.topic,
                    "configs": [{"name": "retention.ms", "config_operation": 0, "value": None}],
                }
            ],
        },
    ),
    "changed options, the old way": RequestCase(
        "AlterConfigs",
        lambda w: {
            "validate_only": True,
            "resources": [
                {"resource_type": 2, "resource_name": w.topic, "configs": [{"name": "retention.ms", "value": "x"}]},
                {"resource_type": 2, "resource_name": NOBODY, "configs": [{"name": "retention.ms", "value": "1"}]},
            ],
        },
    ),
    "described folders": RequestCase(
        "DescribeLogDirs",
        lambda w: {"topics": [{"topic": w.topic, "partitions": [0, 1]}, {"topic": NOBODY, "partitions": [0]}]},
    ),
    "the cluster": RequestCase("DescribeCluster", lambda w: {"include_cluster_authorized_operations": True}),
    "the cluster's controllers": RequestCase("DescribeCluster", lambda w: {"endpoint_type": 2}, range(1, 9)),
    "an election": RequestCase(
        "ElectLeaders",
        lambda w: {
            "election_type": 0,
            "timeout_ms": 5000,
            "topic_partitions": [{"topic": w.topic, "partitions": [0, 7]}, {"topic": NOBODY, "partitions": [0]}],
        },
        range(1, 9),
    ),
    "reassignments": RequestCase(
        "ListPartitionReassignments",
        lambda w: {"timeout_ms": 5000, "topics": [{"name": w.topic, "partition_indexes": [0]}]},
    ),
    "a reassignment to a node that is not there": RequestCase(
        "AlterPartitionReassignments",
        lambda w: {
            "timeout_ms": 5000,
            "topics": [{"name": w.topic, "partitions": [{"partition_index": 0, "replicas": [9]}]}],
        },
    ),
    "a reassignment to where it is": RequestCase(
        "AlterPartitionReassignments",
        lambda w: {
            "timeout_ms": 5000,
            "topics": [{"name": w.topic, "partitions": [{"partition_index": 0, "replicas": [1]}]}],
        },
    ),
    "no reassignment to cancel": RequestCase(
        "AlterPartitionReassignments",
        lambda w: {
            "timeout_ms": 5000,
            "topics": [
                {"name": w.topic, "partitions": [{"partition_index": 0, "replicas": None}]},
                {"name": NOBODY, "partitions": [{"partition_index": 0, "replicas": None}]},
            ],
        },
    ),
    "SCRAM of nobody": RequestCase("DescribeUserScramCredentials", lambda w: {"users": [{"name": NOBODY}]}),
    "quotas of nobody": RequestCase(
        "DescribeClientQuotas",
        lambda w: {"strict": True, "components": [{"entity_type": "client-id", "match_type": 0, "match": NOBODY}]},
    ),
    "quotas of nothing known": RequestCase(
        "DescribeClientQuotas",
        lambda w: {"strict": True, "components": [{"entity_type": "planet", "match_type": 0, "match": NOBODY}]},
    ),
    "SASL where there is none": RequestCase("SaslHandshake", lambda w: {"mechanism": "PLAIN"}),
    "access rights where there are none": RequestCase(
        "DescribeAcls",
        lambda w: {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1},
    ),
}


def creatable(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": [], **fields}
