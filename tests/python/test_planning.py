"""Tests of the planner: its estimates equal the published formulas, which are repeated here, and its ranking is that of
all strategies."""
import pytest
from test_bench_page import module_at

from torch_tutti import Pipeline
from torch_tutti._pipeline_command import formula
from torch_tutti._planning import communication, units
from torch_tutti._planning.communication import DEVICES, Cluster, Group, Traffic
from torch_tutti._planning.models import ALIASES, MODELS, Model
from torch_tutti._planning.report import roofs_of
from torch_tutti._planning.step import Job, Strategy, estimate, held, memory_of, parts
from torch_tutti._planning.strategy import candidates, ranked, reason
from torch_tutti._planning.units import Link

NO_TIME = 1e30                                          # bytes a second
FAST = Link(NO_TIME, 0.0)


def cluster(devices=64, hosts=8, device="h100", local=None, across=None, **changes):
    made = DEVICES[device]._replace(**changes)
    return Cluster(made, devices, hosts, local or made.local, across or made.across._replace(
        speed=made.across.speed * devices / hosts))


def job(model="llama-7b", batch=512, length=2048, schedule="1f1b", precision="bf16", **of):
    return Job(MODELS[model] if isinstance(model, str) else model, cluster(**of), batch, length, precision, schedule)


def strategy(tp=1, pp=1, dp=1, ep=1, zero=0, microbatches=1, sequences=1, recompute="none"):
    return Strategy(tp, pp, dp, ep, zero, microbatches, sequences, recompute)


# ---- models: all parameters, and those that a token uses, as published ----
PUBLISHED = {"gpt3-175b": 175e9, "llama-7b": 6.7e9, "llama-13b": 13.0e9, "llama-33b": 32.5e9, "llama-65b": 65.2e9,
             "llama2-70b": 69e9, "mixtral-8x7b": 46.7e9, "deepseek-v2": 236e9}


@pytest.mark.parametrize("name", MODELS)
def test_sizes_are_published(name):
    assert MODELS[name].parameters == pytest.approx(PUBLISHED[name], rel=0.01)
    assert MODELS[name].active == MODELS[name].parameters or MODELS[name].experts


def test_active_parameters_are_published():
    """Jiang et al.: 12.9 B; DeepSeek-AI: 21 B, which is rounded, or without the embedding that is looked up."""
    assert MODELS["mixtral-8x7b"].active == pytest.approx(12.9e9, rel=0.01)
    deepseek = MODELS["deepseek-v2"]
    assert round(deepseek.active / 1e9) == 21
    assert deepseek.active - deepseek.own / 2 == pytest.approx(21e9, rel=0.01)
    assert ALIASES["llama-70b"] in MODELS and MODELS["llama2-70b"].key_heads == 8


# ---- volumes: bytes that a rank sends in a step ----
def sent_by_rank(of, traffic):
    """Returns the bytes that a rank sends. `local` counts the bytes of a device, `across` those of a host."""
    return traffic.local + traffic.across / of.cluster.per_host


def test_volume_of_data_parallelism():
    """Elements: 2 N for DDP and stages 1 and 2, 3 N for stage 3; times (p - 1) / p."""
    for hosts in (1, 8):
        of, value, ranks = job(hosts=hosts), 2, 64
        count = of.model.parameters
        for zero, times in ((0, 2), (1, 2), (2, 2), (3, 3)):
            s = strategy(dp=ranks, zero=zero)
            assert sent_by_rank(of, estimate(of, s).traffic["data"]) == pytest.approx(
                times * count * value * (ranks - 1) / ranks)
        more = estimate(of, strategy(dp=ranks, zero=3, microbatches=4)).traffic["data"]
        assert sent_by_rank(of, more) == pytest.approx(4 * 3 * count * value * (ranks - 1) / ranks)
        sums = estimate(of, strategy(dp=ranks, zero=2, microbatches=4)).traffic["data"]
        assert sent_by_rank(of, sums) == pytest.approx((4 + 1) * count * value * (ranks - 1) / ranks)


@pytest.mark.parametrize("tp", [2, 8, 16])
def test_volume_of_tensor_parallelism(tp):
    """4 L BSH 2 (t - 1) / t elements; half as much again with full recomputation."""
    of = job()
    for recompute, more in (("none", 1), ("full", 1.5)):
        s = strategy(tp=tp, dp=64 // tp, microbatches=4, sequences=2, recompute=recompute)
        expected = more * 4 * 32 * (4 * 2 * 2048 * 4096) * 2 * (tp - 1) / tp * 2
        assert sent_by_rank(of, estimate(of, s).traffic["tensor"]) == pytest.approx(expected)


def test_volume_of_pipelines():
    """2 BSH elements for each microbatch and boundary, which tensor parallel ranks share."""
    of = job(hosts=1)
    assert estimate(of, strategy(pp=4, dp=16, microbatches=8)).traffic["pipeline"].local == 8 * 2 * 2048 * 4096 * 2
    assert estimate(of, strategy(tp=2, pp=4, dp=8, microbatches=8)).traffic["pipeline"].local == 8 * 2048 * 4096 * 2
    of = job(hosts=8)
    found = estimate(of, strategy(pp=4, dp=16, microbatches=8)).traffic["pipeline"]
    # All 8 devices of a host send at once.
    assert found.local == 0 and found.across == 8 * 8 * 2 * 2048 * 4096 * 2
    found = estimate(of, strategy(pp=32, dp=2, microbatches=32)).traffic["pipeline"]
    # Only devices of a host's last stage send across hosts.
    assert found.across == 2 * 32 * 2 * 2048 * 4096 * 2


def test_volume_of_experts():
    """4 BSH (e - 1) / e elements in each layer, for each copy of a token that travels."""
    for name, copies, layers in (("mixtral-8x7b", 2, 32), ("deepseek-v2", 3, 59)):
        of = job(name)
        for ep in (4, 8):
            found = estimate(of, strategy(dp=64, ep=ep, microbatches=2)).traffic["experts"]
            expected = 2 * 4 * copies * (2048 * of.model.width) * (ep - 1) / ep * layers * 2
            assert sent_by_rank(of, found) == pytest.approx(expected)
    assert estimate(job("mixtral-8x7b"), strategy(dp=64)).traffic["experts"] == Traffic()


# ---- times ----
def test_times_of_collectives_follow_the_formulas():
    """On one host 2 ⌈log p⌉ α + 2 (p - 1) / p n β; over hosts each rank sends its own slice."""
    alone = cluster(8, 1, local=Link(1e9, 1e-6))
    of = communication.group(alone, 8, 1)
    assert of == Group(8, 1, 8, 1)
    assert alone.seconds(communication.all_reduce(of, 1e6)) == pytest.approx(2 * 3 * 1e-6 + 2 * 7 / 8 * 1e6 / 1e9)
    assert alone.seconds(communication.half(of, 1e6)) == pytest.approx(3 * 1e-6 + 7 / 8 * 1e6 / 1e9)
    assert alone.seconds(communication.all_to_all(of, 1e6)) == pytest.approx(7 * 1e-6 + 7 / 8 * 1e6 / 1e9)
    many = cluster(16, 4, local=FAST, across=Link(1e9, 1e-5))
    of = communication.group(many, 16, 1)
    assert of == Group(16, 4, 4, 1)
    assert many.seconds(communication.all_reduce(of, 1e6)) == pytest.approx(2 * 2 * 1e-5 + 2 * 3 / 4 * 1e6 / 1e9)
    # A group of one rank of each host. Four such groups share a host's link.
    of = communication.group(many, 4, 4)
    assert of == Group(4, 4, 1, 4)
    assert many.seconds(communication.half(of, 1e6)) == pytest.approx(2 * 1e-5 + 4 * 3 / 4 * 1e6 / 1e9)
    assert many.seconds(communication.all_to_all(of, 1e6)) == pytest.approx(3 * 1e-5 + 4 * 3 / 4 * 1e6 / 1e9)


@pytest.mark.parametrize("size, stride", [(2, 1), (4, 1), (8, 2), (3, 1), (6, 1), (12, 2), (16, 4), (48, 1)])
def test_rank_sends_its_share_wherever_its_group_is(size, stride):
    """Wherever its ranks are, a rank sends (p - 1) / p of its bytes, as is exact on full hosts."""
    of = cluster(48, 6)
    found = communication.group(of, size, stride)
    if size * stride <= 8 and 8 % (size * stride):
        # A group that is not aligned may straddle two hosts.
        assert found.hosts == 2
        return
    sent = communication.half(found, 1.0)
    exact = found.here * found.hosts == size
    assert sent.local + sent.across / 8 == pytest.approx((size - 1) / size, rel=1e-9 if exact else 0.2)


def test_computing_takes_six_operations_for_each_parameter():
    """A step takes six operations for each parameter that a token meets, or eight with full recomputation; MFU counts
    six. Selective recomputation adds the products of attention."""
    for name in ("llama-7b", "mixtral-8x7b"):
        of = job(name, local=FAST, across=FAST, bandwidth=NO_TIME)
        work = 6 * of.model.active * 512 * 2048
        for recompute, times in (("none", 6), ("full", 8)):
            found = estimate(of, strategy(tp=4, dp=16, microbatches=32, recompute=recompute))
            assert found.time == pytest.approx(work * times / 6 / (64 * 989.4e12 * 0.5), rel=1e-6)
            assert found.mfu(of) == pytest.approx(0.5 * 6 / times, rel=1e-6)
    selective = estimate(of, strategy(dp=64, microbatches=8, recompute="selective")).compute
    plain = estimate(of, strategy(dp=64, microbatches=8)).compute
    assert selective - plain == pytest.approx(4 * 2048 * 4096 * 32 * (8 * 2048) / (989.4e12 * 0.5))


@pytest.mark.parametrize("schedule", ["naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"])
def test_bubble_is_that_of_the_schedule(schedule):
    """The bubble is that of docs/pipelines.md if messages take no time, and the activations that a rank holds follow
    from its list of actions."""
    p, m = 4, 16
    of = job(batch=256, schedule=schedule, local=FAST, across=FAST, bandwidth=NO_TIME)
    found = estimate(of, strategy(pp=p, dp=16, microbatches=m))
    assert found.bubble / (found.bubble + found.compute) == pytest.approx(formula(Pipeline(schedule, p, m)))
    expected = {"naive": (p - 1) / p, "gpipe": (p - 1) / (m + p - 1), "1f1b": (p - 1) / (m + p - 1),
                "interleaved": (p - 1) / (2 * m + p - 1), "zb-h1": (p - 1) / (3 * m + p - 1),
                "zb-v": (p - 1) / (6 * m + p - 1)}[schedule]
    assert found.bubble / found.time == pytest.approx(expected, abs=1e-9)
    pipeline = Pipeline(schedule, p, m)
    exact = [count / pipeline.chunks for count in pipeline.time().held]
    assert held(schedule, p, m, 0) == max(exact)
    assert all(held(schedule, p, m, rank) >= count for rank, count in enumerate(exact))


def test_long_steps_are_extrapolated(monkeypatch):
    """Microbatches beyond those that are simulated are assumed to take as long as the last ones."""
    from torch_tutti._planning import step
    of = job(batch=16 * 3000, across=Link(1e9, 1e-5))
    s = strategy(pp=4, dp=16, microbatches=3000)
    exact = estimate(of, s)
    monkeypatch.setattr(step, "MOST_PLAYED", 1 << 10)
    assert estimate(of, s).time == pytest.approx(exact.time, rel=1e-4) and exact.pipeline > 0


def test_pipeline_waits_for_its_messages():
    """The first microbatch goes through all stages and back: 2 (p - 1) messages, at least."""
    of, s = job(batch=16, across=Link(1e9, 0.0)), strategy(pp=4, dp=16, microbatches=1)
    of = of._replace(schedule="gpipe")
    seconds = 8 * 2048 * 4096 * 2 / 1e9
    found = estimate(of, s)
    assert found.pipeline == pytest.approx(2 * 3 * seconds)
    assert found.bubble / (found.bubble + found.compute) == pytest.approx(3 / 4)


def test_computing_hides_communication():
    """A backward pass, which takes twice as long as a forward pass, hides sums. A forward pass hides gathers."""
    slow = Link(1e9, 0.0)
    of = job(hosts=1, local=slow, bandwidth=NO_TIME)
    # Seconds of a reduce-scatter.
    size = of.model.parameters * 2 * 63 / 64 / 1e9
    forward = 2 * of.model.active * 2048 / of.cluster.rate
    for zero, exposed, total in ((0, 2 * size - 2 * forward, 2 * size), (1, 2 * size - 3 * forward, 2 * size),
                                 (3, 3 * size - 3 * forward, 3 * size)):
        found = estimate(of, strategy(dp=64, zero=zero))
        assert found.data == pytest.approx(exposed) and found.sent == pytest.approx(total)
        assert found.hidden == pytest.approx(1 - exposed / total)
    busy = job(hosts=1, local=slow, overlap=0.0)
    assert estimate(busy, strategy(dp=64)).data == pytest.approx(2 * size)
    quick = job(hosts=1, local=FAST)
    assert estimate(quick, strategy(dp=64)).data == 0 and estimate(quick, strategy(dp=64)).hidden == 1


def test_optimizer_takes_the_time_of_its_memory_traffic():
    of = job(local=FAST, across=FAST)
    for zero, ranks in ((0, 1), (1, 64)):
        found = estimate(of, strategy(dp=64, zero=zero))
        assert found.update == pytest.approx(28 * of.model.parameters / ranks / 3.35e12)


# ---- memory ----
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_memory_is_that_of_the_paper_and_buffers(zero):
    """Rajbhandari et al.: 16 N; 4 N + 12 N / p; 2 N + 14 N / p; 16 N / p. Beside it what is summed, 2 N / p (stage 1),
    two layers of gradients (2, 3) and two of parameters (3), with what is outside of layers."""
    of, ranks = job("llama-13b"), 64
    count, layer = of.model.parameters, (of.model.parameters - of.model.own) / 40
    lectures = {0: 16 * count, 1: 4 * count + 12 * count / ranks, 2: 2 * count + 14 * count / ranks,
                3: 16 * count / ranks}[zero]
    buffers = 2 * (2 * layer + of.model.own)
    more = {0: 0, 1: 2 * count / ranks, 2: buffers, 3: 2 * buffers - of.model.own * 2 + of.model.own * 2}[zero]
    kept, passing = memory_of(of, strategy(dp=ranks, zero=zero), 0)
    assert kept == pytest.approx(lectures + more)
    assert passing == pytest.approx(40 * 2048 * 5120 * (34 + 5 * 40 * 2048 / 5120))


def test_memory_of_stages_and_of_tensor_parallel_ranks():
    """A stage holds one pass for itself and one for each stage behind it; each tensor parallel rank its part
    (Korthikanti et al.)."""
    of = job("gpt3-175b", batch=64)
    s = strategy(tp=8, pp=8, microbatches=64)
    layer = 2048 * 12288 * (34 + 5 * 96 * 2048 / 12288) / 8
    inside = (of.model.parameters - of.model.own) / 8 / 8
    for rank, count in ((0, 8), (3, 5), (7, 1)):
        kept, passing = memory_of(of, s, rank)
        assert passing == pytest.approx(12 * layer * count)
        # The tied embedding is on the first and on the last stage.
        own = of.model.own / 8 if rank in (0, 7) else 0
        assert kept == pytest.approx(16 * (inside + own), rel=1e-6)
    assert estimate(of, s).memory == pytest.approx(sum(memory_of(of, s, 0)))


def test_parts_of_all_ranks_are_the_model():
    for name, pp in (("llama-7b", 8), ("deepseek-v2", 16), ("mixtral-8x7b", 4), ("llama-7b", 1)):
        of, model = job(name, batch=1024), MODELS[name]
        s = strategy(tp=2, pp=pp, dp=64 // 2 // pp, ep=2, microbatches=512)
        found = [parts(of, s, rank) for rank in range(pp)]
        assert sum(dense.layers for dense, _ in found) == model.layers
        total = sum(2 * dense.parameters + 2 * 2 * routed.parameters for dense, routed in found)
        assert total == pytest.approx(model.parameters, rel=1e-6)


def test_experts_are_divided_among_their_ranks():
    of = job("mixtral-8x7b")
    model = of.model
    kept, _ = memory_of(of, strategy(dp=64, ep=8, zero=1), 0)
    dense, routed = model.parameters - model.routed, model.routed / 8
    assert kept == pytest.approx(4 * dense + 14 * dense / 64 + 4 * routed + 14 * routed / 8)


# ---- roofline ----
def test_roofline_has_a_ridge_for_each_level():
    """CCR = FLOPs by bytes, ridge = peak by bandwidth, one for each level of links."""
    of = job()
    s = strategy(tp=8, dp=8, microbatches=64)
    found = {roof.kind: roof for roof in roofs_of(of, estimate(of, s))}
    flops = 6 * of.model.parameters * 512 * 2048
    tensor, data = found["tensor"], found["data"]
    assert set(found) == {"tensor", "data"} and (tensor.level, data.level) == ("local", "across")
    assert tensor.ridge == pytest.approx(989.4e12 / 450e9) and data.ridge == pytest.approx(8 * 989.4e12 / 400e9)
    assert tensor.intensity == pytest.approx(flops / 64 / (64 * 4 * 32 * 2048 * 4096 * 2 * 7 / 8 * 2))
    host = 8 * 2 * of.model.parameters / 8 * 2 * 7 / 8
    assert data.intensity == pytest.approx(flops / 8 / host) and tensor.critical is None
    at_ridge = of._replace(batch=round(data.critical / 2048))
    at_ridge = {roof.kind: roof for roof in roofs_of(at_ridge, estimate(at_ridge, s._replace(microbatches=1)))}["data"]
    assert at_ridge.ratio == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("ratio, name", [
    (0.19, "severely communication-bound"), (0.2, "communication-bound"), (0.79, "communication-bound"),
    (0.8, "near the ridge"), (1.2, "compute-bound")])
def test_regime_follows_from_the_ratio(ratio, name):
    assert communication.regime(ratio) == name


# ---- ranking ----
JOBS = [("llama-7b", {"devices": 16, "hosts": 2, "batch": 64}), ("llama-7b", {"devices": 24, "hosts": 3, "batch": 48}),
        ("mixtral-8x7b", {"devices": 16, "hosts": 4, "batch": 32, "memory": 160e9}),
        ("llama2-70b", {"devices": 64, "hosts": 8, "batch": 64, "across": Link(1e9, 1e-5)}),
        *(("llama-7b", {"devices": 24, "hosts": 3, "batch": 48, "schedule": schedule, "across": Link(1e9, 1e-5)})
          for schedule in ("naive", "gpipe", "interleaved", "zb-h1", "zb-v"))]


@pytest.mark.parametrize("model, sizes", JOBS)
def test_ranking_is_that_of_a_full_search(model, sizes):
    """The ranking is that of a search that estimates each strategy in full and takes the fastest of each division that
    fits."""
    of = job(model, **sizes)
    every = [estimate(of, s) for s in candidates(of, {})]
    least = {estimate(of, s, simulated=False).strategy: estimate(of, s, simulated=False).time
             for s in candidates(of, {})}
    assert all(least[one.strategy] <= one.time * (1 + 1e-9) for one in every)
    fastest = {}
    for one in sorted((one for one in every if one.memory <= of.cluster.device.memory), key=lambda one: one.time):
        fastest.setdefault(one.strategy.division, one.time)
    found = ranked(of, {}, None, 7)
    assert [one.time for one in found.best] == pytest.approx(list(fastest.values())[:7])
    assert found.looked_at == len(every) and found.least.memory == min(one.memory for one in every)
    assert all(one.exact for one in found.best + found.others)
    for one in found.others:
        assert one.memory > of.cluster.device.memory or one.strategy.tp > of.cluster.per_host
        assert one.strategy.division not in fastest or one.strategy.tp > of.cluster.per_host


def test_candidates_are_possible():
    of = job("mixtral-8x7b", batch=192, devices=48, hosts=6)
    found = list(candidates(of, {}))
    assert len(set(found)) == len(found) > 500
    for s in found:
        assert s.tp * s.pp * s.dp == 48 and 8 % s.tp == 0 and s.dp % s.ep == 0 and 8 % s.ep == 0
        assert s.dp * s.microbatches * s.sequences == 192 and (s.pp == 1 or s.zero < 2 and s.microbatches >= s.pp)
        assert s.dp > 1 or s.zero == 0
    fixed = {"tp": 4, "zero": 1, "sequences": 3}
    found = list(candidates(of, fixed, "full"))
    assert found and all((s.tp, s.zero, s.sequences, s.recompute) == (4, 1, 3, "full") for s in found)
    turned = job(batch=64, devices=32, hosts=4, schedule="interleaved")
    assert all(s.microbatches % s.pp == 0 and s.pp <= 16 for s in candidates(turned, {}) if s.pp > 1)


def test_reason_names_what_makes_a_strategy_slower():
    of = job()
    best = estimate(of, strategy(dp=64, zero=2, microbatches=8, recompute="selective"))
    assert best.memory < 80e9

    def reason_of(s, of=of):
        return reason(of, estimate(of, s), best)
    assert reason(of, best, best) == "best" and reason_of(best.strategy) == "by less than 0.1%"
    assert reason_of(strategy(dp=64, microbatches=8)) == "out of memory by 58.4 GB"
    assert reason_of(strategy(tp=16, dp=4, microbatches=128, zero=1)) == "tp leaves the host"
    assert reason_of(strategy(tp=8, dp=8, microbatches=64, zero=1)).startswith("communication bound: tp ")
    assert reason_of(strategy(pp=8, dp=8, microbatches=64, zero=1, recompute="selective")).startswith("bubble ")
    assert reason_of(strategy(dp=64, zero=2, microbatches=8, recompute="full")) == "recomputes more"
    slow = job(across=Link(1e9, 1e-5))
    assert reason_of(strategy(dp=64, zero=2, microbatches=8, recompute="selective"), slow).startswith(
        "communication bound: dp ")
    assert reason_of(strategy(pp=2, dp=32, microbatches=16, recompute="selective", zero=1), slow).startswith(
        "communication bound: ")
    thin = job(across=Link(1e8, 1e-5), batch=1024)
    assert reason(thin, estimate(thin, strategy(pp=8, dp=8, microbatches=128, zero=1)), estimate(
        job(batch=1024), strategy(pp=8, dp=8, microbatches=128, zero=1))).startswith("communication bound: pp ")
    uneven = job(batch=480, devices=24, hosts=3)
    first = estimate(uneven, strategy(dp=24, microbatches=20, zero=1, recompute="selective"))
    assert reason(uneven, estimate(uneven, strategy(pp=12, dp=2, microbatches=240, zero=1, recompute="selective")),
                  first) == "stages of unequal length"
    routed = job("mixtral-8x7b", across=Link(5e9, 1e-5), memory=300e9)
    first = estimate(routed, strategy(tp=8, dp=8, microbatches=64, zero=1))
    assert reason(routed, estimate(routed, strategy(tp=8, dp=8, ep=8, microbatches=64, zero=1)),
                  first).startswith("communication bound: ep ")


# ---- quantities with units ----
@pytest.mark.parametrize("read, text, value", [
    (units.speed, "400gbit", 50e9), (units.speed, "50GB/s", 50e9), (units.speed, "100Mbit/s", 12.5e6),
    (units.speed, "1.5 TB/s", 1.5e12), (units.link, "400Gbit,15us", (50e9, 15e-6)), (units.link, "1GB/s", (1e9, None)),
    (units.memory, "80GB", 80e9), (units.memory, "80GiB", 80 * 2**30), (units.memory, "1.5 TB", 1.5e12),
    (units.flops, "989T", 989e12), (units.flops, "160 GFLOP/s", 160e9), (units.tokens, "4M", 4 << 20),
    (units.tokens, "3145728", 3145728), (units.tokens, "2k", 2048), (units.count, "1.3B", 1_300_000_000)])
def test_quantities_are_read(read, text, value):
    assert read(text) == pytest.approx(value)


@pytest.mark.parametrize("seconds, text", [
    (69.31, "69.3 s"), (1234.0, "1234 s"), (0.0119, "11.9 ms"), (1.5e-5, "15 us"), (3e-9, "3 ns"), (0.0, "0 s"),
    (0.99999, "1 s")])
def test_quantities_are_shown(seconds, text):
    assert units.seconds_shown(seconds) == text
    assert units.scaled(158e3) == "158 k" and units.scaled(989.4e12) == "989 T" and units.scaled(8.9) == "8.9 "


# ---- tests/bench/bench_plan.py, without its measurements ----
def test_table_of_bench_plan_is_consistent():
    bench = module_at("tests/bench/bench_plan.py")
    assert bench.correlation([1.0, 2.0, 3.0], [10.0, 20.0, 30.0]) == 1
    assert bench.correlation([1.0, 2.0, 3.0], [30.0, 20.0, 10.0]) == -1
    assert len({row.name for row in bench.ROWS}) == len(bench.ROWS) >= 6
    found = {"bandwidth": 1e10, "local": [5e9, 5e-6]}
    assert {name for row in bench.ROWS for name in ("tp", "pp", "dp") if getattr(row, name) > 1} == {"tp", "pp", "dp"}
    for row in bench.ROWS:
        s = row.strategy
        assert s.tp * s.pp * s.dp == row.ranks <= 4 and s.dp * s.microbatches * s.sequences == row.batch
        assert row.product == (s.sequences * bench.CONTEXT, row.width, 4 * row.width // s.tp)
        guess = bench.predicted(row, bench.cluster_of(row.ranks, found, 5e10))
        assert guess.compute > guess.data >= 0 and (guess.data > 0) == (s.dp > 1)
        assert (guess.tensor > 0) == (s.tp > 1) and (guess.pipeline > 0) == (guess.bubble > 0) == (s.pp > 1)


def test_model_of_given_sizes_is_planned():
    of = Job(Model(350_000_000, 0, 24, 1024, 16), cluster(4, 1), 64, 2048)
    assert ranked(of, {}, None, 3).best[0].strategy.dp == 4
