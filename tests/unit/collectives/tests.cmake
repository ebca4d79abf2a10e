tutti_units(unit_collectives collectives collectives algorithm_table blocks hierarchy_messages double_tree fold teams
  message_costs host_costs hierarchy_costs algorithm_lines plan_growth)
set_source_files_properties(unit/collectives/test_algorithm_lines.c PROPERTIES
  COMPILE_DEFINITIONS COLLECTIVES_FOLDER="${CMAKE_SOURCE_DIR}/backend/collectives")
