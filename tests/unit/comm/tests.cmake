set(names lifetimes holders common)
if(NOT TUTTI_SANITIZE STREQUAL "thread")                               # it sees one process only
  list(APPEND names forked)
endif()
tutti_units(unit_comm all comm ${names})
tutti_over_inproc(test_holders "*")
