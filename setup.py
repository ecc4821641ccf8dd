"""Compile every Cython kernel below `pyext/` and `bench/`."""

from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

ROOT = Path(__file__).parent
FLAGS = ["-O3", "-g0"]


def kernels() -> list[Extension]:
    """One extension per `.pyx`, named after its path."""
    sources = sorted(path.relative_to(ROOT) for folder in ("pyext", "bench") for path in (ROOT / folder).rglob("*.pyx"))
    return [
        Extension(
            ".".join(source.with_suffix("").parts),
            [str(source)],
            include_dirs=[numpy.get_include()],
            define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
            extra_compile_args=FLAGS,
        )
        for source in sources
    ]


setup(ext_modules=cythonize(kernels(), language_level=3))
