"""PyTorch's own DistributedTest, run against tutti and against gloo. `python -m conformance` (with tests/ on the path)
runs it; script/conformance does that from a fresh checkout."""
