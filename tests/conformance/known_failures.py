"""The cases that tutti does not pass, and why. Nothing else may fail; one of these that passes is reported, so that its
line can go. Lines are those of torch 2.13's torch/testing/_internal/distributed/distributed_test.py."""

KNOWN = {
    ("as-gloo", "test_get_backend"):
        "a literal name check: line 777 wants get_backend() to be the name that the tests were given, gloo, and it "
        "says tutti. Passes by name",
    ("as-gloo", "test_ddp_logging_data_cpu"):
        "a literal name check: line 6277 compares get_backend() with the name in DDP's log, which torch's logger takes "
        "from the type of the group and which is custom for every backend that torch does not contain",
    ("tutti", "test_ddp_logging_data_cpu"): "as for tutti as gloo",
}
"""{(way, case): reason}"""
