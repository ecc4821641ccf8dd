"""Compiles the kernels of benches, in the tree: no wheel has them. The first bench that imports one compiles it.

Owns the compilation only; it knows no kernel.
"""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
CORE: Final = ROOT / "core"
FLAGS: Final = ["-O3", "-g0"]
JSON: Final = "--message-format=json-render-diagnostics"


def build(folder: Path) -> None:
    """Compile the `.pyx` of this package if its extension is missing or older. Processes that come at once take turns."""
    source = next(folder.glob("*.pyx"))
    if _fresh(source):
        return
    with source.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _fresh(source):
            print(f"bench: compiling {source.relative_to(ROOT)}", file=sys.stderr)
            _compile(source)


def build_crate(folder: Path, crate: str) -> None:
    """Compile a crate of `core` and copy its library into this package, as the folder's `.pyi` names it.

    It is compiled again when a source of `core` is newer. Processes that come at once take turns.
    """
    stub = next(folder.glob("*.pyi"))
    made = stub.with_name(f"{stub.stem}.abi3.so")
    with stub.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists() or made.stat().st_mtime < _newest(CORE):
            print(f"bench: compiling {crate}", file=sys.stderr)
            _cargo(crate, made)


def _newest(core: Path) -> float:
    """When a source of Rust was last changed."""
    sources = [core / "Cargo.toml", core / "Cargo.lock"]
    for manifest in [*core.glob("*/Cargo.toml"), *core.glob("py/*/Cargo.toml")]:
        sources += [manifest, *(manifest.parent / "src").rglob("*.rs")]
    return max(each.stat().st_mtime for each in sources)


def _cargo(crate: str, made: Path) -> None:
    """Build the crate as `scripts/setup.sh` builds the others, so that none of their crates is compiled again."""
    told = sorted(CORE.glob("target/maturin/pyo3-config-*-abi3.txt"))
    python = {"PYO3_CONFIG_FILE": str(told[0])} if len(told) == 1 else {"PYO3_PYTHON": sys.executable}
    words = ["cargo", "rustc", "--locked", "--release", "--lib", "--package", crate, JSON]
    done = subprocess.run(words, cwd=CORE, env=os.environ | python, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise ImportError(f"cargo could not compile {crate} (exit code {done.returncode}); its errors are above")
    library = f"/lib{made.name.partition('.')[0]}.so"
    built = (name for line in done.stdout.splitlines() for name in json.loads(line).get("filenames", ()))
    new = made.with_suffix(".new")
    shutil.copy(next(name for name in built if name.endswith(library)), new)
    new.replace(made)  # a process that has loaded the old file keeps it


def _fresh(source: Path) -> bool:
    """Whether an extension exists that is as new as its source."""
    made = list(source.parent.glob(f"{source.stem}.*.so"))
    return bool(made) and max(each.stat().st_mtime for each in made) >= source.stat().st_mtime


def _compile(source: Path) -> None:
    """Compile in place, with the compiler's own output on stderr."""
    import numpy
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    name = ".".join(source.relative_to(ROOT).with_suffix("").parts)
    kernel = Extension(
        name,
        [str(source)],
        include_dirs=[numpy.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
        extra_compile_args=FLAGS,
    )
    with contextlib.redirect_stdout(sys.stderr):
        made = cythonize(  # type: ignore[no-untyped-call]
            [kernel], include_path=[str(ROOT / "src")], language_level=3, force=True, quiet=True
        )
        distribution = Distribution({"name": "bench", "ext_modules": made, "package_dir": {"": str(ROOT)}})
        command = distribution.get_command_obj("build_ext")
        command.inplace = True
        command.build_temp = str(ROOT / "build")
        command.ensure_finalized()
        command.run()
