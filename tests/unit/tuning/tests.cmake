tutti_units(unit_tuning all tuning selection tuner)
