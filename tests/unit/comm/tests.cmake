set(names lifetimes holders snapshots common)
# the thread sanitizer sees only one process
if(NOT TUTTI_SANITIZE STREQUAL "thread")
  list(APPEND names forked)
endif()
tutti_units(unit_comm all comm ${names})
tutti_over_inproc(test_holders "*")
