tutti_units(unit_links control links links ports link_failures link_strangers link_secrets tls)
target_link_libraries(unit_links PRIVATE peers_world)
tutti_encrypted(test_links)
# The tests of a process without OpenSSL. They run alone, because a process opens OpenSSL once.
tutti_repeat(test_tls refused "" refused)
# Feeds mutated streams of frames to the code that reads them, in random cuts. More of them:
# fuzz_links --executions 1000000 --seed 7
add_executable(fuzz_links unit/links/fuzz_links.c)
tutti_link(fuzz_links links)
tutti_test(fuzz_links fuzz_links "")
