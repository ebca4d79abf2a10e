"""Carries out a program (see model.py) on several ranks and reports the tensors that each rank has at the end.

All ranks take the same steps in the same order, so that each blocking call meets its partners. Each rank waits for its
asynchronous operations in another order. Every buffer lies between guard bytes, so that a byte written or read beside
it is found. A failure ends with a line that runs the same program again:

    python tests/python/operations.py 3 "[Step('all_reduce', dtype='int8'), ...]"
"""
import contextlib
import random
import sys
import tempfile
import warnings

import numpy
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager, _world

import model
from arithmetic import FACTOR, itemsize
from mistakes import make_mistake, must_refuse
from model import Step

CPU = torch.device("cpu")
GUARD = 64
FILL = 0xA5


class Place:
    """The CPU, as the place of a program's tensors. tests/gpu/stream_programs.py has another one."""
    device = CPU
    # The stream of the step, or None.
    stream = None

    def put(self, room, is_empty):
        """Returns a tensor of this place with the contents of one on the CPU. is_empty: it holds only guard bytes."""
        return room

    def step(self):
        """Returns a context for a step, or for a wait."""
        return contextlib.nullcontext()

    def wait(self, call, work):
        if call.step.how == "future" and hasattr(work, "get_future"):
            work.get_future().wait()
        else:
            work.wait()

    def again(self, call):
        """Makes a call before another one on the same tensors."""
        work = launch(call, call.step.how != "sync")
        if work is not None:
            work.wait()

    def started(self, call):
        """Is called after a step that leaves an operation running."""

    def ended(self, call):
        """Is called when all operations of a step have been waited for."""

    def end(self):
        """Is called at the end of a program, before its results are read."""


class Operand:
    """A tensor of some layout in a storage of its own, between guard bytes."""

    def __init__(self, place, dtype, shape, layout, content=None):
        size = itemsize(dtype)
        count = int(numpy.prod(shape))
        self.first = GUARD + (size if layout == "slice" else 0)
        self.bytes, self.content = count * size, content
        room = torch.full((self.first + 2 * self.bytes + GUARD + 15 & ~15,), FILL, dtype=torch.uint8)
        self.storage, strides = room.numpy(), model.strides_of(shape, layout)
        self.shape, self.strides = (*shape, size), (*(stride * size for stride in strides), 1)
        if content is not None:
            self.elements(self.storage)[...] = numpy.asarray(content).reshape(self.shape)
        # The storage, and what report() reads: the storage or a copy of it.
        self.room = self.read = place.put(room, not self.bytes)
        self.tensor = self.room[self.first:self.first + len(room[self.first:]) // size * size]
        self.tensor = self.tensor.view(getattr(torch, dtype)).as_strided(shape, strides)

    def elements(self, storage):
        """Returns a view of the bytes of the tensor's elements, in the order of their indices."""
        return numpy.lib.stride_tricks.as_strided(storage[self.first:], self.shape, self.strides)

    def fetch(self):
        self.storage = self.read.cpu().numpy()

    def now(self):
        return self.elements(self.storage).tobytes()

    def guarded(self):
        beside = self.storage.copy()
        self.elements(beside)[...] = FILL
        return bool((beside == FILL).all())


class Call:
    """One step on one rank: its operands, and the Works to wait for."""

    def __init__(self, step, group, rank, size, place):
        self.step, self.group, self.rank, self.size, self.place = step, group, rank, size, place
        inputs = model.inputs_of(step, size, rank)
        self.brought = [Operand(place, step.dtype, shape, "plain" if i else step.layout, inputs[i])
                        for i, shape in enumerate(model.brings(step, size, rank))]
        self.received = [Operand(place, step.dtype, shape, "plain" if i else step.landing)
                         for i, shape in enumerate(model.receives(step, size, rank))]
        if step.kind.endswith("_in_place"):
            self.share_memory()
        # The stream for which the tensors were allocated, or None.
        self.stream = place.stream
        self.works = []
        self.senders = []
        self.is_dropped = False
        # Events after the waits, on the streams of the waits.
        self.waited = []

    def share_memory(self):
        """Puts the smaller operand into the larger one, as this rank's part of it. The larger one holds the result."""
        whole, part = (self.received + self.brought if self.step.kind == "all_gather_in_place"
                       else self.brought + self.received)
        count = part.tensor.numel()
        self.part = whole.tensor[self.rank * count:(self.rank + 1) * count]
        if part.content is not None:
            begin = whole.first + self.rank * part.bytes
            whole.room[begin:begin + part.bytes].copy_(torch.from_numpy(part.content.copy()))
        self.brought, self.received = [], [whole]

    def report(self):
        """Checks that guards and inputs are unchanged. Returns the results as (name, bytes), or as (sender, bytes) for
        messages."""
        if self.is_dropped:
            return model.DROPPED
        for operand in self.brought + self.received:
            operand.fetch()
        in_place = self.step.kind in model.IN_PLACE
        for role, operands in (("input", self.brought), ("output", self.received)):
            for i, operand in enumerate(operands):
                assert operand.guarded(), f"{self.step}: bytes beside {role} {i} were written"
                if operands is self.brought and not in_place:
                    assert operand.now() == operand.content.tobytes(), f"{self.step}: input {i} was written"
        if self.senders:
            return [(sender(), operand.now()) for sender, operand in zip(self.senders, self.received)]
        return [(f"result {i}", operand.now()) for i, operand in enumerate(self.brought if in_place else self.received)]


# ---- the calls of torch.distributed ----
def launch(call, later):
    """Starts the step as torch's users do. Returns an object with wait(), or None if the call has blocked."""
    step, group, p = call.step, call.group, call.size
    ins, outs = [o.tensor for o in call.brought], [o.tensor for o in call.received]
    root = step.root % p
    op = dist._make_nccl_premul_sum(FACTOR) if step.op == "PREMUL_SUM" else getattr(dist.ReduceOp, step.op)
    reduces, moves = {"op": op, "group": group, "async_op": later}, {"group": group, "async_op": later}
    rows = lambda of: [model.uneven(step, *of(r)) for r in range(p)]
    calls = {
        "all_reduce": lambda: dist.all_reduce(ins[0], **reduces),
        "reduce": lambda: dist.reduce(ins[0], group_dst=root, **reduces),
        "reduce_scatter": lambda: dist.reduce_scatter(outs[0], ins, **reduces),
        "reduce_scatter_uneven": lambda: dist.reduce_scatter(outs[0], ins, **reduces),
        "reduce_scatter_single": lambda: dist.reduce_scatter_single(outs[0], ins[0], **reduces),
        "reduce_scatter_in_place": lambda: dist.reduce_scatter_single(call.part, outs[0], **reduces),
        "all_reduce_coalesced": lambda: dist.all_reduce_coalesced(ins, **reduces),
        "broadcast": lambda: dist.broadcast(ins[0], group_src=root, **moves),
        "all_gather": lambda: dist.all_gather(outs, ins[0], **moves),
        "all_gather_uneven": lambda: dist.all_gather(outs, ins[0], **moves),
        "all_gather_single": lambda: dist.all_gather_single(outs[0], ins[0], **moves),
        "all_gather_in_place": lambda: dist.all_gather_single(outs[0], call.part, **moves),
        "all_gather_coalesced": lambda: dist.all_gather_coalesced(
            [outs[r * len(ins):(r + 1) * len(ins)] for r in range(p)], ins, **moves),
        "gather": lambda: dist.gather(ins[0], outs or None, group_dst=root, **moves),
        "scatter": lambda: dist.scatter(outs[0], ins or None, group_src=root, **moves),
        "all_to_all": lambda: dist.all_to_all(outs, ins, **moves),
        "all_to_all_single": lambda: dist.all_to_all_single(outs[0], ins[0], **moves),
        "all_to_all_single_uneven": lambda: dist.all_to_all_single(
            outs[0], ins[0], rows(lambda r: (r, call.rank)), rows(lambda r: (call.rank, r)), **moves),
        "managed_all_reduce": lambda: managed(group, later, [lambda x=x: dist.all_reduce(x, op, group) for x in ins]),
        "managed_all_gather": lambda: managed(
            group, later, [lambda y=y, x=x: dist.all_gather_single(y, x, group) for y, x in zip(outs, ins)]),
        "managed_reduce_scatter": lambda: managed(
            group, later, [lambda y=y, x=x: dist.reduce_scatter_single(y, x, op, group) for y, x in zip(outs, ins)]),
        "mixed": lambda: mixed(call, later, [lambda: dist.all_reduce(ins[0], op, group, async_op=True),
                                             lambda: dist.broadcast(ins[1], group=group, group_src=root,
                                                                    async_op=True)]),
        "barrier": lambda: dist.barrier(**moves),
    }
    return calls[step.kind]()


def managed(group, later, calls):
    """Makes several calls of one kind under torch's coalescing manager. Removes the manager's list of calls even if one
    raises."""
    try:
        with _coalescing_manager(group, async_ops=later) as manager:
            for one in calls:
                one()
    finally:
        _world.pg_coalesce_state.pop(group, None)
    return manager if later else None


def mixed(call, later, calls):
    """Makes calls of several kinds, coalesced into one Work."""
    call.group._start_coalescing(call.place.device)
    try:
        for one in calls:
            one()
    finally:
        work = call.group._end_coalescing(call.place.device)
    if later:
        return work
    work.wait()
    return None


def exchange(call, number):
    """Posts the messages of a step in this rank's order."""
    step, group = call.step, call.group
    messages = model.messages_of(step, call.size)
    operations = []
    for is_send, index in model.postings(step, call.size, call.rank):
        source, target, tag = messages[index]
        content = model.message_bytes(step, call.size, index)
        operand = Operand(call.place, step.dtype, (len(content) // itemsize(step.dtype),),
                          step.layout if is_send else step.landing, content if is_send else None)
        (call.brought if is_send else call.received).append(operand)
        anyone = model.from_anyone(step, messages[index], messages)
        peer = target if is_send else None if anyone else source
        operations.append((is_send, operand.tensor, peer, (number + 1) * 100 + tag if anyone else tag))
    if step.how == "batch":
        send_and_receive_batch(call, operations)
    elif step.how == "sync":
        send_and_receive(call, operations)
    else:
        post(call, operations)


def send_and_receive(call, operations):
    for is_send, tensor, peer, tag in operations:
        if is_send:
            dist.send(tensor, group=call.group, tag=tag, group_dst=peer)
        else:
            kwargs = {} if peer is None else {"group_src": peer}
            source = dist.get_group_rank(call.group, dist.recv(tensor, group=call.group, tag=tag, **kwargs))
            call.senders.append(lambda source=source: source)


def post(call, operations):
    for is_send, tensor, peer, tag in operations:
        if is_send:
            work = dist.isend(tensor, group=call.group, tag=tag, group_dst=peer)
        else:
            work = dist.irecv(tensor, group=call.group, tag=tag, **({} if peer is None else {"group_src": peer}))
            call.senders.append(work._source_rank)
        if not is_send or call.step.how != "drop":
            call.works.append(work)


def send_and_receive_batch(call, operations):
    batch = [dist.P2POp(dist.isend if is_send else dist.irecv, tensor, group=call.group, tag=tag, group_peer=peer)
             for is_send, tensor, peer, tag in operations]
    call.senders = [lambda peer=peer: peer for is_send, _, peer, _ in operations if not is_send]
    if batch:
        call.works += dist.batch_isend_irecv(batch)


# ---- a program on one rank ----
def groups_here(world):
    warnings.filterwarnings("ignore", ".*(deprecated|quantized)", category=FutureWarning)
    warnings.filterwarnings("ignore", ".*quantized", category=UserWarning)
    return world.made_once("groups", lambda: [dist.new_group(list(ranks)) for ranks in model.groups_of(world.size)])


def start(step, number, group, rank, size, place):
    """Does the step, or starts it. Returns the Call, or None if this rank has no results to report."""
    # Bits of the seed choose the ranks that make the mistake; the other ranks go on.
    if step.kind == "wrong":
        return make_mistake(step.what, group, rank, size, place.device) if size > 1 and step.seed >> rank & 1 else None
    call = Call(step, group, rank, size, place)
    refusals = model.refusals(step, size)
    if refusals:
        return must_refuse(refusals, lambda: launch(call, step.how != "sync"))
    if step.kind == "messages":
        exchange(call, number)
        return call
    for _ in range(step.times - 1):
        place.again(call)
    work = launch(call, step.how != "sync")
    if work is not None and step.how != "drop":
        call.works.append(work)
    return call


def order_of(world, program):
    """Returns a generator for the choices of this rank in a program."""
    return random.Random(sum(step.seed for step in program) * 64 + world.rank)


class Run:
    """A program on one rank: the Call of each step, and the operations to wait for."""

    def __init__(self, world, program, place):
        self.world, self.program, self.place = world, program, place
        self.groups, self.order = groups_here(world), order_of(world, program)
        self.calls, self.pending = [], []

    def take(self, number):
        """Takes a step."""
        step, call = self.program[number], None
        ranks = model.groups_of(self.world.size)[step.group]
        if self.world.rank in ranks:
            with self.place.step():
                call = start(step, number, self.groups[step.group], ranks.index(self.world.rank), len(ranks),
                             self.place)
                if call:
                    is_over = step.how == "sync" and not call.works
                    (self.place.ended if is_over else self.place.started)(call)
        self.calls.append(call)
        self.pending += [(call, work) for work in (call.works if call else [])]

    def wait(self, call, work):
        with self.place.step():
            self.place.wait(call, work)
            call.works.remove(work)
            if not call.works:
                self.place.ended(call)

    def run(self):
        """Returns the results of each step."""
        for number in range(len(self.program)):
            self.take(number)
            if self.pending and self.order.random() < 0.3:
                self.wait(*self.pending.pop(self.order.randrange(len(self.pending))))
        self.order.shuffle(self.pending)
        for call, work in self.pending:
            self.wait(call, work)
        for ranks, group in zip(model.groups_of(self.world.size), self.groups):
            if self.world.rank in ranks:
                # After the barrier, operations whose Work was dropped have also ended.
                dist.barrier(group)
        self.place.end()
        return [call.report() if call else None for call in self.calls]


def carry_out(world, program, place=None):
    """Runs the program on this rank. Returns its results of each step, as model.complaints takes them. An error that
    the model does not expect ends all groups at once, so that no other rank waits for this one."""
    groups = groups_here(world)
    try:
        return Run(world, program, place or Place()).run()
    except BaseException:
        for ranks, group in zip(model.groups_of(world.size), groups):
            if world.rank in ranks:
                group.abort()
        raise


# ---- a program on all ranks ----
def verdict(ranks, program, carry_out=carry_out):
    """Runs the program on these ranks. Returns its faults as texts, [] if there are none. Closes the ranks if one
    fails. Raises AssertionError if one does not answer at all."""
    outcomes = ranks.outcomes(carry_out, program)
    if any(outcome.failed for outcome in outcomes):
        ranks.close()
        return [f"---- rank {r} ----\n{o.trace or f'died with {o.died}'}" for r, o in enumerate(outcomes) if o.failed]
    return model.complaints(program, ranks.size, [outcome.value for outcome in outcomes], ranks.hosts)


def main(start_ranks, carry_out=carry_out):
    """Runs the program of the command line on the ranks that start_ranks(size, folder) returns."""
    size, program = int(sys.argv[1]), eval(sys.argv[2], {"Step": Step})
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(start_ranks(size, folder)) as ranks:
        wrong = verdict(ranks, program, carry_out)
    print("\n".join(wrong) or "no faults")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    from ranks import Ranks
    main(Ranks)
