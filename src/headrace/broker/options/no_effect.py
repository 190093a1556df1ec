"""Broker options of Kafka that are accepted but have no effect, each with the reason: loaded from no_effect.txt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

from headrace.config import Kind, Option

_NOT_SET = "-"


def _load(text: str) -> Iterator[Option]:
    reason = ""
    for line in text.splitlines():
        if line.startswith("["):
            reason = line.strip("[]")
        elif line and not line.startswith("#"):
            name, kind, default, doc = line.split(" | ")
            option = Option(name, cast(Kind, kind), None, doc, None, "low", reason)
            yield option if default == _NOT_SET else replace(option, default=option.parse(default))


NO_EFFECT = tuple(_load(Path(__file__).with_name("no_effect.txt").read_text("utf-8")))
