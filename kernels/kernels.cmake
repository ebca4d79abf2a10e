# Each file of kernels/cpu compiles the same loops for one instruction set, with the flags of this set. All files give
# the same bits, because the compiler may not contract a * b + c to one instruction (-ffp-contract=off).
file(GLOB kernel_sources CONFIGURE_DEPENDS kernels/*.c)
list(APPEND kernel_sources kernels/cpu/scalar.c kernels/cuda/names.c)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
  list(APPEND kernel_sources kernels/cpu/avx2.c kernels/cpu/avx512.c)
  set_source_files_properties(kernels/cpu/avx2.c PROPERTIES COMPILE_OPTIONS "-mavx2;-mf16c;-mfma")
  set_source_files_properties(kernels/cpu/avx512.c PROPERTIES
    COMPILE_OPTIONS "-mavx2;-mf16c;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl")
  # To find uses after return, gcc 12 moves stack frames to memory that it aligns to 32 bytes only, and then stores
  # vectors of 64 bytes in them as if they were aligned. So this check is off; the other checks stay on.
  if(TUTTI_SANITIZE MATCHES address AND CMAKE_C_COMPILER_ID STREQUAL GNU)
    set_property(SOURCE kernels/cpu/avx512.c APPEND PROPERTY COMPILE_OPTIONS "--param=asan-use-after-return=0")
  endif()
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  list(APPEND kernel_sources kernels/cpu/neon.c)
endif()
# The loops are called by pointer only, so link-time optimisation can inline none of them. They took nine tenths of its
# time.
set(loops ${kernel_sources})
list(FILTER loops INCLUDE REGEX "kernels/cpu/")
set_property(SOURCE ${loops} APPEND PROPERTY COMPILE_OPTIONS -fno-lto)
# These two flags change no result. Without them the compiler vectorises no loop with a square root or a comparison.
set_property(SOURCE ${loops} APPEND PROPERTY COMPILE_OPTIONS -fno-math-errno -fno-trapping-math)
# Of the loops, only those that unpack gradients read input from outside; tests/fuzz/gradients.c compiles them itself,
# with sanitizers.
if(TUTTI_FUZZ)
  set_property(SOURCE ${loops} APPEND PROPERTY COMPILE_OPTIONS -fno-sanitize=all)
endif()
add_library(floor_kernels OBJECT ${kernel_sources})
target_link_libraries(floor_kernels PRIVATE tutti_flags)
target_compile_options(floor_kernels PRIVATE -ffp-contract=off)
# With a sanitizer the optimised loops would take minutes to compile.
if(NOT TUTTI_SANITIZE)
  target_compile_options(floor_kernels PRIVATE -O3)
endif()
