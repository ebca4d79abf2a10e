tutti_units(unit_base base base clock settings sha256 log memory)
