tutti_helper(peers_world unit/processes/peers_world.c)
tutti_units(unit_processes control processes peers peer_deaths views channel host_election routes links link_failures
  link_strangers link_secrets tls)
tutti_unit(processes peer_strangers control)                           # replaces epoll_wait
foreach(program unit_processes test_peer_strangers)
  target_link_libraries(${program} PRIVATE peers_world)
endforeach()
tutti_encrypted(test_links)
# Without OpenSSL, which a process opens once.
tutti_repeat(test_tls refused "" refused)
# Mutated streams of frames in random cuts; more with: fuzz_links --executions 1000000 --seed 7
add_executable(fuzz_links unit/processes/fuzz_links.c)
tutti_link(fuzz_links links)
tutti_test(fuzz_links fuzz_links "")
