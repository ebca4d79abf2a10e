# The fake RDMA provider, and its own tests. Its name is not that of the real library, which UCX may look for in this process.
file(GLOB sources CONFIGURE_DEPENDS verbs/*.c)
list(FILTER sources EXCLUDE REGEX "/verbs/(test_[^/]*|ends)\\.c$")
add_library(fake_verbs SHARED ${sources})
target_link_libraries(fake_verbs PRIVATE tutti_flags)
target_link_options(fake_verbs PRIVATE -fno-lto -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/verbs/fake_verbs.map)
set_target_properties(fake_verbs PROPERTIES C_VISIBILITY_PRESET default OUTPUT_NAME ibverbs_fake
  LINK_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/verbs/fake_verbs.map)
foreach(name fake fake_errors fake_shared fake_storm)
  tutti_unit(../verbs/test_${name} base)
  target_sources(test_${name} PRIVATE verbs/ends.c)
  target_link_libraries(test_${name} PRIVATE fake_verbs)
endforeach()
