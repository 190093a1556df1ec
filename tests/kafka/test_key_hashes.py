"""Keys go to the partition that Java's producer would choose."""

import random
import struct

import pyarrow as pa
import pytest

from headrace.wire import columns
from headrace.wire.kernel import kernel

KEY_COUNT = 100_000
KEY_BYTES_MAX = 300
PARTITION_COUNT = 37


@pytest.mark.behaviour("P15")
def test_a_hundred_thousand_keys_hash_and_land_as_in_java(kafka_jars, java, java_sources, tmp_path):
    rng = random.Random(0x9747B28C)
    keys = [rng.randbytes(rng.randint(0, KEY_BYTES_MAX)) for _ in range(KEY_COUNT)]
    (tmp_path / "keys").write_bytes(b"".join(struct.pack(">i", len(key)) + key for key in keys))

    source = java_sources / "KeyHashes.java"
    java(kafka_jars("4.3.0"), source, tmp_path / "keys", tmp_path / "hashes", PARTITION_COUNT)

    responses = list(struct.iter_unpack(">ii", (tmp_path / "hashes").read_bytes()))
    assert len(responses) == KEY_COUNT
    assert [kernel.murmur2(key) for key in keys] == [hashed for hashed, _ in responses]
    partitions = columns.partition_for_keys(pa.array(keys, pa.binary()), PARTITION_COUNT)
    assert partitions.to_pylist() == [partition for _, partition in responses]
