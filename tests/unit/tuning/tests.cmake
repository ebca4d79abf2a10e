tutti_units(unit_tuning all tuning histories selection tuner)
