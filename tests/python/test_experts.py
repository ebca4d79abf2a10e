"""Tests of experts on several ranks: forward and backward of any routing give what a loop over experts gives in one
process, in common memory, by messages, and on gloo. Also decoding in one round, routers, balance, and mistakes."""
import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import gelu
from torch_tutti import experts

COLUMNS, HIDDEN = 24, 40


def numbers(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def tokens_of(rank):
    """Returns the number of tokens of a rank; ranks have different numbers."""
    return 13 + 5 * rank


def routing(way, rank, count, of, k):
    """Returns the chosen experts, [tokens, k]. way: "random"; "one", all choose the last expert; "none", some choices
    are -1, no expert; "empty", no token chooses expert 1."""
    draw = torch.Generator().manual_seed(100 * rank + len(way))
    chosen = torch.rand(count, of, generator=draw).topk(k).indices
    if way == "one":
        chosen = torch.full((count, k), of - 1)
    if way == "none":
        chosen[::3, 0] = -1
    if way == "empty":
        chosen = torch.where(chosen == 1, 0, chosen)
    return chosen


def weights_of_experts(of, dtype):
    return [numbers(7, of, COLUMNS, HIDDEN).to(dtype) / 5, numbers(8, of, HIDDEN, COLUMNS).to(dtype) / 6]


def kept(chosen, capacity):
    """Returns for each choice whether its expert takes it: an expert takes its first `capacity` choices."""
    seen, out = {}, torch.ones(chosen.shape, dtype=torch.bool)
    for t, row in enumerate(chosen.tolist()):
        for k, expert in enumerate(row):
            out[t, k] = expert >= 0 and (capacity is None or seen.get(expert, 0) < capacity)
            seen[expert] = seen.get(expert, 0) + 1
    return out


def dense(x, chosen, scores, up, down, capacity):
    """Returns the result for one rank's tokens, by a loop over experts."""
    out, fits = torch.zeros_like(x, dtype=scores.dtype), kept(chosen, capacity)
    for k in range(chosen.shape[1]):
        for expert in range(len(up)):
            here = (chosen[:, k] == expert) & fits[:, k]
            y = gelu(x[here] @ up[expert]) @ down[expert]
            out = out.index_add(0, here.nonzero().flatten(), y.to(out.dtype) * scores[here, k, None])
    return out.to(x.dtype)


def apply_mine(batch, up, down):
    """Applies this rank's experts, each to its rows."""
    if batch.tokens.dim() == 3:
        return gelu(batch.tokens @ up) @ down
    parts = batch.tokens.split(batch.counts.tolist())
    return torch.cat([gelu(part @ a) @ b for part, a, b in zip(parts, up, down)])


def check(world, dispatcher, way, k, dtype=torch.float32, limit=1e-5):
    group, of = dispatcher.group, dispatcher.experts
    x = numbers(world.rank, tokens_of(world.rank), COLUMNS).to(dtype).requires_grad_()
    exact = torch.promote_types(dtype, torch.float32)
    scores = numbers(50 + world.rank, len(x), k).to(exact).softmax(-1).requires_grad_()
    chosen = routing(way, world.rank, len(x), of, k)
    up, down = (part[list(dispatcher.mine)].clone().requires_grad_() for part in weights_of_experts(of, dtype))
    batch = dispatcher.dispatch(x, chosen)
    y = dispatcher.combine(apply_mine(batch, up, down), scores, batch)
    leaves = [x, scores, *weights_of_experts(of, dtype)]
    x2, scores2, up2, down2 = (leaf.detach().clone().requires_grad_() for leaf in leaves)
    expected = dense(x2, chosen, scores2, up2, down2, dispatcher.capacity)
    close = {"rtol": limit, "atol": limit}
    torch.testing.assert_close(y, expected, **close)
    # Gradients of two passes add up, and buffers are used again.
    for turn in range(2):
        y.to(exact).square().sum().backward(retain_graph=turn == 0)
        expected.to(exact).square().sum().backward(retain_graph=turn == 0)
    torch.testing.assert_close(x.grad, x2.grad, **close)
    torch.testing.assert_close(scores.grad, scores2.grad, **close)
    for mine, whole in ((up, up2), (down, down2)):
        summed = whole.grad.to(exact)
        dist.all_reduce(summed, group=group)
        torch.testing.assert_close(mine.grad.to(exact), summed[list(dispatcher.mine)], **close)
    assert batch.dropped == int(((chosen >= 0) & ~kept(chosen, dispatcher.capacity)).sum())
    assert torch.equal(batch.by_rank[world.rank].sum(), kept(chosen, dispatcher.capacity).sum())


def everything(world):
    groups = [None] if world.gloo is None else [None, world.gloo]
    for group in groups:
        for each in 1, 3:
            plain = experts.Dispatcher(each * world.size, group)
            for way in "random", "one", "none", "empty":
                if each * world.size >= 2:
                    check(world, plain, way, 2)
            check(world, experts.Dispatcher(each * world.size, group, capacity=4), "random", 2)
            check(world, experts.Dispatcher(each * world.size, group, capacity=4, pad=True), "none", 2)
            check(world, experts.Dispatcher(each * world.size, group, capacity=100, pad=True), "empty", 1)
        check(world, experts.Dispatcher(2 * world.size, group), "random", 2, torch.bfloat16, 6e-2)
        check(world, experts.Dispatcher(2 * world.size, group), "random", 2, torch.float16, 1e-2)
        check(world, experts.Dispatcher(2 * world.size, group), "none", 2, torch.float64, 1e-13)


@pytest.mark.parametrize("size", [2, 3])
def test_experts_equal_a_loop_in_one_process(shared, size):
    shared(size).run(everything)


def bits(world):
    """Checks that common memory and messages give the same bits."""
    count, of = 50, 2 * world.size
    x, scores = numbers(world.rank, count, 96), numbers(9, count, 2).softmax(-1)
    chosen, results = routing("random", world.rank, count, of, 2), []
    for group in None, world.gloo:
        dispatcher = experts.Dispatcher(of, group)
        batch = dispatcher.dispatch(x, chosen)
        results.append((batch.tokens.clone(), dispatcher.combine(batch.tokens * 2, scores, batch)))
    for one, other in zip(*results):
        assert torch.equal(one, other)


def test_common_memory_and_messages_give_the_same_bits(shared):
    shared(2).run(bits)


def in_pieces(world):
    for group in None, world.gloo:
        dispatcher = experts.Dispatcher(2 * world.size, group)
        up, down = (part[list(dispatcher.mine)] for part in weights_of_experts(2 * world.size, torch.float32))
        x, scores = numbers(world.rank, tokens_of(world.rank), COLUMNS), numbers(3, tokens_of(world.rank), 2)
        chosen, results = routing("none", world.rank, len(x), 2 * world.size, 2), []

        def expert(rows, counts):
            parts = rows.split(counts.tolist())
            return torch.cat([gelu(part @ a) @ b for part, a, b in zip(parts, up, down)])
        # With 50 chunks, some have no token.
        for chunks in 1, 3, 50:
            leaf = x.clone().requires_grad_()
            y = dispatcher.run(expert, leaf, scores, chosen, chunks)
            y.square().sum().backward()
            results.append((y.detach(), leaf.grad))
        for other in results[1:]:
            torch.testing.assert_close(other, results[0])
    with pytest.raises(ValueError, match="0 chunks; there must be 1 or more"):
        dispatcher.run(expert, x, scores, chosen, 0)


def test_chunks_give_the_result_of_one_batch(shared):
    shared(2).run(in_pieces)


def grow(world):
    """Checks that memory of a batch that the program holds is not used again, and that freed memory is."""
    from torch_tutti.experts._pool import shared_of
    dispatcher, held = experts.Dispatcher(2 * world.size), []
    shared = shared_of(dispatcher.group)
    for turn in range(12):
        x = numbers(turn + world.rank, 400, 1024)
        chosen = routing("random", world.rank, len(x), 2 * world.size, 2)
        batch = dispatcher.dispatch(x, chosen)
        held.append((x, chosen, batch, batch.tokens.clone()))
        y = dispatcher.combine(batch.tokens, torch.full((400, 2), 0.5), batch)
        torch.testing.assert_close(y, x)
        # Later batches have not overwritten the earlier ones.
        for _, _, old, tokens in held:
            assert torch.equal(old.tokens, tokens)
    rooms = shared.pool.room
    del held, batch, old
    dispatcher.dispatch(x, chosen)
    assert shared.pool.room == rooms and shared.take().size == rooms


@pytest.mark.one_host("ranks have common memory on one host only")
def test_freed_memory_is_used_again(shared):
    shared(2).run(grow)


def decode(world):
    of, columns = 2 * world.size, 72
    for dtype in torch.float32, torch.bfloat16:
        decoder = experts.Decoder(of, columns, 6, dtype=dtype)
        dispatcher = experts.Dispatcher(of)
        for turn in range(7):
            x = numbers(turn + 10 * world.rank, turn % 4 + world.rank, columns).to(dtype)
            chosen, scores = routing("random", turn + world.rank, len(x), of, 2), numbers(turn, len(x), 2).softmax(-1)
            rows, counts = decoder.dispatch(x, chosen)
            batch = dispatcher.dispatch(x, chosen)
            assert counts.sum(1).tolist() == batch.counts.tolist()
            found = [rows[e, r, :count] for e in range(2) for r, count in enumerate(counts[e].tolist())]
            assert torch.equal(torch.cat(found), batch.tokens)
            expected = dispatcher.combine(batch.tokens * 3, scores, batch)
            if turn % 2:
                y = decoder.combine(rows * 3, scores)
            else:
                decoder.outputs.copy_(rows * 3)
                y = decoder.combine(decoder.outputs, scores)
            assert torch.equal(y, expected)


@pytest.mark.one_host("a Decoder needs all ranks on one host")
def test_decoder_gives_the_results_of_a_dispatcher(shared):
    shared(3).run(decode)


def run_ahead(world):
    """Rank 1 writes its rows of the third dispatch before rank 0 calls it. Rank 0 must still have those of the
    first."""
    from torch_tutti.experts import _decoder
    decoder, chosen = experts.Decoder(2, 4, 3), torch.tensor([[0], [0], [0]])
    rows, counts = decoder.dispatch(torch.full((3, 4), 1.0), chosen)
    decoder.dispatch(torch.full((1, 4), 2.0), chosen[:1])
    if world.rank == 1:
        barrier = _decoder.barrier
        _decoder.barrier = lambda *given, **named: (world.store.set("third", ""), barrier(*given, **named))
    else:
        world.store.wait(["third"])
        assert counts.tolist() == [[3, 3]] and rows.eq(1).all()
    decoder.dispatch(torch.full((2, 4), 3.0), chosen[:2])
    if world.rank == 1:
        _decoder.barrier = barrier


@pytest.mark.one_host("a Decoder needs all ranks on one host")
def test_rows_of_a_decoder_outlive_the_next_dispatch(fresh):
    fresh(2).run(run_ahead)


# ---- routers ----
def test_route_chooses_and_weighs_experts():
    logits = numbers(1, 10, 6)
    weights, chosen = experts.route(logits, 2)
    top = logits.softmax(-1).topk(2)
    assert torch.equal(chosen, top.indices)
    torch.testing.assert_close(weights, top.values / top.values.sum(-1, keepdim=True))
    bias = torch.tensor([9.0, 0, 0, 0, 0, 0])
    weights, chosen = experts.route(logits, 3, score="sigmoid", normalise=False, bias=bias)
    assert (chosen == 0).any(-1).all()
    torch.testing.assert_close(weights, logits.sigmoid().gather(-1, chosen))
    doubles = logits.double()
    assert torch.equal(experts.route(doubles, 2, normalise=False)[0], doubles.softmax(-1).topk(2).values)
    with pytest.raises(ValueError, match="7 experts of each token"):
        experts.route(logits, 7)
    with pytest.raises(ValueError, match='score "hard" is unknown: use "softmax" or "sigmoid"'):
        experts.route(logits, 2, score="hard")
    assert experts.z_loss(logits[:0]) == 0
    torch.testing.assert_close(experts.z_loss(doubles), doubles.exp().sum(-1).log().square().mean())
    with pytest.raises(ValueError, match=r"z_loss: logits are \[10\]; they must be \[tokens, experts\]"):
        experts.z_loss(logits[:, 0])
    found = experts.imbalance(torch.tensor([0, 6, 2, 0]))
    assert found == (3.0, 1, 2, pytest.approx(6 ** 0.5 / 2))


def chosen_in_groups(scores, k, n_group, topk_group):
    """Returns the choices of one token, in plain Python: the groups with the largest sums of two scores, then the
    largest scores there."""
    size = len(scores) // n_group
    groups = [range(group * size, (group + 1) * size) for group in range(n_group)]
    groups.sort(key=lambda group: -sum(sorted(scores[expert] for expert in group)[-2:]))
    allowed = [expert for group in groups[:topk_group] for expert in group]
    return sorted(allowed, key=lambda expert: -scores[expert])[:k]


@pytest.mark.parametrize("experts_, k, n_group, topk_group", [(12, 4, 4, 2), (12, 6, 4, 2), (8, 3, 8, 4), (6, 2, 1, 1)])
def test_route_chooses_within_the_best_groups(experts_, k, n_group, topk_group):
    logits, bias = numbers(5, 40, experts_).requires_grad_(), numbers(6, experts_)
    for score, given in (("sigmoid", bias), ("softmax", None)):
        weights, chosen = experts.route(logits, k, score=score, bias=given, n_group=n_group, topk_group=topk_group)
        scores = logits.detach().sigmoid() if score == "sigmoid" else logits.detach().softmax(-1)
        for_choice = scores if given is None else scores + given
        assert chosen.tolist() == [chosen_in_groups(row, k, n_group, topk_group) for row in for_choice.tolist()]
        expected = scores.gather(-1, chosen)
        torch.testing.assert_close(weights.detach(), expected / expected.sum(-1, keepdim=True))
        assert weights.requires_grad
    for wrong in ({"n_group": 5, "topk_group": 1}, {"n_group": n_group, "topk_group": n_group + 1}):
        with pytest.raises(ValueError, match="the experts must be a multiple of n_group, topk_group 1 to n_group"):
            experts.route(logits, k, **wrong)
    with pytest.raises(ValueError, match="n_group and topk_group are given together, or neither"):
        experts.route(logits, k, n_group=n_group)


def balance(world):
    logits = (numbers(world.rank, 64, 4) * 0.1).requires_grad_()
    even = torch.arange(64)[:, None] % 4
    assert experts.balance_loss(logits, even).item() == pytest.approx(1, abs=0.02)
    skewed = (numbers(2, 64, 4) + torch.tensor([4.0, 0, 0, 0])).requires_grad_()
    loss = experts.balance_loss(skewed, experts.route(skewed, 1)[1])
    assert loss > 2
    loss.backward()
    # The first expert has too many tokens, so its logits should fall.
    assert (skewed.grad[:, 0] > 0).all()
    balance = experts.Balance(4, rate=0.01)
    for _ in range(100):
        chosen = experts.route(skewed.detach() / 4, 1, bias=balance.bias)[1]
        counts = balance.update(chosen)
    assert counts.sum() == 64 * world.size
    assert experts.imbalance(counts).most < 1.8 < experts.imbalance(experts._router.counts_of(
        experts.route(skewed.detach(), 1)[1], 4)).most
    with pytest.raises(ValueError, match="this rank is in no such group"):
        balance.update(chosen, dist.GroupMember.NON_GROUP_MEMBER)
    others = balance.bias.clone()
    dist.broadcast(others, 0)
    assert torch.equal(others, balance.bias)


def test_balance_evens_out_the_load(shared):
    shared(2).run(balance)


# ---- mistakes ----
def refused(world, dispatcher, wrong, text, others, error=ValueError):
    """Rank 1 passes the wrong arguments. It must raise this error, and the other ranks ValueError."""
    x, chosen = torch.ones(4, 8), torch.zeros(4, 2, dtype=torch.int64)
    with pytest.raises(error if world.rank == 1 else ValueError, match=text if world.rank == 1 else others):
        dispatcher.dispatch(*(wrong if world.rank == 1 else (x, chosen)))


def mistakes(world):
    x, chosen = torch.ones(4, 8), torch.zeros(4, 2, dtype=torch.int64)
    for group in None, world.gloo:
        dispatcher, others = experts.Dispatcher(4, group), "rank 1 of the group got invalid arguments"
        refused(world, dispatcher, (x, chosen + 4), "token 0 chooses expert 4; allowed are 0 to 3", others)
        refused(world, dispatcher, (x, chosen - 2), "token 0 chooses expert -2", others)
        refused(world, dispatcher, (x, chosen[:3]), r"the chosen experts are \[3, 2\] of int64", others)
        refused(world, dispatcher, (x, chosen.float()), "of float32; they must be integers", others)
        refused(world, dispatcher, (x.long(), chosen), r"tokens are \[4, 8\] of int64; they must", others)
        refused(world, dispatcher, (x, chosen.tolist()), "chosen must be a tensor, not list", others, TypeError)
        refused(world, dispatcher, (None, chosen), "tokens must be a tensor, not NoneType", others, TypeError)
        refused(world, dispatcher, (x, torch.empty(4, 2, dtype=torch.int64, device="meta")), "meta", others,
                NotImplementedError)
        refused(world, dispatcher, (x.double(), chosen), "rank 1 of the group has rows of 8 x torch.float64, rank 0",
                "rank 0 of the group has rows of 8 x torch.float32, rank 1 of 8 x torch.float64")
        refused(world, dispatcher, (torch.ones(4, 9), chosen), "rows of 9", "rows of 8 x torch.float32, rank 1 of 9")
    batch = dispatcher.dispatch(x, chosen)
    dispatcher.combine(batch.tokens, torch.ones(4, 2), batch)
    for text, given in (("this batch has been combined", (batch.tokens, torch.ones(4, 2))),):
        with pytest.raises(ValueError, match=text):
            dispatcher.combine(*given, batch)
    for wrong, text in ((dict(experts=5), "5 experts cannot be divided evenly among 2 ranks: use a multiple of 2"),
                        (dict(experts=4, capacity=0), "a capacity of 0 rows drops every token"),
                        (dict(experts=4, pad=True), "pad needs a capacity"),
                        (dict(experts=4, group=dist.GroupMember.NON_GROUP_MEMBER), "this rank is in no such group")):
        with pytest.raises(ValueError, match=text):
            experts.Dispatcher(**wrong)


def test_mistake_of_one_rank_is_an_error_on_all(shared):
    shared(2).run(mistakes)


def mistakes_in_common(world):
    x, chosen, others = torch.ones(4, 8), torch.zeros(4, 2, dtype=torch.int64), "rank 1 of the group got invalid"
    dispatcher = experts.Dispatcher(4)
    for outputs, weights, text in ((lambda rows: rows.double(), torch.ones(4, 2), "outputs are .* of float64 on"),
                                   (lambda rows: rows[:, :4], torch.ones(4, 2), "the experts' outputs are"),
                                   (lambda rows: rows, torch.ones(4, 3), r"weights are \[4, 3\] of float32 on rank 1")):
        batch = dispatcher.dispatch(x, chosen)
        with pytest.raises(ValueError, match=text if world.rank == 1 else others):
            if world.rank == 1:
                dispatcher.combine(outputs(batch.tokens), weights, batch)
            else:
                dispatcher.combine(batch.tokens, torch.ones(4, 2), batch)
    with pytest.raises(TypeError if world.rank == 1 else ValueError,
                       match="weights must be a tensor, not list" if world.rank == 1 else others):
        batch = dispatcher.dispatch(x, chosen)
        dispatcher.combine(batch.tokens, [1.0] if world.rank == 1 else torch.ones(4, 2), batch)
    decoder = experts.Decoder(4, 8, 4)
    for wrong, text in (((torch.ones(5, 8), chosen), "this Decoder takes at most 4 of 8"),
                        ((x, chosen[:2]), r"the chosen experts are \[2, 2\]"),
                        ((x, chosen.tolist()), "chosen must be a tensor, not list"),
                        ((x, chosen), "a token chooses an expert twice"),
                        ((x, chosen + 7), "token 0 chooses expert 7")):
        right = x, torch.tensor([[0, 1]]).expand(4, 2)
        error = TypeError if world.rank == 1 and "not list" in text else ValueError
        with pytest.raises(error, match=text if world.rank == 1 else others):
            decoder.dispatch(*(wrong if world.rank == 1 else right))
    rows, _ = decoder.dispatch(*right)
    with pytest.raises(ValueError, match=r"weights \[4, 3\]" if world.rank == 1 else others):
        decoder.combine(rows, torch.ones(4, 2 + world.rank))
    with pytest.raises(TypeError if world.rank == 1 else ValueError,
                       match="outputs must be a tensor, not NoneType" if world.rank == 1 else others):
        decoder.combine(None if world.rank == 1 else rows, torch.ones(4, 2))
    with pytest.raises(ValueError, match="5 experts on 2 ranks"):
        experts.Decoder(5, 8, 4)
    with pytest.raises(ValueError, match="a Decoder needs all ranks of the group on one host, and tutti"):
        experts.Decoder(4, 8, 4, world.gloo)


@pytest.mark.one_host("by messages, other ranks do not get the error, and a Decoder needs one host")
def test_mistake_in_common_memory_is_an_error_on_all(shared):
    shared(2).run(mistakes_in_common)


def die(world):
    import os
    dispatcher = experts.Dispatcher(2 * world.size)
    batch = dispatcher.dispatch(torch.ones(4, 8), torch.zeros(4, 2, dtype=torch.int64))
    if world.rank == 1:
        os._exit(3)
    dispatcher.combine(batch.tokens, torch.ones(4, 2), batch)


def test_death_of_a_rank_is_an_error(fresh):
    outcome = fresh(2).outcomes(die)[0]
    assert outcome.error == "PeerError" and "experts: rank 0 of the group waits in combine(), " in outcome.text
    assert "rank 1" in outcome.text.removeprefix("experts: rank 0")
