"""Key 49: set quotas."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.wire.schema import Message, Struct, array, boolean, float64, int16, int32, string


class EntityDataRequest(Struct):
    entity_type: str = string()
    entity_name: str | None = string(nullable="0+")


class OpData(Struct):
    key: str = string()
    value: float = float64()
    remove: bool = boolean()


class EntryDataRequest(Struct):
    entity: Sequence[EntityDataRequest] = array(EntityDataRequest)
    ops: Sequence[OpData] = array(OpData)


class AlterClientQuotasRequest(Message, api_key=49, versions="0-1", flexible="1+"):
    entries: Sequence[EntryDataRequest] = array(EntryDataRequest)
    validate_only: bool = boolean()


class EntityDataResponse(Struct):
    entity_type: str = string()
    entity_name: str | None = string(nullable="0+")


class EntryDataResponse(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    entity: Sequence[EntityDataResponse] = array(EntityDataResponse)


class AlterClientQuotasResponse(Message, api_key=49, versions="0-1", flexible="1+"):
    throttle_time_ms: int = int32()
    entries: Sequence[EntryDataResponse] = array(EntryDataResponse)
