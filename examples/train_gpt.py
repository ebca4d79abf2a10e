"""Trains a small character-level GPT with DistributedDataParallel, on any backend of torch.distributed, or with ZeRO.

    python examples/train_gpt.py                         two ranks here, on tutti (starts torchrun itself)
    python examples/train_gpt.py --compare               the same training on tutti and on gloo, side by side
    python examples/train_gpt.py --zero 3                one copy of the parameters for all ranks, on tutti
    python examples/train_gpt.py --compress int8         gradients that travel in a quarter of the bytes, on tutti
    python examples/train_gpt.py --tp 2 --pp 2           the model divided among the ranks (gpt_parallel.py)
    torchrun --nproc-per-node 4 examples/train_gpt.py    any other number of ranks

The text is the source of the Python standard library (or --data FILE), and a character is a byte. The batch of a rank
in a step depends only on (seed, rank, step). So a run on another backend, or one resumed from a checkpoint, has the
same batches and must have the same losses. --compare checks this.
"""
import argparse
import contextlib
import hashlib
import math
import os
import signal
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

BUCKET_MB = 1           # several buckets even for a model this small, so that reduction overlaps with the backward pass
WARM_STEPS = 5          # not timed: DDP regroups its buckets after the first step
TRACED_STEPS = 8        # with --trace, after the warm steps
MANY = 1000             # buffers of gradients: no gradient waits for a free one
MOMENTUM = 0.9          # of SGD
SIZES = {"1.8M": {}, "120M": {"layers": 12, "heads": 12, "width": 912, "batch": 1}}
LOSS_TOLERANCE = 1e-5   # of a loss near 5, in fp32; with two ranks the difference ought to be 0, because a + b = b + a


# ---- the model ----
class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.head = heads, width // heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.join = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def attention(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, self.head).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.join(mixed.transpose(1, 2).reshape(batch, length, -1))

    def forward(self, x):
        x = x + self.attention(self.norm_attention(x))
        return x + self.mlp(self.norm_mlp(x))


class GPT(nn.Module):
    def __init__(self, characters, context, width, heads, layers):
        super().__init__()
        self.context = context
        self.token = nn.Embedding(characters, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:        # GPT-2's initialisation: weights that add to the residual stream start smaller
                added = name.endswith(("join.weight", "mlp.2.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * layers) if added else 0.02)

    def forward(self, ids, targets=None):
        """Returns the logits, or the mean loss if there are targets."""
        x = self.token(ids) + self.position.weight[: ids.shape[1]]
        logits = self.head(self.norm(self.blocks(x)))
        return logits if targets is None else F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    @torch.no_grad()
    def continue_text(self, ids, count, seed):
        """Returns ids[0] followed by `count` more characters, which the model draws at random."""
        chance = torch.Generator().manual_seed(seed)
        for _ in range(count):
            logits = self(ids[:, -self.context:])[0, -1].float().cpu() / 0.8
            following = torch.multinomial(logits.softmax(0), 1, generator=chance).to(ids.device)
            ids = torch.cat([ids, following[None]], dim=1)
        return ids[0]


# ---- the text ----
class Text:
    """The text: each byte as its index among the distinct bytes. The last tenth is for validation."""

    def __init__(self, path, context, batch):
        data = torch.frombuffer(bytearray(self.read(path)), dtype=torch.uint8).long()
        self.characters, ids = data.unique(return_inverse=True)
        if len(ids) < 20 * (context + 1):
            raise SystemExit(f"the text has {len(ids)} bytes; that is too short for a context of {context}")
        edge = len(ids) * 9 // 10
        self.parts = {"train": ids[:edge], "validation": ids[edge:]}
        self.context, self.batch = context, batch

    @staticmethod
    def read(path):
        if path:
            return Path(path).read_bytes()
        return b"\n".join(file.read_bytes() for file in sorted(Path(os.__file__).parent.glob("*.py")))

    def sample(self, part, seed, rank, step):
        """Returns inputs and targets of a batch. They depend only on the arguments. part: "train" or "validation"."""
        chance = torch.Generator().manual_seed((seed * 1_000_003 + step) * 4099 + rank)
        ids = self.parts[part]
        starts = torch.randint(len(ids) - self.context, (self.batch,), generator=chance)
        windows = torch.stack([ids[start: start + self.context + 1] for start in starts])
        return windows[:, :-1], windows[:, 1:]

    def decode(self, ids):
        return bytes(self.characters[ids.cpu()].tolist()).decode("utf-8", "replace")


# ---- output ----
class Progress:
    """Shows progress: one line that is rewritten on a terminal, elsewhere a line for every tenth of the steps."""

    def __init__(self, title, steps, shown):
        self.title, self.steps, self.shown = title, steps, shown
        self.terminal = sys.stdout.isatty()

    def show(self, step, loss, tokens_per_second, waiting, memory=""):
        done = step + 1
        tenth = done * 10 // self.steps > step * 10 // self.steps
        if not self.shown or not (self.terminal or tenth):
            return
        bar = ("=" * (done * 24 // self.steps)).ljust(24)
        line = (f"{self.title:>6} [{bar}] {done:4}/{self.steps}  loss {loss:.3f}  "
                f"{tokens_per_second:7,.0f} tokens/s  waiting {waiting:5.1%}{memory and '  '}{memory}")
        end = "\n" if not self.terminal or done == self.steps else ""
        print(("\r" if self.terminal else "") + line, end=end, flush=True)


def show_table(results):
    """Prints the results, each in a column."""
    rows = [("tokens/s, all ranks", lambda r: f"{r['tokens_per_second']:,.0f}"),
            ("step, median", lambda r: f"{r['step_ms']:.1f} ms"),
            ("waiting for communication", lambda r: "not measured" if r["waiting"] is None else f"{r['waiting']:.1%}"),
            ("loss, first step", lambda r: f"{r['losses'][0]:.6f}"),
            ("loss, last step", lambda r: f"{r['losses'][-1]:.6f}"),
            ("loss on unseen text", lambda r: f"{r['validation']:.6f}")]
    if all("digest" in r for r in results):
        rows += [("parameters of all ranks", lambda r: "identical" if r["ranks_agree"] else "DIFFERENT"),
                 ("their SHA-256 begins with", lambda r: r["digest"][:12])]
    print("\n" + " " * 28 + "".join(f"{r['backend']:>15}" for r in results))
    for name, cell in rows:
        print(f"{name:<28}" + "".join(f"{cell(r):>15}" for r in results))


def check(results):
    """Prints differences. Returns True if all ranks have the same parameters, and all backends the same losses."""
    sound = all(r["ranks_agree"] for r in results)
    for other in results[1:]:
        first = results[0]
        difference = max(abs(a - b) for a, b in zip(first["losses"], other["losses"], strict=True))
        same = "the same bits" if first["digest"] == other["digest"] else "not the same bits"
        print(f"\n{first['backend']} and {other['backend']}: over {len(first['losses'])} steps the losses differ by "
              f"at most {difference:.3g} (allowed {LOSS_TOLERANCE:g}); the trained parameters are {same}.")
        sound = sound and difference <= LOSS_TOLERANCE
    return sound


# ---- training ----
def data_parallel(model, group=None, shared=False):
    """Returns the model in DistributedDataParallel. shared: tutti reduces its buckets in place, in shared memory."""
    options = {"process_group": group, "bucket_cap_mb": BUCKET_MB, "gradient_as_bucket_view": True}
    if not shared:
        return DistributedDataParallel(model, **options)
    import torch_tutti
    with torch_tutti.shared_tensors():
        return torch_tutti.share_buckets(DistributedDataParallel(model, **options))


def rate_of(options, step):
    """Returns the learning rate of a step: a linear warm-up over a twentieth of the steps, then half a cosine."""
    warm = max(1, options.steps // 20)
    if step < warm:
        return options.rate * (step + 1) / warm
    angle = math.pi * (step - warm) / max(1, options.steps - warm)
    return options.rate * (0.05 + 0.95 * (1 + math.cos(angle)) / 2)


class Trainer:
    """One training on one backend, from joining the group to leaving it."""

    def __init__(self, options, backend, text, device, group=None):
        self.options, self.backend, self.text, self.device = options, backend, text, device
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(options.seed)
        model = GPT(len(text.characters), options.context, options.width, options.heads, options.layers).to(device)
        self.last_gradient = 0.0
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self.note_gradient)
        self.module = model                             # without a wrapper such as DDP
        self.compressor = None                          # of gradients, with --compress and DDP
        self.model, self.optimizer = self.divide(model, group)
        self.losses, self.step_seconds, self.waits = [], [], []
        if options.resume:
            self.load(options.resume)

    def divide(self, model, group):
        """Returns the model to train and its optimizer: in DDP, or divided by ZeRO."""
        compression = self.compression()
        if self.options.optimizer == "sgd":             # momentum belongs either to the compression or to SGD
            momentum = 0.0 if compression and compression.momentum else MOMENTUM
            optimizer = torch.optim.SGD(model.parameters(), lr=self.options.rate, momentum=momentum)
        else:
            optimizer = torch.optim.AdamW(model.parameters(), lr=self.options.rate, betas=(0.9, 0.99), weight_decay=0.1)
        if self.options.zero is not None and self.backend == "tutti":
            import torch_tutti
            return torch_tutti.zero.shard(model, optimizer, stage=self.options.zero, group=group,
                                          ahead=self.options.ahead, buffers=MANY if self.options.ahead else 2,
                                          precision=self.options.precision, compression=compression)
        model = data_parallel(model, group, shared=self.backend == "tutti" and self.device.type == "cpu")
        if compression:
            import torch_tutti
            self.compressor = torch_tutti.compression.compress(model, compression)
        return model, optimizer

    def compression(self):
        """Returns the compression of gradients, or None."""
        if not self.options.compress:
            return None
        import torch_tutti
        keeps_momentum = self.options.optimizer == "sgd" and self.options.compress in ("topk", "randomk", "threshold")
        return torch_tutti.compression.Compression(self.options.compress, self.options.share, seed=self.options.seed,
                                                   threshold=self.options.threshold,
                                                   momentum=MOMENTUM if keeps_momentum else 0.0)

    def note_gradient(self, _):
        self.last_gradient = time.perf_counter()

    def step(self, step):
        """Trains one step and records its loss, its duration and its waiting time.
        From its last gradient to the end of backward() the rank only waits: for communication, or for a slower rank.
        tests/bench/bench_ddp.py measures the cost of communication that overlaps with computing."""
        begin = time.perf_counter()
        for group in self.optimizer.param_groups:
            group["lr"] = rate_of(self.options, step)
        batch = self.text.sample("train", self.options.seed, self.rank, step)
        inputs, targets = (part.to(self.device) for part in batch)
        loss = self.model(inputs, targets)
        self.optimizer.zero_grad()
        loss.backward()
        self.waits.append(time.perf_counter() - self.last_gradient)
        self.optimizer.step()
        self.losses.append(loss.item())
        self.step_seconds.append(time.perf_counter() - begin)

    def run(self):
        """Trains all steps and returns the result."""
        progress = Progress(self.backend, self.options.steps, self.rank == 0)
        first = len(self.losses)
        with contextlib.ExitStack() as tracing:
            for step in range(first, self.options.steps):
                if self.options.trace and step == first + WARM_STEPS:
                    tracing.enter_context(self.optimizer.trace(self.options.trace))
                self.step(step)
                report = getattr(self.optimizer, "report", None)            # of ZeRO
                progress.show(step, self.losses[-1], *self.speed(), report().memory() if report else "")
                if self.options.checkpoint and (step + 1) % self.options.every == 0:
                    self.save(self.options.checkpoint)
                if step == first + WARM_STEPS + TRACED_STEPS:
                    tracing.close()
        if self.options.ahead:
            self.optimizer.wait()
        return self.result()

    def speed(self):
        """Returns tokens per second of all ranks, and the share of time that this rank waits for communication."""
        steps, waits = (timed[WARM_STEPS:] or timed for timed in (self.step_seconds, self.waits))
        tokens = len(steps) * self.size * self.options.batch * self.options.context
        return tokens / max(sum(steps), 1e-9), sum(waits) / max(sum(steps), 1e-9)

    def result(self):
        """Returns the measurements of the training. All ranks call it."""
        tokens_per_second, waiting = self.speed()
        steps = self.step_seconds[WARM_STEPS:] or self.step_seconds or [0.0]
        digests = self.gather_digests()
        return {"backend": self.backend, "losses": self.mean_over_ranks(self.losses), "validation": self.validate(),
                "tokens_per_second": tokens_per_second, "step_ms": 1e3 * statistics.median(steps),
                "waiting": waiting if self.device.type == "cpu" else None,
                "digest": digests[0].hex(), "ranks_agree": len(set(digests)) == 1}

    def mean_over_ranks(self, values):
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return (total / self.size).tolist()

    @torch.no_grad()
    def validate(self):
        """Returns the mean loss on unseen text, over all ranks."""
        losses = []
        for step in range(8):
            batch = self.text.sample("validation", self.options.seed, self.rank, step)
            inputs, targets = (part.to(self.device) for part in batch)
            losses.append(self.module(inputs, targets).item())
        return statistics.mean(self.mean_over_ranks(losses))

    def gather_digests(self):
        """Returns the SHA-256 of the parameters of each rank. DDP promises that they stay equal."""
        bits = hashlib.sha256()
        for parameter in self.module.parameters():
            bits.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy())
        own = torch.tensor(list(bits.digest()), dtype=torch.uint8, device=self.device)
        digests = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(digests, own)
        return [bytes(digest.tolist()) for digest in digests]

    def save(self, path):
        """Saves a checkpoint. All ranks call it, and rank 0 writes. It writes another file and renames it, so that an
        interrupted run leaves the old checkpoint or the new one. The losses in it are averaged over the ranks."""
        losses = self.mean_over_ranks(self.losses)
        model, optimizer = self.module.state_dict(), self.optimizer.state_dict()
        compression = self.compressor.state_dict() if self.compressor else None
        if self.rank != 0:
            return
        beside = f"{path}.{os.getpid()}"
        try:
            torch.save({"model": model, "optimizer": optimizer, "compression": compression, "losses": losses,
                        "seed": self.options.seed}, beside)
            os.replace(beside, path)
        finally:
            Path(beside).unlink(missing_ok=True)

    def load(self, path):
        saved = torch.load(path, map_location=self.device, weights_only=True)
        if saved["seed"] != self.options.seed:
            raise SystemExit(f"{path} was written with --seed {saved['seed']}, not {self.options.seed}")
        self.module.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        if self.compressor and saved.get("compression"):
            self.compressor.load_state_dict(saved["compression"])
        self.losses = saved["losses"]


def train(options, backend, text):
    """Joins a group on the backend, trains, and leaves the group. Returns the result and the model."""
    device = torch.device(options.device)
    if device.type != "cpu" and device.index is None:
        device = torch.device(device.type, int(os.environ["LOCAL_RANK"]))
        torch.accelerator.set_device_index(device.index)
    store, rank, size = next(dist.rendezvous("env://"))
    dist.init_process_group(backend, store=dist.PrefixStore(backend, store), rank=rank, world_size=size)
    try:
        trainer = Trainer(options, backend, text, device)
        if rank == 0:
            count = sum(p.numel() for p in trainer.model.parameters())
            print(f"{backend}: {count / 1e6:.1f} M parameters, "
                  f"{size} ranks x {options.batch} x {options.context} characters a step", flush=True)
        return trainer.run(), trainer.module
    finally:
        dist.destroy_process_group()


def train_divided(options, text, rank):
    """Trains the model divided among the ranks, and prints the result. Returns the exit status."""
    from gpt_parallel import ParallelTrainer
    dist.init_process_group("tutti")
    torch.manual_seed(options.seed)
    gpt = GPT(len(text.characters), options.context, options.width, options.heads, options.layers)
    try:
        result = ParallelTrainer(options, text, gpt, Progress("tutti", options.steps, rank == 0)).run(
            lambda step: rate_of(options, step))
    finally:
        dist.destroy_process_group()
    if rank == 0:
        show_table([result])
        if options.losses:
            torch.save({"tutti": result["losses"]}, options.losses)
    return 0


def work(options):
    """Runs one rank: trains on each backend, and prints the results on rank 0. Returns the exit status."""
    torch.set_num_threads(options.threads)
    rank = int(os.environ["RANK"])
    text = Text(options.data, options.context, options.batch)
    if options.divided:
        return train_divided(options, text, rank)
    results = []
    for backend in [options.backend, "gloo"] if options.compare else [options.backend]:
        result, model = train(options, backend, text)
        results.append(result)
    if options.losses and rank == 0:
        torch.save({r["backend"]: r["losses"] for r in results}, options.losses)
    if rank == 0:
        prompt = text.parts["validation"][: options.context][None]
        written = model.continue_text(prompt.to(options.device), options.sample, options.seed)[prompt.shape[1]:]
        print(f"\nThe model writes:\n{'-' * 80}\n{text.decode(written)}\n{'-' * 80}")
        show_table(results)
        return 0 if check(results) else 1
    return 0 if all(r["ranks_agree"] for r in results) else 1


# ---- starting and stopping ----
def interrupt(_number, _frame):
    raise KeyboardInterrupt


def main():
    options = parse(sys.argv[1:])
    if "RANK" not in os.environ:
        return launch(options)
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGINT, interrupt)     # a background job of a shell would ignore SIGINT otherwise
    try:
        status = work(options)
    except KeyboardInterrupt:
        status = 130
    # A thread of gloo may still free a tensor, which aborts the process if Python is shutting down (one run of eight,
    # torch 2.13). So a rank exits without shutting Python down.
    sys.stdout.flush()
    os._exit(status)


def launch(options):
    """Starts the ranks like the command torchrun, which stops them after Ctrl-C. Returns the exit status."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.run import main as torchrun
    os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))
    try:
        torchrun(["--standalone", f"--nproc-per-node={options.ranks}", __file__, *sys.argv[1:]])
    except SignalException as stopped:
        print("\ninterrupted", file=sys.stderr)
        return 128 + stopped.sigval.value


def parse(arguments):
    parser = argparse.ArgumentParser(description="Train a small character-level GPT with DDP.")
    parser.add_argument("--backend", default="tutti", help="tutti, gloo, nccl, … (default tutti)")
    parser.add_argument("--compare", action="store_true", help="also train on gloo; compare losses, parameters and "
                                                               "speed")
    parser.add_argument("--zero", type=int, choices=[0, 1, 2, 3], help="stage of ZeRO on tutti (none: DDP)")
    parser.add_argument("--ahead", action="store_true", help="with --zero: update the parameters first that are "
                                                             "used first")
    parser.add_argument("--trace", metavar="FILE", help="with --zero: trace a few steps for `tutti zero`")
    parser.add_argument("--precision", choices=["bf16"], help="with --zero: type that layers compute in")
    parser.add_argument("--compress", metavar="FORM",
                        help="send compressed gradients, on tutti: fp16, bf16, int8, int4, topk, randomk, threshold")
    parser.add_argument("--share", type=float, default=0.01, help="share that topk and randomk keep (default 0.01)")
    parser.add_argument("--threshold", type=float, default=0.0, help="smallest magnitude that threshold keeps")
    for name, what in (("tp", "heads and columns"), ("pp", "the blocks, in stages"), ("dp", "the batch"),
                       ("ep", "the experts; each MLP becomes 8 or --experts of them")):
        parser.add_argument(f"--{name}", type=int, help=f"ranks that divide {what} (gpt_parallel.py)")
    parser.add_argument("--experts", type=int, help="experts in place of each MLP, with --tp, --pp, --dp or --ep")
    parser.add_argument("--microbatches", type=int, help="microbatches of a step (default: 2 for each rank of --pp)")
    parser.add_argument("--schedule", default="1f1b", help="of the pipeline: gpipe, 1f1b, zb-v, … (default 1f1b)")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:0, …")
    parser.add_argument("--ranks", type=int, default=2, help="ranks to start, unless torchrun has (default 2)")
    parser.add_argument("--threads", type=int, default=1, help="computing threads of a rank (default 1)")
    parser.add_argument("--data", metavar="FILE", help="text to learn (default: source of the Python standard library)")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=8, help="sequences of a rank and step (default 8)")
    parser.add_argument("--context", type=int, default=64, help="characters of a sequence (default 64)")
    parser.add_argument("--size", choices=SIZES, default="1.8M", help="parameters: sets layers, heads, width and batch")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--optimizer", default="adamw", choices=["adamw", "sgd"], help="(default adamw)")
    parser.add_argument("--rate", type=float, help="highest learning rate (default 1e-3, of sgd 0.03)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sample", type=int, default=240, help="characters to write at the end (default 240)")
    parser.add_argument("--checkpoint", metavar="FILE", help="save there every --every steps")
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--resume", metavar="FILE", help="continue from a checkpoint")
    parser.add_argument("--losses", metavar="FILE", help="save the loss of every step, for tests")
    parser.set_defaults(**SIZES[parser.parse_known_args(arguments)[0].size])
    options = parser.parse_args(arguments)
    options.divided = any(size is not None for size in (options.tp, options.pp, options.dp, options.ep))
    if options.divided:
        from gpt_parallel import complete_options
        complete_options(parser, options)
    elif options.experts or options.microbatches:
        parser.error("--experts and --microbatches need --tp, --pp, --dp or --ep")
    if options.rate is None:
        options.rate = 0.03 if options.optimizer == "sgd" else 1e-3
    if options.compare and options.resume:
        parser.error("--compare trains from the start; leave out --resume")
    if options.compress and (options.compare or options.backend != "tutti"):
        parser.error("--compress works only with tutti, and rounds differently from the run that --compare compares "
                     "it with")
    if options.precision and (options.compare or options.zero is None):
        parser.error("--precision needs --zero, and rounds differently from the run that --compare compares it with")
    if (options.ahead or options.trace) and (options.compare or options.zero is None):
        parser.error("--ahead and --trace need --zero, and exclude --compare")
    return options


if __name__ == "__main__":
    sys.exit(main())
