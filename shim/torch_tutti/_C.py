"""The C++ extension for the torch that is running, under a name that is the same for all of them: importing this module
gives the module `_C_2_13` with torch 2.13. `_C.pyi` has its types."""
import sys

from torch_tutti._extension import load

sys.modules[__name__] = load()
