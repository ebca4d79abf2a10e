if(NOT TUTTI_SANITIZE)                                                 # benchmarks are not built with sanitizers
  tutti_unit(bench outcome all)
  target_link_libraries(test_outcome PRIVATE measure)
endif()
