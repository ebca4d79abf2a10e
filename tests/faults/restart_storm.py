"""Kills a rank of a job at a random moment, starts it again as a supervisor does, and checks that the ranks join again.
Repeats this with one store that is never cleaned.

    python tests/faults/restart_storm.py --restarts 200       200 restarts; prints the seed
    python tests/faults/restart_storm.py --seed 7             the same draws again

Each restart draws the victim; whether it is killed while the ranks join, or later; whether all ranks are started again
(as by torchrun) or only the dead one, while the others destroy the failed group and make a new one under the same name;
and, if all are started, their number. A restart counts as recovered when every rank has had a right sum. Time is not
judged, but a job without these sums after LIMIT_S counts as hung.

The parent has loaded torch but never used it, so it can fork ranks.
"""
import argparse
import faulthandler
import os
import random
import select
import signal
import sys
import tempfile
import time
from datetime import timedelta

from store import serve_store

LIMIT_S = 60.0
# The timeout of joining. It is longer than LIMIT_S, so that no recovery can be due to it.
JOIN_S = 300


# ---- a rank ----
def sums(rank, size):
    """Makes an all-reduce for each value that it yields. Ends the rank after a wrong sum."""
    import torch
    import torch.distributed as dist
    while True:
        total = torch.full((100,), float(rank + 1))
        dist.all_reduce(total)
        if total.tolist() != [size * (size + 1) / 2] * 100:
            raise SystemExit(f"rank {rank}: a wrong sum, {total[0]}")
        yield


def live(rank, size, make_store, tell):
    """Joins and makes sums until a peer is gone; then destroys the group and joins again. Writes its process number to
    the pipe `tell` after the first sum of each group."""
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    faulthandler.register(signal.SIGUSR1)
    while True:
        dist.init_process_group("tutti", store=make_store(size), rank=rank, world_size=size,
                                timeout=timedelta(seconds=JOIN_S))
        try:
            for n, _ in enumerate(sums(rank, size)):
                if n == 0:
                    os.write(tell, b"%d;" % os.getpid())
                time.sleep(0.001)
        except dist.DistBackendError:
            dist.destroy_process_group()


# ---- the supervisor ----
class Job:
    def __init__(self, make_store, chance):
        self.make_store, self.chance, self.processes = make_store, chance, []
        # Ranks write their process numbers to `tell`.
        self.told, self.tell = os.pipe()
        self.text = ""

    def start(self, rank, size):
        process = os.fork()
        if process:
            return process
        try:
            os.close(self.told)
            live(rank, size, self.make_store, self.tell)
        # The supervisor starts the rank again. The error is printed to explain a job that hangs.
        except BaseException as error:
            print(f"rank {rank} of {size} ended: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)

    def start_all(self, size):
        self.processes = [self.start(rank, size) for rank in range(size)]

    def restart_dead(self):
        for rank, process in enumerate(self.processes):
            if os.waitpid(process, os.WNOHANG)[0]:
                self.processes[rank] = self.start(rank, len(self.processes))

    def kill(self, ranks):
        for rank in ranks:
            os.kill(self.processes[rank], signal.SIGKILL)
        for rank in ranks:
            os.waitpid(self.processes[rank], 0)

    def forget_told(self):
        while select.select([self.told], [], [], 0)[0]:
            os.read(self.told, 65536)
        self.text = ""

    def await_sums(self, alone):
        """Returns true if every rank has had a sum since forget_told(). alone: starts a rank again if it ends
        meanwhile."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            if alone:
                self.restart_dead()
            if select.select([self.told], [], [], 0.02)[0]:
                self.text += os.read(self.told, 65536).decode()
            if {str(process) for process in self.processes} <= set(self.text.split(";")[:-1]):
                return True
        return False

    def restart(self):
        """Kills a rank and starts ranks again. Returns true if all of them have had a sum."""
        alone, joining = self.chance.random() < 0.5, self.chance.random() < 0.4
        size = len(self.processes) if alone else self.chance.randint(2, 4)
        # Starts all ranks, so that the kill comes before they have joined.
        if joining:
            self.kill(range(len(self.processes)))
            self.start_all(size)
        time.sleep(self.chance.uniform(0, 0.03))
        victim = self.chance.randrange(len(self.processes))
        self.kill([victim])
        self.forget_told()
        if alone:
            self.processes[victim] = self.start(victim, size)
        else:
            self.kill([rank for rank in range(len(self.processes)) if rank != victim])
            self.start_all(size)
        self.what = f"victim {victim}, {'alone' if alone else f'all, {size} ranks'}{', while joining' * joining}"
        return self.await_sums(alone)


def main():
    parser = argparse.ArgumentParser(description="Kill ranks, start them again, and check that they join.")
    parser.add_argument("--restarts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--store", choices=["tcp", "file"], default="tcp")
    options = parser.parse_args()
    import torch.distributed as dist
    import torch_tutti._C  # noqa: F401  (loaded, not used)
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        if options.store == "tcp":
            port = serve_store()

            def make_store(size):
                return dist.TCPStore("127.0.0.1", port, is_master=False)
        else:
            def make_store(size):
                return dist.FileStore(os.path.join(folder, "store"), size)
        job, begin, failed = Job(make_store, random.Random(options.seed)), time.monotonic(), 0
        job.start_all(2)
        failed += not job.await_sums(False)
        for number in range(options.restarts):
            if not job.restart():
                failed += 1
                print(f"restart {number}: no sum on some rank after {LIMIT_S:.0f} s ({job.what})", flush=True)
                for process in job.processes:
                    os.kill(process, signal.SIGUSR1)
                time.sleep(1)
                job.kill(range(len(job.processes)))
                job.start_all(2)
        job.kill(range(len(job.processes)))
    print(f"{options.restarts} restarts in {time.monotonic() - begin:.0f} s, {options.restarts - failed} recovered")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
