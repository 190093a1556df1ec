"""The tool that runs other projects' suites: their outputs are read, expectations compared, and the page agrees."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.suites import franz_go, librdkafka, results
from tests.suites.__main__ import SUITES
from tests.suites.results import Expectation
from tests.suites.suite import read_junit

PAGE = Path(__file__).parents[2] / "docs" / "broker.md"

GO = """\
=== RUN   TestOne
=== RUN   TestOne/part
--- PASS: TestOne (0.10s)
    --- PASS: TestOne/part (0.10s)
=== RUN   TestTwo
--- FAIL: TestTwo (0.00s)
=== RUN   TestThree
--- SKIP: TestThree (0.00s)
=== RUN   TestFour
panic: test timed out
"""
C_REPORT = """\
{ "tests": {"<MAIN>": {"name": "<MAIN>", "state": "PASSED", "extra": ""}
, "0001_multiobj": {"name": "0001_multiobj", "state": "PASSED", "extra": "with "quotes"" }
, "0002_unkpart": {"name": "0002_unkpart", "state": "FAILED", "extra": "" }
, "0003_msgmaxsize": {"name": "0003_msgmaxsize", "state": "SKIPPED", "extra": "" }
, "0004_conf": {"name": "0004_conf", "state": "RUNNING", "extra": "" }}}
"""
JUNIT = """\
<testsuites><testsuite>
<testcase classname="a" name="test_good" file="a.py"/>
<testcase classname="a" name="test_bad" file="a.py"><failure/></testcase>
<testcase classname="a" name="test_later" file="a.py"><skipped/></testcase>
<testcase classname="a" name="test_end" file="a.py"/>
<testcase classname="a" name="test_end" file="a.py"><error/></testcase>
</testsuite></testsuites>
"""


def test_outcomes_of_go_tests_are_read():
    assert franz_go.parse(GO) == {
        "TestOne": "passed",
        "TestTwo": "failed",
        "TestThree": "skipped",
        "TestFour": "failed",
    }


def test_outcomes_of_librdkafkas_runner_are_read():
    assert librdkafka.parse(C_REPORT) == {
        "0001_multiobj": "passed",
        "0002_unkpart": "failed",
        "0003_msgmaxsize": "skipped",
        "0004_conf": "failed",
    }


def test_outcomes_of_pytest_are_read(tmp_path):
    path = tmp_path / "results.xml"
    path.write_text(JUNIT)
    assert read_junit(path) == {
        "a.py::test_good": "passed",
        "a.py::test_bad": "failed",
        "a.py::test_later": "skipped",
        "a.py::test_end": "failed",
    }


def test_expectations_are_written_and_read_again(tmp_path):
    expectations = {
        "b": Expectation({"apache": "passed", "headrace": "failed", "cluster": "passed"}, "a reason"),
        "a": Expectation({"apache": "passed", "headrace": "passed", "cluster": "passed"}),
        "nowhere": Expectation({"apache": "skipped", "headrace": "skipped", "cluster": "skipped"}),
    }
    results.save("suite", "1.0", expectations, tmp_path)
    read = results.load("suite", tmp_path)
    assert list(read) == ["a", "b"]
    assert read["b"] == expectations["b"]
    assert [name for name, expectation in read.items() if expectation.differs] == ["b"]
    assert results.table(["suite"], tmp_path).splitlines()[-1] == "| suite | 2 | 2 | 1 | 2 |"


def test_unexpected_outcomes_are_named():
    expected = {
        name: Expectation({"apache": "passed", "headrace": "passed", "cluster": "failed"}) for name in ("a", "b")
    }
    lines = results.differences(expected, "headrace", {"a": "passed", "new": "failed", "other": "skipped"})
    assert lines == ["b: expected passed, skipped", "new: expected skipped, failed"]


@pytest.mark.parametrize("suite", SUITES)
def test_every_difference_to_apache_kafka_has_a_reason(suite):
    expectations = results.load(suite)
    assert expectations
    assert [name for name, expectation in expectations.items() if expectation.differs and not expectation.reason] == []


def test_the_page_has_the_counts_of_the_expected_outcomes():
    assert results.table(SUITES) in PAGE.read_text()
