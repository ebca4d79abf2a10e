"""Runs functions on several ranks, each a process of its own, and collects what they return or raise.

A function takes a `World` first and lives at the top of a test module. `Ranks` keeps its processes between calls, so
that many cases share one start; a test that breaks its group uses a `Ranks` of its own. Nothing waits without a
limit: ranks that do not answer are killed.
"""
import contextlib
import faulthandler
import multiprocessing
import os
import signal
import time
import traceback
from dataclasses import dataclass, field
from datetime import timedelta

# A rank that has not answered by then counts as hanging.
LIMIT_S = 60
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["torch", *[f"torch.distributed.{name}" for name in (
    "checkpoint", "fsdp", "tensor.parallel", "pipelining")], "torch_tutti", "pytest", "ranks"])


def hosts_of_job(size, hosts=None):
    """Returns the host of each rank of a job of `size` ranks. hosts: the value of TUTTI_HOSTS; None: that of the tests.
    A number N stands for min(N, size) blocks of consecutive ranks. A list of hosts is repeated for further ranks."""
    hosts = os.environ.get("TUTTI_HOSTS", "") if hosts is None else hosts
    if "," in hosts:
        named = [int(host) for host in hosts.split(",")]
        return [min(named[rank % len(named)], size - 1) for rank in range(size)]
    blocks = min(int(hosts or 1), size)
    lengths = [size // blocks + (block < size % blocks) for block in range(blocks)]
    return [block for block, length in enumerate(lengths) for _ in range(length)]


def setting_of(hosts):
    """Returns the value of TUTTI_HOSTS that puts the ranks on these hosts; empty if they are on one host."""
    return ",".join(map(str, hosts)) if len(set(hosts)) > 1 else ""


@dataclass
class World:
    """The state of one rank. The default group is tutti's; `gloo` is a second group of the same ranks, if a
    test wants it. `hosts` is the number of their hosts. `kept` holds objects that tests keep between calls."""
    rank: int
    size: int
    store: object = None
    gloo: object = None
    hosts: int = 1
    kept: dict = field(default_factory=dict)

    def made_once(self, key, make):
        """Returns kept[key], for which the first call calls make(). Groups and meshes stay as long as the ranks."""
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]


@dataclass
class Outcome:
    """The outcome of a function on one rank: its value, or the class and text of its exception; or, if the rank died,
    its exit code."""
    value: object = None
    error: str = ""
    text: str = ""
    trace: str = ""
    died: int | None = None

    @property
    def failed(self):
        return bool(self.error) or self.died is not None


def join(rank, size, path, options):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    world = World(rank, size, dist.FileStore(path, size), hosts=len(set(options["hosts"])))
    if options.get("join", True):
        dist.init_process_group("tutti", store=world.store, rank=rank, world_size=size,
                                timeout=timedelta(seconds=options.get("timeout_s", LIMIT_S)))
        if options.get("gloo"):
            world.gloo = dist.new_group(backend="gloo")
    return world


def attempt(function, *arguments):
    """Calls the function and returns its Outcome. A function that takes longer than ten minutes ends the rank. Waiting
    for the next function has no such limit, so shared ranks may live as long as the tests."""
    signal.alarm(600)
    try:
        return Outcome(value=function(*arguments))
    except BaseException as error:
        return Outcome(error=type(error).__name__, text=str(error), trace=traceback.format_exc())
    finally:
        signal.alarm(0)


class Ranks:
    """`size` processes that have joined one tutti group.

    options: join=False (the function makes its own groups), gloo=True (a second group), timeout_s (of the tutti
    group), environment. The ranks are on the hosts that hosts_of_job returns.
    """

    def __init__(self, size, folder, **options):
        self.size, self.hosts = size, hosts_of_job(size, options.get("environment", {}).get("TUTTI_HOSTS"))
        options["hosts"] = self.hosts
        self.options = options
        path = os.path.join(folder, f"store-{os.urandom(4).hex()}")
        self.pipes, self.processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=live, args=(rank, size, path, options, theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        self.joined = self.collect(LIMIT_S)
        broken = [f"rank {r}: {o.trace or o.died}" for r, o in enumerate(self.joined) if o.failed]
        if broken:
            self.close()
            raise AssertionError("joining failed\n" + "\n".join(broken))

    def collect(self, limit_s):
        """Returns one Outcome of each rank, in their order. Kills the ranks if one does not answer within the limit."""
        until = time.monotonic() + limit_s
        outcomes = []
        for rank, pipe in enumerate(self.pipes):
            if not pipe.poll(max(0, until - time.monotonic())):
                self.kill()
                raise AssertionError(f"rank {rank} of {self.size} did not answer in {limit_s} s; see standard error")
            try:
                outcomes.append(pipe.recv())
            except EOFError:
                self.processes[rank].join(5)
                outcomes.append(Outcome(died=self.processes[rank].exitcode))
        return outcomes

    def outcomes(self, function, *arguments, limit_s=LIMIT_S):
        """Runs the function on every rank, and returns the Outcome of each."""
        for pipe in self.pipes:
            pipe.send((function, arguments))
        return self.collect(limit_s)

    def run(self, function, *arguments, limit_s=LIMIT_S):
        """Runs the function on every rank, where it must succeed. Returns the value of each."""
        outcomes = self.outcomes(function, *arguments, limit_s=limit_s)
        failed = [f"---- rank {r} ----\n{o.trace or f'died with {o.died}'}" for r, o in enumerate(outcomes) if o.failed]
        assert not failed, "\n".join(failed)
        return [outcome.value for outcome in outcomes]

    def kill(self):
        """Makes the ranks write their stacks to standard error (see `live`), and ends them."""
        for process in self.processes:
            if process.is_alive():
                os.kill(process.pid, signal.SIGUSR1)
                time.sleep(0.2)
                process.kill()
        self.close()

    def close(self):
        for pipe in self.pipes:
            try:
                pipe.send(None)
            except OSError:
                pass
            pipe.close()
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@contextlib.contextmanager
def kept_ranks(start, prepare=lambda ranks: None):
    """A context whose value is a function: of_size(size) returns Ranks. It calls start(size) and prepare(ranks) the
    first time, and again if a test has broken the ranks. The ranks are closed at the end of the context."""
    started = {}

    def of_size(size):
        job = setting_of(hosts_of_job(size)), size
        if job in started and not all(process.is_alive() for process in started[job].processes):
            started.pop(job).close()
        if job not in started:
            started[job] = start(size)
            prepare(started[job])
        return started[job]

    yield of_size
    for ranks in started.values():
        ranks.close()


@contextlib.contextmanager
def by_name(world):
    """A context in which a test chooses an algorithm by name. On several hosts it allows the error that the algorithm
    needs all ranks on one host."""
    try:
        yield
    except ValueError as error:
        if world.hosts == 1 or "needs all ranks on one host" not in str(error):
            raise


def threads_called(name):
    """Returns how many threads of this process have that name."""
    names = []
    for task in os.listdir("/proc/self/task"):
        # A thread may end before its name is read.
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm") as file:
            names.append(file.read().strip())
    return names.count(name)


def live(rank, size, path, options, pipe):
    """The main function of a rank: joins, then runs each function that the test sends through the pipe, until it sends
    None."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.update(options.get("environment", {}), TUTTI_HOSTS=setting_of(options["hosts"]))
    faulthandler.register(signal.SIGUSR1)
    joined = attempt(join, rank, size, path, options)
    world, joined.value = joined.value, None
    pipe.send(joined)
    try:
        while not joined.failed and (task := pipe.recv()) is not None:
            function, arguments = task
            pipe.send(attempt(function, world, *arguments))
    except (EOFError, BrokenPipeError):
        # The test's process has closed the pipe.
        return
    leave()


def leave():
    import torch.distributed as dist
    if dist.is_initialized():
        dist.destroy_process_group()
