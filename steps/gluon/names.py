"""Gives ``gl`` the names of Triton 3.7 where Triton 3.6, which comes with PyTorch 2.11, has older ones."""

from triton.experimental.gluon import language as gl

if not hasattr(gl, "barrier"):
    gl.barrier = gl.thread_barrier
