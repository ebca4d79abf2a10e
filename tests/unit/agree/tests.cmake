tutti_unit(agree agree agree)
# agree_search(NAME SOURCE ...): the search of that version of agree.c; the rest are its arguments.
add_library(agree_world OBJECT unit/agree/search.c unit/agree/world.c unit/agree/invariants.c
  ${CMAKE_SOURCE_DIR}/backend/agree/wire.c)
target_compile_definitions(agree_world PUBLIC AGREE_SEARCH)
target_link_libraries(agree_world PUBLIC tutti_flags)
function(agree_search name source)
  add_executable(${name} ${source} $<TARGET_OBJECTS:agree_world>)
  target_compile_definitions(${name} PRIVATE AGREE_SEARCH)
  target_link_libraries(${name} PRIVATE tutti_flags)
  target_link_options(${name} PRIVATE -fno-lto)
  add_test(NAME ${name} COMMAND ${name} ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${seconds})
endfunction()
if(NOT TUTTI_SANITIZE)                                                 # minutes of what test_agree does, too
  set(agree_source ${CMAKE_SOURCE_DIR}/backend/agree/agree.c)
  agree_search(test_agree_search ${agree_source})
  include(${CMAKE_CURRENT_LIST_DIR}/mutants.cmake)                     # mistakes, in the words of the source
endif()
