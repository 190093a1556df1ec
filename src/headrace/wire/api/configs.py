"""Configuration of topics, brokers and groups."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.wire.fields import array, boolean, int8, int16, int32, string
from headrace.wire.schema import Message, RequestMessage, Struct

# Key 32: options of topics and brokers, with their defaults and sources.


class DescribeConfigsResource(Struct):
    resource_type: int = int8()
    resource_name: str = string()
    configuration_keys: Sequence[str] | None = array(string, nullable="0+")


class DescribeConfigsRequest(RequestMessage["DescribeConfigsResponse"], api_key=32, versions="0-4", flexible="4+"):
    resources: Sequence[DescribeConfigsResource] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean("1+")
    include_documentation: bool = boolean("3+")


class DescribeConfigsSynonym(Struct):
    name: str = string("1+")
    value: str | None = string("1+", nullable="1+")
    source: int = int8("1+")


class DescribeConfigsResourceResult(Struct):
    name: str = string()
    value: str | None = string(nullable="0+")
    read_only: bool = boolean()
    is_default: bool = boolean("0")
    config_source: int = int8("1+", default=-1, ignorable=True)
    is_sensitive: bool = boolean()
    synonyms: Sequence[DescribeConfigsSynonym] = array(DescribeConfigsSynonym, "1+", ignorable=True)
    config_type: int = int8("3+", ignorable=True)
    documentation: str | None = string("3+", nullable="3+", ignorable=True)


class ConfigsResourceResult(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    resource_type: int = int8()
    resource_name: str = string()


class DescribeConfigsResult(ConfigsResourceResult):
    configs: Sequence[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult)


class DescribeConfigsResponse(Message, api_key=32, versions="0-4", flexible="4+"):
    throttle_time_ms: int = int32()
    results: Sequence[DescribeConfigsResult] = array(DescribeConfigsResult)


# Key 33: replace all options of a resource.


class AlterableConfig(Struct):
    name: str = string()
    value: str | None = string(nullable="0+", secret=True)


class AlterConfigsResource(Struct):
    resource_type: int = int8()
    resource_name: str = string()
    configs: Sequence[AlterableConfig] = array(AlterableConfig)


class AlterConfigsRequest(RequestMessage["AlterConfigsResponse"], api_key=33, versions="0-2", flexible="2+"):
    resources: Sequence[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


class AlterConfigsResponse(Message, api_key=33, versions="0-2", flexible="2+"):
    throttle_time_ms: int = int32()
    responses: Sequence[ConfigsResourceResult] = array(ConfigsResourceResult)


# Key 44: set, delete, append to or subtract from options.


class IncrementalConfig(Struct):
    name: str = string()
    config_operation: int = int8()
    value: str | None = string(nullable="0+", secret=True)


class IncrementalConfigsResource(Struct):
    resource_type: int = int8()
    resource_name: str = string()
    configs: Sequence[IncrementalConfig] = array(IncrementalConfig)


class IncrementalAlterConfigsRequest(
    RequestMessage["IncrementalAlterConfigsResponse"], api_key=44, versions="0-1", flexible="1+"
):
    resources: Sequence[IncrementalConfigsResource] = array(IncrementalConfigsResource)
    validate_only: bool = boolean()


class IncrementalAlterConfigsResponse(Message, api_key=44, versions="0-1", flexible="1+"):
    throttle_time_ms: int = int32()
    responses: Sequence[ConfigsResourceResult] = array(ConfigsResourceResult)


# Key 74: names of resources that have options.


class ListConfigResourcesRequest(
    RequestMessage["ListConfigResourcesResponse"], api_key=74, versions="0-1", flexible="0+"
):
    resource_types: Sequence[int] = array(int8, "1+")


class ConfigResource(Struct):
    resource_name: str = string()
    resource_type: int = int8("1+", default=16, ignorable=True)


class ListConfigResourcesResponse(Message, api_key=74, versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    config_resources: Sequence[ConfigResource] = array(ConfigResource)
