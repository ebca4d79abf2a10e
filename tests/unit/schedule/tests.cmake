set(names layout record_errors plan_build plan_print plan_cache plan_random plan_scale)
if(NOT TUTTI_SANITIZE)                                                 # what it measures is memory
  list(APPEND names plan_kept)
endif()
tutti_units(unit_schedule collectives schedule ${names})
