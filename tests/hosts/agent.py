"""The agent of a host (across.py): loads torch once, and forks a rank for each request that it receives over its
socket. It never uses torch itself, so a rank begins as in a new process."""
import contextlib
import json
import os
import signal
import socket
import sys
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), *(str(HERE.parent / name) for name in ("python", "support", "faults"))]


# The store of rank 0 serves the other ranks, even if joining fails.
stores = []


def preload(backend):
    """Imports the modules that each rank would otherwise import by itself."""
    import pytest  # noqa: F401
    import torch._dynamo
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.pipelining  # noqa: F401
    if backend == "tutti":
        import torch_tutti._C  # noqa: F401


def join(rank, options):
    import torch
    import torch.distributed as dist
    from ranks import World
    torch.set_num_threads(1)
    hosts = options["placement"]
    limit = timedelta(seconds=options["timeout_s"])
    store = dist.TCPStore(options["address"], options["port"], len(hosts), is_master=rank == 0, timeout=limit,
                          wait_for_workers=False)
    stores.append(store)
    world = World(rank, len(hosts), store, hosts=len(set(hosts)))
    world.host = hosts[rank]
    if options["join"]:
        dist.init_process_group(options["backend"], store=dist.PrefixStore("group", store), rank=rank,
                                world_size=options.get("sizes", {}).get(str(rank), len(hosts)), timeout=limit)
        if options["gloo"]:
            world.gloo = dist.new_group(backend="gloo")
    return world


def live(rank, options, pipe):
    import faulthandler

    from ranks import attempt, leave
    faulthandler.register(signal.SIGUSR1)
    os.environ.update(options["environment"])
    joined = attempt(join, rank, options)
    world, joined.value = joined.value, None
    try:
        pipe.send(joined)
        # A rank that could not join stays, too, because it may have the store.
        while (task := pipe.recv()) is not None:
            function, arguments = task
            pipe.send(attempt(function, world, *arguments))
    # The test has closed the pipe.
    except (EOFError, BrokenPipeError):
        os._exit(1)
    # In a failed group this raises.
    with contextlib.suppress(Exception):
        leave()


def start(request, ends, asked):
    child = os.fork()
    if child:
        os.close(ends[0])
        return {"pid": child}
    status = 1
    try:
        asked.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        live(request["rank"], request["options"], Connection(ends[0]))
        status = 0
    # For example, a task cannot be unpickled.
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def send_signal(request):
    with contextlib.suppress(ProcessLookupError):
        os.kill(request["pid"], request["number"])
    return {}


def main():
    asked = socket.socket(fileno=int(sys.argv[1]))
    preload(sys.argv[2])
    # The system reaps the ranks.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    asked.send(b"{}")
    while True:
        text, ends, _, _ = socket.recv_fds(asked, 65536, 1)
        if not text:
            return
        request = json.loads(text)
        asked.send(json.dumps(start(request, ends, asked) if ends else send_signal(request)).encode())


if __name__ == "__main__":
    main()
