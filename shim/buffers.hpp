/* From tensors to buffers. Whatever the core could not see is refused here, with a text that says which tensor and
 * what to do; whatever passes is a pointer, a count and an element type that may be handed on. */
#pragma once
#include "c_api/tutti.h"
#include "shim/work.hpp"
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

namespace tutti {

struct Buffer {
    char *data;
    size_t count; /* elements of dtype */
    tutti_dtype dtype;
    at::ScalarType type; /* the tensor's */
    size_t bytes() const { return count * tutti_dtype_bytes(dtype); }
};
/* `call` and `role` ("input", "output 3") are for messages. */
Buffer buffer_of(const char *call, const std::string &role, const at::Tensor &tensor);
const at::Tensor &only_tensor(const char *call, const std::vector<at::Tensor> &tensors);
void check_same_type(
    const char *call, const Buffer &one, const std::string &role, const Buffer &other, const std::string &other_role);
bool overlap(const char *one, size_t one_bytes, const char *other, size_t other_bytes);

struct Reduction {
    tutti_op op;
    double factor;
};
Reduction reduction_of(const char *call, const c10d::ReduceOp &op, const Buffer &buffer);

/* A list of tensors as one buffer: where they lie if they follow one another there, else in room of its own. */
class Packed {
  public:
    Packed(const char *call, const char *role, const std::vector<at::Tensor> &tensors);
    bool even() const;                /* all parts have the same count */
    void move();                      /* into room of its own, unless it is there already */
    void load();                      /* the tensors' contents into the room */
    std::vector<Part> unpack() const; /* the way back */

    char *data = nullptr;
    size_t bytes = 0;
    std::vector<Buffer> parts;
    std::vector<size_t> counts, offsets; /* of each part, in elements */
    at::Tensor room;
  private:
    at::TensorOptions options_;
};
/* The rows of a tensor's first dimension, dealt out to the ranks: counts and offsets in elements. `splits` empty:
 * evenly. */
void split_rows(const char *call, const char *role, const at::Tensor &tensor, const Buffer &buffer,
    const std::vector<int64_t> &splits, size_t ranks, std::vector<size_t> &counts, std::vector<size_t> &offsets);

} // namespace tutti
