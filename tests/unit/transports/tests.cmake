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
if(NOT TUTTI_SANITIZE STREQUAL "thread")                               # one thread plays all ranks
  list(APPEND names model)
endif()
if(HAVE_UCX AND NOT TUTTI_SANITIZE STREQUAL "thread")                  # has processes only
  list(APPEND names ucx_fetch ucx_payloads)
endif()
if(HAVE_UCX AND NOT TUTTI_SANITIZE)                                    # takes signals and mmap for itself
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
  if(TUTTI_SANITIZE)             # its allocators do not let a child of fork start threads, and are not to be trimmed
    set_source_files_properties(unit/transports/test_verbs_mappings.c unit/transports/test_verbs_registration.c
      PROPERTIES COMPILE_DEFINITIONS NO_PROCESSES)
  endif()
endif()
# The rows of the contract, by networks.
foreach(network tcp ucx)
  tutti_test(test_${network} "unit_transports;test_contract;${network}" "")
endforeach()
tutti_encrypted(test_tcp)
tutti_unit(transports tcp_shortage transports)                          # takes all descriptors of its process
if(NOT TUTTI_SANITIZE STREQUAL "thread")                               # has processes only
  tutti_test(test_tcp_and_ucx "unit_transports;test_contract;tcp_and_ucx" "")
endif()
if(HAVE_VERBS AND NOT TUTTI_SANITIZE)                                  # runs in a guest
  tutti_test(test_verbs_soft "unit_transports;test_contract;verbs" "")
endif()
