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
set(join ${CMAKE_SOURCE_DIR}/backend/join)
tutti_helper(bootstrap_world unit/join/bootstrap_world.c ${join}/bootstrap.c ${join}/bootstrap_id.c ${join}/records.c
  ${join}/terms.c ${join}/join_result.c)
foreach(name bootstrap bootstrap_store received_texts terms)
  tutti_unit(join/test_${name} transports)
  target_link_libraries(test_${name} PRIVATE bootstrap_world)
endforeach()
