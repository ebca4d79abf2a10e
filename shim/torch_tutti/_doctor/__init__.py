"""The parts of the command `tutti doctor`."""
