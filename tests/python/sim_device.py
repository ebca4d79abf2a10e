"""Loads the emulated accelerator of tests/device/sim.cpp, as the device "sim" of torch.

It is built in a process of its own (`python sim_device.py`), because a process that loads it has it as its
accelerator from then on. Ranks call `load`.
"""
import functools
import importlib.util
import shutil
import subprocess
import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "tests" / "device" / "sim.cpp"
FOLDER = ROOT / "build" / "device"
LIMIT_S = 900


def missing():
    """Why it cannot be built here, or an empty text."""
    missing = [tool for tool in ("c++", "ninja") if not shutil.which(tool)]
    return f"the emulated device cannot be built: {' and '.join(missing)} not found" if missing else ""


@functools.cache
def begin_building():
    """Half a minute of a compiler, beside which other tests can run."""
    return subprocess.Popen(["nice", sys.executable, __file__], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True)


def build():
    """Builds it if that is to be done, and raises what the compiler says if it cannot be."""
    building = begin_building()
    said, _ = building.communicate(timeout=LIMIT_S)
    assert building.returncode == 0, said


def load():
    """Makes "sim" a device of this process; its module."""
    import torch
    if hasattr(torch, "sim"):
        return torch.sim
    place = next(FOLDER.glob("sim_device*.so"))
    spec = importlib.util.spec_from_file_location("sim_device", place)
    device = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(device)
    torch.utils.rename_privateuse1_backend("sim")
    module = types.ModuleType("torch.sim")                 # what torch asks of the module of a device
    module.is_available = module.is_initialized = lambda: True
    module.device_count = lambda: 2
    module.current_device, module.set_device = device.current_device, device.set_device
    module.set_capturing, module.set_failing = device.set_capturing, device.set_failing
    module.Stream = functools.partial(torch.Stream, device="sim")
    module.Event = functools.partial(torch.Event, device="sim")
    module.current_stream, module.stream = torch.accelerator.current_stream, lambda stream: stream
    torch._register_device_module("sim", module)
    return module


def main():
    from torch.utils import cpp_extension
    FOLDER.mkdir(parents=True, exist_ok=True)
    cpp_extension.load("sim_device", [str(SOURCE)], extra_cflags=["-std=c++20", "-O1"], build_directory=str(FOLDER))


if __name__ == "__main__":
    main()
