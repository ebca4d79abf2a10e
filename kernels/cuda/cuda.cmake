# libtutti_cuda.so has the kernels for GPUs as machine code, in a library of its own that is opened when a GPU is first
# used. Only its build needs nvcc. `ninja tutti_cuda` builds it where nvcc is found; with TUTTI_CUDA it is part of every
# build. The PTX, which the driver compiles for GPUs that are not listed, is that of the oldest.
option(TUTTI_CUDA "build libtutti_cuda with every build (needs nvcc 12.8 or newer)" OFF)
find_program(TUTTI_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(TUTTI_CUDA AND NOT TUTTI_NVCC)
  message(FATAL_ERROR "TUTTI_CUDA needs nvcc, which was not found: set CUDA_HOME to the folder of a CUDA toolkit")
endif()
# A hash of the kernels' sources, which the library of kernels and the one that launches them compare.
file(GLOB kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.h ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cu)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${kernels})
set(hashes "")
foreach(source ${kernels})
  file(SHA256 ${source} hash)
  string(APPEND hashes ${hash})
endforeach()
string(SHA256 hash "${hashes}")
string(SUBSTRING ${hash} 0 16 hash)
set(TUTTI_CUDA_SOURCES 0x${hash}ull)
set_source_files_properties(backend/streams/kernel_image.c PROPERTIES
  COMPILE_DEFINITIONS TUTTI_CUDA_SOURCES=${TUTTI_CUDA_SOURCES})
set(TUTTI_CUDA_GPUS 80 90 100 120 CACHE STRING "the compute capabilities that libtutti_cuda has machine code for")
if(TUTTI_NVCC)
  set(fatbin ${CMAKE_BINARY_DIR}/cuda/kernels.fatbin)
  add_custom_command(OUTPUT ${fatbin}
    COMMAND ${CMAKE_COMMAND} -DNVCC=${TUTTI_NVCC} -DSOURCES=${CMAKE_SOURCE_DIR} -DFATBIN=${fatbin}
      "-DGPUS=${TUTTI_CUDA_GPUS}" -P ${CMAKE_SOURCE_DIR}/kernels/cuda/compile.cmake
    DEPENDS ${kernels} ${CMAKE_SOURCE_DIR}/kernels/cuda/compile.cmake ${CMAKE_SOURCE_DIR}/include/tutti.h
    COMMENT "Compiling kernels/cuda with nvcc" VERBATIM)
  set_source_files_properties(kernels/cuda/image.c PROPERTIES OBJECT_DEPENDS ${fatbin}
    COMPILE_DEFINITIONS "TUTTI_CUDA_FATBIN=\"${fatbin}\";TUTTI_CUDA_SOURCES=${TUTTI_CUDA_SOURCES}"
    COMPILE_OPTIONS -fno-lto)
  add_library(tutti_cuda SHARED kernels/cuda/image.c)
  target_link_libraries(tutti_cuda PRIVATE tutti_flags)
  target_link_options(tutti_cuda PRIVATE ${TUTTI_HARDENED_LINK})
  if(NOT TUTTI_CUDA)
    set_target_properties(tutti_cuda PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endif()
