foreach(name plan_check plan_memory plan_hierarchy)
  tutti_unit(check/test_${name} check)
endforeach()
if(NOT TUTTI_SANITIZE)                                                 # minutes of what the others do, too
  foreach(name proof mutants hierarchy_proof)
    tutti_unit(check/test_${name} collectives)
  endforeach()
endif()
