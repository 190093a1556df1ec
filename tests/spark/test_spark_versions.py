"""Sink and source on every combination of the support matrix."""

from __future__ import annotations

import pytest

from tests.support.peers import fetched, spark_version
from tests.support.support_matrix import COMBINATIONS, OLDEST, Combination
from tests.support.topics import new_topic


def seconds_max(combination: Combination) -> int:
    """The first run on a machine downloads."""
    downloads = 0 if spark_version.is_installed(combination) else 3 * fetched.DOWNLOAD_SECONDS_MAX
    return spark_version.SMOKE_SECONDS_MAX + downloads


def parameter(combination: Combination):
    marks = [pytest.mark.timeout(seconds_max(combination))]
    if combination != OLDEST:
        marks.append(pytest.mark.slow)
    return pytest.param(combination, marks=marks, id="-".join(combination))


@pytest.mark.behaviour("S01")
@pytest.mark.parametrize("combination", [parameter(combination) for combination in COMBINATIONS])
def test_batches_and_streams_on_a_combination_of_versions(request, tmp_path, combination):
    """On the oldest Spark: batches, and the error that names the version for streams."""
    broker = request.getfixturevalue({"4.3.0": "kafka", "3.9.1": "kafka39"}[combination.kafka])
    topics = [new_topic(broker, name, 2) for name in ("inline", "parallel", "streamed", "copied")]
    job = {"bootstrap": broker.bootstrap, "topics": topics, "folder": str(tmp_path)}
    result = spark_version.smoke(combination, job)
    assert (result["version"], result["python"]) == (combination.spark, combination.python)
    assert (result["inline"], result["parallel"], result["read stream"]) == (True, True, True)
    if combination.has_streams:
        assert result["stream error"] == ""
        assert (result["streamed"], result["copied"]) == (True, True)
    else:
        assert f"writing streams needs Spark 4.1 or newer, and this is {combination.spark}" in result["stream error"]
