"""`tutti bench`: measuring collectives through torch. command.py leads through it; options.py needs no torch."""
