tutti_helper(stream_ranks unit/streams/ranks.c unit/streams/cases.c)
target_link_libraries(stream_ranks PUBLIC cuda_twin fake_cuda_children)
target_compile_definitions(stream_ranks PUBLIC FAKE_CUDA="$<TARGET_FILE:fake_cuda>")
tutti_units(unit_streams streams streams stream_allreduce stream_calls stream_collectives stream_failures stream_site)
target_link_libraries(unit_streams PRIVATE stream_ranks)
# The reports of the fake name exported functions.
set_target_properties(unit_streams PROPERTIES ENABLE_EXPORTS ON)
