tutti_unit(base/test_settings base)
