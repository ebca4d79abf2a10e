tutti_units(unit_memory memory memory heap available)
# replaces mmap and munmap
tutti_unit(memory arena memory)
