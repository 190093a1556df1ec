"""The pages: a module each, with a `build(view)` that registers its addresses."""

from __future__ import annotations

from headrace.ui.pages import (
    faults,
    groups,
    messages,
    overview,
    pipelines,
    producers,
    topic,
    topics,
    transactions,
)

PAGES = (overview, topics, topic, messages, producers, transactions, groups, pipelines, faults)
