"""The routes of Confluent's REST API: requests to calls of `SchemaRegistry`, results to JSON."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from headrace import __version__
from headrace.broker.registry import rest_errors
from headrace.broker.registry.access import AccessCheck
from headrace.broker.registry.changes import SchemaContent, SubjectVersion, content_fields, dump
from headrace.broker.registry.http_server import HttpRequest, HttpResponse
from headrace.broker.registry.registry import MODES, SchemaRegistry
from headrace.broker.registry.requests import (
    Query,
    parse_config,
    parse_id,
    parse_mode,
    parse_registration,
    parse_version,
)
from headrace.broker.registry.rest_errors import RestError
from headrace.schema.types import SchemaFormat

log = logging.getLogger("headrace.broker.registry")

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
PLAIN_TYPE = "application/json"
_REQUEST_TYPES = (CONTENT_TYPE, "application/vnd.schemaregistry+json", PLAIN_TYPE, "application/octet-stream")
_DEFAULT_CONTEXT = "."
_PARAMETER = "*"

T = TypeVar("T")


class _Call(NamedTuple):
    """A request with the variable parts of its path."""

    parameters: tuple[str, ...]
    query: Query
    body: bytes

    @property
    def subject(self) -> str:
        return self.parameters[0]

    @property
    def version(self) -> int:
        return parse_version(self.parameters[1])


_Endpoint = Callable[[_Call], Awaitable[object]]


class RestApi:
    """Handles the requests of the HTTP server. Event loop only."""

    def __init__(self, registry: SchemaRegistry, access: AccessCheck, cluster_id: str) -> None:
        self._registry = registry
        self._access = access
        self._cluster_id = cluster_id
        self._routes: dict[tuple[str, ...], dict[str, _Endpoint]] = {
            tuple(part for part in path.split("/") if part): endpoints for path, endpoints in self._table().items()
        }

    def _table(self) -> dict[str, dict[str, _Endpoint]]:
        return {
            "/": {"GET": self._root},
            "/subjects": {"GET": self._subjects},
            "/subjects/*": {"POST": self._lookup, "DELETE": self._delete_subject},
            "/subjects/*/metadata": {"GET": self._latest_with_metadata},
            "/subjects/*/versions": {"GET": self._versions, "POST": self._register},
            "/subjects/*/versions/*": {"GET": self._version, "DELETE": self._delete_version},
            "/subjects/*/versions/*/schema": {"GET": self._version_text},
            "/subjects/*/versions/*/referencedby": {"GET": self._referenced_by},
            "/schemas": {"GET": self._schemas},
            "/schemas/types": {"GET": self._types},
            "/schemas/ids/*": {"GET": self._schema},
            "/schemas/ids/*/schema": {"GET": self._schema_text},
            "/schemas/ids/*/subjects": {"GET": self._schema_subjects},
            "/schemas/ids/*/versions": {"GET": self._schema_versions},
            "/schemas/guids/*": {"GET": self._schema_of_guid},
            "/schemas/guids/*/ids": {"GET": self._ids_of_guid},
            "/config": {"GET": self._global_config, "PUT": self._set_config, "DELETE": self._delete_config},
            "/config/*": {"GET": self._config, "PUT": self._set_config, "DELETE": self._delete_config},
            "/mode": {"GET": self._global_mode, "PUT": self._set_mode},
            "/mode/*": {"GET": self._mode, "PUT": self._set_mode, "DELETE": self._delete_mode},
            "/compatibility/subjects/*/versions": {"POST": self._check_all},
            "/compatibility/subjects/*/versions/*": {"POST": self._check_version},
            "/contexts": {"GET": self._contexts},
            "/v1/metadata/id": {"GET": self._metadata_id},
            "/v1/metadata/version": {"GET": self._metadata_version},
        }

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        """Return the response to a request."""
        content_type = PLAIN_TYPE if _prefers_plain(request) else CONTENT_TYPE
        try:
            self._access.check(request)
            result = await self._dispatch(request)
        except RestError as error:
            return error_response(error.status, error.message, error.code, content_type)
        except Exception:
            log.exception("internal error in %s /%s of the schema registry", request.method, "/".join(request.path))
            return error_response(500, "internal error: please report it with the broker's log", 50001, content_type)
        if isinstance(result, HttpResponse):
            return result
        return HttpResponse(200, dump(result).encode("utf-8", "surrogatepass"), content_type)

    async def _dispatch(self, request: HttpRequest) -> object:
        parameters, endpoints = self._find(request.path)
        method = "GET" if request.method == "HEAD" else request.method
        if method not in endpoints:
            raise RestError(405, f"HTTP 405 Method Not Allowed: {request.method}; expected {', '.join(endpoints)}")
        kind = request.headers.get("content-type", PLAIN_TYPE).partition(";")[0].strip().lower()
        if request.body and kind not in _REQUEST_TYPES:
            raise RestError(415, f"HTTP 415 Unsupported Media Type: {kind[:100]}; expected {CONTENT_TYPE}")
        if "content-encoding" in request.headers:
            raise RestError(415, "HTTP 415 Unsupported Media Type: send the body without Content-Encoding")
        self._registry.follow()
        return await endpoints[method](_Call(parameters, Query(request.query), request.body))

    def _find(self, path: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, _Endpoint]]:
        """Return the variable parts of a path, and its endpoints."""
        endpoints = self._routes.get(path)
        if endpoints is not None and _PARAMETER not in path:
            return (), endpoints
        for route, candidates in self._routes.items():
            if len(route) == len(path) and all(a in (_PARAMETER, b) for a, b in zip(route, path, strict=True)):
                return tuple(b for a, b in zip(route, path, strict=True) if a == _PARAMETER), candidates
        raise RestError(404, "HTTP 404 Not Found")

    # -- subjects and versions -------------------------------------------------------------------

    async def _root(self, call: _Call) -> object:
        return {}

    async def _subjects(self, call: _Call) -> object:
        query = call.query
        only_deleted = query.flag("deletedOnly")
        state = self._registry.state
        subjects = state.subjects(deleted=query.flag("deleted") or only_deleted)
        if only_deleted:
            subjects = [subject for subject in subjects if not state.versions(subject)]
        prefix = query.text("subjectPrefix")
        return _page(query, [subject for subject in subjects if subject.startswith(prefix)])

    async def _versions(self, call: _Call) -> object:
        only_deleted = call.query.flag("deletedOnly")
        versions = self._registry.versions(call.subject, deleted=call.query.flag("deleted") or only_deleted)
        return _page(call.query, [each.version for each in versions if each.deleted or not only_deleted])

    async def _version(self, call: _Call) -> object:
        version = self._registry.version(call.subject, call.version, deleted=call.query.flag("deleted"))
        return version_fields(version, await self._registry.rendered(version.content, call.query.text("format")))

    async def _version_text(self, call: _Call) -> object:
        version = self._registry.version(call.subject, call.version, deleted=call.query.flag("deleted"))
        content = await self._registry.rendered(version.content, call.query.text("format"))
        return HttpResponse(200, content.schema.text.encode("utf-8", "surrogatepass"), CONTENT_TYPE)

    async def _referenced_by(self, call: _Call) -> object:
        version = self._registry.version(call.subject, call.version, deleted=True)
        referrers = self._registry.state.referrers(version.subject, version.version, deleted=call.query.flag("deleted"))
        return _page(call.query, sorted({each.id for each in referrers}))

    async def _latest_with_metadata(self, call: _Call) -> object:
        expected = dict(zip(call.query.texts("key"), call.query.texts("value"), strict=False))
        for version in reversed(self._registry.versions(call.subject, deleted=call.query.flag("deleted"))):
            metadata = content_fields(version.content).get("metadata", {})
            properties = metadata.get("properties") if isinstance(metadata, dict) else None
            if isinstance(properties, dict) and expected.items() <= properties.items():
                content = await self._registry.rendered(version.content, call.query.text("format"))
                return version_fields(version, content)
        raise rest_errors.schema_not_found("with this metadata")

    async def _register(self, call: _Call) -> object:
        registration = parse_registration(call.body, normalize=call.query.flag("normalize"))
        version = await self._registry.register(call.subject, registration)
        # Without the schema: Confluent's client would take it for what it has sent, perhaps in another format.
        return {"id": version.id, "version": version.version, "guid": str(version.content.guid)}

    async def _lookup(self, call: _Call) -> object:
        registration = parse_registration(call.body, normalize=call.query.flag("normalize"))
        version = await self._registry.lookup(call.subject, registration, deleted=call.query.flag("deleted"))
        return version_fields(version, await self._registry.rendered(version.content, call.query.text("format")))

    async def _delete_version(self, call: _Call) -> object:
        permanent = call.query.flag("permanent")
        return await self._registry.delete_version(call.subject, call.version, permanent=permanent)

    async def _delete_subject(self, call: _Call) -> object:
        return await self._registry.delete_subject(call.subject, permanent=call.query.flag("permanent"))

    # -- schemas ---------------------------------------------------------------------------------

    async def _schemas(self, call: _Call) -> object:
        query = call.query
        prefix, deleted, only_latest = query.text("subjectPrefix"), query.flag("deleted"), query.flag("latestOnly")
        state = self._registry.state
        versions: list[SubjectVersion] = []
        for subject in state.subjects(deleted=deleted):
            if subject.startswith(prefix):
                matching = state.versions(subject, deleted=deleted)
                versions += matching[-1:] if only_latest else matching
        return [version_fields(each, each.content) for each in _page(query, versions)]

    async def _types(self, call: _Call) -> object:
        return [format.value for format in (SchemaFormat.JSON, SchemaFormat.PROTOBUF, SchemaFormat.AVRO)]

    def _content(self, call: _Call) -> tuple[int, SchemaContent]:
        schema_id = parse_id(call.parameters[0])
        content = self._registry.state.content(schema_id)
        subject = call.query.text("subject")
        uses = self._registry.state.uses(schema_id, deleted=True)
        if content is None or (subject and not any(each.subject == subject for each in uses)):
            raise rest_errors.schema_not_found(str(schema_id))
        return schema_id, content

    async def _schema(self, call: _Call) -> object:
        _, content = self._content(call)
        content = await self._registry.rendered(content, call.query.text("format"))
        fields = {**content_fields(content), "guid": str(content.guid)}
        return fields | ({"maxId": self._registry.state.largest_id} if call.query.flag("fetchMaxId") else {})

    async def _schema_text(self, call: _Call) -> object:
        content = await self._registry.rendered(self._content(call)[1], call.query.text("format"))
        return HttpResponse(200, content.schema.text.encode("utf-8", "surrogatepass"), CONTENT_TYPE)

    async def _schema_subjects(self, call: _Call) -> object:
        schema_id, _ = self._content(call)
        uses = self._registry.state.uses(schema_id, deleted=call.query.flag("deleted"))
        return _page(call.query, sorted({each.subject for each in uses}))

    async def _schema_versions(self, call: _Call) -> object:
        schema_id, _ = self._content(call)
        uses = self._registry.state.uses(schema_id, deleted=call.query.flag("deleted"))
        return _page(call.query, [{"subject": each.subject, "version": each.version} for each in uses])

    def _id_of_guid(self, call: _Call) -> int:
        text = call.parameters[0]
        try:
            schema_id = self._registry.state.id_of_guid(UUID(text))
        except ValueError:
            schema_id = None
        if schema_id is None:
            raise rest_errors.schema_not_found(text[:100])
        return schema_id

    async def _schema_of_guid(self, call: _Call) -> object:
        schema_id = str(self._id_of_guid(call))
        return await self._schema(call._replace(parameters=(schema_id,)))

    async def _ids_of_guid(self, call: _Call) -> object:
        return [{"context": _DEFAULT_CONTEXT, "id": self._id_of_guid(call)}]

    # -- configuration, modes, compatibility -----------------------------------------------------

    async def _global_config(self, call: _Call) -> object:
        return self._registry.config()

    async def _config(self, call: _Call) -> object:
        own = self._registry.state.configs.get(call.subject)
        if call.query.flag("defaultToGlobal"):
            return self._registry.config(call.subject)
        if own is None:
            raise rest_errors.config_not_found(call.subject)
        return own

    async def _set_config(self, call: _Call) -> object:
        changes, response = parse_config(call.body)
        await self._registry.set_config(call.parameters[0] if call.parameters else None, changes)
        return response

    async def _delete_config(self, call: _Call) -> object:
        return await self._registry.delete_config(call.parameters[0] if call.parameters else None)

    async def _global_mode(self, call: _Call) -> object:
        return {"mode": self._registry.mode()}

    async def _mode(self, call: _Call) -> object:
        if call.subject not in self._registry.state.modes and not call.query.flag("defaultToGlobal"):
            raise rest_errors.mode_not_found(call.subject)
        return {"mode": self._registry.mode(call.subject)}

    async def _set_mode(self, call: _Call) -> object:
        mode = parse_mode(call.body, MODES)
        subject = call.parameters[0] if call.parameters else None
        await self._registry.set_mode(subject, mode, force=call.query.flag("force"))
        return {"mode": mode}

    async def _delete_mode(self, call: _Call) -> object:
        return {"mode": await self._registry.delete_mode(call.subject)}

    async def _check_all(self, call: _Call) -> object:
        return await self._check(call, None)

    async def _check_version(self, call: _Call) -> object:
        return await self._check(call, call.version)

    async def _check(self, call: _Call, version: int | None) -> object:
        registration = parse_registration(call.body, normalize=call.query.flag("normalize"))
        messages = await self._registry.check_compatibility(call.subject, registration, version)
        verdict = {"is_compatible": not messages}
        return verdict | ({"messages": messages} if call.query.flag("verbose") else {})

    # -- the registry itself ---------------------------------------------------------------------

    async def _contexts(self, call: _Call) -> object:
        subjects = self._registry.state.subjects(deleted=True)
        others = {subject.split(":")[1] for subject in subjects if subject.startswith(":.") and subject.count(":") > 1}
        return _page(call.query, [_DEFAULT_CONTEXT, *sorted(others - {_DEFAULT_CONTEXT})])

    async def _metadata_id(self, call: _Call) -> object:
        clusters = {"kafka-cluster": self._cluster_id, "schema-registry-cluster": "schema-registry"}
        return {"scope": {"path": [], "clusters": clusters}}

    async def _metadata_version(self, call: _Call) -> object:
        return {"version": f"headrace {__version__}", "commitId": ""}


def version_fields(version: SubjectVersion, content: SchemaContent) -> dict[str, Any]:
    """Return a version as JSON; `content` may have its text in another format."""
    head = {
        "subject": version.subject,
        "version": version.version,
        "id": version.id,
        "guid": str(version.content.guid),
    }
    return {**head, **content_fields(content), **({"deleted": True} if version.deleted else {})}


def error_response(status: int, message: str, code: int = 0, content_type: str = CONTENT_TYPE) -> HttpResponse:
    """Return the response for an error."""
    headers = {"WWW-Authenticate": 'Basic realm="schema registry"'} if status == 401 else {}
    body = dump({"error_code": code or status, "message": message}).encode("utf-8", "surrogatepass")
    return HttpResponse(status, body, content_type, headers)


def _prefers_plain(request: HttpRequest) -> bool:
    accepted = request.headers.get("accept", "").lower()
    first = accepted.partition(",")[0].partition(";")[0].strip()
    return first == PLAIN_TYPE


def _page(query: Query, items: Sequence[T]) -> list[T]:
    """Return the part of a list that `offset` and `limit` name."""
    offset, limit = query.number("offset", 0), query.number("limit", -1)
    rest: Iterable[T] = islice(items, max(offset, 0), None)
    return [*(rest if limit < 1 else islice(rest, limit))]
