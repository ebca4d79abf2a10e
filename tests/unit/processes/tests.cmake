tutti_helper(peers_world unit/processes/peers_world.c)
tutti_units(unit_processes control processes peers peer_deaths views host_election)
# replaces epoll_wait
tutti_unit(processes peer_strangers control)
foreach(program unit_processes test_peer_strangers)
  target_link_libraries(${program} PRIVATE peers_world)
endforeach()
