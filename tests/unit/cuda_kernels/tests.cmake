# The twin of the kernels for GPUs, which tests of other folders link too.
tutti_helper(cuda_twin unit/cuda_kernels/twin.c)
target_link_libraries(cuda_twin PUBLIC fake_cuda)
target_compile_options(cuda_twin PRIVATE -O1 -ffp-contract=off -fno-lto)
# The twin in the place of libtutti_cuda.so, for programs that run on the fake driver (script/test-cuda).
add_library(fake_tutti_cuda SHARED EXCLUDE_FROM_ALL fake_cuda/torch/kernels.c)
target_link_libraries(fake_tutti_cuda PRIVATE tutti_flags cuda_twin)
target_compile_definitions(fake_tutti_cuda PRIVATE IMAGE_SOURCES=${TUTTI_CUDA_SOURCES})
target_link_options(fake_tutti_cuda PRIVATE -fno-lto)
set_target_properties(fake_tutti_cuda PROPERTIES OUTPUT_NAME tutti_cuda BUILD_RPATH "$ORIGIN"
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fake_cuda)
tutti_units(unit_cuda_kernels kernels cuda_kernels cuda_reduce cuda_codes cuda_norm cuda_copy cuda_launches cuda_image)
target_link_libraries(unit_cuda_kernels PRIVATE cuda_twin fake_cuda_children)
set_target_properties(unit_cuda_kernels PROPERTIES ENABLE_EXPORTS ON)
# The image is built first, which also checks that no kernel spills registers. Sanitizers would not change it.
if(TARGET tutti_cuda AND NOT TUTTI_SANITIZE)
  set_source_files_properties(unit/cuda_kernels/test_cuda_image.c PROPERTIES
    COMPILE_DEFINITIONS "CUDA_IMAGE=\"$<TARGET_FILE:tutti_cuda>\";TUTTI_CUDA_SOURCES=${TUTTI_CUDA_SOURCES}")
  add_test(NAME build_cuda_image COMMAND ${CMAKE_COMMAND} --build ${CMAKE_BINARY_DIR} --target tutti_cuda)
  set_tests_properties(build_cuda_image PROPERTIES FIXTURES_SETUP cuda_image TIMEOUT ${seconds})
  set_tests_properties(test_cuda_image PROPERTIES FIXTURES_REQUIRED cuda_image)
endif()
