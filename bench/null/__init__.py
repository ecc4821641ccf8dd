"""The null controls: the cost of the kernel alone. Written against libc only; they share no code with Muster."""

from pathlib import Path

from bench import kernels

kernels.build(Path(__file__).parent)
