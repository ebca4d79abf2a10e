set(names calibration hosts host_barrier)
# The thread sanitizer sees one process only.
if(NOT TUTTI_SANITIZE STREQUAL "thread")
  list(APPEND names given_up one_table)
endif()
tutti_units(unit_join all join ${names})
tutti_over_inproc(test_hosts "*")
set(join ${CMAKE_SOURCE_DIR}/backend/join)
tutti_unit(join interface links)
target_sources(test_interface PRIVATE ${join}/interface.c)
tutti_unit(join shm_group transports)
target_sources(test_shm_group PRIVATE ${join}/shm_group.c ${join}/join_result.c)
target_link_libraries(test_shm_group PRIVATE peers_world)
# Tests of the bootstrap are linked with only those files of join/ that it needs.
tutti_helper(bootstrap_world unit/join/bootstrap_world.c ${join}/bootstrap.c ${join}/bootstrap_follower.c
  ${join}/bootstrap_id.c ${join}/host_table.c ${join}/member_table.c ${join}/records.c ${join}/terms.c
  ${join}/join_result.c ${join}/store_wait.c)
tutti_units(unit_bootstrap transports join bootstrap_store received_texts store_table terms)
# A program of its own, because it replaces poll.
tutti_unit(join bootstrap transports)
foreach(program unit_bootstrap test_bootstrap)
  target_link_libraries(${program} PRIVATE bootstrap_world)
endforeach()
tutti_helper(table_world unit/join/table_world.c ${join}/host_table.c ${join}/member_table.c ${join}/records.c
  ${join}/terms.c ${join}/join_result.c)
foreach(name host_table table_waits)
  tutti_unit(join ${name} transports)
  target_link_libraries(test_${name} PRIVATE table_world peers_world)
endforeach()
