tutti_unit(agree agree agree)
if(NOT TUTTI_SANITIZE)                                                 # minutes of what test_agree does, too
  add_library(agree_search INTERFACE)
  target_compile_definitions(agree_search INTERFACE AGREE_SEARCH)
  add_library(agree_world OBJECT unit/agree/search.c unit/agree/world.c unit/agree/invariants.c
    ${CMAKE_SOURCE_DIR}/backend/agree/wire.c ${CMAKE_SOURCE_DIR}/backend/agree/agree.c)
  target_link_libraries(agree_world PRIVATE tutti_flags agree_search)
  tutti_exploration(test_agree_search agree_search $<TARGET_OBJECTS:agree_world>)
  include(${CMAKE_CURRENT_LIST_DIR}/mutants.cmake)                     # mistakes, in the words of the source
endif()
