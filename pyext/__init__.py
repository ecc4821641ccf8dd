"""Cython kernels over NumPy arrays. They know nothing of the network and nothing of the library `muster`."""
