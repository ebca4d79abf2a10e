"""Members of a default group that changes: how they start it, exchange handles, change the members, and check them."""
import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import torch_tutti

NEWER = hasattr(dist, "_reconfigure")
# Tests run with torch's own functions, from torch 2.14 on, and with torch_tutti.reconfigure, which works with every
# torch.
ways = pytest.mark.parametrize("way", ["torch", "tutti"] if NEWER else ["tutti"])


class Member:
    """One rank in these tests: how it joins, gives its handle, and changes the members."""

    def __init__(self, world, way="tutti", timeout_s=30, **options):
        self.world, self.way, self.me = world, way, world.rank
        # The list of hosts that ranks.py sets is for all ranks. A number suits any number of members.
        if world.hosts > 1:
            os.environ["TUTTI_HOSTS"] = str(world.hosts)
        options = {"backend": "tutti", "timeout": timedelta(seconds=timeout_s), **options}
        if NEWER:
            options["enable_reconfigure"] = True
        else:
            options["pg_options"] = torch_tutti.Options(enable_reconfigure=True)
        dist.init_process_group(store=world.store, rank=world.rank, world_size=world.size, **options)

    def handle(self):
        return dist._get_reconfigure_handle() if self.way == "torch" else torch_tutti.reconfigure_handle()

    def collect(self, name, ranks=None, text=None):
        """Publishes this rank's handle under the name, and returns the handles of all ranks, or of these."""
        self.world.store.set(f"{name}/{self.me}", self.handle() if text is None else text)
        keys = [f"{name}/{rank}" for rank in ranks or range(self.world.size)]
        self.world.store.wait(keys, timedelta(seconds=20))
        return [self.world.store.get(key).decode() for key in keys]

    def meet(self, name, ranks=None):
        """Waits until all ranks, or these, have called it with this name."""
        self.collect(name, ranks, text="here")

    def change(self, uuid, handles, timeout_s=30):
        if self.way == "torch":
            dist._reconfigure(uuid, handles, timeout=timedelta(seconds=timeout_s)).wait()
        else:
            torch_tutti.reconfigure(handles, uuid=uuid, timeout=timedelta(seconds=timeout_s))

    def all(self, uuid):
        """Makes all ranks members, each with its number as rank."""
        self.change(uuid, self.collect(f"all{uuid}"))
        self.check(self.me, self.world.size)

    def check(self, rank, size):
        """Checks the rank and size of this member, and that sums, gathers and messages among the members work."""
        assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
        assert (dist.group.WORLD.rank(), dist.group.WORLD.size()) == (rank, size)
        for count in 3, 50_000:
            x = torch.full((count,), rank + 1.)
            dist.all_reduce(x)
            assert x.tolist() == [size * (size + 1) / 2] * count
        parts = torch.empty(size)
        dist.all_gather_into_tensor(parts, torch.tensor([float(rank)]))
        assert parts.tolist() == list(range(size))
        if size > 1:
            got = torch.zeros(4)
            works = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((4,), float(rank)), (rank + 1) % size),
                                            dist.P2POp(dist.irecv, got, (rank - 1) % size)])
            for work in works:
                work.wait()
            assert got.tolist() == [float((rank - 1) % size)] * 4


def backend_of(group=None):
    return (group or dist.group.WORLD)._get_backend(torch.device("cpu"))


def refused(kind, *pieces):
    """Returns a context in which a call must raise this class, with all pieces in its text."""
    return pytest.raises(kind, match="(?s)" + "".join(f"(?=.*{piece})" for piece in pieces))
