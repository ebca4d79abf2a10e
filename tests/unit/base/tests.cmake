tutti_units(unit_base base base settings sha256 log memory)
