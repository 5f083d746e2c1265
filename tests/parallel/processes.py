"""Processes that form a group over gloo, or over NCCL with a GPU each: started once, and used by many tests."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from tutorial_lib.worker import Worker, WorkerFailure

PATIENCE = 600.0  # seconds: a busy machine is no failure


class Rank:
    """What lives in a process: its place in the group of all, and in that of its pair."""

    def __init__(self, meeting: str, own: int, count: int, device: str):
        import torch
        import torch.distributed as dist

        limit = timedelta(seconds=PATIENCE)
        torch.set_num_threads(1)
        if device == "cuda":
            torch.cuda.set_device(own)
        backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=f"file://{meeting}", rank=own, world_size=count, timeout=limit)
        self.own, self.count, self.device, self.pair = own, count, device, None
        if count > 2:
            pairs = [dist.new_group([first, first + 1]) for first in range(0, count, 2)]
            self.pair = pairs[own // 2]

    def run(self, function, *arguments):
        return function(self, *arguments)


class Processes:
    """So many ranks; ``run`` calls a function on all of them at once."""

    def __init__(self, meeting, count: int, device: str = "cpu"):
        self.workers = [Worker(Rank, str(meeting), own, count, device) for own in range(count)]
        self._threads = ThreadPoolExecutor(count)

    def run(self, function, *arguments) -> list:
        """What ``function(rank, *arguments)`` returns on every rank, or the WorkerFailure that came of it."""

        def call(worker):
            try:
                return worker.call("run", function, *arguments, timeout=PATIENCE)
            except WorkerFailure as failure:
                return failure

        return list(self._threads.map(call, self.workers))

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for worker in self.workers:
            worker.stop()
        self._threads.shutdown()
