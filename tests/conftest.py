"""Options of tests that draw random programs."""


def pytest_addoption(parser):
    parser.addoption("--cases", type=int, help="check this many operations in each test of random programs")
    parser.addoption("--first-seed", type=int, default=1, help="first seed of random programs")
