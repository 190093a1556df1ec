"""Client quotas (KIP-546): of users, client ids and IP addresses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from headrace.client.admin.base import Admin, Failure, raise_failures
from headrace.errors import ConfigError
from headrace.wire.api.access import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    ComponentData,
    DescribeClientQuotasRequest,
    EntityData,
    EntryDataRequest,
    OpData,
)

_EXACT, _DEFAULT = 0, 1


class EntityName(Enum):
    DEFAULT = "<default>"


DEFAULT = EntityName.DEFAULT
"""The name of the entity whose quotas apply to all that have none of their own."""

Name = str | EntityName


@dataclass(slots=True, frozen=True)
class QuotaEntity:
    """Who a quota applies to: a user, a client id, both, or an IP address. Each is a name or DEFAULT."""

    user: Name | None = None
    client_id: Name | None = None
    ip: Name | None = None

    def parts(self) -> dict[str, str | None]:
        """Return the parts by Kafka's entity types; the name of a default is None."""
        named = {"user": self.user, "client-id": self.client_id, "ip": self.ip}
        return {kind: None if name is DEFAULT else str(name) for kind, name in named.items() if name is not None}

    def __str__(self) -> str:
        parts = self.parts().items()
        return ", ".join(f"{kind} {'default' if name is None else repr(name)}" for kind, name in parts)


class QuotaAdmin(Admin):
    """The quotas of the cluster."""

    def describe_client_quotas(
        self, entity: QuotaEntity | None = None, *, strict: bool = False
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Return quotas by entity: all, or those of entities with the parts of `entity`; with no others if `strict`."""
        parts = {} if entity is None else entity.parts()
        components = [
            ComponentData(entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name)
            for kind, name in parts.items()
        ]
        response = self.client.request(
            DescribeClientQuotasRequest(components=components, strict=strict),
            codes=lambda response: [response.error_code],
        )
        raise_failures([Failure("client quotas", response.error_code, response.error_message)])
        quotas = {
            _entity(entry.entity): {value.key: value.value for value in entry.values}
            for entry in response.entries or ()
        }
        return dict(sorted(quotas.items(), key=lambda item: str(item[0])))

    def alter_client_quotas(
        self, changes: Mapping[QuotaEntity, Mapping[str, float | None]], *, validate_only: bool = False
    ) -> None:
        """Set quotas, and keep the others; None removes one."""
        entries = []
        for entity, values in changes.items():
            if not entity.parts():
                raise ConfigError("invalid quota entity: expected a user, a client id, both, or an IP address")
            parts = [EntityData(entity_type=kind, entity_name=name) for kind, name in entity.parts().items()]
            ops = [OpData(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()]
            entries.append(EntryDataRequest(entity=parts, ops=ops))
        self.change(AlterClientQuotasRequest(entries=entries, validate_only=validate_only), _failures)


def _entity(parts: Iterable[EntityData | EntityData]) -> QuotaEntity:
    names: dict[str, Name] = {
        part.entity_type: DEFAULT if part.entity_name is None else part.entity_name for part in parts
    }
    return QuotaEntity(names.get("user"), names.get("client-id"), names.get("ip"))


def _failures(response: AlterClientQuotasResponse) -> list[Failure]:
    return [
        Failure(f"quotas of {_entity(entry.entity)}", entry.error_code, entry.error_message)
        for entry in response.entries
    ]
