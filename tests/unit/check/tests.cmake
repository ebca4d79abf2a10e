set(names plan_check plan_memory plan_hierarchy)
if(NOT TUTTI_SANITIZE)                                                 # minutes of what the others do, too
  list(APPEND names proof mutants hierarchy_proof)
endif()
tutti_units(unit_check collectives check ${names})
