tutti_unit(host reading host)
tutti_unit(host contention host)                                      # replaces sched_yield and clock_gettime
tutti_unit(host segment host)                                          # replaces madvise
tutti_unit(host wait host)                                             # replaces sched_yield
add_executable(measure_backoff unit/host/measure_backoff.c)
tutti_link(measure_backoff host)
