tutti_units(unit_zero all zero partition gather pages zero steps pieces sum_types compress exchange state_file)
set(over_inproc zero pieces sum_types)
# Over inproc, these tests run no other code of zero/, only more of the core, so sanitizers leave them out.
if(NOT TUTTI_SANITIZE)
  list(APPEND over_inproc gather steps compress)
endif()
foreach(name ${over_inproc})
  tutti_over_inproc(test_${name} "*")
endforeach()
# Tries all orders of events, with each rank on a stack of its own in one thread. Functions that wait or read the clock
# are wrapped, and pages.c is replaced. The thread sanitizer does not know these stacks.
if(NOT TUTTI_SANITIZE STREQUAL "thread")
  add_library(zero_strands OBJECT unit/zero/test_orders.c unit/zero/program.c unit/zero/strands.c unit/zero/verbs.c
    unit/zero/pages.c)
  target_link_libraries(zero_strands PRIVATE tutti_flags)
  add_library(zero_wraps INTERFACE)
  foreach(wrapped clock_gettime nanosleep sched_yield getpid optimizer_update_unit pthread_create pthread_join
      pthread_setname_np pthread_sigmask pthread_mutex_lock pthread_cond_broadcast pthread_cond_wait
      pthread_cond_timedwait)
    target_link_options(zero_wraps INTERFACE -Wl,--wrap=${wrapped})
  endforeach()
  tutti_exploration(test_orders zero_wraps $<TARGET_OBJECTS:zero_strands> $<TARGET_OBJECTS:floor_base>
    $<TARGET_OBJECTS:floor_kernels> "$<FILTER:$<TARGET_OBJECTS:floor_zero>,EXCLUDE,/zero/pages.c.o$>")
endif()
if(NOT TUTTI_SANITIZE)
  include(${CMAKE_CURRENT_LIST_DIR}/mutants.cmake)
endif()
