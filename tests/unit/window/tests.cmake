tutti_units(unit_window all window window window_errors window_freed)
# under sanitizers only over TCP (below), which programs use
if(NOT TUTTI_SANITIZE)
  foreach(name window window_freed)
    tutti_over_inproc(test_${name} "*")
  endforeach()
endif()
foreach(name window window_errors window_freed)
  tutti_repeat(test_${name} over_tcp "TUTTI_TRANSPORT=tcp")
endforeach()
# Not under sanitizers, where UCX and the fake device are slow. The fake device serves the threads of one process, so
# only a file without processes runs over it.
if(HAVE_UCX AND NOT TUTTI_SANITIZE)
  tutti_repeat(test_window over_ucx "TUTTI_TRANSPORT=ucx")
endif()
if(HAVE_VERBS AND NOT TUTTI_SANITIZE)
  add_dependencies(unit_window fake_verbs)
  tutti_repeat(test_window_freed over_verbs "TUTTI_TRANSPORT=verbs;TUTTI_VERBS=$<TARGET_FILE:fake_verbs>")
endif()
