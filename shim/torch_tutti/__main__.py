"""python -m torch_tutti is the command `tutti`."""
import sys

from torch_tutti.cli import main

sys.exit(main())
