"""Tables of options for the docs, from the declarations, when the pages are built.

    <!-- options: producer -->  in a page  →  a table of all options, and a list of those that change nothing here

    <!-- settings: spark -->    likewise          →  the settings of Spark that headrace recommends

mkdocs.yml names this module as a hook. `python tools/option_tables.py NAME` prints a table.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from headrace.config import Option

_MARK = re.compile(r"^<!-- options: (?P<name>[\w-]+) -->$", re.MULTILINE)
_SETTINGS_MARK = "<!-- settings: spark -->"
_IMPORTANCE = {"high": 0, "medium": 1, "low": 2}


def _producer() -> Mapping[str, Option]:
    from headrace.producer.options import PRODUCER_OPTIONS

    return PRODUCER_OPTIONS


def _consumer() -> Mapping[str, Option]:
    from headrace.consumer.options import CONSUMER_OPTIONS

    return CONSUMER_OPTIONS


def _spark_sink() -> Mapping[str, Option]:
    from headrace.spark.sink_options import SINK_OPTIONS

    # Spark does not tell upper from lower case; people write it as Spark's docs do. Failpoints are for our own tests.
    names = {"includeheaders": "includeHeaders"}
    return {names.get(name, name): one for name, one in SINK_OPTIONS.items() if name != "headrace.failpoints"}


def _spark_source() -> Mapping[str, Option]:
    from headrace.spark.source_options import SOURCE_OPTIONS

    return SOURCE_OPTIONS


def _spark_source_kafka() -> Mapping[str, Option]:
    from headrace.producer.options import PRODUCER_OPTIONS
    from headrace.spark.consumer_options import CONSUMER_OPTIONS
    from headrace.spark.kafka_options import PREFIX

    # Those of security and connections are the producer's, and are in its table.
    return {PREFIX + name: one for name, one in CONSUMER_OPTIONS.items() if PRODUCER_OPTIONS.get(name) is not one}


def _schema_registry() -> Mapping[str, Option]:
    from headrace.config.registry_options import REGISTRY_OPTIONS

    return REGISTRY_OPTIONS


def _serde() -> Mapping[str, Option]:
    from headrace.config.serde_options import SERDE_OPTIONS

    return SERDE_OPTIONS


def _broker() -> Mapping[str, Option]:
    from headrace.broker.broker_options import BROKER_OPTIONS

    return BROKER_OPTIONS


def _topic() -> Mapping[str, Option]:
    from headrace.broker.topic_options import TOPIC_OPTIONS

    return TOPIC_OPTIONS


SETS: dict[str, Callable[[], Mapping[str, Option]]] = {
    "producer": _producer,
    "consumer": _consumer,
    "spark-sink": _spark_sink,
    "spark-source": _spark_source,
    "spark-source-kafka": _spark_source_kafka,
    "schema-registry": _schema_registry,
    "serde": _serde,
    "broker": _broker,
    "topic": _topic,
}


def table(name: str) -> str:
    """Return the options of a set as Markdown, important ones first."""
    options = sorted(SETS[name]().items(), key=lambda pair: _IMPORTANCE[pair[1].importance])
    rows = [_row(shown, option) for shown, option in options if not option.no_effect]
    lines = ["| option | default | allowed | what it does |", "|---|---|---|---|", *rows]
    idle = sorted((option.no_effect, shown) for shown, option in options if option.no_effect)
    if idle:
        reasons = sorted({reason for reason, _ in idle})
        lines += ["", "Accepted without effect; setting one logs a warning:", ""]
        for reason in reasons:
            names = ", ".join(f"`{shown}`" for why, shown in idle if why == reason)
            lines.append(f"- {names}: {reason}.")
    return "\n".join(lines)


def settings_table() -> str:
    """The settings of Spark that `configure` and `session` make."""
    from headrace.spark.session_settings import RECOMMENDED

    rows = [
        f"| `{setting.name}` | `{setting.value}` | {'.'.join(map(str, setting.since))} | {_cell(setting.reason)} |"
        for setting in RECOMMENDED
    ]
    return "\n".join(["| setting | value | since Spark | why |", "|---|---|---|---|", *rows])


def _row(shown: str, option: Option) -> str:
    default = option.show(option.default)
    cells = (f"`{shown}`", f"`{default}`" if default else "", _cell(option.allowed), _cell(option.doc))
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    """Escape a text for a table: Markdown and HTML, except code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else _plain(part) for part in parts).replace("|", "\\|")


def _plain(text: str) -> str:
    return re.sub(r"([*_\[\]])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))


def on_page_markdown(markdown: str, **_: Any) -> str:
    """mkdocs calls this for every page."""
    markdown = markdown.replace(_SETTINGS_MARK, settings_table())
    return _MARK.sub(lambda match: table(match["name"]), markdown)


if __name__ == "__main__":
    print(table(sys.argv[1]))
