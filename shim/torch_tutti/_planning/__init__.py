"""`tutti plan`: what training a model takes, and how to divide it among devices. Pure data and functions; models.py has
sizes, memory.py bytes that a device keeps, communication.py what is sent and how long that takes, step.py what a step
takes in one way, strategy.py all ways and their order, report.py and picture.py what is shown, units.py numbers as
people write them; command.py leads through it. measure.py alone needs torch.
"""
