"""`tutti bench`: measures collectives through torch. command.py calls the others; options.py needs no torch."""
