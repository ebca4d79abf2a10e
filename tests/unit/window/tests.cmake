tutti_units(unit_window all window window window_errors)
tutti_over_inproc(test_window "*")
