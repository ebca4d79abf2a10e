"""`tutti model`: what algorithms are predicted to take, and take. command.py leads through it; options.py needs no
torch."""
