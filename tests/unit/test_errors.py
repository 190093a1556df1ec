"""The error tree: classes by error code, categories, pickling, and the tree that the docstring draws."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

import headrace
from headrace import errors
from headrace.errors import BrokerError, Code

CLASSES = {
    name: cls
    for name, cls in vars(errors).items()
    if inspect.isclass(cls) and issubclass(cls, errors.HeadraceError) and cls.__module__ == errors.__name__
}
CODES = {code: type(BrokerError("why", code=code)) for code in Code}


@pytest.mark.behaviour("P49")
@pytest.mark.parametrize(
    ("code", "name", "category"),
    [
        (Code.PRODUCER_FENCED, "ProducerFencedError", errors.FatalError),
        (Code.INVALID_PRODUCER_EPOCH, "InvalidProducerEpochError", errors.AbortableError),
        (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, "OutOfOrderSequenceError", errors.AbortableError),
        (Code.UNKNOWN_TOPIC_OR_PARTITION, "UnknownTopicOrPartitionError", errors.RetriableError),
        (Code.COORDINATOR_NOT_AVAILABLE, "RetriableBrokerError", errors.RetriableError),
        (Code.TOPIC_AUTHORIZATION_FAILED, "TopicAuthorizationError", errors.AuthorizationError),
        (Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "TransactionalIdAuthorizationError", errors.FatalError),
        (Code.UNKNOWN_SERVER_ERROR, "BrokerError", errors.HeadraceError),
    ],
)
def test_a_broker_error_has_the_class_of_its_code(code, name, category):
    error = BrokerError("why", code=code)
    assert type(error).__name__ == name
    assert isinstance(error, category)
    assert error.code == code
    text, _, remedy = str(error).partition("; not authorized: ")
    assert text == f"{code.name} ({code.value}): why"
    assert bool(remedy) == isinstance(error, errors.AuthorizationError)


def test_an_unknown_code_keeps_its_number():
    error = BrokerError(code=4711)
    assert type(error) is BrokerError
    assert str(error) == "ERROR_4711 (4711)"
    assert not error.retriable


@pytest.mark.parametrize("code", Code)
def test_retriable_codes_and_no_others_are_retriable_errors(code):
    error = BrokerError(code=code)
    assert isinstance(error, errors.RetriableError) == error.retriable == errors.ERROR_CODES[code].retriable


@pytest.mark.parametrize("code", Code)
def test_a_broker_error_survives_pickling(code):
    error = pickle.loads(pickle.dumps(BrokerError("why", code=code)))
    assert (type(error), error.code, error.args) == (CODES[code], code, ("why",))


def test_no_error_is_in_two_categories():
    categories = (errors.RetriableError, errors.AbortableError, errors.FatalError)
    for name, cls in CLASSES.items():
        assert sum(issubclass(cls, category) for category in categories) <= 1, name


@pytest.mark.behaviour("P49")
def test_the_tree_in_the_docstring_is_complete():
    drawn = set(re.findall(r"\b\w+Error\b", errors.__doc__ or "")) - {"TimeoutError"}
    assert drawn == set(CLASSES)


def test_all_errors_of_clients_are_public():
    internal = {"WireError", "MalformedError", "CorruptBatchError", "DecompressedSizeError", "NotFoundError"}
    assert set(CLASSES) - internal <= set(headrace.__all__)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (Code.TOPIC_AUTHORIZATION_FAILED, "allow Describe on the topic, and Write to send or Read to consume"),
        (Code.GROUP_AUTHORIZATION_FAILED, "allow Read on the group"),
        (Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "allow Describe and Write on the transactional id"),
        (Code.CLUSTER_AUTHORIZATION_FAILED, "IdempotentWrite to send"),
    ],
)
def test_authorization_errors_name_operation_and_resource(code, remedy):
    error = BrokerError("'orders'", code=code)
    assert f"({code:d}): 'orders'; not authorized: " in str(error)
    assert remedy in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_brokers_explanation_of_an_authorization_error_is_enough():
    text = "User:ann is not authorized to WRITE topic orders"
    error = BrokerError(text, code=Code.TOPIC_AUTHORIZATION_FAILED)
    assert str(error) == f"TOPIC_AUTHORIZATION_FAILED (29): {text}"
