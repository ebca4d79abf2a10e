tutti_helper(ranks unit/transports/ranks.c)
target_link_libraries(ranks PUBLIC inproc)
tutti_helper(contract unit/transports/contract.c)
target_link_libraries(contract PUBLIC ranks)
tutti_helper(ranks_fabric unit/transports/ranks_fabric.c)
target_link_libraries(ranks_fabric PUBLIC ranks)
if(HAVE_VERBS)
  tutti_helper(ranks_verbs unit/transports/ranks_verbs.c)
  target_link_libraries(ranks_verbs PUBLIC ranks_fabric)
  target_compile_definitions(ranks_verbs PUBLIC FAKE_VERBS="$<TARGET_FILE:fake_verbs>")
  add_dependencies(ranks_verbs fake_verbs)
endif()
set(names matching fabrics store_modes shm router share transports fabric tcp_strangers storm)
# in this test one thread plays all ranks
if(NOT TUTTI_SANITIZE STREQUAL "thread")
  list(APPEND names model)
endif()
# the ranks of these tests are processes
if(HAVE_UCX AND NOT TUTTI_SANITIZE STREQUAL "thread")
  list(APPEND names ucx_fetch ucx_payloads)
endif()
# UCX's library replaces signal handlers and mmap, as sanitizers do
if(HAVE_UCX AND NOT TUTTI_SANITIZE)
  list(APPEND names ucx_library)
endif()
if(HAVE_VERBS)
  list(APPEND names verbs_library verbs_device verbs_mappings verbs_registration)
  list(APPEND names verbs verbs_again verbs_faults verbs_rails verbs_strangers verbs_trace beside)  # on the fake device
endif()
tutti_unit_program(unit_transports transports transports ${names} contract)
tutti_unit_tests(unit_transports ${names})
target_link_libraries(unit_transports PRIVATE contract ranks_fabric)
if(HAVE_VERBS)
  target_link_libraries(unit_transports PRIVATE ranks_verbs)
  # with the allocators of sanitizers, a child of fork cannot start threads, and the heap cannot be trimmed
  if(TUTTI_SANITIZE)
    set_source_files_properties(unit/transports/test_verbs_mappings.c unit/transports/test_verbs_registration.c
      PROPERTIES COMPILE_DEFINITIONS NO_PROCESSES)
  endif()
endif()
# test_contract, the tests that every transport must pass, over each network.
foreach(network tcp ucx)
  tutti_test(test_${network} "unit_transports;test_contract;${network}" "")
endforeach()
tutti_encrypted(test_tcp)
tutti_unit(transports tcp_shortage transports)                          # takes all descriptors of its process
# the ranks of this test are processes
if(NOT TUTTI_SANITIZE STREQUAL "thread")
  tutti_test(test_tcp_and_ucx "unit_transports;test_contract;tcp_and_ucx" "")
endif()
# skipped outside the virtual machine of script/test-verbs
if(HAVE_VERBS AND NOT TUTTI_SANITIZE)
  tutti_test(test_verbs_soft "unit_transports;test_contract;verbs" "")
endif()
