foreach(name peers peer_deaths peer_strangers views channel claims)
  tutti_unit(processes/test_${name} processes)
  target_sources(test_${name} PRIVATE unit/processes/peers_world.c)
endforeach()
