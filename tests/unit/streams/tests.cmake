tutti_helper(stream_ranks unit/streams/ranks.c unit/streams/cases.c)
target_link_libraries(stream_ranks PUBLIC cuda_twin fake_cuda_children)
target_compile_definitions(stream_ranks PUBLIC FAKE_CUDA="$<TARGET_FILE:fake_cuda>")
tutti_units(unit_streams streams streams kernel_image stream_allreduce stream_calls stream_collectives stream_commands stream_failures stream_release stream_site stream_uneven)
target_link_libraries(unit_streams PRIVATE stream_ranks)
# The reports of the fake name exported functions.
set_target_properties(unit_streams PROPERTIES ENABLE_EXPORTS ON)
# Libraries in the place of libtutti_cuda: with this build's hash of kernels, with another one, and without kernels.
foreach(kind same other empty)
  add_library(image_${kind} SHARED unit/streams/image_library.c)
  target_link_libraries(image_${kind} PRIVATE tutti_flags)
  target_link_options(image_${kind} PRIVATE -fno-lto)
endforeach()
target_compile_definitions(image_same PRIVATE IMAGE_SOURCES=${TUTTI_CUDA_SOURCES})
target_compile_definitions(image_other PRIVATE IMAGE_SOURCES=1)
set_source_files_properties(unit/streams/test_kernel_image.c PROPERTIES COMPILE_DEFINITIONS
  "IMAGE_SAME=\"$<TARGET_FILE:image_same>\";IMAGE_OTHER=\"$<TARGET_FILE:image_other>\";IMAGE_EMPTY=\"$<TARGET_FILE:image_empty>\"")
add_dependencies(unit_streams image_same image_other image_empty)
