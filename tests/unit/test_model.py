"""The model of the commit protocol: configurations and mutations fit the specification. `make model` checks it."""

from __future__ import annotations

import re

import pytest

from tools import model
from tools.tlc import MODEL

FACTS = 5


def test_every_mutation_applies_to_the_specification() -> None:
    titles = [check.title for check in model.checks()]
    assert sum(title.startswith("mutation: ") for title in titles) >= 40
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("fact", range(1, FACTS + 1))
def test_each_fact_about_kafka_is_taken_away_by_a_mutation(fact: int) -> None:
    assert any(check.title.startswith(f"mutation: Fact {fact}: ") for check in model.checks())


def test_every_step_that_the_model_marks_has_to_be_reached() -> None:
    specification = (MODEL / model.SPECIFICATION).read_text()
    assert set(re.findall(r'Mark\("([^"]+)"\)', specification)) == model.steps()


def test_a_mutation_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(model.ModelError, match="occur 0 times, expected once"):
        model.mutated("title", "A == 1\n", "-B == 1\n+B == 2\n")
