"""The optional compiled parts; everything else about the package is in pyproject.toml.

Nothing here may fail an install: without Cython, without a C compiler or with one that gives up,
the package works on its Python reference kernel. HEADRACE_NO_KERNEL=1 asks for that on purpose.
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

WIRE = Path("src/headrace/wire")
KERNEL = WIRE / "_kernel.pyx"
SEND = Path("src/headrace/producer/_send")
SCHEMA = Path("src/headrace/schema")
PROMPT = Path("src/headrace/client/_prompt.pyx")
SCHEMA_FORMATS = ("_avro", "_protobuf", "_json")


def schema_codec(format: str) -> Extension:
    """The compiled codec of a schema format, with the part that all formats share."""
    folders = [SCHEMA / format, SCHEMA / "_plan"]
    return Extension(
        f"headrace.schema.{format}.compiled",
        [str(SCHEMA / format / "compiled.pyx")],
        include_dirs=[str(folder) for folder in folders],
        depends=[str(path) for folder in folders for path in sorted(folder.glob("*.h"))],
        extra_compile_args=["-O3"],
    )


def kernel() -> list[Extension]:
    if os.environ.get("HEADRACE_NO_KERNEL") == "1" or not KERNEL.exists():
        return []
    shared = [str(path) for pattern in ("*.h", "*.px[di]") for path in sorted(WIRE.glob(pattern))]
    extensions = [
        Extension(
            "headrace.wire._kernel", [str(KERNEL)], include_dirs=[str(WIRE)], depends=shared, extra_compile_args=["-O3"]
        ),
        Extension(
            "headrace.producer._send.compiled",
            [str(SEND / "compiled.pyx")],
            include_dirs=[str(WIRE), str(SEND)],
            depends=[*shared, str(SEND / "clock.h")],
            extra_compile_args=["-O3"],
        ),
        *(schema_codec(format) for format in SCHEMA_FORMATS),
        Extension("headrace.client._prompt", [str(PROMPT)]),
    ]
    try:
        from Cython.Build import cythonize

        # The generated C goes to build/, so that the source tree holds sources only.
        modules = cythonize(extensions, build_dir="build/cython", language_level=3)  # type: ignore[no-untyped-call]
    except Exception as error:  # whatever Cython trips over, the install goes on
        print(f"headrace: kernel not compiled: {type(error).__name__}: {error}", file=sys.stderr)
        return []
    for module in modules:
        module.optional = True  # set here because cythonize makes new objects and forgets it
    return list(modules)


setup(ext_modules=kernel())
