"""Tests of the part for AMD's CDNA GPUs: none of them needs one."""
