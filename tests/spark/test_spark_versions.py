"""Sink and source on the oldest supported Spark, and on the versions up to the installed one."""

from __future__ import annotations

import pytest

from tests.support.peers import fetched, spark_version
from tests.support.topics import new_topic

OLDEST, OLDEST_WITH_STREAMS = "4.0.0", "4.1.0"
BETWEEN = ("4.2.0",)


def seconds_max(version: str) -> int:
    """The first run on a machine downloads."""
    downloads = 0 if spark_version.is_installed(version) else 3 * fetched.DOWNLOAD_SECONDS_MAX
    return spark_version.SMOKE_SECONDS_MAX + downloads


def smoke(version, broker, folder):
    topics = [new_topic(broker, name, 2) for name in ("inline", "parallel", "streamed", "copied")]
    result = spark_version.smoke(version, {"bootstrap": broker.bootstrap, "topics": topics, "folder": str(folder)})
    assert (result["version"], result["inline"], result["parallel"]) == (version, True, True)
    return result


@pytest.mark.timeout(seconds_max(OLDEST))
@pytest.mark.behaviour("S01")
def test_the_oldest_spark_handles_batches_and_names_the_version_for_streams(headrace_broker, tmp_path):
    result = smoke(OLDEST, headrace_broker, tmp_path)
    assert "writing streams needs Spark 4.1 or later" in result["stream error"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "version",
    [
        pytest.param(release, marks=pytest.mark.timeout(seconds_max(release)))
        for release in (OLDEST_WITH_STREAMS, *BETWEEN)
    ],
)
def test_batches_and_streams_on_other_versions(headrace_broker, tmp_path, version):
    result = smoke(version, headrace_broker, tmp_path)
    assert result["stream error"] == ""
    assert (result["streamed"], result["copied"]) == (True, True)
