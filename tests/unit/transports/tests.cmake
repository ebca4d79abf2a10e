tutti_unit(transports/test_matching base transports)
