"""The client and a server that is no good registry: what it returns is limited, and every failure has a name."""

from __future__ import annotations

import base64
import pickle
import socket
import threading
import time
from uuid import UUID

import pytest

from headrace import errors
from headrace.client.registry import SchemaRegistryClient
from headrace.schema import RegisteredSchema, Schema, SchemaReference, framing
from tests.support.peers.real_kafka import free_ports
from tests.support.scripted_registry import Scripted
from tests.support.secure_broker import OPENSSL, make_certificates

QUICK = {
    "schema.registry.retries.wait.ms": 1,
    "schema.registry.max.retries": 2,
    "schema.registry.request.timeout.ms": 5_000,
}
AVRO = {"schema": '"string"'}


@pytest.fixture
def server():
    server = Scripted()
    yield server
    server.close()


@pytest.fixture
def client(server):
    return SchemaRegistryClient(server.url, QUICK)


def dead_url():
    return f"http://127.0.0.1:{free_ports(1)[0]}"


# -- responses that are not a registry's -----------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 404])
def test_a_web_page_is_not_a_registry(server, client, status):
    server.respond = lambda method, path: (status, b"<html>Welcome</html>", ("Content-Type", "text/html"))
    with pytest.raises(
        errors.RegistryProtocolError, match=r"is not a schema registry: .* got text/html .*check the path"
    ):
        client.get_schema(1)
    assert len(server.requests) == 1


@pytest.mark.parametrize("content", [[], {"schema": 7}, {}, {"schema": "", "schemaType": "XML"}, None])
def test_json_of_another_form_is_an_error(server, client, content):
    server.respond = lambda method, path: (200, content)
    with pytest.raises(errors.RegistryProtocolError, match=r"unexpected response .* expected|expected AVRO.*got 'XML'"):
        client.get_schema(1)


def test_deeply_nested_json_is_an_error(server, client):
    server.respond = lambda method, path: (200, b"[" * 200_000)
    with pytest.raises(errors.RegistryProtocolError, match="is not a schema registry"):
        client.get_schema(1)


def test_redirects_are_not_followed_with_credentials(server):
    server.respond = lambda method, path: (302, b"", ("Location", "http://127.0.0.1:1/steal"))
    client = SchemaRegistryClient(server.url, {**QUICK, "basic.auth.user.info": "ann:secret"})
    with pytest.raises(
        errors.RegistryProtocolError, match=r"redirects to http://127.0.0.1:1/steal, which is not followed"
    ):
        client.get_schema(1)


@pytest.mark.parametrize("announced", [True, False])
def test_a_huge_response_is_refused_before_it_is_read(server, announced, allocated):
    def respond(handler):
        handler.send_response(200)
        if announced:
            handler.send_header("Content-Length", str(2**40))
        handler.end_headers()
        try:
            for _ in range(1024):
                handler.wfile.write(bytes(1024 * 1024))
        except OSError:
            pass  # the client has closed the connection

    server.respond = lambda method, path: respond
    client = SchemaRegistryClient(server.url, {**QUICK, "schema.registry.response.max.bytes": 1024 * 1024})
    with pytest.raises(errors.RegistryProtocolError, match=r"too large: .*response.max.bytes is 1048576"):
        client.get_schema(1)
    assert len(server.requests) == 1
    assert allocated() < 8 * 1024 * 1024


@pytest.fixture
def allocated():
    """The peak memory of this process since the start of the test, without the server's constant buffer."""
    import tracemalloc

    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


def test_a_server_that_sends_byte_by_byte_times_out(server):
    ended = threading.Event()

    def respond(handler):
        try:
            for byte in b"HTTP/1.1 200 OK\r\nX: " + b"y" * 10_000:
                handler.wfile.write(bytes([byte]))
                if ended.wait(0.02):
                    return
        except OSError:
            pass

    server.respond = lambda method, path: respond
    options = {**QUICK, "schema.registry.request.timeout.ms": 300, "schema.registry.max.retries": 0}
    start = time.monotonic()
    with pytest.raises(errors.RegistryUnavailableError, match=r"did not respond within 300 ms"):
        SchemaRegistryClient(server.url, options).get_schema(1)
    assert time.monotonic() - start < 3
    ended.set()


# -- errors of a registry --------------------------------------------------------------------------------


@pytest.mark.behaviour("R01")
@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (401, 40101, errors.RegistryAuthenticationError),
        (403, 40301, errors.RegistryAuthorizationError),
        (404, 40401, errors.SubjectNotFoundError),
        (404, 40402, errors.SchemaNotFoundError),
        (404, 40403, errors.SchemaNotFoundError),
        (404, 40406, errors.SchemaDeletedError),
        (409, 409, errors.IncompatibleSchemaError),
        (422, 42201, errors.InvalidSchemaError),
        (422, 42203, errors.RegistryError),
        (500, 50001, errors.RegistryUnavailableError),
    ],
)
def test_an_error_of_the_registry_has_its_class_words_and_codes(server, client, status, code, error):
    server.respond = lambda method, path: (status, {"error_code": code, "message": "the registry's words"})
    with pytest.raises(errors.RegistryError, match="the registry's words") as caught:
        client.get_schema(1)
    assert type(caught.value) is error
    assert (caught.value.status, caught.value.code) == (status, code)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy), copy.status, copy.code) == (error, str(caught.value), status, code)


def test_credentials_are_neither_in_errors_nor_in_reprs(server, caplog):
    server.respond = lambda method, path: (401, {"error_code": 40101, "message": "Unauthorized"})
    url = server.url.replace("://", "://ann:s3cret@")
    for options in ({}, {"bearer.auth.token": "s3cret"}, {"schema.registry.basic.auth.user.info": "ann:s3cret"}):
        client = SchemaRegistryClient(server.url if options else url, {**QUICK, **options})
        with pytest.raises(
            errors.RegistryAuthenticationError, match=r"check schema.registry.basic.auth.user.info"
        ) as caught:
            client.get_schema(1)
        assert "s3cret" not in f"{caught.value}{client!r}{client.settings!r}{caplog.text}"
    expected = f"Basic {base64.b64encode(b'ann:s3cret').decode()}"
    assert [headers["Authorization"] for headers in server.headers] == [expected, "Bearer s3cret", expected]


@pytest.mark.behaviour("R01")
def test_a_registry_that_recovers_is_retried(server, client):
    responses = [(503, b"<html>Starting</html>"), (429, {}), (200, AVRO)]
    server.respond = lambda method, path: responses.pop(0)
    assert client.get_schema(1).schema == Schema('"string"')
    assert len(server.requests) == 3


def test_a_registry_that_stays_unavailable_is_an_error_with_its_status(server, client):
    server.respond = lambda method, path: (503, b"<html>Down</html>")
    with pytest.raises(
        errors.RegistryUnavailableError, match=r"unavailable \(3 attempts\): .*HTTP status 503"
    ) as caught:
        client.get_schema(1)
    assert isinstance(caught.value, errors.RetriableError)
    assert caught.value.status == 503
    assert len(server.requests) == 3


@pytest.mark.behaviour("R01")
def test_the_second_url_is_used_if_the_first_is_dead(server):
    dead = dead_url()
    client = SchemaRegistryClient([dead, server.url], {**QUICK, "schema.registry.max.retries": 0})
    assert client.get_schema(1).schema.text == '"string"'
    with pytest.raises(errors.RegistryUnavailableError, match=f"{dead}: .*refused.*{dead}"):
        SchemaRegistryClient(f"{dead}, {dead}/v2", {**QUICK, "schema.registry.max.retries": 0}).get_schema(1)


def test_a_truncated_response_is_retried(server, client):
    responses = [(200, b'{"schema": ', ("Content-Length", "100"), ("Connection", "close")), (200, AVRO)]
    server.respond = lambda method, path: responses.pop(0)
    assert client.get_schema(1).schema.text == '"string"'


def test_an_unknown_schema_is_not_looked_for_at_the_second_url(server):
    server.respond = lambda method, path: (404, {"error_code": 40403, "message": "Schema not found"})
    with pytest.raises(errors.SchemaNotFoundError):
        SchemaRegistryClient([server.url, server.url], QUICK).get_schema(1)
    assert len(server.requests) == 1


# -- what Apicurio does not have ---------------------------------------------------------------------------


@pytest.mark.behaviour("R01")
def test_reasons_of_an_incompatibility_are_those_of_the_registry(server, client):
    reasons = ["{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE', description:'The field 'customer' …'}"]
    server.respond = lambda method, path: (200, {"is_compatible": False, "messages": reasons})
    result = client.check_compatibility("a", Schema("{}"), version="all")
    assert (bool(result), result.messages) == (False, tuple(reasons))
    assert server.requests == [("POST", "/compatibility/subjects/a/versions?verbose=true")]


@pytest.mark.behaviour("R01")
def test_a_schema_is_found_by_the_guid_of_a_header(server, client):
    guid = UUID("0191c8a5-3f2a-7c4e-8a4b-1f2e3d4c5b6a")
    server.respond = lambda method, path: (200, {**AVRO, "guid": str(guid)})
    schema_id, _ = framing.decode(framing.encode_guid(guid))
    assert schema_id.guid is not None
    for _ in range(2):
        assert client.get_schema_by_guid(schema_id.guid) == RegisteredSchema(Schema('"string"'), guid=guid)
    assert server.requests == [("GET", f"/schemas/guids/{guid}")]


# -- caches ------------------------------------------------------------------------------------------------


class FakeClock:
    now_ms = 0.0

    def monotonic_ms(self):
        return self.now_ms

    def time_ms(self):
        return int(self.now_ms)


@pytest.mark.behaviour("R01")
def test_schemas_are_requested_once_until_the_cache_is_full(server):
    client = SchemaRegistryClient(server.url, {**QUICK, "schema.registry.cache.capacity": 2})
    for schema_id in (1, 2, 1, 2, 3, 2, 1):
        client.get_schema(schema_id)
    assert [path for _, path in server.requests] == [f"/schemas/ids/{schema_id}" for schema_id in (1, 2, 3, 1)]


@pytest.mark.behaviour("R01")
def test_the_latest_version_is_requested_again_after_a_while_and_kept_if_that_fails(server, caplog):
    clock = FakeClock()
    versions = iter([1, 2])
    server.respond = lambda method, path: (200, {**AVRO, "subject": "a-value", "id": 9, "version": next(versions)})
    client = SchemaRegistryClient(server.url, {**QUICK, "latest.cache.ttl.sec": 60}, clock=clock)
    assert [client.get_latest("a-value").version for _ in range(3)] == [1, 1, 1]
    clock.now_ms = 60_000
    assert [client.get_latest("a-value").version for _ in range(3)] == [2, 2, 2]
    server.respond = lambda method, path: (503, {})
    clock.now_ms = 120_000
    requests = len(server.requests)
    assert [client.get_latest("a-value").version for _ in range(3)] == [2, 2, 2]
    assert len(server.requests) == requests + 3  # the attempts of the first call; then it is cached again
    assert "continuing with version 2 of subject a-value" in caplog.text
    with pytest.raises(errors.RegistryUnavailableError):
        client.get_latest("b-value")


@pytest.mark.behaviour("R01")
def test_many_threads_share_a_client(server):
    client = SchemaRegistryClient(server.url, {**QUICK, "schema.registry.cache.capacity": 3})
    server.respond = lambda method, path: (200, {"schema": path.rpartition("/")[2]})
    wrong = []

    def read(seed):
        for number in range(40):
            schema_id = (number * seed) % 5
            if client.get_schema(schema_id).schema.text != str(schema_id):
                wrong.append(schema_id)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


# -- references ----------------------------------------------------------------------------------------------


def references_to(*pairs):
    return [{"name": name, "subject": name, "version": version} for name, version in pairs]


def test_references_without_end_are_refused(server, client):
    def respond(method, path):
        number = int(path.split("/")[2])
        return 200, {"schema": "{}", "references": references_to((str(number + 1), 1))}

    server.respond = respond
    with pytest.raises(errors.SchemaError, match=r"too many schema references: expected at most 1000, 32 deep"):
        client.resolve_references(Schema("{}", references=(SchemaReference("0", "0", 1),)))
    assert len(server.requests) == 32


def test_references_in_a_circle_are_refused(server, client):
    server.respond = lambda method, path: (200, {"schema": "{}", "references": references_to(("0", 1))})
    with pytest.raises(errors.SchemaError, match="too many schema references"):
        client.resolve_references(Schema("{}", references=(SchemaReference("0", "0", 1),)))
    assert len(server.requests) == 1


def test_too_many_references_are_refused(server, client):
    many = tuple(SchemaReference(str(number), str(number), 1) for number in range(1001))
    server.respond = lambda method, path: (200, {"schema": "{}", "references": references_to(("shared", 1))})
    with pytest.raises(errors.SchemaError, match="too many schema references"):
        client.resolve_references(Schema("{}", references=many))


def test_a_name_for_two_schemas_is_an_error(server, client):
    server.respond = lambda method, path: (200, {"schema": "{}"})
    two = (SchemaReference("a", "a", 1), SchemaReference("a", "a", 2))
    with pytest.raises(errors.SchemaError, match="reference 'a' is ambiguous: version 1 of subject 'a', and version 2"):
        client.resolve_references(Schema("{}", references=two))


# -- options -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "schema.registry.url is not set"),
        (
            {"schema.registry.url": "localhost:8081"},
            "expected URLs such as http://localhost:8081, but URL 1 of the list",
        ),
        ({"schema.registry.url": "http://a, ftp://u:pw@b"}, "URL 2 of the list"),
        ({"basic.auth.credentials.source": "USER_INFO"}, "is USER_INFO, but .*basic.auth.user.info is not set"),
        ({"schema.registry.url": "http://a/b c"}, "URL 1 of the list"),
        ({"bearer.auth.token": "pw\r\nX: y"}, "expected printable ASCII characters"),
        ({"basic.auth.user.info": "ann"}, "expected user:password, got a text without a colon"),
        ({"basic.auth.user.info": "a:b", "bearer.auth.token": "c"}, "are both set: unset one of them"),
        ({"schema.registry.url": "http://a:b@c", "bearer.auth.token": "c"}, "are both set"),
        ({"schema.registry.url": "http://a:b@c,http://a:d@c"}, "different credentials"),
        ({"max.retries": 1, "schema.registry.max.retries": 1}, "given twice, also as max.retries"),
        ({"schema.registry.max.retries": -1}, "max.retries is -1; it may be 0 or more"),
        (
            {"schema.registry.ssl.truststore.location": "/nowhere.pem", "schema.registry.url": "https://a"},
            "nowhere.pem",
        ),
    ],
)
def test_invalid_options_are_named(options, problem):
    given = (
        options if not options or "schema.registry.url" in options else {"schema.registry.url": "http://a", **options}
    )
    with pytest.raises(errors.ConfigError, match=problem) as caught:
        SchemaRegistryClient(options=given)
    assert "pw" not in str(caught.value)


def test_an_unknown_option_is_named_in_a_warning(caplog):
    SchemaRegistryClient("http://a", {"schema.registry.cache.capacitee": 1})
    assert "unknown option 'schema.registry.cache.capacitee'" in caplog.text
    assert "did you mean 'schema.registry.cache.capacity'?" in caplog.text


@pytest.mark.behaviour("R01")
@pytest.mark.skipif(OPENSSL is None, reason="no openssl on the PATH")
def test_tls_verifies_the_registry_and_presents_a_client_certificate(tmp_path):
    import ssl

    make_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server-both.pem")
    context.load_verify_locations(tmp_path / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    server = Scripted(context)
    trusted = {
        **QUICK,
        "schema.registry.ssl.truststore.location": str(tmp_path / "ca.pem"),
        "schema.registry.ssl.keystore.location": str(tmp_path / "client-both.pem"),
    }
    try:
        assert SchemaRegistryClient(server.url, trusted).get_schema(1).schema.text == '"string"'
        strange = {**trusted, "schema.registry.ssl.truststore.location": str(tmp_path / "stranger.pem")}
        with pytest.raises(errors.TlsError, match=r"is not trusted.*Set schema.registry.ssl.truststore.location"):
            SchemaRegistryClient(server.url, strange).get_schema(1)
    finally:
        server.close()


def test_tls_with_a_server_without_it_is_an_error(server):
    with pytest.raises(errors.TlsError, match="check that it uses TLS on this port"):
        SchemaRegistryClient(server.url.replace("http:", "https:"), QUICK).get_schema(1)


def test_a_listener_that_closes_every_connection_is_unavailable():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def close_all():
            for _ in range(3):
                connection, _ = listener.accept()
                connection.close()

        thread = threading.Thread(target=close_all)
        thread.start()
        client = SchemaRegistryClient(f"http://127.0.0.1:{listener.getsockname()[1]}", QUICK)
        with pytest.raises(errors.RegistryUnavailableError, match="3 attempts"):
            client.get_schema(1)
        thread.join(10)
