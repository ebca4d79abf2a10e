set(names layout record_errors plan_build plan_print plan_cache plan_random plan_scale)
# plan_kept measures memory, of which sanitizers use more
if(NOT TUTTI_SANITIZE)
  list(APPEND names plan_kept)
endif()
tutti_units(unit_schedule collectives schedule ${names})
