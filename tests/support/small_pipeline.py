"""A minimal pipeline: numbers in JSON files, one file for each batch, to a topic."""

from __future__ import annotations

import json
from pathlib import Path

_TEXT = """
[source]
format = "json"
path = "{folder}/in"
schema = "id BIGINT"
options.maxFilesPerTrigger = 1

[[steps]]
name = "records"
sql = "SELECT CAST(id AS STRING) AS value FROM source"

[sink]
format = "headrace"
checkpoint = "{folder}/checkpoint"

[sink.options]
kafka.bootstrap.servers = "{bootstrap}"
topic = "{topic}"
"""


def small_pipeline(folder: Path, bootstrap: str, topic: str) -> str:
    """Return the pipeline as TOML."""
    return _TEXT.format(folder=folder, bootstrap=bootstrap, topic=topic)


def add_files(folder: Path, files: int, rows: int) -> None:
    """Write files with the numbers from 0 on, `rows` in each."""
    (folder / "in").mkdir()
    for number in range(files):
        lines = (json.dumps({"id": number * rows + row}) for row in range(rows))
        (folder / "in" / f"{number}.json").write_text("\n".join(lines))
