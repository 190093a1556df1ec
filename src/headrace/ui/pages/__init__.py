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
    requests,
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
    requests,
    faults,
)
