"""Tests of Ctrl-C (SIGINT) while a rank waits for others: the wait raises KeyboardInterrupt, and the other ranks get an
error that names the rank. Also of daemon threads that wait when their process exits."""
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import torch_tutti

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
with_hooks = pytest.mark.skipif(VERSION < (2, 14), reason="torch before 2.14")


def interrupt_soon():
    """Sends SIGINT to this process when its main thread probably waits. If the thread does not yet wait, the interrupt
    comes before the call, and is raised there."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()


WAITS = {
    "small": lambda x: dist.all_reduce(x),
    "large": lambda x: dist.all_reduce(torch.ones(1 << 20)),
    "wait": lambda x: dist.all_reduce(x, async_op=True).wait(),
    "barrier": lambda x: dist.barrier(),
    "recv": lambda x: dist.recv(x, 0),
    "send": lambda x: dist.send(torch.ones(1 << 22), 0),
    "isend": lambda x: dist.isend(torch.ones(1 << 22), 0).wait(),
    "own": lambda x: torch_tutti.all_reduce(x),
    "objects": lambda x: dist.broadcast_object_list([None], 0),
}


def interrupted_in(world, what):
    """Rank 0 makes the same call after rank 1 was interrupted in it; instead of a message, another call."""
    x = torch.ones(10)
    dist.all_reduce(x)
    if world.rank == 1:
        with pytest.raises(KeyboardInterrupt):
            interrupt_soon()
            WAITS[what](x)
        world.store.set("interrupted", "")
    else:
        world.store.wait(["interrupted"], timedelta(seconds=45))
    with pytest.raises(torch_tutti.AbortedError) as error:
        WAITS["small" if world.rank == 1 or what in ("recv", "send", "isend") else what](x)
    return str(error.value)


@pytest.mark.parametrize("what", list(WAITS))
def test_interrupt_ends_a_wait_and_fails_the_group(fresh, what):
    for text in fresh(2).run(interrupted_in, what):
        assert "rank 1 of group 0 was interrupted" in text, text


def handled_in(world):
    """A handler that raises nothing runs while the rank waits, and the wait goes on; the exception of another handler
    arrives as it is."""
    x, handled = torch.ones(1), []

    def handle(number, _):
        handled.append(number)
        world.store.set("handled", "")

    def refuse(number, _):
        raise LookupError("from a handler")

    if world.rank == 0:
        world.store.wait(["handled"], timedelta(seconds=45))
        dist.all_reduce(x)
        world.store.wait(["refused"], timedelta(seconds=45))
        return x.item()
    signal.signal(signal.SIGUSR2, handle)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR2)).start()
    dist.all_reduce(x)
    assert handled == [signal.SIGUSR2]
    signal.signal(signal.SIGUSR2, refuse)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR2)).start()
    with pytest.raises(LookupError, match="from a handler"):
        dist.barrier()
    world.store.set("refused", "")
    return x.item()


def test_signal_handlers_run_while_a_rank_waits(fresh):
    assert fresh(2).run(handled_in) == [2, 2]


def interrupted_while_joining(world, victim):
    """The other rank never joins."""
    if world.rank != victim:
        world.store.wait(["interrupted"], timedelta(seconds=45))
        return
    with pytest.raises(KeyboardInterrupt):
        interrupt_soon()
        dist.init_process_group("tutti", store=dist.PrefixStore("one", world.store), rank=world.rank, world_size=2,
                                timeout=timedelta(minutes=10))
    assert not dist.is_initialized()
    world.store.set("interrupted", "")


@pytest.mark.parametrize("victim", [0, 1])
def test_interrupt_ends_a_join(fresh, victim):
    fresh(2, join=False).run(interrupted_while_joining, victim)


def interrupted_in_thread(world):
    """Another thread of the rank waits too, and gets the error of the group."""
    x, errors = torch.ones(1), []

    def receive():
        try:
            dist.recv(torch.empty(1), 0)
        except dist.DistBackendError as error:
            errors.append(str(error))

    if world.rank == 0:
        world.store.wait(["interrupted"], timedelta(seconds=45))
        return "was interrupted"
    thread = threading.Thread(target=receive)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        interrupt_soon()
        dist.all_reduce(x)
    thread.join(20)
    world.store.set("interrupted", "")
    return errors[0]


def test_interrupt_ends_the_waits_of_all_threads(fresh):
    assert all("was interrupted" in text for text in fresh(2).run(interrupted_in_thread))


def raise_after_the_end(world, how):
    """The handler of rank 1 raises when the operation has ended: a second one, on a thread, has ended after it."""
    x, y, group = torch.ones(1), torch.ones(1), dist.group.WORLD
    threads = [threading.Thread(target=dist.all_reduce, args=(y,))]
    aborts = []
    if VERSION >= (2, 14):
        group.register_abort_hook(1, lambda: aborts.append(world.rank))
    if how == "timed":
        group._enable_collectives_timing()

    def end_and_refuse(number, _):
        world.store.set("waits", "")
        threads[0].start()
        threads[0].join()
        raise LookupError("after the end")

    if world.rank == 0:
        world.store.wait(["waits"], timedelta(seconds=45))
        dist.all_reduce(x)
        dist.all_reduce(y)
    else:
        signal.signal(signal.SIGUSR2, end_and_refuse)
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR2)).start()
        with pytest.raises(LookupError, match="after the end"):
            dist.all_reduce(x)
    dist.all_reduce(x)
    backend = group._get_backend(torch.device("cpu"))
    return x.item(), y.item(), backend._get_sequence_number_for_group() if VERSION >= (2, 14) else 3, aborts


@pytest.mark.parametrize("how", ["directly", "timed"])
def test_interrupt_after_the_end_of_an_operation_harms_no_group(fresh, how):
    assert fresh(2).run(raise_after_the_end, how) == [(4, 2, 3, [])] * 2


def interrupted_with_hook(world):
    ran = []
    dist.group.WORLD.register_abort_hook(1, lambda: (time.sleep(0.5), ran.append(world.rank)))
    if world.rank == 1:
        with pytest.raises(KeyboardInterrupt):
            interrupt_soon()
            dist.all_reduce(torch.ones(1), async_op=True).wait()
        world.store.set("interrupted", "")
    world.store.wait(["interrupted"], timedelta(seconds=45))
    return ran


@with_hooks
def test_interrupted_wait_returns_after_the_abort_hooks(fresh):
    assert fresh(2).run(interrupted_with_hook)[1] == [1]


# ---- at exit ----
DAEMON = """
import sys, threading, time, torch, torch.distributed as dist
store, rank, what = dist.FileStore(sys.argv[1], 2), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("tutti", store=store, rank=rank, world_size=2)
x = torch.ones(10)
dist.all_reduce(x)
calls = {"collective": lambda: dist.all_reduce(x), "recv": lambda: dist.recv(x, 0),
         "wait": lambda: dist.all_reduce(x, async_op=True).wait()}
if rank == 1:
    threading.Thread(target=calls[what], daemon=True).start()
    time.sleep(0.5)
    print("exits", flush=True)
else:
    sys.stdin.read()
"""


def run_exits(program, folder, *arguments):
    """Runs the program as two ranks, with the path of a store, the rank and the arguments. Rank 0 may read its input
    until rank 1 has ended. Returns output, errors and exit status of rank 1."""
    ranks = [subprocess.Popen([sys.executable, "-c", program, folder / "store", str(rank), *arguments],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
             for rank in range(2)]
    try:
        out, errors = ranks[1].communicate(timeout=60)
        ranks[0].communicate(timeout=60)
    finally:
        for rank in ranks:
            rank.kill()
    return out, errors, ranks[1].returncode


@pytest.mark.parametrize("what", ["collective", "recv", "wait"])
def test_daemon_thread_that_waits_at_exit_does_not_abort(tmp_path, what):
    out, errors, code = run_exits(DAEMON, tmp_path, what)
    assert (code, out) == (0, "exits\n"), errors


JOIN_AT_EXIT = """
import atexit, sys, threading, time
threads = []

def join_threads():
    if sys.argv[3] == "aborted":
        dist.group.WORLD._get_backend(torch.device("cpu")).abort()
    else:
        store.set("exits", "")
    for thread in threads:
        thread.join()
    print("joined", flush=True)

def run_call():
    try:
        calls[sys.argv[4]]()
    except dist.DistBackendError:
        pass

if sys.argv[2] == "1":
    atexit.register(join_threads)
import torch, torch.distributed as dist, torch_tutti
store = dist.FileStore(sys.argv[1], 2)
dist.init_process_group("tutti", store=store, rank=int(sys.argv[2]), world_size=2)
x = torch.ones(10)
dist.all_reduce(x)
calls = {"collective": lambda: dist.all_reduce(x), "wait": lambda: dist.all_reduce(x, async_op=True).wait()}
if sys.argv[2] == "1":
    threads.append(threading.Thread(target=run_call, daemon=True))
    threads[0].start()
    time.sleep(0.5)
else:
    store.wait(["exits"]) if sys.argv[3] == "done" else sys.stdin.read()
    run_call()
"""


@pytest.mark.parametrize("what", ["collective", "wait"])
@pytest.mark.parametrize("how", ["done", "aborted"])
def test_function_of_atexit_can_join_a_thread_that_waits(tmp_path, how, what):
    """The function was registered before torch_tutti's, so it runs after that."""
    out, errors, code = run_exits(JOIN_AT_EXIT, tmp_path, how, what)
    assert (code, out) == (0, "joined\n"), errors


ABORT_AT_EXIT = JOIN_AT_EXIT.replace("thread.join()", "pass")


@pytest.mark.parametrize("what", ["collective", "wait"])
def test_thread_that_comes_back_as_the_interpreter_ends_does_not_abort(tmp_path, what):
    out, errors, code = run_exits(ABORT_AT_EXIT, tmp_path, "aborted", what)
    assert (code, out) == (0, "joined\n"), errors
