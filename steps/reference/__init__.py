"""Attention as PyTorch computes it, which every kernel is compared with, and other people's attention."""
