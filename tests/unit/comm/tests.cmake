tutti_world(comm/test_lifetimes)
if(NOT TUTTI_SANITIZE STREQUAL "thread")                               # it sees one process only
  tutti_world(comm/test_forked)
endif()
tutti_world(comm/test_holders)
tutti_over_inproc(test_holders "*")
tutti_world(comm/test_common)
