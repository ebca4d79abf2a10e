tutti_helper(peers_world unit/processes/peers_world.c)
foreach(name peers peer_deaths peer_strangers views channel host_election routes links link_failures link_strangers link_secrets)
  tutti_unit(processes/test_${name} control)
  target_link_libraries(test_${name} PRIVATE peers_world)
endforeach()
tutti_encrypted(test_links)
# Mutated streams of frames in random cuts; more with: fuzz_links --executions 1000000 --seed 7
tutti_unit(processes/fuzz_links links)
# With OpenSSL, and with what cannot be had, each in a process of its own: the library is opened once.
tutti_unit(processes/test_tls links)
add_test(NAME test_tls_refused COMMAND test_tls refused)
set_tests_properties(test_tls_refused PROPERTIES TIMEOUT ${seconds})
