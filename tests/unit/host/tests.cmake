tutti_unit(host/test_segment base host)
tutti_unit(host/test_wait base host)
add_executable(measure_ladder unit/host/measure_ladder.c)
target_link_libraries(measure_ladder PRIVATE tutti_flags)
target_sources(measure_ladder PRIVATE $<TARGET_OBJECTS:room_base> $<TARGET_OBJECTS:room_host>)
# The peers and the bootstrap need no more of backend/ than a few files.
foreach(name peers peer_deaths peer_strangers views)
  tutti_unit(backend/test_${name} base host)
  target_sources(test_${name} PRIVATE unit/backend/peers_world.c ${CMAKE_SOURCE_DIR}/backend/peers.c
    ${CMAKE_SOURCE_DIR}/backend/registry.c ${CMAKE_SOURCE_DIR}/backend/views.c
    ${CMAKE_SOURCE_DIR}/backend/watch.c)
endforeach()
foreach(name bootstrap bootstrap_store)
  tutti_unit(backend/test_${name} base host)
  target_sources(test_${name} PRIVATE unit/backend/bootstrap_world.c ${CMAKE_SOURCE_DIR}/backend/bootstrap.c
    ${CMAKE_SOURCE_DIR}/backend/bootstrap_id.c ${CMAKE_SOURCE_DIR}/backend/verdict.c)
endforeach()
tutti_unit(host/test_heap base host)
tutti_unit(host/test_arena base host)
tutti_unit(host/test_available base host)
