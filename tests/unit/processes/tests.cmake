foreach(name peers peer_deaths peer_strangers views channel claims routes links link_failures link_strangers link_secrets)
  tutti_unit(processes/test_${name} processes)
  target_sources(test_${name} PRIVATE unit/processes/peers_world.c)
endforeach()
# Mutated streams of frames in random cuts; more with: fuzz_links --executions 1000000 --seed 7
tutti_unit(processes/fuzz_links processes)
