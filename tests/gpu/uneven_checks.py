"""Checks of collectives with lists and splits on CUDA streams."""
import device_checks
import torch
import torch.distributed as dist
import torch_tutti
from device_checks import late, numbers, same
from stream_checks import first_on_rank_0, opened


def check_uneven_calls_go_on(world):
    """Checks that all-to-all in every form, and all_gather and reduce_scatter of uneven lists, wait for no rank."""
    device = world.kept["device"]
    opened(world)
    for begin in (device_checks.all_to_all_single, device_checks.all_to_all_single_uneven, device_checks.all_to_all,
                  device_checks.all_gather_uneven, device_checks.reduce_scatter_uneven):
        for later in (True, False):
            def operation():
                works, _ = begin(world, lambda x: x.to(device), later)
                stream = torch_tutti.stream() if later else torch.cuda.current_stream()

                def look():
                    assert not stream.query() and not (later and works[0].is_completed())
                return look

            first_on_rank_0(world, f"{begin.__name__} {later}", operation)
            torch.cuda.synchronize()


def check_all_to_all_of_any_layout(world):
    """Checks uneven lists of tensors that are apart, columns or empty, and splits that only one rank gives."""
    device, size = world.kept["device"], world.size

    def part(sender, receiver):
        return numbers(sender, 500 * sender + 700 * receiver, seed=receiver)

    inputs = [late(part(world.rank, q), device) for q in range(size)]
    outputs = [torch.zeros(len(part(q, world.rank)), 1 + q, device=device)[:, 0] for q in range(size)]
    dist.all_to_all(outputs, inputs, async_op=True).wait()
    for q in range(size):
        same(outputs[q], part(q, world.rank), f"from rank {q}")
    x = late(numbers(world.rank, 4 * size, 50), device)
    y, splits = torch.zeros_like(x), [4] * size if world.rank else None
    dist.all_to_all_single(y, x, splits, splits)
    for q in range(size):
        same(y[4 * q:4 * q + 4], numbers(q, 4 * size, 50)[4 * world.rank:4 * world.rank + 4], f"rows from rank {q}")


CHECKS = [check_uneven_calls_go_on, check_all_to_all_of_any_layout]
