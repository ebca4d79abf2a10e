tutti_helper(peers_world unit/processes/peers_world.c)
tutti_units(unit_processes control processes peers peer_deaths views host_election)
tutti_unit(processes peer_strangers control)                           # replaces epoll_wait
foreach(program unit_processes test_peer_strangers)
  target_link_libraries(${program} PRIVATE peers_world)
endforeach()
