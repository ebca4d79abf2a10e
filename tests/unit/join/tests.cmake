tutti_world(join/test_calibration)
tutti_world(join/test_hosts)
tutti_world(join/test_host_barrier)
tutti_over_inproc(test_hosts "*")
if(NOT TUTTI_SANITIZE STREQUAL "thread")                               # it sees one process only
  tutti_world(join/test_given_up)
endif()
tutti_unit(join/test_interface links)
target_sources(test_interface PRIVATE ${CMAKE_SOURCE_DIR}/backend/join/interface.c)
# The bootstrap needs no more of join/ than a few files.
foreach(name bootstrap bootstrap_store received_texts terms)
  tutti_unit(join/test_${name} transports)
  target_sources(test_${name} PRIVATE unit/join/bootstrap_world.c ${CMAKE_SOURCE_DIR}/backend/join/bootstrap.c
    ${CMAKE_SOURCE_DIR}/backend/join/bootstrap_id.c ${CMAKE_SOURCE_DIR}/backend/join/records.c
    ${CMAKE_SOURCE_DIR}/backend/join/terms.c ${CMAKE_SOURCE_DIR}/backend/join/join_result.c)
endforeach()
