tutti_units(unit_control control control channel routes)
target_link_libraries(unit_control PRIVATE peers_world)
