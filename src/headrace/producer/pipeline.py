"""The part of `send` that runs plug-ins: interceptors, serializers, partitioner.

    record → intercept → (metadata) → prepare: serialize, partition → PreparedRecord

It runs on the thread that sends. Exceptions are raised by `send`, and passed to the interceptors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from headrace.client.metadata import Cluster
from headrace.client.plugins import PluginLoader
from headrace.config import Config
from headrace.errors import ConfigError
from headrace.producer import interceptors, partitioners, serializers
from headrace.producer.records import Delivery, PreparedRecord, ProducerRecord, checked_headers
from headrace.producer.settings import ProducerSettings
from headrace.wire.layout import Header

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.telemetry.models import SendSteps


class SendPipeline:
    """The plug-ins of a producer, in the order in which a record passes them."""

    def __init__(self, settings: ProducerSettings, plugins: PluginLoader) -> None:
        self._key_serializer = plugins.load("key.serializer", settings.key_serializer, serializers.KIND, is_key=True)
        self._value_serializer = plugins.load(
            "value.serializer", settings.value_serializer, serializers.KIND, is_key=False
        )
        self._interceptors = interceptors.Interceptors(
            [plugins.load("interceptor.classes", given, interceptors.KIND) for given in settings.interceptors],
            plugins.log,
        )
        self._partitioner: partitioners.Partitioner | None = None
        if settings.partitioner is not None:
            self._partitioner = plugins.load("partitioner.class", settings.partitioner, partitioners.KIND)

        self.only_serialize = not self._interceptors and self._partitioner is None
        """No interceptors, and the built-in partitioner."""

    @property
    def is_noop(self) -> bool:
        """Whether records pass unchanged: no plug-ins, and keys and values are bytes."""
        both = (self._key_serializer, self._value_serializer)
        return self.only_serialize and all(type(used) is serializers.BytesSerializer for used in both)

    @property
    def interceptor_errors(self) -> int:
        """The number of interceptor calls that raised."""
        return self._interceptors.errors

    def describe(self) -> SendSteps:
        """Return the class names of the user code that `send` runs."""
        from headrace.telemetry.models import SendSteps  # as in SendEngine._snapshot_source

        return SendSteps(
            key_serializer=type(self._key_serializer).__name__,
            value_serializer=type(self._value_serializer).__name__,
            partitioner=None if self._partitioner is None else partitioners.name_of(self._partitioner),
            interceptors=tuple(self._interceptors.names()),
            interceptor_errors=self.interceptor_errors,
        )

    def intercept(self, record: ProducerRecord, on_delivery: Delivery | None) -> tuple[ProducerRecord, Delivery | None]:
        """Return the record that the interceptors return, and a callback that passes them its result."""
        if not self._interceptors:
            return record, on_delivery
        record = self._interceptors.on_send(record)
        return record, interceptors.InterceptorCallback(self._interceptors, record, on_delivery)

    def prepare(self, record: ProducerRecord, on_delivery: Delivery | None, cluster: Cluster) -> PreparedRecord:
        """Serialize a record, and choose its partition if the partitioner is not the built-in one."""
        headers = list(checked_headers(record.headers))
        key, value = self.serialize(record.topic, record.key, record.value, headers)
        partition, choose_again = record.partition, None
        if partition is None and self._partitioner is not None:
            choose_again = self._chooser(self._partitioner, record, key, value, cluster)
            partition = choose_again(None)
            if isinstance(on_delivery, interceptors.InterceptorCallback):
                on_delivery.partition = partition
        return PreparedRecord(partition, record.timestamp_ms, key, value, headers, choose_again)

    def is_ready(self, topic: str) -> bool:
        """Return whether the serializers need no request over the network for a topic."""
        return self._key_serializer.is_ready(topic) and self._value_serializer.is_ready(topic)

    def prepare_topic(self, topic: str) -> None:
        """Make the requests that the serializers need for a topic, such as those to a schema registry."""
        self._key_serializer.prepare(topic)
        self._value_serializer.prepare(topic)

    def serialize(
        self, topic: str, key: object, value: object, headers: list[Header]
    ) -> tuple[bytes | None, bytes | None]:
        """Return key and value as bytes; serializers may add headers."""
        return (
            self._key_serializer.serialize(topic, key, headers),
            self._value_serializer.serialize(topic, value, headers),
        )

    def serialize_columns(
        self, topic: str, data: pa.Table | pa.RecordBatch, names: Mapping[str, str]
    ) -> pa.Table | pa.RecordBatch:
        """Return Arrow data with keys and values as bytes, by the serializers that take columns."""
        import pyarrow as pa  # only for Arrow data: it takes long to import

        for role, serializer in (("key", self._key_serializer), ("value", self._value_serializer)):
            index = data.schema.get_field_index(names[role]) if serializer.has_columns else -1
            if index < 0:
                continue
            column = data.column(index)
            if hasattr(column, "chunks"):  # of a table
                chunks = [serializer.encode_column(topic, chunk) for chunk in column.chunks]
                data = data.set_column(index, names[role], pa.chunked_array(chunks, pa.binary()))
            else:
                data = data.set_column(index, names[role], serializer.encode_column(topic, column))
        return data

    def _chooser(
        self,
        partitioner: partitioners.Partitioner,
        record: ProducerRecord,
        key: bytes | None,
        value: bytes | None,
        cluster: Cluster,
    ) -> Callable[[int | None], int]:
        def choose(previous: int | None) -> int:
            if previous is not None:
                partitioner.on_new_batch(record.topic, cluster, previous)
            partition = partitioner.partition(record.topic, record.key, key, record.value, value, cluster)
            count = cluster.partition_count(record.topic) or 0
            if not isinstance(partition, int) or not 0 <= partition < count:
                raise ValueError(
                    f"{partitioners.name_of(partitioner)} chose partition {partition!r} of {record.topic!r}, "
                    f"which has 0 to {count - 1}"
                )
            return partition

        return choose


def refuse_unused_formats(config: Config) -> None:
    """Raise if a format is set that no serializer has read: records would be written without a schema."""
    for field in ("key", "value"):
        if f"{field}.format" in config.unused and str(config[f"{field}.format"]).lower() != "none":
            raise ConfigError(
                f"{field}.format is set, but {field}.serializer is {config[f'{field}.serializer']!r}, which writes no "
                f"schema ids: set {field}.serializer to avro, protobuf or json-schema"
            )
