"""Compiles the servers' engines (Rust) and every Cython kernel below `pyext/`."""

import os
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools_rust import RustExtension

ROOT = Path(__file__).parent
SOURCE = ROOT / "src"
FLAGS = ["-O3", "-g0"]
CORE = (ROOT / "core").resolve()


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


def engines() -> RustExtension:
    """The compiled module of the servers, from the crate beside that of the library."""
    return RustExtension(
        "muster_server._engines",
        path=str(CORE / "py" / "engines" / "Cargo.toml"),
        args=["--locked"],
        debug=False,
        py_limited_api=True,
        rustc_flags=["-Cstrip=symbols"],
        env=environment(),
    )


def environment() -> dict[str, str]:
    """Cargo's environment. PyO3 takes its Python from the file that maturin wrote for the library, if it is there. Otherwise
    each of the two builds would compile PyO3 again, as they share one folder."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", CORE / "target"))
    told = sorted(target.glob("maturin/pyo3-config-*-abi3.txt"))
    return {**os.environ, "CARGO_TARGET_DIR": str(target)} | (
        {"PYO3_CONFIG_FILE": str(told[0])} if len(told) == 1 else {}
    )


setup(
    ext_modules=cythonize(kernels(), include_path=["src"], language_level=3),
    rust_extensions=[engines()],
)
