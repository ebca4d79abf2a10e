"""Wrong calls that a rank makes alone: each is refused before anything is sent, so the group goes on working."""
import torch
import torch.distributed as dist


class Site:
    """The arguments of a wrong call: the group with this rank and its size, its backend, and a tensor."""

    def __init__(self, group, rank, size, device):
        self.group, self.rank, self.size, self.device = group, rank, size, device
        self.backend = group._get_backend(device)
        self.one = torch.ones(4, device=device)

    def empty(self, count, **options):
        return torch.empty(count, device=self.device, **options)


def unknown_root(at):
    options = dist.BroadcastOptions()
    options.rootRank = at.size + 5
    at.backend.broadcast([at.one], options)


def splits(at, received, sent):
    dist.all_to_all_single(at.empty(4), at.one, received, sent, at.group)


# {name: (class of the error, piece of its text, the call)}. The group of a call has two ranks or more.
MISTAKES = {
    "many outputs": ("ValueError", "are given", lambda at: dist.all_gather([at.empty(4)] * (at.size + 1), at.one,
                                                                           at.group)),
    "count": ("ValueError", "must have", lambda at: dist.all_gather_single(at.empty(4 * at.size + 1), at.one,
                                                                           at.group)),
    "type": ("ValueError", "float32", lambda at: at.backend._allgather_base(
        at.empty(4 * at.size, dtype=torch.float64), at.one)),
    "splits": ("ValueError", "add up", lambda at: splits(at, [5] * at.size, [7] * at.size)),
    "negative split": ("ValueError", "negative", lambda at: splits(at, [-1, 5] + [0] * (at.size - 2),
                                                                   [4] + [0] * (at.size - 1))),
    "rows": ("ValueError", "evenly", lambda at: dist.all_to_all_single(at.empty(at.size + 1), at.empty(at.size + 1),
                                                                       group=at.group)),
    "root": ("ValueError", "root", unknown_root),
    "peer": ("ValueError", "peer", lambda at: at.backend.send([at.one], at.size + 5, 0)),
    "tag": ("ValueError", "negative", lambda at: at.backend.send([at.one], (at.rank + 1) % at.size, -2)),
    "two tensors": ("ValueError", "one tensor", lambda at: at.backend.allreduce([at.one, at.one])),
    "sparse": ("ValueError", "to_dense", lambda at: at.backend.broadcast([at.one.to_sparse()])),
    "meta": ("ValueError", "meta device", lambda at: at.backend.allreduce([at.one.to("meta")])),
    "conjugate": ("ValueError", "resolve_conj", lambda at: at.backend.allreduce([at.one.to(torch.complex64).conj()])),
    "negation": ("ValueError", "resolve_neg", lambda at: at.backend.allreduce([torch._neg_view(at.one)])),
    "quantized": ("NotImplementedError", "quantized", lambda at: at.backend.broadcast(
        [torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8)])),
    "not open": ("ValueError", "without start_coalescing", lambda at: at.group._end_coalescing(at.device)),
}


def must_refuse(expected, call):
    """Makes a call that must raise one of the expected errors, (class, piece of its text) each."""
    try:
        call()
    except Exception as error:
        if not any(type(error).__name__ == kind and piece in str(error) for kind, piece in expected):
            raise AssertionError(f"refused with another error than one of {expected}") from error
    else:
        raise AssertionError(f"not refused; expected one of {expected}")


def make_mistake(name, group, rank, size, device):
    kind, piece, call = MISTAKES[name]
    must_refuse([(kind, piece)], lambda: call(Site(group, rank, size, device)))
