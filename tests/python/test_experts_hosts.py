"""Tests of experts over several simulated hosts: results are those of one process, each token is sent to a host once
and its result comes back once, and an error of one rank ends the waits of all."""
import pytest
import torch
from test_experts import check, numbers, routing, weights_of_experts
from test_failures import failures
from torch_tutti import _recorder, experts
from torch_tutti.experts import _across
from torch_tutti.experts._across import Across
from torch_tutti.experts._hosts import Hosts, plan_sends
from torch_tutti.experts._messages import Messages

CHOSEN = torch.tensor([[0, 1], [2, 3], [1, 2], [3, 0]])


class ByMessages(experts.Dispatcher):
    """Sends rows between all ranks by all_to_all."""

    def _memory(self):
        return None


# ---- results ----
def way_of(dispatcher, least_bytes=0):
    """Returns the class that exchanges a small batch. least_bytes: the size from which batches of this process go by
    Across, from now on."""
    _across.LEAST_BYTES = least_bytes
    batch = dispatcher.dispatch(torch.ones(1, 8), torch.zeros(1, 1, dtype=torch.int64))
    dispatcher.combine(batch.tokens, torch.ones(1, 1), batch)
    return type(batch._exchange)


def everything(world):
    plain = experts.Dispatcher(2 * world.size)
    assert way_of(plain, 1 << 20) is Messages and way_of(plain) is Across
    for way in "random", "one":
        check(world, plain, way, 3)
    check(world, experts.Dispatcher(2 * world.size, capacity=4, pad=True), "none", 2)
    check(world, plain, "random", 2, torch.bfloat16, 0.2)
    check(world, plain, "random", 2, torch.float16, 3e-2)
    check(world, plain, "none", 2, torch.float64, 1e-13)
    equal_by_messages(world)
    in_pieces(world)
    # Ranks have different numbers of choices.
    check(world, plain, "empty", 1 + world.rank % 2)


def equal_by_messages(world):
    """Checks Across against messages between all ranks: rows, gradients of weights and sums of one term have the same
    bits. With 64 choices, a token has too many for Across."""
    for k in 1, 4, 64:
        x, scores = numbers(world.rank, 20, 96).to(torch.bfloat16), numbers(9, 20, k).softmax(-1)
        chosen, found = routing("random", world.rank, 20, 64, k), []
        for kind in experts.Dispatcher, ByMessages:
            leaf, weights = x.clone().requires_grad_(), scores.clone().requires_grad_()
            batch = (dispatcher := kind(64)).dispatch(leaf, chosen)
            assert isinstance(batch._exchange, Across if kind is experts.Dispatcher and k < 64 else Messages)
            y = dispatcher.combine(batch.tokens * 2, weights, batch)
            y.backward(numbers(4, 20, 96).to(torch.bfloat16))
            found.append((batch.tokens.detach().clone(), weights.grad, y.detach(), leaf.grad))
        for number, (one, other) in enumerate(zip(*found)):
            # All other results are the same bits: they have no sum of several rows.
            limit = 3e-2 if k == 4 and number >= 2 else 0
            torch.testing.assert_close(one, other, rtol=limit, atol=limit)


def in_pieces(world):
    """Runs a batch in chunks: messages of one chunk are in flight while the chunk before is combined."""
    dispatcher, x = experts.Dispatcher(8), numbers(world.rank, 9 + world.rank, 24)
    chosen, weights = routing("none", world.rank, len(x), 8, 2), numbers(3, len(x), 2)
    up = weights_of_experts(8, torch.float32)[0][list(dispatcher.mine)]

    def expert(rows, counts):
        return torch.cat([part @ a @ a.t() for part, a in zip(rows.split(counts.tolist()), up)])
    found = []
    for chunks in 1, 4:
        leaf = x.clone().requires_grad_()
        y = dispatcher.run(expert, leaf, weights, chosen, chunks)
        y.square().sum().backward()
        found.append((y.detach(), leaf.grad))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("hosts", ["0,0,1,1", "0,0,0,1", "0,1,2,0"])
def test_experts_on_several_hosts_equal_a_loop_in_one_process(fresh, hosts):
    fresh(4, environment={"TUTTI_HOSTS": hosts}).run(everything)


# ---- messages between hosts ----
def messages_of(world):
    """Returns the messages that this rank sends in one step, forward and backward, as (receiver, bytes)."""
    dispatcher, x = experts.Dispatcher(8), numbers(world.rank, 10, 32).to(torch.bfloat16).requires_grad_()
    # Each token chooses all experts, so two on each rank.
    chosen = torch.arange(8).expand(10, 8)
    weights = torch.full((10, 8), 0.125, requires_grad=True)
    # Makes the shared memory, before messages are recorded.
    way_of(dispatcher)
    before = len(_recorder.recorded(10000)["entries"])
    batch = dispatcher.dispatch(x, chosen)
    dispatcher.combine(batch.tokens, weights, batch).sum().backward()
    sent = []
    for entry in _recorder.recorded(10000)["entries"][before:]:
        if entry["profiling_name"].startswith("tutti:send "):
            size = torch.Size(entry["input_sizes"][0]).numel()
            sent.append((int(entry["profiling_name"].split("->")[1]),
                         size * {"Byte": 1, "BFloat16": 2, "Float": 4}[entry["input_dtypes"][0]]))
    return sent


@pytest.mark.parametrize("hosts, senders", [("0,0,1,1", {0: [2], 1: [3], 2: [0], 3: [1]}),
                                           ("0,0,0,1", {0: [3], 1: [], 2: [], 3: [0, 1, 2]})])
def test_token_is_sent_to_a_host_once(fresh, hosts, senders):
    """10 tokens of 64 bytes and 8 choices. senders: for each rank, the ranks of other hosts whose tokens it receives. A
    sender sends tokens with their choices, weights, and gradients. It gets back sums, products for the weights, and
    sums of gradients."""
    sent = fresh(4, environment={"TUTTI_HOSTS": hosts, "TORCH_FR_BUFFER_SIZE": "1000"}).run(messages_of)
    for rank, found in enumerate(sent):
        there = [(other, size) for other in senders if rank in senders[other] for size in (640 + 320, 320, 640)]
        back = [(sender, size) for sender in senders[rank] for size in (640, 320, 640)]
        assert sorted(found) == sorted(there + back)


def test_each_rank_has_one_receiver_on_each_other_host():
    ranks = [Hosts([0, 1, 0, 2, 0, 1], rank) for rank in range(6)]
    assert [hosts.receivers for hosts in ranks] == [[1, 3], [0, 3], [5, 3], [0, 1], [1, 3], [2, 3]]
    for rank, hosts in enumerate(ranks):
        assert sorted(hosts.sources) == [other for other in range(6) if rank in ranks[other].receivers]
    chosen = torch.tensor([[0, 5], [3, 1], [2, -1], [5, 1]])
    # The first choice of the last token is dropped.
    placed = torch.tensor([[0, 0], [0, 0], [0, -1], [-1, 1]])
    sends = plan_sends(ranks[0], chosen, placed, 6)
    assert [tokens.tolist() for tokens in sends.tokens] == [[0, 1, 3], [1]]
    assert [choices.tolist() for choices in sends.choices] == [[[-1, 5], [-1, 1], [-1, 1]], [[3, -1]]]
    assert sends.counts.tolist() == [0, 3, 1]


# ---- errors ----
def combine_wrong(world, least_bytes):
    """Rank 1 gives outputs of another shape, after a step that went well."""
    dispatcher, x = experts.Dispatcher(4), torch.ones(4, 8)
    way_of(dispatcher, least_bytes)
    batch = dispatcher.dispatch(x, CHOSEN)
    dispatcher.combine(batch.tokens[:, :3] if world.rank == 1 else batch.tokens, torch.ones(4, 2), batch)


def run_failing(world, least_bytes):
    """Rank 1 fails in its second chunk."""
    _across.LEAST_BYTES, calls = least_bytes, []

    def expert(rows, counts):
        calls.append(counts)
        if world.rank == 1 and len(calls) == 2:
            raise KeyError("of the user's")
        return rows * 2
    experts.Dispatcher(4).run(expert, torch.ones(4, 8), torch.ones(4, 2), CHOSEN, chunks=3)


@pytest.mark.parametrize("act, least_bytes, error, text", [
    (combine_wrong, 0, "ValueError", "combine: the experts' outputs are [8, 3]"),
    (combine_wrong, 1 << 20, "ValueError", "combine: the experts' outputs are [8, 3]"),
    (run_failing, 0, "KeyError", "of the user's")])
def test_error_of_one_rank_ends_the_waits_of_all(fresh, act, least_bytes, error, text):
    """Batches below 1 << 20 bytes travel by all_to_all."""
    outcomes = fresh(4, environment={"TUTTI_HOSTS": "0,0,1,1"}).outcomes(act, least_bytes)
    failures([outcomes.pop(1)], error, text)
    failures(outcomes, "AbortedError", "experts: rank ", " of the group waits in ", "which another rank has not "
             "reached")
