"""Key 33: replace all options of a resource."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.wire.schema import Message, Struct, array, boolean, int8, int16, int32, string


class AlterableConfig(Struct):
    name: str = string()
    value: str | None = string(nullable="0+", secret=True)


class AlterConfigsResource(Struct):
    resource_type: int = int8()
    resource_name: str = string()
    configs: Sequence[AlterableConfig] = array(AlterableConfig)


class AlterConfigsRequest(Message, api_key=33, versions="0-2", flexible="2+"):
    resources: Sequence[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


class AlterConfigsResourceResponse(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    resource_type: int = int8()
    resource_name: str = string()


class AlterConfigsResponse(Message, api_key=33, versions="0-2", flexible="2+"):
    throttle_time_ms: int = int32()
    responses: Sequence[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)
