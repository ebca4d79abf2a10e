"""Loads the emulated accelerator of tests/device/sim.cpp, as the device "sim" of torch.

Another process builds it (`python sim_device.py`), because building also loads it, and a process that has loaded it
keeps it as its accelerator. Ranks call `load`.
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
    """Returns why the device cannot be built here, or an empty text."""
    missing = [tool for tool in ("c++", "ninja") if not shutil.which(tool)]
    return f"the emulated device cannot be built: {' and '.join(missing)} not found" if missing else ""


@functools.cache
def begin_building():
    """Starts the compiler, which needs half a minute. Other tests can run meanwhile. Returns its process."""
    return subprocess.Popen(["nice", sys.executable, __file__], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True)


def build():
    """Waits for the build. Raises AssertionError with the output of the compiler if it fails."""
    building = begin_building()
    output, _ = building.communicate(timeout=LIMIT_S)
    assert building.returncode == 0, output


def load():
    """Makes "sim" a device of this process. Returns the module of the device."""
    import torch
    if hasattr(torch, "sim"):
        return torch.sim
    place = next(FOLDER.glob("sim_device*.so"))
    spec = importlib.util.spec_from_file_location("sim_device", place)
    device = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(device)
    torch.utils.rename_privateuse1_backend("sim")
    # torch uses these names of a device's module.
    module = types.ModuleType("torch.sim")
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
