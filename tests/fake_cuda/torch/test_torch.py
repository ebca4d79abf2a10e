"""Tests that torch's CUDA build runs on the fake CUDA, and that the checker of order sees its operations.
`script/test-cuda` runs them; elsewhere they are skipped."""
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.multiprocessing as multiprocessing

pytestmark = pytest.mark.skipif("fake_cuda_aten" not in sys.modules, reason="needs the fake CUDA: script/test-cuda")
ALLOCATORS = ["expandable_segments:False", "expandable_segments:True"]
REPORTED = 86


def program(text, **environment):
    """Runs a program on a machine of its own. Returns its exit status and what it printed."""
    environment = {**os.environ, "FAKE_CUDA_MACHINE": "", "FAKE_CUDA_REPORT": "exit", **environment}
    run = subprocess.run([sys.executable, "-c", "import torch\n" + text], env=environment, capture_output=True,
                         text=True, timeout=200)
    return run.returncode, run.stdout + run.stderr


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_operations_run_on_two_devices(allocator):
    status, said = program("""
assert torch.cuda.is_available() and torch.cuda.device_count() == 2
x = torch.arange(12., device="cuda:1").reshape(3, 4)
assert (x.t() @ x).sum().item() == 1964 and torch.equal(x[x > 5].cpu(), torch.arange(6., 12))
assert torch.equal(x.t().to("cuda:0", torch.float16).cpu(), x.cpu().t().half())
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    y = torch.ones(1 << 20, device="cuda")
assert pool.snapshot() and y.sum().item() == 1 << 20
del y, pool
try:
    torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError as error:
    assert "out of memory" in str(error)
else:
    raise AssertionError("there is no terabyte")
torch.cuda.empty_cache()
""", PYTORCH_CUDA_ALLOC_CONF=allocator)
    assert status == 0, said


UNORDERED = """
x = torch.zeros(1000, device="cuda")
torch.cuda.synchronize()
x.add_(1)
with torch.cuda.stream(torch.cuda.Stream()):
    {wait}
    y = x * 2
torch.cuda.synchronize()
assert y[0].item() == 2
"""


def test_streams_without_an_event_between_them_are_reported():
    status, said = program(UNORDERED.format(wait="pass"))
    assert status == REPORTED and "aten::mul reads bytes that aten::add_ writes" in said, said


def test_streams_with_an_event_between_them_are_ordered():
    status, said = program(UNORDERED.format(wait="torch.cuda.current_stream().wait_stream("
                                                 "torch.cuda.default_stream())"))
    assert status == 0, said


def test_copies_are_late():
    status, said = program("""
x, y = torch.ones(1000, device="cuda"), torch.zeros(1000).pin_memory()
torch.cuda._sleep(200_000_000)
y.copy_(x, non_blocking=True)
assert y[0] == 0
torch.cuda.synchronize()
assert y[0] == 1
""")
    assert status == 0, said


def answer(tensors, replies):
    """Adds 1 to a tensor of another process, which can see it, and returns a sum."""
    x = tensors.get(timeout=60)
    x.add_(1)
    torch.cuda.synchronize()
    replies.put(x.sum().item())
    del x
    tensors.get(timeout=60)


def share():
    context = multiprocessing.get_context("spawn")
    tensors, replies = context.Queue(), context.Queue()
    process = context.Process(target=answer, args=(tensors, replies), daemon=True)
    process.start()
    x = torch.arange(1000., device="cuda")
    tensors.put(x)
    assert replies.get(timeout=60) == 499500 + 1000
    assert x.sum().item() == 499500 + 1000
    tensors.put(None)
    process.join(60)
    assert process.exitcode == 0


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_processes_share_tensors(allocator, tmp_path):
    folder = os.path.dirname(os.path.abspath(__file__))
    machine = f"/dev/shm/{tmp_path.name}-{os.getpid()}"
    try:
        run = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=200, cwd=folder,
                             env={**os.environ, "FAKE_CUDA_MACHINE": machine, "PYTORCH_CUDA_ALLOC_CONF": allocator})
    finally:
        os.unlink(machine)
    assert run.returncode == 0, run.stdout + run.stderr


if __name__ == "__main__":
    share()
