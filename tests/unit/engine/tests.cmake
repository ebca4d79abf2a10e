foreach(name agreement again choice trials trying collectives messages monitored errors async shared_tensors shared_failures shared_messages crowd
    repeats ring late_reasons one_sided stopped versions prediction uneven queue properties network eviction priority)
  tutti_world(engine/test_${name})
endforeach()
if(NOT TUTTI_SANITIZE STREQUAL "thread")                               # it is of arithmetic
  tutti_world(engine/test_bitwise)
endif()
if(NOT TUTTI_SANITIZE)                                                 # the sanitizers make calls of their own
  tutti_world(engine/test_refused)
endif()
if(NOT TUTTI_SANITIZE STREQUAL "thread")
  add_test(NAME test_properties_of_processes COMMAND test_properties --processes 1 --cases 600)
  set_tests_properties(test_properties_of_processes PROPERTIES TIMEOUT ${seconds}
    ENVIRONMENT "TUTTI_CACHE=${CMAKE_BINARY_DIR}/cache")
endif()
function(tutti_again name manner setting)
  add_test(NAME ${name}_${manner} COMMAND ${name})
  set_tests_properties(${name}_${manner} PROPERTIES TIMEOUT ${seconds} SKIP_RETURN_CODE 77
    ENVIRONMENT "TUTTI_CACHE=${CMAKE_BINARY_DIR}/cache;${setting}")
endfunction()
# Once more with private tensors read where they lie; with another choice every few operations.
foreach(name shared_tensors shared_failures shared_messages prediction)
  tutti_again(test_${name} reading TUTTI_SINGLE_COPY=1)
endforeach()
foreach(name collectives one_sided shared_tensors shared_failures properties)
  tutti_again(test_${name} trying TUTTI_TRIALS=2)
endforeach()
if(NOT TUTTI_SANITIZE STREQUAL "thread")
  tutti_world(engine/test_single_copy)
endif()
foreach(name messages async queue properties priority)
  tutti_over_inproc(test_${name} "*")
endforeach()
tutti_over_inproc(test_errors "*hosts*")
if(NOT TUTTI_SANITIZE)                                                 # these have the others
  tutti_over_inproc(test_collectives "*hosts*")
  tutti_over_inproc(test_uneven "*hosts*")
endif()
tutti_world(engine/test_rows)
