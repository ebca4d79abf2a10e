tutti_unit(memory/test_heap memory)
tutti_unit(memory/test_arena memory)
tutti_unit(memory/test_available memory)
