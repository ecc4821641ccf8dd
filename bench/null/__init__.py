"""The null controls: the cost of the kernel alone. Written against libc only; they share no code with Muster."""
