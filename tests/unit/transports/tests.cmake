tutti_unit(transports/test_matching transports)
set(worlds shm router share transports ucx tcp tcp_strangers)
if(NOT TUTTI_SANITIZE STREQUAL "thread")                               # one thread plays all ranks
  list(APPEND worlds model)
endif()
foreach(name ${worlds})
  tutti_unit(transports/test_${name} transports)
  target_sources(test_${name} PRIVATE unit/transports/ranks.c)
endforeach()
foreach(name transports ucx tcp)
  target_sources(test_${name} PRIVATE unit/transports/contract.c)
endforeach()
foreach(name ucx tcp)
  target_sources(test_${name} PRIVATE unit/transports/ranks_fabric.c)
endforeach()
# The thread sanitizer sees one process only, and would need minutes for 4 GiB.
if(TUTTI_SANITIZE STREQUAL "thread")
  target_compile_definitions(test_transports PRIVATE NO_PROCESSES NO_HUGE)
  target_compile_definitions(test_ucx PRIVATE NO_PROCESSES)
  target_compile_definitions(test_tcp PRIVATE NO_PROCESSES)
endif()
if(HAVE_UCX AND NOT TUTTI_SANITIZE STREQUAL "thread")                  # has processes only
  tutti_unit(transports/test_ucx_fetch transports)
  target_sources(test_ucx_fetch PRIVATE unit/transports/ranks.c unit/transports/ranks_fabric.c)
endif()
if(HAVE_UCX AND NOT TUTTI_SANITIZE)                                    # which take signals and mmap for themselves
  tutti_unit(transports/test_ucx_library transports)
  target_sources(test_ucx_library PRIVATE unit/transports/ranks.c unit/transports/ranks_fabric.c)
endif()
if(HAVE_VERBS)
  foreach(name library device mappings registration)
    tutti_unit(transports/test_verbs_${name} transports)
    if(TUTTI_SANITIZE)             # whose allocators do not let a child of fork start threads, and are not to be trimmed
      target_compile_definitions(test_verbs_${name} PRIVATE NO_PROCESSES)
    endif()
  endforeach()
  foreach(name verbs verbs_faults)                                     # on a device that is none
    tutti_unit(transports/test_${name} transports)
    target_sources(test_${name} PRIVATE unit/transports/ranks.c unit/transports/contract.c
      unit/transports/ranks_fabric.c unit/transports/ranks_verbs.c)
    target_compile_definitions(test_${name} PRIVATE FAKE_VERBS="$<TARGET_FILE:fake_verbs>")
    add_dependencies(test_${name} fake_verbs)
  endforeach()
  if(NOT TUTTI_SANITIZE)                                               # runs in a guest
    tutti_unit(transports/test_verbs_soft transports)
    target_sources(test_verbs_soft PRIVATE unit/transports/ranks.c unit/transports/contract.c
      unit/transports/ranks_fabric.c)
  endif()
endif()
