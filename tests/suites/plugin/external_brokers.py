"""A plugin for pytest in suites of other projects: stand-ins for modules that start brokers.

Their tests run on brokers that are running already, so the classes are imported but do nothing.
"""

from __future__ import annotations

import sys
from types import ModuleType


class Broker:
    """Stands for a broker of the suite."""

    def __init__(self, *arguments: object, **options: object) -> None:
        pass


def _provide(name: str, *classes: str) -> None:
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        module = sys.modules.setdefault(".".join(parts[:end]), ModuleType(".".join(parts[:end])))
    for kind in classes:
        setattr(module, kind, Broker)


# kafka-python's source package does not contain the module, but the package `test` around it.
sys.modules["test.service"] = ModuleType("test.service")
for _kind in ("ExternalService", "SpawnedService"):
    setattr(sys.modules["test.service"], _kind, Broker)
# confluent-kafka's tests would download Kafka with it.
_provide("trivup.clusters.KafkaCluster", "KafkaCluster")
