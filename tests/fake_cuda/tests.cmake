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
# The CUDA runtime and NVML on top of it, for torch. Programs import the symbols of the runtime with the version of the
# real one.
file(GLOB sources CONFIGURE_DEPENDS fake_cuda/runtime/*.c)
list(FILTER sources EXCLUDE REGEX "/nvml.c$")
add_library(fake_cudart SHARED ${sources})
target_link_libraries(fake_cudart PRIVATE fake_cuda)
set_target_properties(fake_cudart PROPERTIES OUTPUT_NAME cudart SUFFIX .so.13
  LINK_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/fake_cuda/runtime/runtime.map)
target_link_options(fake_cudart PRIVATE -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/fake_cuda/runtime/runtime.map)
add_library(fake_nvml SHARED fake_cuda/runtime/nvml.c fake_cuda/settings.c)
set_target_properties(fake_nvml PROPERTIES OUTPUT_NAME nvidia-ml SUFFIX .so.1)
foreach(library fake_cudart fake_nvml)
  target_link_libraries(${library} PRIVATE tutti_flags)
  target_link_options(${library} PRIVATE -fno-lto)
  set_target_properties(${library} PROPERTIES NO_SONAME OFF BUILD_RPATH "$ORIGIN"
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fake_cuda)
  if(NOT TUTTI_SANITIZE)
    target_link_options(${library} PRIVATE -Wl,-z,defs)
  endif()
endforeach()
