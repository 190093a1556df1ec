"""Damage to encoded values, for tests of decoders."""

from __future__ import annotations

import random


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Return bytes with up to two changes: a byte set or flipped, the rest cut off, bytes inserted."""
    changed = bytearray(data)
    for _ in range(chance.randint(0, 2)):
        if not changed:
            return bytes(changed)
        position = chance.randrange(len(changed))
        action = chance.randrange(4)
        if action == 0:
            changed[position] = chance.choice([0, 1, 2, 3, 0x7F, 0x80, 0xFE, 0xFF])
        elif action == 1:
            del changed[position:]
        elif action == 2:
            changed[position] ^= 1 << chance.randrange(8)
        else:
            changed[position:position] = bytes(chance.randrange(256) for _ in range(chance.randint(1, 11)))
    return bytes(changed)
