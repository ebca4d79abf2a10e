"""`tutti plan`: what training a model takes, and how to divide it among devices. Pure data and functions: models.py has
the sizes of models, memory.py the bytes that a device keeps, communication.py what is sent and how long that takes,
step.py the time of a step for one division, strategy.py all divisions and their order, report.py and picture.py the
output, units.py texts with units, command.py the command. measure.py alone needs torch."""
