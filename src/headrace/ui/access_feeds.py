"""Feeds of ACLs, SCRAM users and client quotas."""

from __future__ import annotations

from typing import NamedTuple

from headrace.client.admin import AclBinding, AdminClient, QuotaEntity
from headrace.ui.collector import Collector, Feed

EVERY_SECONDS = 5.0


class ScramUser(NamedTuple):
    """A user and one of the mechanisms it can authenticate with."""

    name: str
    mechanism: str
    iterations: int


class QuotaValue(NamedTuple):
    entity: QuotaEntity
    key: str
    value: float


def acls_feed(collector: Collector) -> Feed[list[AclBinding]]:
    return collector.feed("acls", lambda admin: admin.describe_acls(), every_s=EVERY_SECONDS)


def users_feed(collector: Collector) -> Feed[list[ScramUser]]:
    return collector.feed("users", _fetch_users, every_s=EVERY_SECONDS)


def quotas_feed(collector: Collector) -> Feed[list[QuotaValue]]:
    return collector.feed("quotas", _fetch_quotas, every_s=EVERY_SECONDS)


def _fetch_users(admin: AdminClient) -> list[ScramUser]:
    users = admin.describe_user_scram_credentials()
    return [ScramUser(name, *info) for name, infos in users.items() for info in infos]


def _fetch_quotas(admin: AdminClient) -> list[QuotaValue]:
    quotas = admin.describe_client_quotas()
    return [QuotaValue(entity, key, value) for entity, values in quotas.items() for key, value in values.items()]
