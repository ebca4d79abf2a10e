tutti_units(unit_memory memory memory heap available)
tutti_unit(memory arena memory)                                        # replaces mmap
