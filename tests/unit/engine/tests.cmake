foreach(name choice collectives messages errors async shared_tensors shared_failures shared_messages bitwise crowd
    repeats ring late_reasons stopped versions uneven queue properties network)
  tutti_world(engine/test_${name})
endforeach()
if(TUTTI_SANITIZE)
  target_compile_definitions(test_collectives PRIVATE FEW_PLACEMENTS)
  target_compile_definitions(test_shared_tensors PRIVATE FEW_PLACEMENTS)
  target_compile_definitions(test_properties PRIVATE FEW_CASES)
endif()
if(NOT TUTTI_SANITIZE)                                                 # the sanitizers make calls of their own
  tutti_world(engine/test_refused)
endif()
if(NOT TUTTI_SANITIZE STREQUAL "thread")
  add_test(NAME test_properties_of_processes COMMAND test_properties --processes 1 --cases 600)
  set_tests_properties(test_properties_of_processes PROPERTIES TIMEOUT 300
    ENVIRONMENT "TUTTI_CACHE=${CMAKE_BINARY_DIR}/cache")
endif()
