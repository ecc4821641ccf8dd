"""The compiled kernels of benches. No wheel has them: the first bench that wants one compiles it in the tree.

Owns the compilation only; it knows no kernel.
"""

import contextlib
import fcntl
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
FLAGS: Final = ["-O3", "-g0"]


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
