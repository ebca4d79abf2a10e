tutti_units(unit_model model model kept cost probe)
