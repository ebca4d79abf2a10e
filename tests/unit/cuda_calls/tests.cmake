# Ranks are processes here, of which the thread sanitizer sees only one.
set(names cuda_collectives cuda_failures cuda_lifetimes cuda_openings cuda_requests cuda_uneven)
tutti_helper(cuda_ranks unit/cuda_calls/cuda_ranks.c)
target_link_libraries(cuda_ranks PUBLIC cuda_twin fake_cuda support)
target_compile_definitions(cuda_ranks PRIVATE FAKE_CUDA="$<TARGET_FILE:fake_cuda>" IMAGE_SAME="$<TARGET_FILE:image_same>")
tutti_units(unit_cuda_calls all cuda_calls ${names})
target_link_libraries(unit_cuda_calls PRIVATE cuda_ranks)
set_target_properties(unit_cuda_calls PROPERTIES ENABLE_EXPORTS ON)
add_dependencies(unit_cuda_calls image_same)
