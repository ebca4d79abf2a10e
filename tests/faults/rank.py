"""The program of a rank of kill_storm.py: collectives by the C API, or training with torch, until an error ends it."""
import ctypes
import faulthandler
import json
import os
import signal
import time
import traceback

import numpy

# Numbers of include/tutti.h; test_numbers_are_those_of_the_header compares them.
FLOAT32, SUM = 10, 0
OK, SYSTEM, TIMEOUT, PEER_LOST = 0, -4, -5, -7
UNIQUE_ID_BYTES = 128
VERBS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "barrier")


class Failure(Exception):
    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class Wrong(Exception):
    """An operation has given a wrong result."""


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * UNIQUE_ID_BYTES)]


class Library:
    """The functions of include/tutti.h that are used here. A status other than OK raises Failure."""

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

    def join(self, unique_id, rank, size):
        comm = ctypes.c_void_p()
        self.call("comm_init_rank", ctypes.byref(comm), size, UniqueId.from_buffer_copy(unique_id), rank)
        return comm


class Rank:
    """One rank of a group that exchanges float32: the input of rank r has r + 1 in every element."""

    def __init__(self, library, comm, rank, size, count):
        self.library, self.comm, self.rank, self.size, self.count = library, comm, rank, size, count
        self.part = numpy.full(count, rank + 1, numpy.float32)
        self.parts = numpy.full(size * count, rank + 1, numpy.float32)
        self.out = numpy.zeros(size * count, numpy.float32)

    def call(self, verb, *arguments):
        addresses = (a.ctypes.data if isinstance(a, numpy.ndarray) else a for a in arguments)
        self.library.call(verb, *addresses, self.comm, None)

    def send_recv(self):
        """Exchanges messages with rank size - 1 - rank, which is on another host if hosts are blocks of ranks. Returns
        what must now be in `out`. The rank in the middle has no such peer, and only asks whether the group has
        failed."""
        peer = self.size - 1 - self.rank
        if peer == self.rank:
            time.sleep(0.001)
            self.library.call("comm_get_async_error", self.comm)
            return []

        def send():
            self.call("send", self.part, self.count, FLOAT32, peer, 5)

        def recv():
            self.call("recv", self.out, self.count, FLOAT32, peer, 5)
        for turn in (send, recv) if self.rank < peer else (recv, send):
            turn()
        return [peer + 1]

    def collective(self, verb):
        """Runs a collective. Returns what must now be in the first parts of `out`; the other parts stay 0."""
        part, parts, out, count, size = self.part, self.parts, self.out, self.count, self.size
        out[:] = 0
        if verb == "send_recv":
            return self.send_recv()
        total, each = [size * (size + 1) / 2], list(range(1, size + 1))
        arguments, expected = {
            "all_reduce": ((part, out, count, FLOAT32, SUM), total),
            "broadcast": ((part, out, count, FLOAT32, size - 1), [size]),
            "all_gather": ((part, out, count, FLOAT32), each),
            "reduce_scatter": ((parts, out, count, FLOAT32, SUM), total),
            "all_to_all": ((parts, out, count, FLOAT32), each),
            "barrier": ((), []),
        }[verb]
        self.call(verb, *arguments)
        return expected

    def repeat(self, verb):
        """Repeats a collective until it fails or gives a wrong result."""
        while True:
            expected = self.collective(verb)
            expected += [0] * (self.size - len(expected))
            if not numpy.all(self.out.reshape(self.size, self.count) == numpy.array(expected)[:, None]):
                raise Wrong(f"{verb} of {self.count} elements gave a wrong result on rank {self.rank}")


def communicate(library, plan, unique_id, rank, reached):
    comm = ctypes.c_void_p()
    try:
        comm = library.join(unique_id, rank, plan.size)
        # After the barrier all ranks have joined.
        library.call("barrier", comm, None)
        reached()
        if plan.phase == "collective":
            Rank(library, comm, rank, plan.size, plan.count).repeat(plan.verb)
        # An idle rank makes no operation that could notice a death by itself.
        while plan.phase == "idle":
            library.call("comm_get_async_error", comm)
            time.sleep(0.001)
    finally:
        library.c.tutti_comm_destroy(comm)


def train(store, rank, size, reached):
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    torch.set_num_threads(1)
    try:
        dist.init_process_group("tutti", store=store, rank=rank, world_size=size)
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
    """Runs `body` in a forked child, and ends it. Writes to the pipe `ready` when the phase is reached, and to the pipe
    `report` how the rank ended."""
    faulthandler.register(signal.SIGUSR1)
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
