"""Carries out random programs (tests/python/model.py) with CUDA tensors, on several streams of each rank.

The program of tests/python/operations.py runs with this place of tensors: a step and a wait have a stream that the rank
chooses at random. Streams write inputs late, and results are copied, overwritten or freed as soon as the stream has
them. So an operation that misses the order of a stream, or memory that is used again too early, gives wrong bits.

    script/test-cuda -- python tests/gpu/stream_programs.py 2 "[Step('all_reduce', dtype='int8'), ...]"
"""
import os
import sys
from datetime import timedelta

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../python"))

import model
import operations
import torch
import torch.distributed as dist

LIMIT = timedelta(seconds=60)
WRONG = 0x5A
# A number that the stream of torch.cuda._sleep takes 0 to 100 us to count to.
CYCLES = (0, 0, 20_000, 200_000)


class OnStreams(operations.Place):
    def __init__(self, device, streams, order):
        self.device, self.streams, self.order = device, streams, order
        # The streams and sizes of tensors whose memory is free as soon as the operations permit it.
        self.freed = []

    def step(self):
        """Chooses a stream. Before, it uses memory again that earlier steps have freed."""
        for stream, size in self.freed:
            with torch.cuda.stream(stream):
                torch.full((size,), WRONG, dtype=torch.uint8, device=self.device)
        self.freed = self.freed[-8:]
        self.stream = self.order.choice(self.streams)
        return torch.cuda.stream(self.stream)

    def put(self, room, is_empty):
        """Returns a tensor into which the current stream writes the contents late. No operation orders streams because
        of an empty tensor, so its guard bytes are there at once."""
        source = room.to(self.device)
        if is_empty:
            return source
        target = torch.full_like(source, WRONG)
        torch.cuda._sleep(self.order.choice(CYCLES))
        return target.copy_(source)

    def wait(self, call, work):
        way = self.order.choice(["wait", "limit", "poll"])
        # A coalescing manager has nothing but wait().
        if call.step.how == "future" or not hasattr(work, "is_completed"):
            super().wait(call, work)
        elif way == "poll":
            while not work.is_completed():
                pass
        else:
            work.wait(*[LIMIT] if way == "limit" else [])
        call.waited.append(torch.cuda.current_stream().record_event())

    def again(self, call):
        """Makes a call, on the current stream or on that of the group. The next call on the same tensors is made on the
        same stream, on another one, or on another one after kernels, which need a wait. The kernels change the tensors
        twice, so that the contents are as before."""
        work = operations.launch(call, self.order.random() < 0.5)
        way = self.order.choice(["same", "other", "kernels"])
        if way == "same":
            return
        current, other = torch.cuda.current_stream(), self.order.choice(self.streams)
        torch.cuda.set_stream(other)
        record_streams(call)
        if way == "kernels":
            if work is not None:
                work.wait()
            else:
                other.wait_stream(current)
            for operand in call.brought:
                # No operation orders the streams of an empty tensor.
                if operand.bytes:
                    operand.room.bitwise_not_()
                    operand.room.bitwise_not_()

    def started(self, call):
        """Frees tensors that the running operation still uses, or overwrites those that it has read."""
        record_streams(call)
        if call.step.how == "drop" and call.step.kind != "messages" and self.order.random() < 0.5:
            self.free(call)
        elif call.step.kind == "messages":
            if self.order.random() < 0.5:
                for operand in call.brought:
                    operand.room.fill_(WRONG)
                call.brought = []
        elif call.step.how != "drop" and call.step.kind not in model.IN_PLACE and self.order.random() < 0.3:
            call.brought = []

    def free(self, call):
        """Frees the tensors of a call. Nobody has seen its results."""
        self.freed += [(call.stream, len(operand.room)) for operand in call.brought + call.received]
        call.brought, call.received, call.part, call.is_dropped = [], [], None, True

    def ended(self, call):
        """Frees the tensors without another use, or copies the results, and then overwrites or frees the tensors, all
        on the current stream."""
        way = self.order.choice(["keep", "overwrite", "free", "forget"])
        if way == "forget" and call.step.kind != "messages":
            return self.free(call)
        for event in call.waited:
            torch.cuda.current_stream().wait_event(event)
        record_streams(call)
        if way == "keep":
            return
        call.part = None
        for operand in call.brought + call.received:
            operand.read = operand.room.clone()
            if way == "overwrite":
                operand.room.fill_(WRONG)
            else:
                operand.room = operand.tensor = None

    def end(self):
        """The second barrier of a group copies the results that go through the host and that nobody has awaited."""
        dist.barrier()
        torch.cuda.synchronize()


def record_streams(call):
    """Makes the memory of the tensors stay until the work of the current stream is over."""
    for operand in call.brought + call.received:
        operand.room.record_stream(torch.cuda.current_stream())


def open_groups(world):
    """Makes the first call of each group, for which all ranks wait."""
    for ranks, group in zip(model.groups_of(world.size), operations.groups_here(world)):
        if world.rank in ranks:
            dist.all_reduce(torch.zeros(1, device=world.kept["device"]), group=group)


def place_of(world, program):
    world.made_once("opened", lambda: open_groups(world))
    device = world.kept["device"]
    streams = world.made_once("streams", lambda: [torch.cuda.default_stream(device),
                                                  *[torch.cuda.Stream(device) for _ in range(3)]])
    return OnStreams(device, streams, operations.order_of(world, program))


def carry_out(world, program):
    """Runs the program on this rank. Returns its results of each step, as model.complaints takes them."""
    return operations.carry_out(world, program, place_of(world, program))


if __name__ == "__main__":
    import gpu_ranks
    import stream_programs
    operations.main(gpu_ranks.start, stream_programs.carry_out)
