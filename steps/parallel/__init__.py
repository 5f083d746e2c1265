"""One sequence over several GPUs: every rank holds a part of the tokens, and they send each other what they need.

Built on ``torch.distributed``: NCCL between GPUs, gloo between processes on CPUs. A rank is a process with a GPU of its
own. The kernels are those of the other parts.
"""
