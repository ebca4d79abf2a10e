"""`tutti model`: predicted and measured times of algorithms. command.py has the command; options.py needs no torch."""
