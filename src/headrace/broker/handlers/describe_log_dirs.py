"""Key 35: the data folder, how large each partition is in it, and how much room is left."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from headrace.broker.broker_options import data_folder
from headrace.broker.context import Answer, Context
from headrace.broker.security.access import require_on_cluster
from headrace.broker.security.authorizer import Operation
from headrace.errors import BrokerError
from headrace.wire.api.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: DescribeLogDirsRequest) -> Answer:
    try:
        require_on_cluster(broker.authorizer, context.session, Operation.DESCRIBE)
    except BrokerError as error:
        return failure(context, message, error.code)
    wanted = None
    if message.topics is not None:
        wanted = {(topic.topic, index) for topic in message.topics for index in topic.partitions}
    by_topic: dict[str, list[DescribeLogDirsPartition]] = {}
    for partition in broker.replicas.partitions():
        if wanted is None or (partition.topic, partition.index) in wanted:
            row = DescribeLogDirsPartition(partition_index=partition.index, partition_size=partition.log.size_bytes)
            by_topic.setdefault(partition.topic, []).append(row)
    folder = data_folder(broker.config).absolute()
    disk = shutil.disk_usage(folder)
    result = DescribeLogDirsResult(
        log_dir=str(folder),
        topics=[DescribeLogDirsTopic(name=name, partitions=rows) for name, rows in by_topic.items()],
        total_bytes=disk.total,
        usable_bytes=disk.free,
    )
    return DescribeLogDirsResponse(results=[result])


def failure(context: Context, message: DescribeLogDirsRequest, code: int) -> DescribeLogDirsResponse:
    """Before version 3 there is no place for the code: no folder is Kafka's way to say that all is denied."""
    return DescribeLogDirsResponse(error_code=code)
