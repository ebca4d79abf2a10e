# benchmarks are not built with sanitizers
if(NOT TUTTI_SANITIZE)
  tutti_unit(bench outcome all)
  target_link_libraries(test_outcome PRIVATE measure)
endif()
