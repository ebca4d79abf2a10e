tutti_unit(transports/test_matching transports)
set(worlds shm router share transports)
if(NOT TUTTI_SANITIZE STREQUAL "thread")                               # one thread plays all ranks
  list(APPEND worlds model)
endif()
foreach(name ${worlds})
  tutti_unit(transports/test_${name} transports)
  target_sources(test_${name} PRIVATE unit/transports/ranks.c)
endforeach()
target_sources(test_transports PRIVATE unit/transports/contract.c)
# The thread sanitizer sees one process only, and would need minutes for 4 GiB.
if(TUTTI_SANITIZE STREQUAL "thread")
  target_compile_definitions(test_transports PRIVATE NO_PROCESSES NO_HUGE)
endif()
