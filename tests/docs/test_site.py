"""The built site: without warnings, with every option, and without external resources."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html import unescape

import pytest

from headrace.broker.broker_options import BROKER_OPTIONS
from headrace.broker.topic_options import TOPIC_OPTIONS
from headrace.config.registry_options import REGISTRY_OPTIONS
from headrace.config.serde_options import SERDE_OPTIONS
from headrace.consumer.options import CONSUMER_OPTIONS
from headrace.producer.options import PRODUCER_OPTIONS
from tests.support.doc_pages import PROJECT

BUILD_SECONDS_MAX = 120
ELSEWHERE = r"""=["']?(?:https?:)?//"""
LOADED = (
    re.compile(rf"<(?:script|img|iframe|source)\b[^>]*\bsrc{ELSEWHERE}"),
    re.compile(rf"<link\b[^>]*rel=.?(?:stylesheet|preconnect|icon)[^>]*href{ELSEWHERE}"),
    re.compile(rf"<link\b[^>]*href{ELSEWHERE}[^>]*rel=.?(?:stylesheet|preconnect|icon)"),
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=PROJECT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS_MAX,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.search("^WARNING", done.stderr, re.MULTILINE)
    return folder


@pytest.mark.timeout(2 * BUILD_SECONDS_MAX)
def test_every_option_is_in_its_page(site):
    for page, options in {
        "producer.html": PRODUCER_OPTIONS,
        "consumer.html": CONSUMER_OPTIONS,
        "schemas.html": {**REGISTRY_OPTIONS, **SERDE_OPTIONS},
        "broker-options.html": {**BROKER_OPTIONS, **TOPIC_OPTIONS},
    }.items():
        text = unescape((site / page).read_text())
        missing = [name for name in options if f"<code>{name}</code>" not in text]
        assert not missing


def test_options_of_spark_are_in_its_page(site):
    from headrace.spark.consumer_options import CONSUMER_OPTIONS
    from headrace.spark.session_settings import RECOMMENDED
    from headrace.spark.sink_options import SINK_OPTIONS
    from headrace.spark.source_options import SOURCE_OPTIONS

    text = unescape((site / "spark.html").read_text()).lower()
    names = [*SINK_OPTIONS, *SOURCE_OPTIONS, *(f"kafka.{name}" for name in CONSUMER_OPTIONS)]
    names += [setting.name for setting in RECOMMENDED]
    ours = {f"kafka.{name}" for name in PRODUCER_OPTIONS} | {"headrace.failpoints"}
    missing = [name for name in names if name not in ours and f"<code>{name.lower()}</code>" not in text]
    assert not missing


def test_pages_load_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        loaded = [match.group() for pattern in LOADED for match in pattern.finditer(page.read_text())]
        assert not loaded, page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//|@import[^;]*//", sheet.read_text()), sheet.name
