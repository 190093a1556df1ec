"""Whether a broker still takes message sets, asked before the first of them is sent.

Kafka 4.0 has removed the requests that carry them (KIP-724, KIP-896). To such a request it gives no answer but the end
of the connection, and with acks=0 everything would be lost in silence. Brokers before 0.10 know no ApiVersions and hang
up when asked: that is an answer, too.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.client.addresses import Endpoint
from headrace.errors import UnsupportedVersionError
from headrace.wire.api.fetch import FetchRequest
from headrace.wire.api.produce import ProduceRequest

FETCH_OF_MESSAGE_SETS_LAST = 3


def check_takes_message_sets(endpoint: Endpoint, ranges: Mapping[int, tuple[int, int]], produce_version: int) -> None:
    """An error that says why and what to do, if the version ranges of a broker have no place for message sets."""
    produce_first, _ = ranges.get(ProduceRequest.api_key, (0, 0))
    fetch_first, _ = ranges.get(FetchRequest.api_key, (0, 0))
    # Of Produce, Kafka 4 still claims versions it has not, because librdkafka looks there for codecs (KAFKA-18659).
    if produce_first > produce_version or fetch_first > FETCH_OF_MESSAGE_SETS_LAST:
        raise UnsupportedVersionError(
            f"broker {endpoint} takes no message sets: Kafka 4.0 has removed the formats of before 0.11 "
            "(magic 0 and 1, Produce v0 to v2; KIP-724, KIP-896), and the 0.8 producer knows no others. "
            "Use headrace.Producer with this broker, or the 0.8 producer with a broker of 3.9 or older"
        )
