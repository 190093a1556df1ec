"""CompressionRatio, and the size of compressed batches."""

from __future__ import annotations

import pytest

from headrace.producer.queues import ROOM_FACTOR_MAX, CompressionRatio
from headrace.wire.compression import GZIP
from tests.support.rig import Rig

pytestmark = pytest.mark.both_kernels


def test_worse_is_believed_at_once_and_better_slowly():
    ratio = CompressionRatio()
    ratio.observe(10, 100)
    assert ratio.estimate == pytest.approx(0.995)
    for _ in range(300):
        ratio.observe(10, 100)
    assert ratio.estimate == pytest.approx(0.1)
    ratio.observe(60, 100)
    assert ratio.estimate == pytest.approx(0.6)
    ratio.reset()
    assert ratio.estimate == 1.0


@pytest.mark.parametrize(
    ("estimate", "room"), [(1.0, 1000), (0.5, 1000), (0.47, 2000), (0.2, 4000), (0.1, 8000), (0.01, 8000)]
)
def test_room_grows_with_the_ratio_up_to_a_limit(estimate, room):
    ratio = CompressionRatio()
    ratio.estimate = estimate
    assert ratio.room_bytes(1000, 1 << 20) == room
    assert ratio.room_bytes(1000, 3000) == min(room, 3000)
    assert ratio.room_bytes(1000, 10) == 1000


@pytest.mark.behaviour("P28")
def test_batches_take_more_records_once_it_is_known_how_well_they_compress():
    rig = Rig(codec=GZIP, batch_bytes=2048)
    value = b"the same words again and again " * 4

    def records_of_a_full_batch() -> int:
        queues = rig.accumulator.topic("t", 2).queues[0].batches
        count = 0
        while len(queues) < 2:
            rig.send(value, 0)
            count += 1
        rig.run_until(lambda: not rig.accumulator.has_incomplete())
        return count

    first = records_of_a_full_batch()
    for _ in range(300):
        records_of_a_full_batch()
    learned = records_of_a_full_batch()
    assert 2 * first < learned <= ROOM_FACTOR_MAX * first + ROOM_FACTOR_MAX
