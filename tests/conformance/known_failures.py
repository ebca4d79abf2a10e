"""The cases that tutti does not pass, with the reason. No other case may fail. If one of these passes, the summary says
that its line can be removed. Lines are those of torch/testing/_internal/distributed/distributed_test.py in torch
2.13."""

KNOWN = {
    ("as-gloo", "test_get_backend"):
        "a literal name check: line 777 requires get_backend() to return the name that the tests were given, gloo, "
        "but it returns tutti. Passes by name",
    ("as-gloo", "test_ddp_logging_data_cpu"):
        "a literal name check: line 6277 compares get_backend() with the name in DDP's log, which torch's logger takes "
        "from the type of the group and which is custom for every backend that torch does not contain",
    ("tutti", "test_ddp_logging_data_cpu"): "as for tutti as gloo",
}
"""{(way, case): reason}"""
