"""Tests of script/test-verbs without booting a guest: the arguments that it refuses, its texts about missing packages,
and the archive that it puts into the guest."""
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
import guest  # noqa: E402


def run_script(*words, **options):
    """Runs script/test-verbs with these arguments."""
    return subprocess.run([sys.executable, ROOT / "script/test-verbs", *words], capture_output=True, text=True,
                          timeout=60, **options)


@pytest.mark.parametrize("words, why", [
    (["--"], "no command after --"),
    (["ls"], "unrecognized arguments: ls"),
    (["--devices", "0", "--", "true"], "1 to 64 devices"),
    (["--devices", "3", "--per-host", "2", "--", "true"], "--per-host must be at least 1 and divide --devices"),
    (["--seconds", "0", "--", "true"], "1 second or more"),
    (["--memory", "1", "--", "true"], "256 MiB or more"),
])
def test_wrong_arguments_are_refused(words, why):
    run = run_script(*words)
    assert run.returncode == 2 and why in run.stderr


def test_missing_packages_skip_the_command(tmp_path):
    run = run_script("--", "true", env={"PATH": str(tmp_path)})
    assert run.returncode == 77 and run.stdout.startswith("SKIPPED: missing: ")
    assert "qemu-system-x86" in run.stdout and "--setup" in run.stdout


def modules_in(folder, needs, built_in=""):
    """Writes the kernel's list of modules and what each needs, and returns the names that the guest loads, in order."""
    (folder / "modules.dep").write_text("".join(f"kernel/{name}.ko: {others}\n" for name, others in needs.items()))
    (folder / "modules.builtin").write_text(built_in)
    return [module.stem for module in guest.modules_of(folder)]


def test_modules_come_after_those_they_need(tmp_path, monkeypatch):
    monkeypatch.setattr(guest, "NEEDED", ["9p", "rdma_rxe"])
    needs = {"9p": "kernel/9pnet.ko", "9pnet": "", "odd": "", "ib-core": "",
             "rdma_rxe": "kernel/ib-uverbs.ko kernel/ib-core.ko", "ib-uverbs": "kernel/ib-core.ko"}
    assert modules_in(tmp_path, needs) == ["9pnet", "9p", "ib-core", "ib-uverbs", "rdma_rxe"]
    assert modules_in(tmp_path, {"9p": ""}, "kernel/rdma-rxe.ko\n") == ["9p"]
    with pytest.raises(guest.CannotBoot, match="has no rdma_rxe"):
        modules_in(tmp_path, {"9p": ""})


def test_archive_is_what_the_kernel_unpacks():
    """Reads the archive as the kernel does: headers of 110 bytes and contents begin at multiples of four, and a header
    has the sizes."""
    files, at = {}, 0
    content = guest.archive([guest.file("init", b"12345", 0o755), guest.file("lib/a.ko", b""),
                             guest.file("x", b"1234")])
    while True:
        assert at % 4 == 0 and content[at:at + 6] == b"070701"
        fields = [int(content[at + 6 + 8 * n:at + 14 + 8 * n], 16) for n in range(13)]
        mode, size, name_size = fields[1], fields[6], fields[11]
        name = content[at + 110:at + 110 + name_size]
        begin = (at + 110 + name_size + 3) // 4 * 4
        if name == b"TRAILER!!!\0":
            break
        files[name] = (mode, content[begin:begin + size])
        at = (begin + size + 3) // 4 * 4
    assert files == {b"init\0": (0o100755, b"12345"), b"lib/a.ko\0": (0o100644, b""), b"x\0": (0o100644, b"1234")}


def test_command_arrives_as_it_was_given(tmp_path, monkeypatch):
    """The guest's job has the command's words, the folder and the variables of TUTTI_, but no others."""
    words = ["printf", "%s\n", "a b", "it's", "$HOME", "*", ""]
    monkeypatch.chdir(ROOT / "tests")
    monkeypatch.setenv("TUTTI_LOG", "it's $debug")
    monkeypatch.setenv("A_SECRET", "hidden")
    text = guest.job(words)
    assert "hidden" not in text
    without_name = re.sub(r"^hostname .*\n", "", text, flags=re.MULTILINE)
    run = subprocess.run(["sh", "-c", without_name], capture_output=True, text=True, timeout=60)
    assert run.stdout == "a b\nit's\n$HOME\n*\n\n"
    seen = subprocess.run(["sh", "-c", re.sub(r"exec .*", 'echo "$TUTTI_LOG"; pwd', without_name, flags=re.DOTALL)],
                          capture_output=True, text=True, timeout=60)
    assert seen.stdout == f"it's $debug\n{ROOT / 'tests'}\n"


def test_own_shell_scripts_are_well_formed():
    for script in [ROOT / "tests/verbs/guest.sh", *(ROOT / "tests/verbs/guest").glob("*.sh")]:
        run = subprocess.run(["sh", "-n", script], capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stderr
