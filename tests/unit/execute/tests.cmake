tutti_unit(execute/test_pace execute)
tutti_unit(execute/test_bind execute)
