"""Builds libtutti with CMake and the extension torch_tutti._C against the torch that is installed, and puts both into
the package.

    pip install --no-build-isolation -e .       from a checkout
    pip wheel --no-build-isolation --no-deps .  for others with the same minor versions of torch and Python

torch's C++ interface changes with every minor version, so the package requires the one that it was built for, and
remembers it (torch_tutti/_build.py).
"""
import os
import re
import shutil
import subprocess
from pathlib import Path

import setuptools

try:
    import torch
    from torch.utils.cpp_extension import BuildExtension, CppExtension
except ImportError as error:
    raise SystemExit(f"tutti is built against an installed torch, and there is none here ({error}). Install torch "
                     "(2.11 or later), then run: pip install --no-build-isolation -e .") from None

ROOT = Path(__file__).resolve().parent
CORE = Path("build") / "python"
PACKAGE = Path("shim") / "torch_tutti"


def version() -> str:
    """The one in the public header."""
    return re.search(r'TUTTI_VERSION "([^"]+)"', (ROOT / "include/tutti.h").read_text())[1]


def torch_built_for() -> str:
    """What pip is to require."""
    return "torch==" + ".".join(torch.__version__.split(".")[:2]) + ".*"


def use_ccache() -> None:
    """Puts a folder in front of PATH in which the compilers are links to ccache: works for CMake, ninja and
    setuptools alike."""
    ccache = shutil.which("ccache")
    if not ccache:
        return
    folder = ROOT / CORE / "ccache"
    folder.mkdir(parents=True, exist_ok=True)
    machine = os.uname().machine
    for name in ("cc", "c++", "gcc", "g++", "clang", "clang++", f"{machine}-linux-gnu-gcc", f"{machine}-linux-gnu-g++"):
        link = folder / name
        if shutil.which(name) and not link.is_symlink():
            link.symlink_to(ccache)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"


def build_core() -> Path:
    """libtutti.so, optimised; quick when nothing changed."""
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    jobs = os.environ.get("MAX_JOBS") or str(min(os.cpu_count() or 1, 8))
    subprocess.run(["cmake", *generator, "-S", ROOT, "-B", ROOT / CORE, "-DCMAKE_BUILD_TYPE=Release"], check=True)
    subprocess.run(["cmake", "--build", ROOT / CORE, "--target", "tutti", "--parallel", jobs], check=True)
    return ROOT / CORE / "libtutti.so"


def harden(extension: setuptools.Extension) -> None:
    """As CMake has hardened the library."""
    extension.extra_compile_args += (ROOT / CORE / "hardening/compile").read_text().split()
    extension.extra_link_args += (ROOT / CORE / "hardening/link").read_text().split()


class Build(BuildExtension):
    """The extension, and beside it the library it is linked with, its header, and a note of the torch it is for."""

    def run(self) -> None:
        use_ccache()
        library = build_core()
        for extension in self.extensions:
            harden(extension)
        super().run()
        place = ROOT / PACKAGE if self.inplace else Path(self.build_lib) / "torch_tutti"
        (place / "include").mkdir(parents=True, exist_ok=True)
        for header in ROOT.glob("include/*.h"):
            shutil.copy2(header, place / "include")
        note = f'"""Written by setup.py."""\nTORCH_VERSION = "{torch.__version__}"\n'
        (place / "_build.py").write_text(note)
        incoming = place / "libtutti.so.incoming"       # replaced, not overwritten: who runs keeps what it has mapped
        shutil.copy2(library, incoming)
        incoming.replace(place / "libtutti.so")


extension = CppExtension(
    "torch_tutti._C",
    ["shim/shim.cpp", "shim/bindings.cpp"],
    include_dirs=[str(ROOT)],
    library_dirs=[str(ROOT / CORE)],
    libraries=["tutti"],
    depends=[str(path) for pattern in ("shim/*.?pp", "include/*.h") for path in ROOT.glob(pattern)],
    extra_compile_args=["-std=c++20", "-O2", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra",
                        "-Wformat=2", "-Wno-deprecated-declarations",
                        "-Wno-inconsistent-missing-override"],  # clang's; process_group.hpp says why there is none
    extra_link_args=["-Wl,-rpath,$ORIGIN"],
)

# since setuptools 77 an expression has a field of its own, and is refused beside a classifier
licence = "license_expression" if int(setuptools.__version__.split(".")[0]) >= 77 else "license"

setuptools.setup(
    name="torch-tutti",
    version=version(),
    description="A communication backend for torch.distributed: shared memory first, one C library",
    long_description=(ROOT / "README.md").read_text() if (ROOT / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    author="The tutti authors",
    **{licence: "BSD-3-Clause"},
    license_files=["LICENSE"],
    keywords="torch distributed collectives communication shared-memory allreduce",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: C",
        "Programming Language :: C++",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: Implementation :: CPython",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
    python_requires=">=3.10",
    install_requires=[torch_built_for()],
    extras_require={"plot": ["matplotlib"], "ucx": ["libucx-cu12"]},
    package_dir={"": "shim"},
    packages=["torch_tutti", "torch_tutti._bench", "torch_tutti._model", "torch_tutti._planning", "torch_tutti.experts",
              "torch_tutti.parallel", "torch_tutti.ps", "torch_tutti.zero"],
    package_data={"torch_tutti": ["py.typed", "*.pyi"]},
    ext_modules=[extension],
    cmdclass={"build_ext": Build.with_options(use_ninja=shutil.which("ninja") is not None)},
    entry_points={
        "console_scripts": ["tutti = torch_tutti.cli:main"],
        "torch.backends": ["tutti = torch_tutti._autoload:register"],
        "torch.distributed.backends": ["tutti = torch_tutti._autoload:register"],
    },
    zip_safe=False,
)
