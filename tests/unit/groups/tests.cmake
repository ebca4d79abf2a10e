tutti_units(unit_groups all groups grid pipeline experts)
