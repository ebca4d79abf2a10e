tutti_unit(agree agree agree)
# under a sanitizer the search would take minutes, for code that test_agree runs, too
if(NOT TUTTI_SANITIZE)
  add_library(agree_search INTERFACE)
  target_compile_definitions(agree_search INTERFACE AGREE_SEARCH)
  add_library(agree_world OBJECT unit/agree/search.c unit/agree/world.c unit/agree/invariants.c
    ${CMAKE_SOURCE_DIR}/backend/agree/wire.c ${CMAKE_SOURCE_DIR}/backend/agree/agree.c)
  target_link_libraries(agree_world PRIVATE tutti_flags agree_search)
  tutti_exploration(test_agree_search agree_search $<TARGET_OBJECTS:agree_world>)
  include(${CMAKE_CURRENT_LIST_DIR}/mutants.cmake)
endif()
