"""Measures how soon after a backward pass the next forward pass can begin, and how long a step is, with async steps
(ahead=True) and without.

    script/hosts 2 --rate 1gbit -- tests/bench/bench_ahead.py

Each layer of the model sleeps instead of computing, so it takes time but no core, as on a GPU. The rate of the link
between the two hosts is limited, so the figures show waiting only. Beside each figure stands a prediction from the
bytes, the rate and the times of the layers. It assumes that the link transfers sums and slices one after the other: in
the order in which they are ready (not ahead), or those of the earliest layer first (ahead). The rate is that of a large
all-reduce in the same run. --backward gives the time of the backward pass, as a multiple of the time that the sums of a
step take.
"""
import argparse
import statistics
import time

import torch
import torch.distributed as dist

import torch_tutti
from steps import on_all_ranks, say_where


class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(context, x, weight, layer):
        context.layer = layer
        time.sleep(layer.forward_s)
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        time.sleep(context.layer.backward_s)
        return gradient, context.layer.gradient, None


class Layer(torch.nn.Module):
    forward_s = backward_s = 0.0

    def __init__(self, count):
        super().__init__()
        self.weight, self.gradient = torch.nn.Parameter(torch.zeros(count)), torch.ones(count)

    def forward(self, x):
        return Sleep.apply(x, self.weight, self)


class Training:
    def __init__(self, options, ahead):
        self.layers = [Layer(options.elements) for _ in range(options.layers)]
        model = torch.nn.Sequential(*self.layers)
        self.model, self.optimizer = torch_tutti.zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.1),
                                                            stage=options.stage, ahead=ahead, buffers=options.layers)
        self.began = 0.0
        # zero's own hook of the layer runs first: it waits for the updated parameters.
        self.layers[0].register_forward_pre_hook(self.note)

    def note(self, *_):
        self.began = time.perf_counter()

    def run(self, steps, warm):
        """Runs steps, the first `warm` of which do not count. Returns two lists of seconds, one entry for each step, on
        the slowest rank: from the end of its backward pass to the beginning of the next forward pass, and to the end of
        the next backward pass."""
        starts, lengths, ended = [], [], 0.0
        for number in range(warm + steps + 1):
            out = self.model(torch.ones(1, requires_grad=True))
            if number > warm:
                starts.append(self.began - ended)
            out.sum().backward()
            if number > warm:
                lengths.append(time.perf_counter() - ended)
            ended = time.perf_counter()
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.optimizer.wait()
        dist.barrier()
        return [on_all_ranks(values, dist.ReduceOp.MAX) for values in (starts, lengths)]


def predicted(options, bytes_per_s, forward_s, backward_s, ahead):
    """Returns the two times of Training.run, predicted for a link that transfers one thing at a time."""
    layers, hosts = range(options.layers), dist.get_world_size()
    # The seconds that the link needs for the sum of one layer, and as many for the gathering of its slices.
    one_s = options.elements * 4 * (hosts - 1) / hosts / bytes_per_s
    # By layer: the seconds of its sum that the link has not transferred yet, and when its gradient is ready.
    left = dict.fromkeys(layers, one_s)
    come = {layer: backward_s * (options.layers - layer) for layer in layers}
    now, whole_backward = 0.0, backward_s * options.layers
    # The link transfers sums while the backward pass runs.
    while now < whole_backward:
        there = [layer for layer in layers if come[layer] <= now and left[layer] > 0]
        later = min((c for c in come.values() if c > now), default=whole_backward)
        chosen = (min if ahead else max)(there, default=None)
        worked = min(later - now, left[chosen]) if there else later - now
        if there:
            left[chosen] -= worked
        now += worked
    # From here on, times count from the end of the backward pass.
    now = 0.0
    if not ahead:
        start = sum(left.values()) + one_s * options.layers
        return start, start + options.layers * (forward_s + backward_s)
    ready = []
    for layer in layers:
        now += left[layer] + one_s
        ready.append(now)
    at = ready[0]
    for layer in layers:
        at = max(at, ready[layer]) + forward_s
    return ready[0], at + whole_backward


def rate_of_link():
    """Returns the bytes that a host sends in a second, measured by all-reduces."""
    data, hosts = torch.ones(4 << 20), dist.get_world_size()
    seconds = []
    for _ in range(3):
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(data)
        seconds.append(time.perf_counter() - began)
    return on_all_ranks([2 * data.nbytes * (hosts - 1) / hosts / statistics.median(seconds)], dist.ReduceOp.MIN)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--elements", type=int, default=2 << 20, help="float32 elements of a layer")
    parser.add_argument("--stage", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--backward", type=float, nargs="+", default=[0.5, 1.0, 2.0])
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("tutti")
    say_where("steps ahead")
    rate, hosts = rate_of_link(), dist.get_world_size()
    sums_s = options.layers * options.elements * 4 * (hosts - 1) / hosts / rate
    trainings = {"not ahead": Training(options, False), "ahead": Training(options, True)}
    if dist.get_rank() == 0:
        print(f"the link carries {rate * 8 / 1e9:.2f} Gbit/s, sums of a step take {sums_s * 1e3:.0f} ms\n"
              f"{'backward':>9} {'':<10} {'next forward after':>19} {'predicted':>10} {'step':>7} {'predicted':>10}")
    for share in options.backward:
        backward_s = share * sums_s / options.layers
        for name, training in trainings.items():
            for layer in training.layers:
                layer.forward_s, layer.backward_s = backward_s / 2, backward_s
            starts, lengths = training.run(options.steps, 2)
            expected = predicted(options, rate, backward_s / 2, backward_s, name == "ahead")
            if dist.get_rank() == 0:
                print(f"{share:>9} {name:<10} {statistics.median(starts) * 1e3:>19.0f} {expected[0] * 1e3:>10.0f} "
                      f"{statistics.median(lengths) * 1e3:>7.0f} {expected[1] * 1e3:>10.0f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
