set(names plan_check plan_memory plan_hierarchy)
# under a sanitizer these would take minutes, for code that the others run, too
if(NOT TUTTI_SANITIZE)
  list(APPEND names proof mutants hierarchy_proof)
endif()
tutti_units(unit_check collectives check ${names})
