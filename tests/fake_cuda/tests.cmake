# The fake CUDA driver. Its file has the name of the real library, in a folder of its own, so that LD_LIBRARY_PATH or a
# path selects it.
file(GLOB sources CONFIGURE_DEPENDS fake_cuda/*.c)
add_library(fake_cuda SHARED ${sources})
target_link_libraries(fake_cuda PRIVATE tutti_flags)
target_link_options(fake_cuda PRIVATE -fno-lto)
set_target_properties(fake_cuda PROPERTIES OUTPUT_NAME cuda SUFFIX .so.1 NO_SONAME OFF
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fake_cuda)
if(NOT TUTTI_SANITIZE)
  target_link_options(fake_cuda PRIVATE -Wl,-z,defs)
endif()
