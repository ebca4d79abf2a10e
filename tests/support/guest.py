"""A machine with RDMA devices where there is none: a guest of QEMU with Debian's kernel, whose driver rdma_rxe
(soft-RoCE) makes an RDMA device of a network interface. The guest sees the files of this machine, read-only, and so
runs the programs that were built here; only /tmp, /run and /dev/shm are its own. Virtual cables join its devices, and
tests can cut them (tests/verbs/guest/devices.sh). Without KVM the guest is emulated, some thirty times slower.

The kernel and an archive with its modules are prepared once, below build/verbs. script/test-verbs is the command for
this module. A guest ends when the process that booted it ends, even if that is killed.
"""
from __future__ import annotations

import gzip
import lzma
import os
import platform
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build/verbs"
KERNEL, MODULES = FOLDER / "vmlinuz", FOLDER / "modules.cpio"
INSIDE = ROOT / "tests/verbs/guest"
# The programs that must be installed, and the Debian package of each.
TOOLS = {"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "ip": "iproute2", "rdma": "iproute2",
         "setpriv": "util-linux", "ibv_rc_pingpong": "ibverbs-utils", "ib_send_lat": "perftest"}
PROVIDERS = ["/etc/libibverbs.d/rxe.driver", "ibverbs-providers"]
KERNEL_PACKAGE = "linux-image-amd64"
# In this order: without crc32_generic before it, soft-RoCE says "No such file or directory" of an interface.
NEEDED = ["virtio_pci", "9pnet_virtio", "9p", "veth", "bridge", "sch_netem", "sch_tbf", "crc32_generic", "rdma_rxe",
          "rdma_ucm"]
# The environment variables of this process that the guest's command gets.
PASSED = r"(TUTTI|UCX|OMP|TORCH|PYTHON|PYTEST|CTEST|ASAN|TSAN|UBSAN|LD)_\w+|PATH|LANG|LC_ALL|HOME|TERM"
# A guest may live this many seconds longer than its command may run, because it has to boot.
BEGIN_S = 5


class CannotBoot(Exception):
    """A guest cannot boot here, or it ended before its command. The text gives the reason and the remedy."""


class TooLate(Exception):
    """The guest did not end in time."""


def packages_missing() -> list[str]:
    missing = {package for tool, package in TOOLS.items() if not shutil.which(tool)}
    if not Path(PROVIDERS[0]).exists():
        missing.add(PROVIDERS[1])
    if (busybox := shutil.which("busybox")) and b"/ld-linux" in Path(busybox).read_bytes():
        missing.add("busybox-static")                   # the installed busybox needs shared libraries
    return sorted(missing)


def why_not() -> str:
    """Returns why a guest cannot boot yet; "" if it can."""
    if platform.machine() != "x86_64":
        return f"a guest needs a machine of x86_64, and this one is {platform.machine()}"
    missing = packages_missing() + ([] if KERNEL.exists() and MODULES.exists() else [KERNEL_PACKAGE + " (unpacked)"])
    return f"missing: {', '.join(missing)}; `script/test-verbs --setup` gets them" if missing else ""


# ---- the archives a guest begins with ----
def archive(entries: list[tuple[str, int, bytes]]) -> bytes:
    """Files and folders as the kernel unpacks them: the "newc" format of cpio."""
    out = bytearray()
    for number, (name, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        out += b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        out += b"\0" * (-len(out) % 4) + content
        out += b"\0" * (-len(out) % 4)
    return bytes(out)


def file(name: str, content: bytes, mode: int = 0o644) -> tuple[str, int, bytes]:
    return name, stat.S_IFREG | mode, content


def plain(module: Path) -> bytes:
    opened = {".xz": lzma.open, ".gz": gzip.open}.get(module.suffix, open)
    with opened(module, "rb") as content:
        return content.read()


def modules_of(folder: Path) -> list[Path]:
    """Returns the files of the modules that a guest loads, each after the modules that it depends on. `folder` is
    lib/modules/VERSION."""
    name_of = lambda path: Path(path).name.partition(".")[0].replace("-", "_")  # noqa: E731
    needs = {}
    for line in (folder / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        needs[name_of(path)] = [*reversed(others.split()), path]
    built_in = {name_of(path) for path in (folder / "modules.builtin").read_text().split()}
    if lacking := [name for name in NEEDED if name not in needs and name not in built_in]:
        raise CannotBoot(f"the kernel {folder.name} has no {', '.join(lacking)}")
    return [folder / path for path in dict.fromkeys(path for name in NEEDED for path in needs.get(name, []))]


def prepare_kernel(package: Path) -> None:
    """Unpacks Debian's package of a kernel, and stores the kernel (KERNEL) and an archive of its modules (MODULES)."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        folder = Path(name)
        subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
        kernel = next(folder.glob("boot/vmlinuz-*"))
        version = kernel.name.partition("-")[2]
        subprocess.run(["busybox", "depmod", "-b", folder, version], check=True)
        modules = modules_of(next(folder.rglob(f"lib/modules/{version}")))
        names = [module.name.partition(".")[0] + ".ko" for module in modules]
        content = archive([*[(path, stat.S_IFDIR | 0o755, b"") for path in ("bin", "dev", "lib", "root")],
                           file("bin/busybox", Path(shutil.which("busybox")).read_bytes(), 0o755),
                           file("modules", "".join(f"{name}\n" for name in names).encode()),
                           *[file(f"lib/{name}", plain(module)) for name, module in zip(names, modules)]])
        (folder / "modules.cpio").write_bytes(content)
        os.replace(folder / "modules.cpio", MODULES)
        os.replace(kernel, KERNEL)


def job(command: list[str]) -> str:
    """Returns the script of the guest's shell: the command, with variables of this process, in this folder if it is in
    the checkout."""
    passed = {name: value for name, value in os.environ.items() if re.fullmatch(PASSED, name)}
    passed["PATH"] = f"{ROOT / '.venv/bin'}:{passed.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin"
    passed |= {"TUTTI_CACHE": "none", "XDG_CACHE_HOME": "/run/cache", "PYTHONDONTWRITEBYTECODE": "1",
               "PYTEST_ADDOPTS": passed.get("PYTEST_ADDOPTS", "") + " -p no:cacheprovider"}
    here = Path.cwd()
    words = [f"export {name}={shlex.quote(value)}" for name, value in passed.items()]
    return "\n".join([*words, f"cd {shlex.quote(str(here if here.is_relative_to(ROOT) else ROOT))}",
                      "hostname guest", f"exec {shlex.join(command)}\n"])


# ---- the guest ----
def has_kvm() -> bool:
    """Returns whether guests can use KVM. To open /dev/kvm is not enough: in some virtual machines that works, but a
    guest's kernel never starts."""
    flags = set(Path("/proc/cpuinfo").read_text().split())
    return os.access("/dev/kvm", os.R_OK | os.W_OK) and bool(flags & {"vmx", "svm"})


def sweep() -> None:
    """Removes the folders of guests whose process was killed."""
    for folder in FOLDER.glob("guest-*-*"):
        if not Path("/proc", folder.name.split("-")[1]).exists():
            shutil.rmtree(folder, ignore_errors=True)


class Guest:
    """A guest that runs one command and ends, as a context manager. The output of the command goes to standard output.
    `result` waits for the guest."""

    def __init__(self, command: list[str], devices: int = 2, seconds: int = 300, processors: int = 2,
                 memory_mib: int = 4096, per_host: int = 1):
        if why := why_not():
            raise CannotBoot(why)
        self.begin, self.seconds = time.monotonic(), seconds
        sweep()
        self.folder = Path(tempfile.mkdtemp(prefix=f"guest-{os.getpid()}-", dir=FOLDER))
        self.console = self.folder / "console"
        try:
            self.write_files(command, f"devices={devices} hosts={devices // per_host}")
            self.process = subprocess.Popen(self.line(processors, memory_mib), stdin=subprocess.DEVNULL,
                                            start_new_session=True)
        except BaseException:
            shutil.rmtree(self.folder)
            raise

    def write_files(self, command: list[str], there_is: str) -> None:
        settings = f"root={shlex.quote(str(ROOT))} {there_is} seconds={self.seconds + BEGIN_S}\n"
        mine = archive([file("init", (INSIDE / "init.sh").read_bytes(), 0o755), file("settings", settings.encode()),
                        file("devices.sh", (INSIDE / "devices.sh").read_bytes()), file("job", job(command).encode())])
        (self.folder / "initial.cpio").write_bytes(MODULES.read_bytes() + mine)

    def line(self, processors: int, memory_mib: int) -> list[str]:
        """Returns QEMU's command line. no_timer_check: otherwise the kernel gives up an emulated timer that fires late
        on a busy machine. tsc=reliable: otherwise it does not trust an emulated processor's counter, and reads an
        emulated device instead each time it needs the time."""
        accelerated = ["-accel", "kvm", "-cpu", "host"]
        emulated = ["-accel", "tcg,thread=multi,tb-size=1024", "-cpu", "max,la57=off"]
        files = "local,path=/,mount_tag=machine,security_model=none,readonly=on,multidevs=remap"
        clock = "" if has_kvm() else "tsc=reliable clocksource=tsc "
        options = f"console=ttyS0 quiet no_timer_check {clock}oops=panic panic=-1 mitigations=off"
        return ["setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", *(accelerated if has_kvm() else emulated),
                "-smp", str(processors), "-m", str(memory_mib), "-nic", "none", "-display", "none", "-monitor", "none",
                "-no-reboot", "-kernel", str(KERNEL), "-initrd", str(self.folder / "initial.cpio"),
                "-append", options, "-virtfs", files, "-serial", f"file:{self.console}", "-serial", "stdio"]

    def told(self, what: str) -> list[str]:
        """Returns the texts after `what` in the lines "guest: <what>…" that the guest's first process has written to
        the console."""
        text = self.console.read_text(errors="replace") if self.console.exists() else ""
        return re.findall(rf"^guest: {what}(.*?)\r*$", text, re.MULTILINE)

    def result(self) -> int:
        """Waits for the end of the guest, and returns the exit status of its command."""
        left = self.begin + self.seconds - time.monotonic()
        try:
            self.process.wait(max(left, 0))
        except subprocess.TimeoutExpired as late:
            raise TooLate(f"the guest did not end within {self.seconds} s (--seconds), {self.times()}"
                          f"{self.last_lines()}") from late
        if ended := self.told("status "):
            return int(ended[-1].partition(",")[0])
        raise CannotBoot(f"the guest ended before its command did{self.last_lines()}")

    def last_lines(self) -> str:
        text = self.console.read_text(errors="replace") if self.console.exists() else ""
        return "; the last lines of its console:\n" + "\n".join(text.splitlines()[-30:]) if text else ""

    def times(self) -> str:
        """Describes how many seconds the boot, the command and all of it took."""
        ready, ended = [[float(text.rpartition(",")[2].split()[0]) for text in self.told(what)]
                        for what in ("ready", "status ")]
        boot = f"ready after {ready[0]:.1f} s, " if ready else "never ready, "
        command = f"the command {ended[0] - ready[0]:.1f} s, " if ready and ended else ""
        return f"{boot}{command}in all {time.monotonic() - self.begin:.1f} s"

    def close(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Guest:
        return self

    def __exit__(self, *_) -> None:
        self.close()
