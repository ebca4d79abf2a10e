"""A model of all operations: computes their results in one process from the inputs of all ranks, to the last bit.

A *program* is a list of `Step`s that all ranks of a world carry out in the same order. A step is data: it names the
operation, the group, the types and shapes, and a seed from which every rank's input follows, so the inputs of all ranks
can be computed from the step alone. Buffers are bytes here (arrays of uint8), because most operations only move them.
"""
import math
import random
from dataclasses import dataclass, fields

import numpy
import torch

from arithmetic import COMPLEX, FLOATS, INTEGERS, MOVED_ONLY, hosts_of, itemsize, raw, reduced, undefined

REDUCING = ["all_reduce", "reduce", "reduce_scatter", "reduce_scatter_uneven", "reduce_scatter_single",
            "reduce_scatter_in_place", "all_reduce_coalesced", "managed_all_reduce", "managed_reduce_scatter", "mixed"]
MOVING = ["broadcast", "all_gather", "all_gather_uneven", "all_gather_single", "all_gather_in_place", "gather",
          "scatter", "all_to_all", "all_to_all_single", "all_to_all_single_uneven", "all_gather_coalesced",
          "managed_all_gather"]
IN_PLACE = ["all_reduce", "reduce", "broadcast", "all_reduce_coalesced", "managed_all_reduce", "mixed"]
ALWAYS_CONTIGUOUS = ["all_gather_in_place", "reduce_scatter_in_place"]
# An expanded output would be refused on some ranks only, and the other ranks would wait for those.
NEVER_EXPANDED = ["gather", "scatter", "all_gather_uneven", "reduce_scatter_uneven", "all_to_all",
                  "all_to_all_single_uneven"]
# Elements of a message, by its tag modulo 4.
COUNTS = [1, 0, 7, 3000]
# A message with this tag or a higher one may be received from any rank.
ANY_SOURCE = 4
# The report of a rank that has dropped the tensors of an operation early.
DROPPED = "dropped"


@dataclass(frozen=True)
class Step:
    """One operation of all ranks of a group. Ranks and roots are those of the group, taken modulo its size.

    how: "sync"; or asynchronous: "wait" and "future" are waited for later, "drop" never; "batch" for messages.
    layout, landing: the layouts of a rank's inputs and of its outputs; see `strides_of`.
    messages: (source, target, tag) each. what: the mistake to make, for kind "wrong". times: how often the call is made
    on the same tensors, for the kinds in IN_PLACE.
    """
    kind: str
    group: int = 0
    dtype: str = "float32"
    shape: tuple = (3,)
    op: str = "SUM"
    root: int = 0
    layout: str = "plain"
    landing: str = "plain"
    how: str = "sync"
    seed: int = 0
    messages: tuple = ()
    what: str = ""
    times: int = 1

    def __repr__(self):
        given = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Step({', '.join(given)})"


def groups_of(size):
    """Returns the ranks of the groups that programs use: all (twice), all but the first, all but the last, every second
    one, and the last one alone."""
    everyone = tuple(range(size))
    return [everyone, everyone, everyone[1:] or everyone, everyone[:-1] or everyone, everyone[::2], (size - 1,)]


# ---- inputs ----
def input_bytes(step, rank, index, count):
    """Returns a rank's operand `index` as bytes. The seed decides whether it has small numbers, random bits, or floats
    of every magnitude."""
    if step.seed % 3 == 0 and step.dtype not in MOVED_ONLY:
        return small_numbers(step.dtype, (numpy.arange(count) * 7 + rank * 3 + index + step.seed) % 3 + 1)
    generator = numpy.random.default_rng((step.seed, rank, index))
    if step.seed % 3 == 1 and step.dtype in FLOATS:
        values = generator.standard_normal(count) * 2.0 ** generator.integers(-30, 30)
        return raw(torch.from_numpy(values).to(getattr(torch, step.dtype)))
    some = numpy.frombuffer(generator.bytes(count * itemsize(step.dtype)), dtype=numpy.uint8)
    return some & 1 if step.dtype == "bool" else some


def small_numbers(dtype, values):
    if dtype == "bool":
        return (values == 1).view(numpy.uint8)
    if dtype in COMPLEX:
        return small_numbers(COMPLEX[dtype], numpy.stack([values, -values], 1).reshape(-1))
    if dtype in INTEGERS:
        return values.astype(dtype).view(numpy.uint8)
    return raw(torch.from_numpy(values).to(torch.float32).to(getattr(torch, dtype)))


# ---- shapes ----
def uneven(step, source, target):
    """Returns how many rows go from one rank to another: 0 to 4."""
    return (step.seed // 3 + source * 5 + target * 3) % 5


def shapes_of_list(step):
    """Returns the shapes of one to three tensors, for operations that take several at once."""
    return [step.shape, (step.seed % 5,), (2, 3)][:1 + step.seed % 3]


def brings(step, size, rank):
    """Returns the shapes of a rank's input tensors."""
    times = lambda shape: (size * math.prod(shape),)
    everyone = range(size)
    row = step.shape[1:]
    return {
        "all_gather_uneven": lambda: [(uneven(step, 0, rank),)],
        "scatter": lambda: [step.shape] * size if rank == step.root % size else [],
        "reduce_scatter": lambda: [step.shape] * size,
        "reduce_scatter_uneven": lambda: [(uneven(step, 0, r),) for r in everyone],
        "reduce_scatter_single": lambda: [times(step.shape)],
        "reduce_scatter_in_place": lambda: [times(step.shape)],
        "all_to_all": lambda: [(uneven(step, rank, r), *row) for r in everyone],
        "all_to_all_single": lambda: [(size * (step.shape or (1,))[0], *row)],
        "all_to_all_single_uneven": lambda: [(sum(uneven(step, rank, r) for r in everyone), *row)],
        "all_reduce_coalesced": lambda: shapes_of_list(step),
        "all_gather_coalesced": lambda: shapes_of_list(step),
        "managed_all_reduce": lambda: shapes_of_list(step),
        "managed_all_gather": lambda: shapes_of_list(step),
        "managed_reduce_scatter": lambda: [times(shape) for shape in shapes_of_list(step)],
        "mixed": lambda: [step.shape, (5,)],
        "barrier": lambda: [],
    }.get(step.kind, lambda: [step.shape])()


def receives(step, size, rank):
    """Returns the shapes of a rank's output tensors; [] if the operation writes to its inputs."""
    everyone = range(size)
    row = step.shape[1:]
    return {
        "all_gather": lambda: [step.shape] * size,
        "all_gather_uneven": lambda: [(uneven(step, 0, r),) for r in everyone],
        "all_gather_single": lambda: [(size * math.prod(step.shape),)],
        "all_gather_in_place": lambda: [(size * math.prod(step.shape),)],
        "gather": lambda: [step.shape] * size if rank == step.root % size else [],
        "scatter": lambda: [step.shape],
        "reduce_scatter": lambda: [step.shape],
        "reduce_scatter_uneven": lambda: [(uneven(step, 0, rank),)],
        "reduce_scatter_single": lambda: [step.shape],
        "reduce_scatter_in_place": lambda: [step.shape],
        "all_to_all": lambda: [(uneven(step, r, rank), *row) for r in everyone],
        "all_to_all_single": lambda: [(size * (step.shape or (1,))[0], *row)],
        "all_to_all_single_uneven": lambda: [(sum(uneven(step, r, rank) for r in everyone), *row)],
        "all_gather_coalesced": lambda: [shape for _ in everyone for shape in shapes_of_list(step)],
        "managed_all_gather": lambda: [(size * math.prod(shape),) for shape in shapes_of_list(step)],
        "managed_reduce_scatter": lambda: shapes_of_list(step),
    }.get(step.kind, lambda: [])()


def inputs_of(step, size, rank):
    found = [input_bytes(step, rank, i, math.prod(shape)) for i, shape in enumerate(brings(step, size, rank))]
    if found and overlaps_itself(brings(step, size, rank)[0], step.layout):
        rows = brings(step, size, rank)[0][0]
        found[0] = numpy.tile(found[0][:len(found[0]) // rows], rows)
    return found


def strides_of(shape, layout):
    """Returns the strides of a layout, in elements. plain and slice (which begins within a larger storage) are
    contiguous, transposed is dense, every_second has gaps, and elements of expanded may share memory."""
    ascending = layout == "transposed"
    strides, step = [], 2 if layout == "every_second" else 1
    for length in shape if ascending else reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    strides = strides if ascending else strides[::-1]
    return [0, *strides[1:]] if layout == "expanded" and shape else strides


def overlaps_itself(shape, layout):
    """Returns whether several elements share memory."""
    return layout == "expanded" and 0 not in shape and shape[:1] > (1,)


# ---- calls that are refused ----
def refusals(step, size):
    """Returns the errors of which one must be raised on every rank, as (class, piece of its text); [] if the step must
    work."""
    found = []
    if step.kind in REDUCING:
        found += undefined(step.dtype, step.op)
    if step.kind in MOVING + REDUCING:
        in_place = step.kind in IN_PLACE
        shapes = (brings if in_place else receives)(step, size, 0)
        if shapes and overlaps_itself(shapes[0], step.layout if in_place else step.landing):
            found.append(("ValueError", "share memory"))
    return found


# ---- expected results ----
def results(step, size, hosts):
    """Returns for each rank the bytes of its output tensors, or of its inputs if the operation writes there. hosts: the
    host of each rank."""
    parts = [inputs_of(step, size, rank) for rank in range(size)]
    for _ in range(step.times):
        parts = results_of(step, parts, hosts)
    return parts


def results_of(step, parts, hosts):
    """Returns the results of one call with these inputs of all ranks."""
    size = len(parts)
    everyone = range(size)
    root = step.root % size
    total = lambda index: reduced([parts[r][index] for r in everyone], step.dtype, step.op, hosts)
    joined = lambda index: numpy.concatenate([parts[r][index] for r in everyone])
    share = lambda whole, rank: whole[rank * (len(whole) // size):(rank + 1) * (len(whole) // size)]
    indices = range(len(parts[root]))
    same = {
        "all_reduce": lambda: [total(0)],
        "broadcast": lambda: parts[root],
        "all_gather": lambda: [parts[r][0] for r in everyone],
        "all_gather_uneven": lambda: [parts[r][0] for r in everyone],
        "all_gather_single": lambda: [joined(0)],
        "all_gather_in_place": lambda: [joined(0)],
        "all_gather_coalesced": lambda: [part for r in everyone for part in parts[r]],
        "managed_all_gather": lambda: [joined(i) for i in indices],
        "all_reduce_coalesced": lambda: [total(i) for i in indices],
        "managed_all_reduce": lambda: [total(i) for i in indices],
        "mixed": lambda: [total(0), parts[root][1]],
        "barrier": lambda: [],
    }
    if step.kind in same:
        return [same[step.kind]()] * size
    each = {
        "reduce": lambda rank: [total(0)] if rank == root else parts[rank],
        "gather": lambda rank: [parts[r][0] for r in everyone] if rank == root else [],
        "scatter": lambda rank: [parts[root][rank]],
        "reduce_scatter": lambda rank: [total(rank)],
        "reduce_scatter_uneven": lambda rank: [total(rank)],
        "reduce_scatter_single": lambda rank: [share(total(0), rank)],
        "reduce_scatter_in_place": lambda rank: [with_share(parts[rank][0], share(total(0), rank), rank)],
        "managed_reduce_scatter": lambda rank: [share(total(i), rank) for i in indices],
        "all_to_all": lambda rank: [parts[r][rank] for r in everyone],
        "all_to_all_single": lambda rank: [numpy.concatenate([share(parts[r][0], rank) for r in everyone])],
        "all_to_all_single_uneven": lambda rank: [exchanged(step, parts, size, rank)],
    }
    return [each[step.kind](rank) for rank in everyone]


def with_share(whole, part, rank):
    whole = whole.copy()
    whole[rank * len(part):(rank + 1) * len(part)] = part
    return whole


def exchanged(step, parts, size, rank):
    row = math.prod(step.shape[1:]) * itemsize(step.dtype)
    pieces = []
    for source in range(size):
        first = sum(uneven(step, source, target) for target in range(rank)) * row
        pieces.append(parts[source][0][first:first + uneven(step, source, rank) * row])
    return numpy.concatenate(pieces)


# ---- messages ----
def messages_of(step, size):
    """Returns the messages between ranks of the group, without those of a rank to itself."""
    pairs = [(source % size, target % size, tag) for source, target, tag in step.messages]
    return [message for message in pairs if message[0] != message[1]]


def from_anyone(step, message, messages):
    """Returns whether the receive accepts any sender. In a batch it does not. A blocking receive does only if a single
    message matches it. Otherwise it might take the message of a later receive, and that receive might then wait for a
    sender that itself is blocked."""
    alone = [other[1:] for other in messages].count(message[1:]) == 1
    return message[2] >= ANY_SOURCE and step.how != "batch" and (step.how != "sync" or alone)


def postings(step, size, rank):
    """Returns the sends and receives of a rank, as (whether it is a send, index of the message), in the order in which
    the rank posts them: a random one, or that of the step if they block."""
    mine = [(message[0] == rank, index) for index, message in enumerate(messages_of(step, size)) if rank in message[:2]]
    if step.how != "sync":
        random.Random(step.seed * 64 + rank).shuffle(mine)
    return mine


def message_bytes(step, size, index):
    source, _, tag = messages_of(step, size)[index]
    return input_bytes(step, source, index, COUNTS[tag % len(COUNTS)])


def complaints_about_messages(step, size, rank, got):
    """Returns the faults of the messages that a rank has received, as texts. got: (sender, bytes) of each receive, in
    the order of its postings. Messages from one rank with one tag must come in the order in which they were sent; those
    of several senders may come in any order."""
    messages = messages_of(step, size)
    waiting = {}
    for source in range(size):
        for is_send, index in postings(step, size, source):
            if is_send and messages[index][1] == rank:
                waiting.setdefault((source, messages[index][2]), []).append(index)
    receives_of_rank = [messages[index] for is_send, index in postings(step, size, rank) if not is_send]
    if len(got) != len(receives_of_rank):
        return [f"{len(got)} messages came, not {len(receives_of_rank)}"]
    found = []
    for message, (sender, content) in zip(receives_of_rank, got):
        source, _, tag = message
        if sender != source and not from_anyone(step, message, messages):
            found.append(f"tag {tag}: from rank {sender}, not {source}")
        elif not waiting.get((sender, tag)):
            found.append(f"tag {tag}: rank {sender} sent nothing more")
        else:
            expected = message_bytes(step, size, waiting[sender, tag].pop(0))
            found += difference(f"tag {tag} from rank {sender}", content, expected)
    return found


# ---- comparing ----
def difference(name, got, expected):
    got, expected = numpy.frombuffer(got, dtype=numpy.uint8), numpy.asarray(expected)
    if len(got) != len(expected):
        return [f"{name}: {len(got)} bytes, not {len(expected)}"]
    wrong = numpy.flatnonzero(got != expected)
    if not len(wrong):
        return []
    first = wrong[0] - wrong[0] % 16
    return [f"{name}: {len(wrong)} of {len(got)} bytes differ, the first at {wrong[0]}; from {first} on "
            f"{got[first:first + 16].tobytes().hex()} and not {expected[first:first + 16].tobytes().hex()}"]


def complaints(program, size, outcomes, hosts=None):
    """Returns the faults of the results that the ranks report, as texts. outcomes: for each rank and step, None if the
    rank is not in the group, DROPPED, or a list of (name, bytes) or, for messages, of (sender, bytes). hosts: the host
    of each rank; None: that of TUTTI_HOSTS."""
    found, hosts = [], hosts or hosts_of(range(size), size)
    for number, step in enumerate(program):
        members = groups_of(size)[step.group]
        among = [hosts[rank] for rank in members]
        expected = results(step, len(members), among) if works(step, len(members)) else None
        for position, rank in enumerate(members):
            got = outcomes[rank][number]
            if step.kind == "messages":
                wrong = complaints_about_messages(step, len(members), position, got)
            elif expected is None or got == DROPPED:
                # The call was refused, and the rank itself has checked the error; or nobody has seen the results.
                wrong = []
            elif len(got) != len(expected[position]):
                wrong = [f"{len(got)} results, not {len(expected[position])}"]
            else:
                wrong = [text for (name, data), want in zip(got, expected[position])
                         for text in difference(name, data, want)]
            found += [f"step {number}, rank {rank}: {text}\n    {step}" for text in wrong]
    return found


def works(step, size):
    return step.kind in MOVING + REDUCING + ["barrier"] and not refusals(step, size)
