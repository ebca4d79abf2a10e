tutti_units(unit_devices devices devices cuda_driver)
target_link_libraries(unit_devices PRIVATE fake_cuda_children)
target_compile_definitions(unit_devices PRIVATE FAKE_CUDA="$<TARGET_FILE:fake_cuda>")
