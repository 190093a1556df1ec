"""`make fuzz-wire`: a million mutated inputs to every decoder.

Only errors of `headrace.errors` may come out, no input may take long, and memory must stay in proportion: an input of
100 bytes never allocates more than 64 KiB. The corpus is one well-filled message for every API, version and
direction, and batches and message sets of every kind; the inputs are these with bytes flipped, cut, put in and
overwritten with numbers that decoders trip over.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import HeadraceError
from headrace.wire import columns, fields, frames, message_sets, schema
from headrace.wire.api import APIS, request_class, response_class
from headrace.wire.compression import CODEC_NAMES, GZIP, LZ4, NONE, SNAPPY, ZSTD, compress, decompress
from headrace.wire.framing import FrameReader
from headrace.wire.kernel import KERNEL_NAME, kernel
from headrace.wire.layout import HEADER_BYTES, Record
from headrace.wire.records import encode, read_batches
from headrace.wire.schema import Message, Struct

SMALL_INPUT_BYTES = 100
SMALL_INPUT_MEMORY_BYTES = 64 * 1024
MEMORY_FACTOR = 600  # for larger inputs: a struct of twenty fields may come from its shortest form
DECOMPRESSED_BYTES_MAX = 32 * 1024
INPUT_SECONDS_MAX = 1.0
MEMORY_SAMPLE = 20  # tracing is slow: one input in this many

INTERESTING = [0, 1, 0x7F, 0x80, 0xFF]
NUMBERS = [n.to_bytes(4, "big", signed=True) for n in (-1, -2, 0, 1, 0x7FFFFFFF, -0x80000000, 0x00FFFFFF)] + [
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x7f\xff",
    b"\x80\x80\x80\x80\x80",
]


@dataclass(slots=True, frozen=True)
class Target:
    """A decoder and bytes that it accepts."""

    name: str
    decode: Callable[[bytes], object]
    seed: bytes


@dataclass(slots=True)
class Result:
    """The counts of a run."""

    inputs: int = 0
    accepted: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest_ms: float = 0.0
    memory_bytes_max: int = 0  # of inputs up to SMALL_INPUT_BYTES


def corpus() -> list[Target]:
    """Yield every decoder, with a valid input."""
    return [*_message_targets(), *_record_targets(), *_other_targets()]


def _message_targets() -> Iterator[Target]:
    for key in APIS:
        for cls in (request_class(key), response_class(key)):
            for version in range(cls.versions.first, cls.versions.last + 1):
                message = filled(cls, version)
                codec = schema.codec(cls, version)
                yield Target(f"{cls.__name__} v{version}", codec.decode_whole, message.encode(version))


def filled(cls: type[Struct], version: int) -> Any:
    """Return a message with all fields of a version set: two items in every array, all tags set."""
    values: dict[str, Any] = {}
    for name, spec in cls.fields.items():
        if version in spec.versions:
            values[name] = _sample(spec.kind, spec.element, version)
    if issubclass(cls, Message) and version in cls.flexible:
        values["tags"] = {77: b"unknown"}
    return cls(**values)


def _sample(kind: int, element: int | type[Struct] | None, version: int) -> Any:
    if kind == fields.ARRAY:
        assert element is not None
        item = filled(element, version) if isinstance(element, type) else _sample(element, None, version)
        return (item, item)
    if kind == fields.STRUCT:
        assert isinstance(element, type)
        return filled(element, version)
    samples: dict[int, Any] = {
        fields.STRING: "text",
        fields.BYTES: b"bytes",
        fields.RECORDS: b"records",
        fields.UUID: bytes(range(16)),
        fields.BOOLEAN: True,
        fields.FLOAT64: 1.5,
    }
    return samples.get(kind, 3)


def _record_targets() -> Iterator[Target]:
    rows = [Record(i, 1000 + i, b"key" if i % 2 else None, b"value" * i, (("h", b"v"), ("n", None))) for i in range(4)]

    def to_objects(data: bytes) -> object:
        return [batch.records(DECOMPRESSED_BYTES_MAX) for batch in read_batches(data)]

    def to_columns(data: bytes) -> object:
        decoder = columns.ArrowDecoder(with_headers=True)
        for batch in read_batches(data, partial=True):
            decoder.add(batch, bytes_max=DECOMPRESSED_BYTES_MAX)
        return decoder.finish()

    def payload_to_objects(data: bytes) -> object:
        return kernel.decode_records(data, len(rows), 0, 0, -1)

    def payload_to_columns(data: bytes) -> object:
        decoder = kernel.ColumnDecoder(True)
        decoder.add(
            data,
            len(rows),
            base_offset=0,
            base_timestamp=0,
            append_time=-1,
            first_offset=0,
            end_offset=1 << 62,
        )
        return decoder.finish()

    for codec in (NONE, GZIP, SNAPPY, LZ4, ZSTD):
        batch = bytes(encode(rows, codec=codec))
        # A broken checksum would end the matter at once: mend it, so that what lies behind is reached.
        yield Target(f"batch {CODEC_NAMES[codec]} to objects", lambda data: to_objects(mended(data)), batch)
        yield Target(f"batch {CODEC_NAMES[codec]} to columns", lambda data: to_columns(mended(data)), batch)
    yield Target("batch as it is", to_objects, bytes(encode(rows)))
    payload = bytes(encode(rows)[HEADER_BYTES:])
    for _ in range(8):  # the parsers get their share among hundreds of messages
        yield Target("payload to objects", payload_to_objects, payload)
        yield Target("payload to columns", payload_to_columns, payload)


def mended(data: bytes) -> bytes:
    """Return the data with a correct checksum, if it is long enough to have one."""
    if len(data) < HEADER_BYTES:
        return data
    return data[:17] + kernel.crc32c(data[21:]).to_bytes(4, "big") + data[21:]


def _other_targets() -> Iterator[Target]:
    rows = [Record(i, 1000 + i, b"key", b"value" * i, ()) for i in range(4)]
    for magic in (0, 1):
        for codec in (NONE, GZIP, SNAPPY, LZ4):
            data = message_sets.encode(rows, magic=magic, codec=codec)
            yield Target(
                f"message set magic {magic} {CODEC_NAMES[codec]}",
                lambda data: message_sets.decode(
                    data, partial_tail=True, mixed_magic=True, bytes_max=DECOMPRESSED_BYTES_MAX
                ),
                data,
            )
    for codec in (GZIP, SNAPPY, LZ4, ZSTD):
        yield Target(
            f"decompress {CODEC_NAMES[codec]}",
            lambda data, codec=codec: decompress(codec, data, DECOMPRESSED_BYTES_MAX),  # type: ignore[misc]
            bytes(compress(codec, b"some text " * 20)),
        )
    request = frames.encode_request(filled(request_class(3), 9), 9, 1, "client")

    def whole_request(data: bytes) -> object:
        header, pos = frames.decode_request_header(data)
        return frames.decode_request_body(header, data, pos)

    yield Target("request frame", whole_request, b"".join(request)[4:])
    response = frames.encode_response(filled(response_class(3), 9), 9, 1)
    yield Target("response frame", lambda data: frames.decode_response(3, 9, data), b"".join(response)[4:])
    yield Target("frames", lambda data: FrameReader(1000).feed(data, []), b"".join(request) * 2)


def mutate(seed: bytes, chance: random.Random) -> bytes:
    """Return the data with one to four changes."""
    data = bytearray(seed)
    for _ in range(chance.randint(1, 4)):
        position = chance.randrange(len(data) + 1)
        match chance.randrange(6):
            case 0 if position < len(data):
                data[position] ^= 1 << chance.randrange(8)
            case 1 if position < len(data):
                data[position] = chance.choice(INTERESTING)
            case 2:
                data[position:position] = chance.randbytes(chance.randint(1, 8))
            case 3:
                del data[position : position + chance.randint(1, 8)]
            case 4:
                number = chance.choice(NUMBERS)
                data[position : position + len(number)] = number
            case 5 if chance.random() < 0.3:
                del data[position:]
    return bytes(data)


def run(inputs: int, seed: int, show: Callable[[int], None] | None = None) -> Result:
    """Feed `inputs` mutated inputs, spread over the corpus."""
    chance = random.Random(seed)
    targets = corpus()
    for target in targets:
        target.decode(target.seed)  # accepted without a change; compiles the codec
    result = Result()
    for number in range(inputs):
        target = targets[number % len(targets)]
        data = mutate(target.seed, chance)
        _feed(target, data, result, trace=number % MEMORY_SAMPLE == 0)
        if show is not None and number % 20_000 == 0:
            show(number)
    return result


def _feed(target: Target, data: bytes, result: Result, trace: bool) -> None:
    result.inputs += 1
    if trace:
        tracemalloc.start()
    started = time.perf_counter()
    try:
        target.decode(data)
        result.accepted += 1
    except HeadraceError as error:
        result.errors[type(error).__name__] += 1
        if not str(error):
            result.failures.append(f"{target.name}: an error without words for {data.hex()}")
    except Exception as error:
        result.failures.append(f"{target.name}: {error!r} for {data.hex()}")
    seconds = time.perf_counter() - started
    result.slowest_ms = max(result.slowest_ms, seconds * 1000)
    if seconds > INPUT_SECONDS_MAX:
        result.failures.append(f"{target.name}: {seconds:.1f} s for {data.hex()}")
    if trace:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        if len(data) <= SMALL_INPUT_BYTES:
            result.memory_bytes_max = max(result.memory_bytes_max, peak)
        if peak > max(SMALL_INPUT_MEMORY_BYTES, MEMORY_FACTOR * len(data)):
            result.failures.append(f"{target.name}: {peak} bytes of memory for {len(data)} of input {data.hex()}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=None, help="repeat a run")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    started = time.monotonic()

    def show(done: int) -> None:
        print(f"\r{done:,} of {options.inputs:,} inputs", end="", file=sys.stderr, flush=True)

    result = run(options.inputs, seed, show if sys.stderr.isatty() else None)
    summary = {
        "kernel": KERNEL_NAME,
        "seed": seed,
        "inputs": result.inputs,
        "accepted": result.accepted,
        "errors": dict(result.errors),
        "failures": len(result.failures),
        "slowest_ms": round(result.slowest_ms, 2),
        f"memory_bytes_max_of_{SMALL_INPUT_BYTES}_byte_inputs": result.memory_bytes_max,
        "seconds": round(time.monotonic() - started, 1),
    }
    print(
        "\r" + json.dumps(summary, indent=2)
        if options.json
        else "\r" + "\n".join(f"{k}: {v}" for k, v in summary.items())
    )
    for failure in result.failures[:20]:
        print(failure, file=sys.stderr)
    return 1 if result.failures else 0


if __name__ == "__main__":
    sys.exit(main())
