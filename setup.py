"""Builds libtutti with CMake and the extension of torch_tutti against the installed torch, and puts both into the
package.

    pip install --no-build-isolation -e .       from a checkout
    pip install --no-build-isolation .          from an unpacked source distribution

torch's C++ interface changes with every minor version, so the extension is named after its torch (_C_2_13), and the
package requires that version. script/wheel makes wheels that serve several versions. It sets TUTTI_WHEEL_TORCH to the
requirement of these wheels, such as "torch>=2.11,<2.16", and adds what it has compiled itself.
"""
import os
import re
import shutil
import subprocess
from pathlib import Path

import setuptools
from setuptools.command.build_ext import build_ext

try:
    import torch
    from torch.utils.cpp_extension import BuildExtension, CppExtension
except ImportError as error:
    torch, BuildExtension, import_error = None, build_ext, error    # a source distribution needs no torch

ROOT = Path(__file__).resolve().parent
CORE = Path("build") / "python"
PACKAGE = Path("shim") / "torch_tutti"
COMPILE_FLAGS = (ROOT / "shim/compile_flags").read_text().split()


def version() -> str:
    """Returns the version of tutti in the public header."""
    return re.search(r'TUTTI_VERSION "([^"]+)"', (ROOT / "include/tutti.h").read_text())[1]


def torch_minor() -> str:
    """Returns the minor version of the installed torch, such as "2.13"."""
    return ".".join(torch.__version__.split(".")[:2])


def torch_required() -> str:
    """Returns the requirement on torch for pip."""
    return os.environ.get("TUTTI_WHEEL_TORCH") or (f"torch=={torch_minor()}.*" if torch else "torch")


def use_ccache() -> None:
    """Makes CMake, ninja and setuptools compile through ccache, if it is installed: puts a folder in front of PATH in
    which the names of the compilers are links to ccache."""
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
    """Builds libtutti.so, optimised, and returns its path. Quick when nothing has changed."""
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    jobs = os.environ.get("MAX_JOBS") or str(min(os.cpu_count() or 1, 8))
    subprocess.run(["cmake", *generator, "-S", ROOT, "-B", ROOT / CORE, "-DCMAKE_BUILD_TYPE=Release"], check=True)
    subprocess.run(["cmake", "--build", ROOT / CORE, "--target", "tutti", "--parallel", jobs], check=True)
    return ROOT / CORE / "libtutti.so"


def build_kernels() -> Path | None:
    """Builds libtutti_cuda.so, the kernels for GPUs, and returns its path. Returns None for a torch without CUDA, if
    CMake has found no nvcc, and if this nvcc cannot compile the kernels. Then CUDA tensors go through the host."""
    cache = (ROOT / CORE / "CMakeCache.txt").read_text()
    if not torch.version.cuda or re.search("^TUTTI_NVCC:.*NOTFOUND$", cache, re.MULTILINE):
        return None
    built = subprocess.run(["cmake", "--build", ROOT / CORE, "--target", "tutti_cuda"])
    if built.returncode:
        print("tutti: nvcc cannot compile the kernels for GPUs, so CUDA tensors will go through the host")
        return None
    return ROOT / CORE / "libtutti_cuda.so"


def harden(extension: setuptools.Extension) -> None:
    """Adds the hardening flags of the CMake build to the extension."""
    extension.extra_compile_args += (ROOT / CORE / "hardening/compile").read_text().split()
    extension.extra_link_args += (ROOT / CORE / "hardening/link").read_text().split()


def copy_interface(folder: Path) -> None:
    """Copies the headers and writes tutti.pc into the folder of the package, for programs in C."""
    (folder / "include").mkdir(parents=True, exist_ok=True)
    for header in ROOT.glob("include/*.h"):
        shutil.copy2(header, folder / "include")
    (folder / "pkgconfig").mkdir(exist_ok=True)
    pkgconfig = (ROOT / "c_api/tutti.pc.in").read_text().replace("@VERSION@", version())
    (folder / "pkgconfig/tutti.pc").write_text(pkgconfig)


def put_library(folder: Path, name: str, built: Path | None) -> None:
    """Copies a library into the folder, or removes the one of an earlier build for None. The file is replaced, not
    overwritten, because running processes have it mapped."""
    if not built:
        (folder / name).unlink(missing_ok=True)
        return
    incoming = folder / f"{name}.incoming"
    shutil.copy2(built, incoming)
    incoming.replace(folder / name)


def remove_other_extensions(folder: Path, names: set[str]) -> None:
    """Removes the extensions in `folder` that have none of these names: they were linked with another libtutti."""
    for extension in folder.glob("_C*.so"):
        if extension.name not in names:
            extension.unlink()


class Build(BuildExtension):
    """Builds the library, the extension that is linked with it, and the files that programs in C need."""

    def run(self) -> None:
        """Builds libtutti and the extension, removes extensions of other builds, and puts all files into the
        package."""
        if not torch:
            raise SystemExit(f"tutti is built against an installed torch, but importing it failed: {import_error}. "
                             "Install torch (2.11 or later), then run: pip install --no-build-isolation -e .")
        use_ccache()
        library, kernels = build_core(), build_kernels()
        for extension in self.extensions:
            harden(extension)
        super().run()
        folder = ROOT / PACKAGE if self.inplace else Path(self.build_lib) / "torch_tutti"
        remove_other_extensions(folder, {Path(path).name for path in self.get_outputs()})
        copy_interface(folder)
        put_library(folder, "libtutti.so", library)
        put_library(folder, "libtutti_cuda.so", kernels)


class BuildForWheel(build_ext):
    """Copies only the interface: script/wheel adds the libraries."""

    def run(self) -> None:
        """Copies the headers and tutti.pc."""
        copy_interface(Path(self.build_lib) / "torch_tutti")


def extension_for_torch() -> setuptools.Extension:
    """Returns the extension for the installed torch, named after its minor version."""
    return CppExtension(
        f"torch_tutti._C_{torch_minor().replace('.', '_')}",
        ["shim/shim.cpp", "shim/bindings.cpp"],
        include_dirs=[str(ROOT)],
        library_dirs=[str(ROOT / CORE)],
        libraries=["tutti"],
        depends=[str(path) for pattern in ("shim/*.?pp", "include/*.h") for path in ROOT.glob(pattern)],
        extra_compile_args=list(COMPILE_FLAGS),
        extra_link_args=["-Wl,-rpath,$ORIGIN"],
    )


if torch and not os.environ.get("TUTTI_WHEEL_TORCH"):
    extensions, build = [extension_for_torch()], Build.with_options(use_ninja=shutil.which("ninja") is not None)
else:
    extensions = [setuptools.Extension("torch_tutti._C", [])]
    build = BuildForWheel if os.environ.get("TUTTI_WHEEL_TORCH") else Build

# Since setuptools 77 a licence expression has its own field, and may not stand beside a classifier.
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
    install_requires=[torch_required()],
    extras_require={"plot": ["matplotlib"], "ucx": ["libucx-cu12"]},
    package_dir={"": "shim"},
    packages=["torch_tutti", "torch_tutti._bench", "torch_tutti._doctor", "torch_tutti._model", "torch_tutti._planning",
              "torch_tutti.experts", "torch_tutti.parallel", "torch_tutti.ps", "torch_tutti.zero"],
    package_data={"torch_tutti": ["py.typed", "*.pyi"]},
    ext_modules=extensions,
    cmdclass={"build_ext": build},
    entry_points={
        "console_scripts": ["tutti = torch_tutti.cli:main"],
        "torch.backends": ["tutti = torch_tutti._autoload:register"],
        "torch.distributed.backends": ["tutti = torch_tutti._autoload:register"],
    },
    zip_safe=False,
)
