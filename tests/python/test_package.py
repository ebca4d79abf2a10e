"""Tests of the package around the library: torch knows it without an import, it is quick and harmless to load; and of
its command."""
import ast
import json
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import metadata
from pathlib import Path

import pytest
from program_start import run_interpreter, run_python, succeeded


def python(code):
    """Runs code in a new interpreter, and returns its output."""
    return succeeded(run_interpreter("-c", code))


def forked(code):
    """Runs code in a process that has loaded torch already, and returns its output."""
    return succeeded(run_python("-c", code))


COMMANDS = {"module": [sys.executable, "-m", "torch_tutti"],
            "script": [str(Path(sysconfig.get_path("scripts")) / "tutti")]}


def tutti(*arguments, environment=None):
    return run_python("-m", "torch_tutti", *arguments, **(environment or {}))


# ---- the entry point ----
def test_name_is_known_without_an_import_and_nothing_is_loaded():
    out = python("""
import sys, torch, torch.distributed as dist
assert "tutti" in dist.Backend.backend_list
assert dist.Backend.backend_capability["tutti"] == ["cpu", "cuda"]
maps = open("/proc/self/maps").read()
print([m for m in sys.modules if m.startswith("torch_tutti")], "libtutti" in maps)
""")
    names, loaded = out.split("] ")
    assert ast.literal_eval(names + "]") == ["torch_tutti", "torch_tutti._autoload"] and loaded.strip() == "False"


def test_closed_standard_descriptors_are_not_opened():
    """If descriptors 0 to 2 are closed, the package opens none of them, so that text for standard error cannot get into
    a tensor or to a peer."""
    code = """
import os, sys, threading, torch, torch.distributed as dist, torch_tutti
from datetime import timedelta
def closed():
    for number in range(3):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            pass
def join(rank):
    group = torch_tutti.ProcessGroupTutti(store, rank, 2, timedelta(seconds=20), "")
    group.allreduce([shared]).wait()
    ends.wait()
found, store, ends = [], dist.HashStore(), threading.Barrier(2, closed)
said, answer = os.fdopen(os.dup(1), "w"), os.closerange(0, 3)
shared = torch_tutti.empty(8).zero_()
closed()
ranks = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
[rank.start() for rank in ranks]
[rank.join() for rank in ranks]
print(found, file=said, flush=True)
os._exit(0)
"""
    assert forked(code) == "[]\n"


def test_package_can_be_imported_before_torch():
    python("import torch_tutti, sys; assert 'torch' not in sys.modules; import torch; torch_tutti.Options()")


def test_entry_point_does_not_raise():
    forked("""
import torch, torch.distributed as dist
from torch_tutti import _autoload
def broken(*_, **__):
    raise RuntimeError("no")
dist.Backend.register_backend = broken
dist.Backend.backend_list = []
_autoload.register()
assert _autoload.problem == "RuntimeError: no"
""")


def test_entry_points_are_installed():
    from importlib.metadata import entry_points
    for group in ("torch.backends", "torch.distributed.backends"):
        assert [e.value for e in entry_points(group=group) if e.name == "tutti"] == ["torch_tutti._autoload:register"]


def test_autoloaded_modules_import_little():
    """Modules that `import torch` runs import neither torch nor anything slow at their top."""
    import torch_tutti
    folder = Path(torch_tutti.__file__).parent
    for name in ("__init__.py", "_autoload.py"):
        tree = ast.parse((folder / name).read_text())
        modules = {a.name for n in tree.body if isinstance(n, ast.Import) for a in n.names}
        modules |= {n.module for n in tree.body if isinstance(n, ast.ImportFrom)}
        assert modules <= {"__future__", "importlib", "typing", "os", "sys"}, name


# ---- metadata, flags for C programs, exceptions ----
def test_metadata_names_the_torch_it_was_built_for():
    import torch
    found = metadata("torch-tutti")
    assert {line.replace(" ", "").replace("'", '"') for line in found.get_all("Requires-Dist")} == {
        "torch=={}.{}.*".format(*torch.__version__.split(".")), 'matplotlib;extra=="plot"',
        'libucx-cu12;extra=="ucx"'}
    assert "BSD-3-Clause" in (found["License"], found["License-Expression"]) and found["Author"] == "The tutti authors"
    assert "Operating System :: POSIX :: Linux" in found.get_all("Classifier")


PROGRAM = """
#include <tutti.h>
#include <stdio.h>
int main(void) { return puts(tutti_get_version()) < 0; }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_c_program_is_built_with_flags_of_config(tmp_path):
    import torch_tutti
    (tmp_path / "program.c").write_text(PROGRAM)
    flags = [word for option in ("--cflags", "--libs") for word in tutti("config", option).stdout.split()]
    assert flags == tutti("config").stdout.split() and f"-I{torch_tutti.get_include()}" in flags
    subprocess.run(["cc", "program.c", *flags, "-o", "program"], cwd=tmp_path, check=True, timeout=60)
    done = subprocess.run([tmp_path / "program"], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == torch_tutti.__version__, done.stderr


def test_every_error_of_the_header_has_its_class():
    import torch_tutti
    from torch_tutti import exceptions
    header = (Path(torch_tutti.get_include()) / "tutti.h").read_text()
    errors = re.findall(r'X\(([A-Z_]+), (-\d+), "', header)
    assert {name: exceptions._BY_STATUS[int(value)].__name__ for name, value in errors} == {
        "INVALID_ARGUMENT": "ValueError", "UNSUPPORTED": "NotImplementedError", "NO_MEMORY": "MemoryError",
        "SYSTEM": "SystemError", "TIMEOUT": "TimeoutError", "MISMATCH": "MismatchError", "PEER_LOST": "PeerError",
        "ABORTED": "AbortedError", "FORKED": "ForkedError", "INTERNAL": "InternalError"}
    assert len(exceptions._BY_STATUS) == len(errors)
    # The C header does not name Python's exceptions.
    assert "Error\"" not in header


# ---- introspection ----
def test_info_is_plain_data():
    import torch_tutti
    info = torch_tutti.info()
    assert info["packages"]["torch-tutti"] == torch_tutti.__version__ and json.loads(json.dumps(info)) == info


def test_text_that_grows_between_two_calls_is_whole():
    """Each call has one more byte than the call before, up to four."""
    from torch_tutti import _library
    texts = []

    def write(buffer, capacity, length):
        texts.append(b"x" * min(len(texts) + 1, 4))
        length._obj.value = len(texts[-1])
        buffer.value = texts[-1][:capacity.value - 1]
        return 0

    assert _library._text(write) == "xxxx"


def test_info_has_the_machine_parameters():
    import torch_tutti
    machine = torch_tutti.info()["machine"]
    assert machine["largest tile (bytes)"] >= 32768 and all(figure >= 0 for figure in machine.values())
    assert any("second-level cache" in name for name in machine)


def test_info_shows_ucx_or_the_reason():
    """`tutti info` shows the UCX library and its networks. Without the library it gives a reason, and succeeds, too."""
    found = json.loads(tutti("info", "--json").stdout)["transports"]
    assert found["shm"].startswith("yes: ") and re.match(r"yes: UCX .*, with |no: ", found["ucx"]), found
    none = json.loads(tutti("info", "--json", environment={"TUTTI_UCX": "/nowhere/libucp.so.0"}).stdout)["transports"]
    assert none["ucx"].startswith("no: ") and "/nowhere/libucp.so.0" in none["ucx"], none


def test_info_shows_the_transport_between_hosts():
    def choice(name):
        return json.loads(tutti("info", "--json", environment={"TUTTI_TRANSPORT": name}).stdout)["transports"]
    assert re.match("tcp, because no RDMA port|ucx, because an RDMA port", choice("")["between hosts"])
    assert choice("verbs")["between hosts"] == "verbs"
    assert choice("verbs,ucx")["between hosts"] == "ucx and verbs"
    assert "TUTTI_TRANSPORT" in choice("pigeon")["between hosts"]


def test_info_shows_verbs_or_the_reason():
    """`tutti info` shows the usable ports of RDMA devices, or the reason why there are none."""
    found = json.loads(tutti("info", "--json").stdout)["transports"]["verbs"]
    assert re.match(r"yes: .* is used with |no: ", found), found
    none = json.loads(tutti("info", "--json", environment={"TUTTI_VERBS": "/nowhere/libibverbs.so.1"}).stdout)
    assert re.match("no: .*(/nowhere/libibverbs.so.1|libibverbs-dev)", none["transports"]["verbs"]), none


def test_schedule_lists_every_rank():
    import torch_tutti
    collectives = torch_tutti.algorithms()
    assert "ring" in collectives["allreduce"]
    text = torch_tutti.schedule("allreduce", "ring", ranks=4)
    assert len(text) > 100 and all(f"{rank}" in text for rank in range(4))
    with pytest.raises(ValueError, match="ring"):
        torch_tutti.schedule("allreduce", "rign", ranks=4)


def test_unknown_attribute_is_an_error():
    import torch_tutti
    with pytest.raises(AttributeError, match="nothing_like_this"):
        torch_tutti.nothing_like_this
    assert "Options" in dir(torch_tutti)


@pytest.mark.parametrize("way", COMMANDS)
def test_command_starts(way):
    def run(*arguments):
        return subprocess.run([*COMMANDS[way], *arguments], capture_output=True, text=True, timeout=60)

    import torch_tutti
    assert run("--version").stdout == f"tutti {torch_tutti.__version__}\n"
    assert json.loads(run("info", "--json").stdout)["packages"]["torch-tutti"]
    assert run().returncode == 2


def test_commands_answer_or_name_the_mistake():
    assert "torch-tutti" in tutti("info").stdout
    assert "ring" in tutti("algorithms").stdout
    assert tutti("schedule", "allreduce", "ring", "--ranks", "3").stdout.strip()
    # This is 3 in the 32 bits that C takes.
    for option in "--ranks", "--root":
        cut = tutti("schedule", "broadcast", "chain", option, "4294967299")
        assert cut.exitcodes == [1] and "schedule: 4294967299 is not a 32-bit integer" in cut.stderr
    wrong = tutti("schedule", "allreduce", "rign")
    assert wrong.exitcodes == [1] and "ring" in wrong.stderr and "Traceback" not in wrong.stderr


def test_info_lists_settings_and_algorithms():
    done = tutti("info", environment={"TUTTI_SLOTS": "3", "TUTTI_TILE_BYTES": "-4"})
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert "TUTTI_SLOTS: 3 (default: 0)" in lines and "TUTTI_LOG: warn" in lines and "TUTTI_CACHE: (empty)" in lines
    assert "TUTTI_TILE_BYTES=-4 is out of range" in done.stderr
    assert any(line.startswith("allreduce: naive tree ") for line in lines)


def test_picture_places_every_step(tmp_path):
    """Every step has its place, to the right of what it waits for, and every receive waits for a send."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    import torch_tutti
    from torch_tutti import picture
    for collective, algorithm in (("allreduce", "ring"), ("allreduce", "two_shot"), ("all_to_all", "direct")):
        steps = picture.parse(torch_tutti.schedule(collective, algorithm, ranks=3))
        picture.place(steps)
        assert {step.rank for step in steps.values()} == {0, 1, 2}
        for step in steps.values():
            assert all(steps[wait].column < step.column for wait in step.waits)
            assert (step.kind == "recv") == (step.send is not None)
    path = tmp_path / "ring.svg"
    succeeded(tutti("schedule", "allreduce", "ring", "--picture", path))
    assert "<svg" in path.read_text()


# ---- under torchrun ----
SCRIPT = """
import sys, torch, torch.distributed as dist
dist.init_process_group("tutti")
x = torch.full((1000,), dist.get_rank() + 1.0)
dist.all_reduce(x)
assert "torch_tutti" in sys.modules and x[0] == 3
print(f"rank {dist.get_rank()} has {x[0].item()}\\n", end="", flush=True)    # one write: both ranks share the pipe
dist.destroy_process_group()
"""


def test_torchrun_runs_a_script_without_an_import(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                           str(script)],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "rank 0 has 3.0" in done.stdout and "rank 1 has 3.0" in done.stdout


ONE_RANK = """
import torch.distributed as dist
dist.init_process_group("tutti", store=dist.HashStore(), rank=0, world_size=1)
dist.destroy_process_group()
"""


@pytest.mark.one_host("a job of one rank")
@pytest.mark.parametrize("environment, level", [
    ({"TORCH_LOGS": "torch_tutti"}, "info"), ({"TORCH_LOGS": "dynamo,+torch_tutti"}, "debug"), ({}, ""),
    ({"TORCH_LOGS": "torch_tutti", "TUTTI_LOG": "error"}, ""),
])
def test_torch_logs_show_what_the_library_does(environment, level):
    """In a new interpreter torch itself reads TORCH_LOGS. In a forked process it does not, and the library reads it."""
    run = run_interpreter if level == "info" else run_python
    done = run("-c", ONE_RANK + "import os; print(os.environ.get('TUTTI_LOG', ''))", **environment)
    assert done.exitcodes == [0] and ("has joined" in done.stderr) == bool(level)
    assert done.stdout.strip() == (level or environment.get("TUTTI_LOG", ""))
