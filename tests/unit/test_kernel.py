"""Selection of the kernel, and equality of both."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import WireError
from headrace.wire import _reference as reference
from headrace.wire import columns
from tests.support.examples import examples

pytestmark = pytest.mark.both_kernels

compiled: Any = None
with contextlib.suppress(ImportError):
    compiled = importlib.import_module("headrace.wire._kernel")

both = pytest.mark.skipif(compiled is None, reason="the kernel is not compiled here")


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_the_kernel_is_compiled_where_there_is_a_compiler():
    if not (shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("no C compiler on this machine")
    assert compiled is not None
    assert compiled.crc32c(b"123456789") == 0xE3069283


@both
@pytest.mark.parametrize("name", ["python", "compiled"])
def test_the_environment_forces_a_kernel(name):
    done = run_python("from headrace.wire.kernel import KERNEL_NAME; print(KERNEL_NAME)", HEADRACE_KERNEL=name)
    assert (done.stdout.strip(), done.stderr) == (name, "")


def test_an_invalid_kernel_name_is_an_error_with_the_valid_ones():
    done = run_python("import headrace.wire.kernel", HEADRACE_KERNEL="fast")
    assert "invalid HEADRACE_KERNEL 'fast': expected 'python' or 'compiled', or leave it unset" in done.stderr


def test_a_missing_compiled_kernel_is_logged_once_and_the_reference_used(tmp_path: Path):
    blocker = "import sys; sys.modules['headrace.wire._kernel'] = None\n"
    done = run_python(blocker + "from headrace.wire.kernel import KERNEL_NAME; print(KERNEL_NAME)", HEADRACE_KERNEL="")
    assert done.stdout.strip() == "python"
    assert done.stderr.count("using the Python reference") == 1
    forced = run_python(blocker + "import headrace.wire.kernel", HEADRACE_KERNEL="compiled")
    assert "the compiled kernel is not installed" in forced.stderr


def test_the_reference_needs_no_checksum_library():
    code = (
        "import sys; sys.modules['google_crc32c'] = None\n"
        "from headrace.wire._reference import crc32c\n"
        "print(hex(crc32c(b'123456789')), crc32c(b'789', crc32c(b'123456')))"
    )
    assert run_python(code).stdout.split() == ["0xe3069283", str(0xE3069283)]


@pytest.mark.parametrize(
    "kernel", [pytest.param(compiled, marks=both, id="compiled"), pytest.param(reference, id="python")]
)
def test_checksums_have_their_known_values(kernel):
    assert kernel.crc32c(b"123456789") == 0xE3069283
    assert kernel.crc32c(b"") == 0
    assert kernel.crc32c(bytes(32)) == 0x8A9136AA
    # From Kafka's tests.
    assert kernel.murmur2(b"21") == -973932308
    assert kernel.murmur2(b"foobar") == -790332482
    assert kernel.murmur2(b"a-little-bit-long-string") == -985981536
    assert kernel.murmur2(b"a-little-bit-longer-string") == -1486304829
    assert kernel.murmur2(b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8") == -58897971
    assert kernel.murmur2(b"abc") == 479470107


@both
@settings(deadline=None)
@given(st.binary(max_size=4000), st.integers(0, 2**32 - 1))
def test_checksums_are_equal_at_every_length(data, start):
    assert compiled.crc32c(data, start) == reference.crc32c(data, start)
    assert compiled.murmur2(data) == reference.murmur2(data)


cells = st.none() | st.binary(max_size=60)
header_lists = st.lists(st.tuples(st.text(max_size=8), cells), max_size=3)
rows = st.lists(st.tuples(st.integers(-(2**40), 2**40), cells, cells, header_lists), max_size=20)


@both
@settings(deadline=None)
@given(rows, st.integers(61, 3000))
def test_open_batches_hold_the_same_bytes(drawn, room):
    batches = [kernel.OpenBatch(bytearray(room)) for kernel in (compiled, reference)]
    for row in drawn:
        first, second = [batch.append(*row) for batch in batches]
        assert first == second
    for kernel, batch in zip((compiled, reference), batches, strict=True):
        kernel.write_header(
            batch.buffer,
            batch.size,
            base_offset=7,
            leader_epoch=3,
            attributes=0x10,
            base_timestamp=batch.base_timestamp,
            max_timestamp=batch.max_timestamp,
            producer_id=9,
            producer_epoch=2,
            base_sequence=5,
            record_count=batch.record_count,
        )
    assert batches[0].buffer == batches[1].buffer
    assert batches[0].size == batches[1].size


@both
@settings(deadline=None)
@given(rows, st.integers(150, 1500), st.booleans(), st.booleans(), st.integers(1, 4))
def test_encoded_columns_hold_the_same_bytes(drawn, batch_bytes_max, with_headers, with_times, partition_rows):
    keys = columns.bytes_column(pa.array([row[1] for row in drawn], pa.binary()), "key")
    values = columns.bytes_column(pa.array([row[2] for row in drawn], pa.large_binary()), "value")
    headers = None
    if with_headers:
        lists = [[{"key": k, "value": v} for k, v in row[3]] for row in drawn]
        headers = columns.headers_column(pa.array(lists, columns.HEADERS_TYPE))
    times: bytes | int = 1234
    if with_times:
        times = b"".join(row[0].to_bytes(8, sys.byteorder, signed=True) for row in drawn)
    partitions = b"".join((index % 3).to_bytes(4, sys.byteorder) for index in range(-(-len(drawn) // partition_rows)))
    results = [
        sorted(
            kernel.encode_columns(
                keys,
                values,
                headers,
                times,
                partitions,
                partition_rows=partition_rows,
                row_count=len(drawn),
                partition_count=3,
                batch_bytes_max=batch_bytes_max,
                spare=[],
            )
        )
        for kernel in (compiled, reference)
    ]
    assert compiled.largest_row(keys, values, len(drawn)) == reference.largest_row(keys, values, len(drawn))
    assert compiled.largest_row(None, values, len(drawn)) == reference.largest_row(None, values, len(drawn))
    # The first 61 bytes are space for the header, with undefined content.
    encoded = [[(b[0], bytes(b[1][61:]), *b[2:]) for b in result] for result in results]
    assert sorted(encoded[0]) == sorted(encoded[1])


@both
@settings(deadline=None, max_examples=examples(300))
@given(rows, st.data())
def test_both_decoders_accept_and_reject_the_same_bytes(drawn, data):
    batch = reference.OpenBatch(bytearray(61 + 400 * (len(drawn) + 1)))
    for row in drawn:
        batch.append(*row)
    payload = bytearray(batch.buffer[61 : batch.size])
    if payload and data.draw(st.booleans()):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    for with_headers in (False, True):
        assert outcome(columns_of, compiled, payload, batch.record_count, with_headers) == outcome(
            columns_of, reference, payload, batch.record_count, with_headers
        )
    assert outcome(records_of, compiled, payload, batch.record_count) == outcome(
        records_of, reference, payload, batch.record_count
    )


@both
@settings(deadline=None, max_examples=examples(500))
@given(st.binary(max_size=6) | st.text(max_size=3).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_the_utf8_check_equals_pythons(key):
    payload = reference.records.encode_record(0, 0, None, None, [("#" * len(key), None)]).replace(b"#" * len(key), key)
    assert outcome(columns_of, compiled, payload, 1, True) == outcome(columns_of, reference, payload, 1, True)


def records_of(kernel, payload, count):
    return kernel.decode_records(payload, count, 10, 20, -1)


def columns_of(kernel, payload, count, with_headers):
    decoder = kernel.ColumnDecoder(with_headers)
    decoder.add(payload, count, base_offset=10, base_timestamp=20, append_time=-1, first_offset=12, end_offset=1 << 62)
    return plain(decoder.finish())


def plain(value):
    if isinstance(value, tuple):
        return tuple(plain(part) for part in value)
    return None if value is None else pa.py_buffer(value).to_pybytes()


def outcome(function, *arguments):
    try:
        return function(*arguments)
    except WireError as error:
        return type(error)
