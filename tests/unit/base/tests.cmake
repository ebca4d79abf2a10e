tutti_unit(base/test_settings base)
tutti_unit(base/test_sha256 base)
tutti_unit(base/test_log base)
