tutti_units(unit_memory memory memory heap available memfd shared_table)
# replaces mmap and munmap
tutti_unit(memory arena memory)
