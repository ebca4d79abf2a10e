tutti_unit(zero/test_partition all)
tutti_world(zero/test_zero)
tutti_over_inproc(test_zero "*")
