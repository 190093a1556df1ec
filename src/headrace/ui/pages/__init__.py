"""The pages, one module each; `build(view)` registers its routes."""

from __future__ import annotations

from headrace.ui.pages import (
    access,
    clients,
    consumers,
    faults,
    groups,
    messages,
    overview,
    pipelines,
    producers,
    schema,
    topic,
    topics,
    transactions,
)

PAGES = (
    overview,
    topics,
    topic,
    messages,
    schema,
    producers,
    consumers,
    clients,
    transactions,
    groups,
    pipelines,
    access,
    faults,
)
