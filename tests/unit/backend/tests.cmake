add_library(support STATIC support/world.c)
target_link_libraries(support PUBLIC tutti_testing)
foreach(name choice figures collectives messages errors async lifetimes shared_tensors shared_failures shared_messages
    bitwise crowd repeats ring late_reasons stopped)
  tutti_unit(backend/test_${name} all)
  target_link_libraries(test_${name} PRIVATE support)
  if(TUTTI_SANITIZE STREQUAL "thread")
    target_compile_definitions(test_${name} PRIVATE NO_PROCESSES)      # the thread sanitizer sees one process only
  endif()
endforeach()
if(NOT TUTTI_SANITIZE STREQUAL "thread")                               # it sees one process only
  foreach(name given_up forked)
    tutti_unit(backend/test_${name} all)
    target_link_libraries(test_${name} PRIVATE support)
  endforeach()
endif()
if(NOT TUTTI_SANITIZE)                                                 # the sanitizers make calls of their own
  tutti_unit(backend/test_refused all)
  target_link_libraries(test_refused PRIVATE support)
endif()
tutti_unit(backend/test_pace all)
tutti_unit(backend/test_bind all)
