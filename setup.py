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
SEND = Path("src/headrace/producer/_send/compiled.pyx")
AVRO = Path("src/headrace/schema/_avro")
PROMPT = Path("src/headrace/client/_prompt.pyx")


def kernel() -> list[Extension]:
    if os.environ.get("HEADRACE_NO_KERNEL") == "1" or not KERNEL.exists():
        return []
    shared = [str(path) for pattern in ("*.h", "*.px[di]") for path in sorted(WIRE.glob(pattern))]
    extensions = [
        *(
            Extension(name, [str(source)], include_dirs=[str(WIRE)], depends=shared, extra_compile_args=["-O3"])
            for name, source in (("headrace.wire._kernel", KERNEL), ("headrace.producer._send.compiled", SEND))
        ),
        Extension(
            "headrace.schema._avro.compiled",
            [str(AVRO / "compiled.pyx")],
            include_dirs=[str(AVRO)],
            depends=[str(path) for path in sorted(AVRO.glob("*.h"))],
            extra_compile_args=["-O3"],
        ),
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
