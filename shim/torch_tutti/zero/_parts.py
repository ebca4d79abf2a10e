"""Tensors of which a rank has some boxes, for torch.distributed.checkpoint."""
from __future__ import annotations

import math
from typing import Any, Iterator, Sequence

import torch


def boxes(shape: tuple[int, ...], begin: int, end: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Divides elements [begin, end) of a tensor, in row-major order, into boxes, which are ranges of indices in each
    dimension. Yields (offsets, sizes) of each box, in order."""
    if begin >= end:
        return
    if len(shape) < 2:
        yield ((begin,), (end - begin,)) if shape else ((), ())
        return
    row_elements, row_shape = math.prod(shape[1:]), tuple(shape[1:])
    if begin % row_elements or end < begin + row_elements:            # a part of one row
        box_end = min(end, (begin // row_elements + 1) * row_elements)
        for offsets, sizes in boxes(row_shape, begin % row_elements, box_end - begin // row_elements * row_elements):
            yield (begin // row_elements, *offsets), (1, *sizes)
    else:
        box_end = end // row_elements * row_elements
        yield (begin // row_elements, *(0 for _ in row_shape)), ((box_end - begin) // row_elements, *row_shape)
    yield from boxes(shape, box_end, end)


class Parts(torch.Tensor):
    """A tensor of which this rank has some boxes. torch.distributed.checkpoint reads and writes the boxes by the last
    three methods, and copies them before it saves in the background. Any computation raises RuntimeError."""
    parts: list[tuple[tuple[int, ...], torch.Tensor]]   # (offsets, values) of each box
    is_saved: bool                                      # False: this rank only loads it

    @staticmethod
    def __new__(cls, shape: Sequence[int], dtype: torch.dtype,
                parts: Sequence[tuple[tuple[int, ...], torch.Tensor]] = (), is_saved: bool = True) -> Parts:
        """Makes a tensor of this shape that has no memory besides the values in `parts`."""
        self = torch.Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=dtype, device="cpu")
        self.parts, self.is_saved = list(parts), is_saved
        return self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the two operations that torch.distributed.checkpoint calls, new_empty and detach. Raises RuntimeError
        for any other."""
        # async_save then copies parts and is_saved into it
        if func is torch.ops.aten.new_empty.default:
            return cls(args[1], args[0].dtype)
        if func is torch.ops.aten.detach.default:
            return cls(args[0].shape, args[0].dtype, args[0].parts, args[0].is_saved)
        raise RuntimeError(f"zero: {func} of a tensor in parts, which only torch.distributed.checkpoint can use")

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Parts({tuple(self.shape)}, {self.dtype}, {[(at, tuple(part.shape)) for at, part in self.parts]})"

    def __create_write_items__(self, fqn: str, _: Any) -> list[Any]:
        """Returns what this rank saves under the name `fqn`: one item for each box, or no item if it only loads the
        tensor."""
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
        boxes_to_write = [TensorWriteData(chunk, TensorProperties.create_from_tensor(part), self.size())
                          for chunk, (_, part) in zip(self.__create_chunk_list__(), self.parts) if self.is_saved]
        return [WriteItem(MetadataIndex(fqn, box.chunk.offsets), WriteItemType.SHARD, tensor_data=box)
                for box in boxes_to_write]

    def __create_chunk_list__(self) -> list[Any]:
        """Returns offsets and sizes of this rank's boxes."""
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
        return [ChunkStorageMetadata(torch.Size(offsets), part.size()) for offsets, part in self.parts]

    def __get_tensor_shard__(self, index: Any) -> torch.Tensor:
        """Returns the values of the box that begins at index.offset, to be saved or overwritten by loaded values."""
        return next(part for offsets, part in self.parts if index.offset == torch.Size(offsets))
