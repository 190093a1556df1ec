"""Limits on decompression, and the event loop's share of it."""

from __future__ import annotations

import sys

import pytest

from headrace.broker.log import decompression
from headrace.broker.log.decompression import Decompression, DecompressionLimits, OffLoopError
from headrace.errors import BrokerError, Code
from headrace.wire import message_sets
from headrace.wire.compression import CODEC_IDS, CODEC_NAMES
from headrace.wire.layout import Record
from headrace.wire.records import RecordBatch, encode, read_batches
from tests.support.log_rig import LogRig, batch

KIB = 1024
CODECS = [codec for codec in CODEC_IDS.values() if codec]


@pytest.fixture
def rig(tmp_path):
    return LogRig(tmp_path / "logs")


def compressed(size: int, codec: int = CODEC_IDS["zstd"]) -> RecordBatch:
    """Return a batch whose records have a little more than `size` bytes."""
    (compressed,) = read_batches(bytes(encode([Record(0, 1, None, bytes(size), ())], codec=codec)))
    return compressed


def refusal(work: Decompression, opened: RecordBatch) -> str:
    with pytest.raises(BrokerError) as caught:
        work.payload(opened)
    assert caught.value.code == Code.MESSAGE_TOO_LARGE
    return str(caught.value)


@pytest.mark.parametrize("codec", CODECS, ids=[CODEC_NAMES[codec] for codec in CODECS])
def test_a_batch_beyond_its_limit_is_refused_as_too_large(codec):
    work = Decompression(DecompressionLimits(batch_bytes_max=100 * KIB))
    assert len(work.payload(compressed(99 * KIB, codec))) > 99 * KIB
    assert "message.max.decompressed.bytes" in refusal(work, compressed(100 * KIB, codec))


def test_the_request_limit_counts_all_batches_also_refused_ones():
    work = Decompression(DecompressionLimits(batch_bytes_max=100 * KIB, request_bytes_max=250 * KIB))
    work.payload(compressed(90 * KIB))
    refusal(work, compressed(200 * KIB))
    work.payload(compressed(50 * KIB))
    assert "request.max.decompressed.bytes is 256000" in refusal(work, compressed(50 * KIB))


def test_the_ratio_limit_applies_from_a_size_on(monkeypatch):
    monkeypatch.setattr(decompression, "RATIO_FREE_BYTES", 200 * KIB)
    work = Decompression(DecompressionLimits(ratio_max=100))
    work.payload(compressed(190 * KIB))  # a few hundred bytes
    assert "message.max.compression.ratio is 100" in refusal(work, compressed(201 * KIB))


def test_the_event_loop_decompresses_small_batches_only(monkeypatch):
    monkeypatch.setattr(decompression, "LOOP_BYTES_MAX", 100 * KIB)
    work = Decompression(DecompressionLimits(), on_loop=True)
    work.payload(compressed(60 * KIB))
    with pytest.raises(OffLoopError):
        work.payload(compressed(60 * KIB))
    work.begin()
    work.payload(compressed(60 * KIB))


def test_the_event_loop_checks_uncompressed_batches_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(decompression, "LOOP_BYTES_MAX", 100 * KIB)
    work = Decompression(DecompressionLimits(), on_loop=True)
    work.payload(compressed(900 * KIB, codec=0))
    with pytest.raises(OffLoopError):
        work.payload(compressed(1, codec=0))


def test_the_event_loop_does_not_import_the_codecs(monkeypatch):
    data = compressed(10)
    monkeypatch.delitem(sys.modules, "pyarrow")
    with pytest.raises(OffLoopError):
        Decompression(DecompressionLimits(), on_loop=True).payload(data)


def test_conversions_need_a_thread(rig):
    recompressing = rig.log(compression_type="gzip")
    old = message_sets.encode([Record(0, 1, None, b"v", ())], magic=1, codec=0)
    for log, data, magic in ((recompressing, batch(b"v"), 2), (rig.log("old"), old, 1)):
        work = Decompression(DecompressionLimits(), on_loop=True)
        with pytest.raises(OffLoopError):
            log.prepare(data, magic_allowed=magic, decompression=work)
        assert log.append(log.prepare(data, magic_allowed=magic)).first_offset == 0


def test_a_message_set_beyond_the_limit_is_refused(rig):
    data = message_sets.encode([Record(0, 1, None, bytes(50_000), ())], magic=1, codec=CODEC_IDS["gzip"])
    with pytest.raises(BrokerError, match="expected at most 10000 bytes"):
        rig.log().prepare(
            data, magic_allowed=1, decompression=Decompression(DecompressionLimits(batch_bytes_max=10_000))
        )
