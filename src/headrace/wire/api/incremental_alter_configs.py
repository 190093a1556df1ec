"""Key 44: set, delete, append to or subtract from options."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.wire.schema import Message, Struct, array, boolean, int8, int16, int32, string


class AlterableConfig(Struct):
    name: str = string()
    config_operation: int = int8()
    value: str | None = string(nullable="0+", secret=True)


class AlterConfigsResource(Struct):
    resource_type: int = int8()
    resource_name: str = string()
    configs: Sequence[AlterableConfig] = array(AlterableConfig)


class IncrementalAlterConfigsRequest(Message, api_key=44, versions="0-1", flexible="1+"):
    resources: Sequence[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


class AlterConfigsResourceResponse(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    resource_type: int = int8()
    resource_name: str = string()


class IncrementalAlterConfigsResponse(Message, api_key=44, versions="0-1", flexible="1+"):
    throttle_time_ms: int = int32()
    responses: Sequence[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)
