"""Compile every Cython kernel below `pyext/`."""

from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

ROOT = Path(__file__).parent
SOURCE = ROOT / "src"
FLAGS = ["-O3", "-g0"]


def kernels() -> list[Extension]:
    """One extension per `.pyx`, named after its path."""
    sources = sorted((SOURCE / "muster_server" / "pyext").rglob("*.pyx"))
    return [
        Extension(
            ".".join(source.relative_to(SOURCE).with_suffix("").parts),
            [str(source.relative_to(ROOT))],
            include_dirs=[numpy.get_include()],
            define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
            extra_compile_args=FLAGS,
        )
        for source in sources
    ]


setup(ext_modules=cythonize(kernels(), include_path=["src"], language_level=3))
