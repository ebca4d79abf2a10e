"""What a rank of the storm does: collectives on the C interface, or training with torch, until an error ends it."""
import ctypes
import json
import os
import time
import traceback

import numpy

FLOAT32, SUM = 10, 0    # places in the lists of c_api/tutti.h; a test compares
OK, SYSTEM, TIMEOUT, PEER_LOST = 0, -4, -5, -7
UNIQUE_ID_BYTES = 128
VERBS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "barrier")


class Failure(Exception):
    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class Wrong(Exception):
    """A result that is not right."""


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * UNIQUE_ID_BYTES)]


class Library:
    """The verbs of c_api/tutti.h that are used here, with statuses as exceptions."""

    def __init__(self, path):
        self.c = c = ctypes.CDLL(path)
        size, number, pointer, tag = ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32
        c.tutti_get_last_error.restype = ctypes.c_char_p
        c.tutti_get_unique_id.argtypes = [ctypes.POINTER(UniqueId)]
        c.tutti_comm_init_rank.argtypes = [ctypes.POINTER(pointer), number, UniqueId, number]
        c.tutti_comm_destroy.argtypes = c.tutti_comm_get_async_error.argtypes = [pointer]
        c.tutti_all_reduce.argtypes = [pointer, pointer, size, number, number, pointer, pointer]
        c.tutti_reduce_scatter.argtypes = [pointer, pointer, size, number, number, pointer, pointer]
        c.tutti_broadcast.argtypes = [pointer, pointer, size, number, number, pointer, pointer]
        c.tutti_all_gather.argtypes = c.tutti_all_to_all.argtypes = [pointer, pointer, size, number, pointer, pointer]
        c.tutti_send.argtypes = c.tutti_recv.argtypes = [pointer, size, number, number, tag, pointer, pointer]
        c.tutti_barrier.argtypes = [pointer, pointer]

    def call(self, verb, *arguments):
        status = getattr(self.c, "tutti_" + verb)(*arguments)
        if status != OK:
            raise Failure(status, self.c.tutti_get_last_error().decode())

    def make_id(self):
        out = UniqueId()
        self.call("get_unique_id", ctypes.byref(out))
        return bytes(out.bytes)

    def join(self, unique_id, rank):
        comm = ctypes.c_void_p()
        self.call("comm_init_rank", ctypes.byref(comm), 2, UniqueId.from_buffer_copy(unique_id), rank)
        return comm


class Rank:
    """One rank of a group of two that exchanges float32: rank r brings r + 1 in every element."""

    def __init__(self, library, comm, rank, count):
        self.library, self.comm, self.rank, self.count = library, comm, rank, count
        self.one = numpy.full(count, rank + 1, numpy.float32)           # a rank's part
        self.two = numpy.full(2 * count, rank + 1, numpy.float32)       # both ranks' parts
        self.out = numpy.zeros(2 * count, numpy.float32)

    def call(self, verb, *arguments):
        addresses = (a.ctypes.data if isinstance(a, numpy.ndarray) else a for a in arguments)
        self.library.call(verb, *addresses, self.comm, None)

    def send_recv(self):
        def send():
            self.call("send", self.one, self.count, FLOAT32, 1 - self.rank, 5)

        def recv():
            self.call("recv", self.out, self.count, FLOAT32, 1 - self.rank, 5)
        for turn in (send, recv) if self.rank == 0 else (recv, send):
            turn()

    def collective(self, verb):
        """Runs it; returns what must now be in the first and the second part of `out`, 0 where nothing is written."""
        one, two, out, count = self.one, self.two, self.out, self.count
        out[:] = 0
        if verb == "send_recv":
            self.send_recv()
            return 2 - self.rank, 0
        arguments, expected = {
            "all_reduce": ((one, out, count, FLOAT32, SUM), (3, 0)),
            "broadcast": ((one, out, count, FLOAT32, 1), (2, 0)),
            "all_gather": ((one, out, count, FLOAT32), (1, 2)),
            "reduce_scatter": ((two, out, count, FLOAT32, SUM), (3, 0)),
            "all_to_all": ((two, out, count, FLOAT32), (1, 2)),
            "barrier": ((), (0, 0)),
        }[verb]
        self.call(verb, *arguments)
        return expected

    def repeat(self, verb):
        """Until one fails."""
        while True:
            first, second = self.collective(verb)
            if not (numpy.all(self.out[: self.count] == first) and numpy.all(self.out[self.count:] == second)):
                raise Wrong(f"{verb} of {self.count} elements gave a wrong result on rank {self.rank}")


def communicate(library, plan, unique_id, rank, reached):
    comm = ctypes.c_void_p()
    try:
        comm = library.join(unique_id, rank)
        library.call("barrier", comm, None)         # both have joined
        reached()
        if plan.phase == "collective":
            Rank(library, comm, rank, plan.count).repeat(plan.verb)
        while plan.phase == "idle":                 # makes no call that could notice by itself
            library.call("comm_get_async_error", comm)
            time.sleep(0.001)
    finally:
        library.c.tutti_comm_destroy(comm)


def train(store, rank, reached):
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    torch.set_num_threads(1)
    try:
        dist.init_process_group("tutti", store=store, rank=rank, world_size=2)
        layers = [torch.nn.Linear(256, 256) for _ in range(4)]
        model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.3)
        reached()
        while True:
            model(torch.ones(8, 256)).sum().backward()
    except dist.DistBackendError as error:
        name = type(error).__name__
        raise Failure(PEER_LOST if name == "PeerError" else -1000, f"{name}: {error}") from None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def be_rank(rank, body, ready, report):
    """Runs `body` in a forked child. `ready` learns when the phase is reached, `report` how it ended."""
    outcome, status = {"rank": rank}, 0
    try:
        body(rank, lambda: os.write(ready, b"+"))
        outcome["finished"] = True
    except Failure as failure:
        outcome.update(status=failure.status, text=str(failure))
    except Wrong as wrong:
        outcome["wrong"] = str(wrong)
    except BaseException:
        outcome["died"] = "raised " + traceback.format_exc()
        status = 1
    outcome["at"] = time.monotonic()
    os.write(report, json.dumps(outcome).encode())
    os._exit(status)
