"""The files of a log as Apache Kafka's DumpLogSegments reads them."""

from __future__ import annotations

import asyncio
import re
import subprocess

import pytest

from headrace.wire.compression import CODEC_IDS
from headrace.wire.records import BatchProducer
from tests.support.fake_internal import START_MS
from tests.support.log_rig import LogRig, rows_of
from tests.support.peers.java import JAVA_SECONDS_MAX, SHORT_LIVED, java_command

DUMP = "org.apache.kafka.tools.DumpLogSegments"
COMPLAINTS = re.compile("mismatch|out of order|non-consecutive|exception", re.IGNORECASE)
DENSE = {"index_interval_bytes": "200"}
COMPACT = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.0", "internal_segment_bytes": "3000", **DENSE}


@pytest.fixture(scope="module")
def dump(kafka_jars):
    """Return a function that runs DumpLogSegments on files and returns its output."""

    def dumped(paths, *options: str) -> str:
        files = ",".join(str(path) for path in sorted(paths))
        command = java_command(kafka_jars("4.3.0"), DUMP, *options, "--files", files, options=SHORT_LIVED)
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # mismatches are printed there
            encoding="utf-8",
            timeout=JAVA_SECONDS_MAX,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    return dumped


def fill(rig: LogRig, log) -> None:
    for n in range(40):
        codec = list(CODEC_IDS.values())[n % len(CODEC_IDS)]
        time_ms = START_MS + n * 1000
        rows = [(b"k%d" % (n % 5), b"value %d " % n * 5), (b"j", None)]
        rig.append(log, *rows, codec=codec, producer=BatchProducer(1, 0, 2 * n), time_ms=time_ms, step_ms=1)
        rig.append(
            log, (b"t%d" % (n % 3), b"t" * 30), producer=BatchProducer(2, 3, n, transactional=True), time_ms=time_ms
        )
        if n % 4 == 3:
            rig.mark(log, 2, 3, committed=n % 8 == 3, coordinator=n)


@pytest.fixture(scope="module", params=["plain", "append-time", "compacted"])
def stored(request, tmp_path_factory):
    """Write and close a log with all kinds of batches; return its rows and its folder."""
    rig = LogRig(tmp_path_factory.mktemp("files") / "logs")
    options = {
        "plain": {"internal_segment_bytes": "3000", **DENSE},
        "append-time": {"internal_segment_bytes": "3000", "message_timestamp_type": "LogAppendTime", **DENSE},
        "compacted": COMPACT,
    }[request.param]
    log = rig.log(**options)
    fill(rig, log)
    if request.param == "compacted":
        log.roll()
        asyncio.run(rig.manager.compact())
        rig.append(log, (b"last", b"one"))
    rows = rows_of(log)
    aborted = log.aborted.entries(0, 2**62)
    asyncio.run(rig.manager.stop())
    return rows, aborted, log


def test_kafka_reads_our_segments(stored, dump):
    rows, _, log = stored
    output = dump(log.directory.glob("*.log"), "--deep-iteration", "--print-data-log")
    assert "isvalid: false" not in output
    assert "invalid" not in output.lower().replace("isvalid", "")
    matches = [
        (int(offset), int(time), key, payload)
        for offset, time, key, payload in re.findall(
            r"\| offset: (\d+) CreateTime: (\d+).*? sequence: .*?headerKeys: \[\](?: key: (\S+))?(?: payload: (.*))?$",
            output.replace("LogAppendTime", "CreateTime"),
            re.MULTILINE,
        )
    ]
    keyed = [row for row in matches if row[2]]
    assert keyed == [
        (row.offset, row.timestamp, (row.key or b"").decode(), (row.value or b"").decode()) for row in rows
    ]
    markers = re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: (\d+)", output)
    if "compact" not in log.directory.name and not log.config.compact:
        assert markers == [("COMMIT" if n % 8 == 3 else "ABORT", str(n)) for n in range(3, 40, 4)]


def test_kafka_accepts_our_indexes(stored, dump):
    _, _, log = stored
    indexes = [*log.directory.glob("*.index"), *log.directory.glob("*.timeindex")]
    output = dump(indexes, "--deep-iteration")
    assert len(re.findall(r"^Dumping ", output, re.MULTILINE)) == len(indexes)
    assert not COMPLAINTS.search(output), output


def test_kafka_reports_a_wrong_index(dump, tmp_path):
    rig = LogRig(tmp_path / "logs")
    log = rig.log(index_interval_bytes="200")
    fill(rig, log)
    asyncio.run(rig.manager.stop())
    for suffix, position in ((".index", 3), (".timeindex", 6)):
        (path,) = log.directory.glob(f"*{suffix}")
        data = bytearray(path.read_bytes())
        data[position] += 1
        path.write_bytes(data)
        assert COMPLAINTS.search(dump([path], "--deep-iteration"))


def test_kafka_reads_our_aborted_transactions_and_producers(stored, dump):
    _, aborted, log = stored
    files = list(log.directory.glob("*.txnindex"))
    if files:
        output = dump(files)
        matches = re.findall(r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)", output)
        assert [tuple(map(int, row)) for row in matches] == aborted
    else:
        assert aborted == []
    newest = max(log.directory.glob("*.snapshot"))
    output = dump([newest])
    matches = re.findall(
        r"producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+) currentTxnFirstOffset: (\S+) "
        r".*?lastSequence: (-?\d+)|firstSequence: (-?\d+) lastSequence: (-?\d+)",
        output,
    )
    assert len(matches) == 2, output
