# The fake RDMA provider, and its own tests. Its file name differs from that of the real library, which UCX may open in
# the same process.
file(GLOB sources CONFIGURE_DEPENDS verbs/*.c)
list(FILTER sources EXCLUDE REGEX "/verbs/(test_[^/]*|ends|writes)\\.c$")
add_library(fake_verbs SHARED ${sources})
target_link_libraries(fake_verbs PRIVATE tutti_flags)
target_link_options(fake_verbs PRIVATE -fno-lto -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/verbs/fake_verbs.map)
set_target_properties(fake_verbs PROPERTIES C_VISIBILITY_PRESET default OUTPUT_NAME ibverbs_fake
  LINK_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/verbs/fake_verbs.map)
tutti_helper(fake_verbs_ends verbs/ends.c)
target_link_libraries(fake_verbs_ends PUBLIC fake_verbs)
tutti_units(unit_fake_verbs base ../verbs fake fake_errors fake_events fake_shared fake_storm)
target_link_libraries(unit_fake_verbs PRIVATE fake_verbs_ends)
# This is a program of its own, because it starts itself for each wrong use of memory, which the thread sanitizer must
# find.
if(TUTTI_SANITIZE STREQUAL "thread")
  tutti_unit(../verbs fake_races base)
  target_link_libraries(test_fake_races PRIVATE fake_verbs_ends)
endif()
