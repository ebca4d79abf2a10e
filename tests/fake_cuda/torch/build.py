"""Builds aten.cpp, and makes `import torch` load it.

    python tests/fake_cuda/torch/build.py LIBRARIES OUT

LIBRARIES is the folder of the fake's libcuda.so.1. A Python program whose PYTHONPATH has OUT runs torch's CUDA
operations on the host, through the entry point torch.backends.
"""
import sys
from pathlib import Path

from torch.utils import cpp_extension

HERE = Path(__file__).resolve().parent
NAME = "fake_cuda_aten"


def main(libraries, out):
    out.mkdir(parents=True, exist_ok=True)
    cpp_extension.load(NAME, [str(HERE / "aten.cpp")], build_directory=str(out), with_cuda=False,
                       extra_include_paths=[str(HERE.parents[2])], extra_cflags=["-O1", "-std=c++20"],
                       extra_ldflags=[f"-L{libraries}", "-l:libcuda.so.1", f"-Wl,-rpath,{libraries}"],
                       is_python_module=False)
    metadata = out / f"{NAME}-0.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(f"[torch.backends]\n{NAME} = {NAME}:install\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
