tutti_units(unit_zero all zero partition gather zero steps pieces compress exchange)
foreach(name gather zero steps pieces compress)
  tutti_over_inproc(test_${name} "*")
endforeach()
# zero_orders(NAME REPLACED SOURCE ...): all orders, with SOURCE in place of that file of zero/; the rest are arguments.
# What waits or tells the time is wrapped: test_orders has all ranks on one thread.
function(zero_orders name replaced source)
  add_executable(${name} ${source} $<TARGET_OBJECTS:zero_strands> $<TARGET_OBJECTS:floor_base>
    $<TARGET_OBJECTS:floor_kernels> "$<FILTER:$<TARGET_OBJECTS:floor_zero>,EXCLUDE,/(${replaced}|pages).c.o$>")
  target_link_libraries(${name} PRIVATE tutti_flags)
  foreach(wrapped clock_gettime nanosleep sched_yield getpid optimizer_update_unit pthread_create pthread_join
      pthread_setname_np pthread_sigmask pthread_mutex_lock pthread_cond_broadcast pthread_cond_wait
      pthread_cond_timedwait)
    target_link_options(${name} PRIVATE -Wl,--wrap=${wrapped})
  endforeach()
  target_link_options(${name} PRIVATE -fno-lto)
  add_test(NAME ${name} COMMAND ${name} ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${seconds})
endfunction()
if(NOT TUTTI_SANITIZE STREQUAL "thread")                               # which wants to be told of other stacks
  add_library(zero_strands OBJECT unit/zero/test_orders.c unit/zero/program.c unit/zero/strands.c unit/zero/verbs.c
    unit/zero/pages.c)
  target_link_libraries(zero_strands PUBLIC tutti_flags)
  zero_orders(test_orders nothing "")
endif()
if(NOT TUTTI_SANITIZE)
  include(${CMAKE_CURRENT_LIST_DIR}/mutants.cmake)                     # mistakes, in the words of the source
endif()
