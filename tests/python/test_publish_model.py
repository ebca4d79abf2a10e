"""A model of publishing without a fence (backend/host/wait.h). It tries every interleaving, under total store order, of
a publisher and two sleepers. The publisher's store of the counter may wait in a buffer while the publisher already
reads the word of waiters. If no step is left and a sleeper is asleep, a wake-up was lost. Tests leave out each part of
the protocol once, and a wake-up must then be lost."""

import pytest

UNFENCED = 4
NAMES = ("publisher", "buffer", "counter", "waiters", "sleepers")


def publisher_steps(state, values, broken):
    (at, value), buffer, counter, waiters, sleepers = state

    def then(at, value=value, **changed):
        return {"publisher": (at, value), **changed}

    if at == "begin" and value <= values:
        yield then("store" if waiters == UNFENCED else "exchange")
    elif at == "store":
        yield then("look again", buffer=value)
    elif at == "look again":
        enough = waiters == UNFENCED or (broken == "no second look" and waiters % UNFENCED == 0)
        yield then("begin", value + 1) if enough else then("exchange")
    elif at == "exchange" and not buffer:
        yield then("look", counter=value)
    elif at == "look" and waiters % UNFENCED:
        woken = tuple(("leave", *rest) if place == "asleep" else (place, *rest) for place, *rest in sleepers)
        yield then("begin", value + 1, sleepers=woken)
    elif at == "look":
        yield then("begin", value + 1)
        # If no waiter has come for long enough, the publisher sets the bit.
        yield then("set")
    elif at == "set":
        yield then("take back", waiters=waiters | UNFENCED) if waiters else then("begin", value + 1, waiters=UNFENCED)
    elif at == "take back":
        yield then("begin", value + 1, waiters=waiters & ~UNFENCED)


def sleeper_steps(state, values, which, broken):
    _, buffer, counter, waiters, sleepers = state
    place, seen, naps = sleepers[which]
    early = broken == "the bit goes first"

    def then(place, seen=seen, naps=naps, **changed):
        return {"sleepers": (*sleepers[:which], (place, seen, naps), *sleepers[which + 1 :]), **changed}

    if place == "awake" and counter != seen:
        yield then("awake", counter)
    elif place == "awake" and seen < values and naps:
        after = "clear" if early else "fence"
        yield then(after if waiters & UNFENCED else "compare", naps=naps - 1, waiters=waiters + 1)
    elif place == "fence":
        fenced = {} if broken == "no fence" else {"buffer": 0, "counter": buffer or counter}
        yield then("compare" if early else "clear", **fenced)
    elif place == "clear":
        yield then("fence" if early else "compare", waiters=waiters & ~UNFENCED)
    # The kernel compares.
    elif place == "compare":
        yield then("asleep" if counter == seen else "leave")
    elif place == "leave":
        yield then("awake", waiters=waiters - 1)


def explore(values, naps, broken=None):
    """Returns the number of states, and whether a sleeper is never woken in one of them."""
    todo = [(("begin", 1), 0, 0, 0, (("awake", 0, naps), ("awake", 0, naps)))]
    found, lost = set(todo), False
    while todo:
        state = todo.pop()
        _, buffer, _, _, sleepers = state
        steps = list(publisher_steps(state, values, broken))
        for which in range(len(sleepers)):
            steps += sleeper_steps(state, values, which, broken)
        if buffer:
            steps.append({"buffer": 0, "counter": buffer})
        lost |= not steps and any(place == "asleep" for place, _, _ in sleepers)
        new = {tuple({**dict(zip(NAMES, state)), **step}.values()) for step in steps} - found
        found |= new
        todo += new
    return len(found), lost


def test_no_wake_up_is_lost():
    states, lost = explore(5, 3)
    assert states > 50000 and not lost


@pytest.mark.parametrize("broken", ["no fence", "the bit goes first", "no second look"])
def test_every_part_of_the_protocol_is_needed(broken):
    assert explore(4, 2, broken)[1]
