foreach(name layout record_errors plan_build plan_print plan_cache plan_random)
  tutti_unit(schedule/test_${name} check)
endforeach()
tutti_unit(schedule/test_plan_scale collectives)
if(NOT TUTTI_SANITIZE)                                                 # what it measures is memory
  tutti_unit(schedule/test_plan_kept collectives)
endif()
