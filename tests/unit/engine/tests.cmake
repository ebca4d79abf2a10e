set(names agreement fast_path tuner_run collectives messages monitored errors async shared_tensors
  shared_failures shared_messages repeats ring one_sided versions prediction uneven queue
  properties network eviction priority rows)
# bitwise tests arithmetic, and the other two need processes
if(NOT TUTTI_SANITIZE STREQUAL "thread")
  list(APPEND names bitwise deaths single_copy)
endif()
# refused forbids system calls, and sanitizers make some of their own
if(NOT TUTTI_SANITIZE)
  list(APPEND names refused)
endif()
tutti_units(unit_engine all engine ${names})
tutti_unit(engine bell all)                                            # replaces sched_yield
tutti_unit(engine crowd all)                                           # replaces sched_yield
tutti_unit(engine late_reasons all)                                    # replaces sched_getcpu
tutti_unit(engine late_waiter all)                                     # replaces sched_getcpu and clock_nanosleep
tutti_unit(engine stopped all)                                         # replaces clock_gettime
if(NOT TUTTI_SANITIZE STREQUAL "thread")
  tutti_repeat(test_properties of_processes "" --processes 1 --cases 600)
endif()
# Repeated with single copy of private tensors, and with another choice every few operations. Under a sanitizer a repeat
# takes a minute or more, so it runs only where it leads to memory or threads that the first run does not use.
set(reading shared_tensors shared_failures shared_messages prediction)
set(trying collectives one_sided shared_tensors shared_failures properties)
if(TUTTI_SANITIZE)
  set(reading shared_tensors shared_messages)
  set(trying one_sided properties)
endif()
# the thread sanitizer does not see the bytes that the kernel reads for single copy
if(TUTTI_SANITIZE STREQUAL "thread")
  set(reading shared_messages)
endif()
foreach(name ${reading})
  tutti_repeat(test_${name} reading TUTTI_SINGLE_COPY=1)
endforeach()
foreach(name ${trying})
  tutti_repeat(test_${name} trying TUTTI_TUNER=2)
endforeach()
foreach(name messages async queue properties priority)
  tutti_over_inproc(test_${name} "*")
endforeach()
tutti_over_inproc(test_errors "*hosts*")
if(NOT TUTTI_SANITIZE STREQUAL "thread")
  tutti_over_inproc(test_deaths "*hosts*")
endif()
# under sanitizers the repeats above are enough
if(NOT TUTTI_SANITIZE)
  tutti_over_inproc(test_collectives "*hosts*")
  tutti_over_inproc(test_uneven "*hosts*")
endif()
