tutti_units(unit_execute execute execute pace bind)
