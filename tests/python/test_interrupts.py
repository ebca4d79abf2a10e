"""Tests of Ctrl-C (SIGINT) while a rank waits for others: the wait raises KeyboardInterrupt, and the other ranks get an
error that names the rank. Also of daemon threads that wait when their process exits."""
import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import torch_tutti


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


@pytest.mark.parametrize("what", ["collective", "recv", "wait"])
def test_daemon_thread_that_waits_at_exit_does_not_abort(tmp_path, what):
    ranks = [subprocess.Popen([sys.executable, "-c", DAEMON, tmp_path / "store", str(rank), what],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
             for rank in range(2)]
    try:
        out, errors = ranks[1].communicate(timeout=60)
        ranks[0].communicate(timeout=60)
    finally:
        for rank in ranks:
            rank.kill()
    assert (ranks[1].returncode, out) == (0, "exits\n"), errors
