tutti_helper(fake_cuda_children unit/fake_cuda/children.c)
target_link_libraries(fake_cuda_children PUBLIC fake_cuda ${CMOCKA})
set(names cuda_calls cuda_graphs cuda_ipc cuda_kernels cuda_machine cuda_memory cuda_runtime cuda_streams cuda_toolkit cuda_values cuda_virtual)
# The races that this test plants are races for the thread sanitizer too.
if(NOT TUTTI_SANITIZE STREQUAL "thread")
  list(APPEND names cuda_order)
endif()
tutti_units(unit_fake_cuda base fake_cuda ${names})
target_link_libraries(unit_fake_cuda PRIVATE fake_cuda_children fake_cudart fake_nvml)
# The reports of the fake name exported functions.
set_target_properties(unit_fake_cuda PROPERTIES ENABLE_EXPORTS ON)
# A toolkit is needed for nothing but to compare its declarations with the project's.
find_path(CUDA_HEADERS cuda.h HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES include
  NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
if(CUDA_HEADERS)
  set_source_files_properties(unit/fake_cuda/test_cuda_toolkit.c PROPERTIES COMPILE_DEFINITIONS HAVE_CUDA
    INCLUDE_DIRECTORIES ${CUDA_HEADERS})
endif()
