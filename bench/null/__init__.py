"""The null controls: what the kernel alone costs. Written against libc only, sharing no code with Muster."""
