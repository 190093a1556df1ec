"""HTTP servers instead of a schema registry: one that responds as a test says, and a small one with schemas."""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import UUID

NOT_FOUND = (404, {"error_code": 40403, "message": "Schema not found"})
NO_SUBJECT = (404, {"error_code": 40401, "message": "Subject not found"})


class Scripted:
    """A server with a function from method and path to status, content type and body."""

    def __init__(self, tls_context: ssl.SSLContext | None = None) -> None:
        self.requests: list[tuple[str, str]] = []
        self.headers: list[Any] = []
        self.bodies: list[bytes] = []
        self.respond: Any = lambda method, path: (200, {"schema": '"string"'})
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self):
                scripted.requests.append((self.command, self.path))
                scripted.headers.append(self.headers)
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                scripted.bodies.append(body)
                response = scripted.respond(self.command, self.path)
                if callable(response):
                    response(self)
                    return
                status, content, *headers = response
                body = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                for name, value in headers:
                    self.send_header(name, value)
                if "Content-Length" not in dict(headers):
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = do_DELETE = handle_any  # noqa: N815

            def log_message(self, *args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls_context is not None:
            self._server.socket = tls_context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self.url = f"{'http' if tls_context is None else 'https'}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class SmallRegistry(Scripted):
    """A registry without compatibility checks, which counts requests. GUIDs are numbers, too."""

    def __init__(self) -> None:
        super().__init__()
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.is_down = False
        self.respond = self._respond

    def add(self, subject: str, text: str, format: str = "AVRO", references: tuple[dict[str, Any], ...] = ()) -> int:
        """Register a schema, and return its id."""
        body = {"schema": text, "schemaType": format, "references": list(references)}
        schema_id = next((known for known, schema in self.schemas.items() if schema == body), len(self.schemas) + 1)
        self.schemas[schema_id] = body
        versions = self.subjects.setdefault(subject, [])
        if schema_id not in versions:
            versions.append(schema_id)
        return schema_id

    def guid(self, schema_id: int) -> UUID:
        return UUID(int=schema_id)

    def _respond(self, method, path):
        if self.is_down:
            return 503, {"error_code": 503, "message": "down"}
        parts = [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]
        body = json.loads(self.bodies[-1]) if self.bodies[-1] else {}
        match method, parts:
            case "GET", ["schemas", "ids", requested]:
                return self._schema(int(requested))
            case "GET", ["schemas", "guids", guid]:
                return self._schema(UUID(guid).int)
            case "GET", ["subjects", subject, "versions"] if subject in self.subjects:
                return 200, list(range(1, len(self.subjects[subject]) + 1))
            case "GET", ["subjects", subject, "versions", version] if subject in self.subjects:
                ids = self.subjects[subject]
                number = len(ids) if version == "latest" else int(version)
                if not 1 <= number <= len(ids):
                    return NOT_FOUND
                schema_id = ids[number - 1]
                return 200, self.schemas[schema_id] | {"id": schema_id, "subject": subject, "version": number}
            case "POST", ["subjects", subject, "versions"]:
                references = tuple(body.get("references", ()))
                return 200, {"id": self.add(subject, body["schema"], body.get("schemaType", "AVRO"), references)}
            case "POST", ["subjects", subject] if subject in self.subjects:
                for known, schema_id in enumerate(self.subjects[subject], 1):
                    if self.schemas[schema_id]["schema"] == body["schema"]:
                        position = {"id": schema_id, "subject": subject, "version": known}
                        return 200, self.schemas[schema_id] | position
                return NOT_FOUND
        return NO_SUBJECT

    def _schema(self, schema_id):
        return (200, self.schemas[schema_id]) if schema_id in self.schemas else NOT_FOUND
