"""Damage to a data folder: the kinds of files, and the kinds of damage.

A `Damage` is random, is applied to a copy of an image, and has the files that it changed.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.data_dir_image import EARLIER

KINDS = (
    ".log",
    ".index",
    ".timeindex",
    ".txnindex",
    ".snapshot",
    "leader-epoch-checkpoint",
    "segment-checkpoint",
    "partition.metadata",
    "catalog.journal",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
    ".kafka_cleanshutdown",
    ".lock",
    "cluster.json",
    "cluster.json.copy",
    "partition folder",
)
"""The kind of a file is its name or suffix. Kinds that an image does not have are left out."""
FLIP, CUT, NULS, GARBAGE, OLDER, FOREIGN, SWAP, MISSING = (
    "bit flipped",
    "cut",
    "NUL bytes",
    "garbage at the end",
    "older copy",
    "file of another partition",
    "swapped with another partition's",
    "missing",
)
DAMAGES = (FLIP, CUT, NULS, GARBAGE, OLDER, FOREIGN, SWAP, MISSING)
BLOCK_BYTES = 512
_GARBAGE_BYTES_MAX = 300
FOLDER_KIND = "partition folder"


@dataclass
class Damage:
    """A kind of damage, and the files that were changed."""

    kind: str
    what: str
    files: list[Path] = field(default_factory=list)  # below the root of the image
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.what} ({self.detail}): {', '.join(map(str, self.files))}"


def files_of_kind(root: Path, kind: str) -> list[Path]:
    """Return the relative paths of the files of a kind below `root`."""
    if kind == FOLDER_KIND:
        paths = [path for path in root.glob("*/*") if path.is_dir()]
    elif kind.startswith(".") and kind != ".kafka_cleanshutdown":
        paths = [path for path in root.rglob(f"*{kind}") if path.is_file()]
    else:
        paths = [path for path in root.rglob(kind) if path.is_file()]
    return sorted(path.relative_to(root) for path in paths)


def apply(rng: random.Random, image: Path, root: Path, kind: str, what: str) -> Damage | None:
    """Damage a file of a kind in `root`, a copy of an image in `image`; return None if there is no such file."""
    files = files_of_kind(root, kind)
    rng.shuffle(files)
    for file in files:
        damage = Damage(kind, what, [file])
        if _change(rng, image, root, damage):
            return damage
    return None


def _change(rng: random.Random, image: Path, root: Path, damage: Damage) -> bool:
    path = root / damage.files[0]
    if path.is_dir():
        if damage.what != MISSING:
            return False
        shutil.rmtree(path)
        return True
    data = bytearray(path.read_bytes())
    if damage.what == MISSING:
        path.unlink()
        return True
    if damage.what == OLDER:
        return _replace(path, image / EARLIER / damage.files[0])
    if damage.what in (FOREIGN, SWAP):
        return _take_foreign(rng, root, damage)
    if not data and damage.what != GARBAGE:
        return False
    if damage.what == FLIP:
        bits = sorted(rng.randrange(len(data) * 8) for _ in range(rng.choice((1, 1, 1, 2, 8))))
        for bit in bits:
            data[bit // 8] ^= 1 << bit % 8
        damage.detail = f"bits {bits} of {len(data) * 8}"
    elif damage.what == CUT:
        size = rng.choice((0, len(data) - 1, rng.randrange(len(data)), rng.randrange(len(data))))
        damage.detail = f"{size} of {len(data)} bytes left"
        del data[size:]
    elif damage.what == NULS:
        size = rng.choice((16, BLOCK_BYTES, len(data)))
        begin = rng.choice((0, max(len(data) - size, 0), rng.randrange(len(data))))
        end = min(begin + size, len(data))
        data[begin:end] = bytes(end - begin)
        damage.detail = f"bytes {begin} to {end} of {len(data)}"
    else:
        extra = rng.randrange(1, _GARBAGE_BYTES_MAX)
        data += rng.choice((bytes(extra), rng.randbytes(extra)))
        damage.detail = f"{extra} bytes more"
    if bytes(data) == path.read_bytes():
        return False
    path.write_bytes(data)
    return True


def _replace(path: Path, other: Path) -> bool:
    if not other.exists() or other.read_bytes() == path.read_bytes():
        return False
    shutil.copyfile(other, path)
    return True


def _take_foreign(rng: random.Random, root: Path, damage: Damage) -> bool:
    """Replace a file by that of another partition on the same broker; with SWAP, exchange them."""
    file = damage.files[0]
    if len(file.parts) != 3:  # broker, partition, file
        return False
    candidates = [
        other
        for other in files_of_kind(root / file.parts[0], damage.kind)
        if len(other.parts) == 2 and other.parts[0] != file.parts[1]
    ]
    rng.shuffle(candidates)
    path = root / file
    for candidate in candidates:
        other = root / file.parts[0] / candidate
        mine, theirs = path.read_bytes(), other.read_bytes()
        if mine == theirs:
            continue
        path.write_bytes(theirs)
        damage.detail = f"from {candidate}"
        if damage.what == SWAP:
            other.write_bytes(mine)
            damage.files.append(other.relative_to(root))
        return True
    return False
