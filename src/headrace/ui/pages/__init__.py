"""The pages, one module each; `build(view)` registers its routes."""

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
