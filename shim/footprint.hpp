/* What one operation touches, as the core sees it: memory of the host. Whatever the core could not work on is refused
 * here, with a text that says which tensor and what to do. A tensor on another device gets room on the host, whose
 * contents are fetched before the operation starts and brought back when it is over. */
#pragma once
#include "shim/communicator.hpp"
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <memory>
#include <ostream>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

namespace tutti {

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;

/* What a tensor is in its call: "input", "output 3". */
struct Role {
    Role(const char *of) : name(of) {}
    template <typename Index> Role(const char *of, Index in_list) : name(of), index(static_cast<int64_t>(in_list)) {}
    const char *name;
    int64_t index = -1; /* -1: there is no list */
};
std::ostream &operator<<(std::ostream &to, const Role &role);

struct Buffer {
    char *data;
    size_t count; /* elements of dtype */
    tutti_dtype dtype;
    at::ScalarType type; /* the tensor's */
    size_t bytes() const { return count * tutti_dtype_bytes(dtype); }
};
/* Bytes of the host to be moved. */
struct Part {
    void *to;
    const void *from;
    size_t bytes;
};
/* A tensor of a device and its room on the host, in one order or the other. */
struct Copy { at::Tensor to, from; };
/* The memory of a tensor. */
struct Extent {
    c10::Device device;
    const char *data;
    size_t bytes;
};
Extent extent_of(const at::Tensor &tensor);

class Footprint {
  public:
    Footprint() = default;
    explicit Footprint(const char *call) : call_(call) {} /* for messages */
    Buffer input(const at::Tensor &tensor, Role role = { "input" });   /* is read */
    Buffer output(const at::Tensor &tensor, Role role = { "output" }); /* is written */
    Buffer update(const at::Tensor &tensor, Role role = { "input" });  /* is read and written */
    /* Only refuses what cannot be worked on; data: NULL for a tensor of another device. */
    Buffer check(const at::Tensor &tensor, Role role);
    const char *call() const { return call_; }

    /* Part of it is on another device than the host. */
    bool staged() const { return !fetches_.empty() || !returns_.empty(); }
    void fetch();        /* before the operation; waits for what the current streams do with its tensors */
    void unpack() const; /* once it has succeeded; any thread */
    /* Once unpacked: enqueues the copies to the devices on their current streams, and the events after them. */
    void deliver(std::vector<c10::Event> &events) const;
    std::vector<c10::Device> devices() const; /* of the tensors, besides the host */
    std::vector<Extent> written_on_devices() const;
    bool touches(const std::vector<Extent> &written) const;

    Tensors inputs, outputs; /* as the caller gave them */

  private:
    friend class PartList;
    at::Tensor room(const at::Tensor &like, at::IntArrayRef sizes, at::ScalarType type);

    const char *call_ = "";
    std::optional<c10::Device> device_; /* of the first tensor */
    Tensors rooms_;
    std::vector<Part> parts_;
    std::vector<Copy> fetches_, returns_;
};

/* A list of tensors as one buffer of the core, which begins at the tensor with the lowest address. Where that cannot
 * be, the list is packed: it gets room of its own, with its tensors one after the other. */
class PartList {
  public:
    PartList(Footprint &of, const char *role, const Tensors &tensors);
    void pack_unless_adjacent(); /* for what takes no offsets */
    /* Refuses a tensor beside the list that is not of its type, or not of the size of this rank's place in it. Packs
     * the list if the two overlap elsewhere than in that place. */
    void keep_apart(const Buffer &mine, int rank);
    void keep_apart(const PartList &other); /* packs this list if the two overlap */
    void check_even() const; /* refuses parts whose counts differ */
    void read(); /* what the tensors contain is an input */
    /* What is in the buffer when the operation is over goes to the tensors. Refuses tensors that overlap. */
    void written();

    char *data = nullptr;
    size_t bytes = 0; /* from the beginning of the buffer to its end */
    std::vector<Buffer> parts;
    std::vector<size_t> counts, offsets; /* of each part, in elements */
  private:
    bool address();
    void pack();
    void check_disjoint() const;
    at::Tensor place(size_t part) const; /* its view of the room */
    Footprint &of_;
    const char *role_;
    const Tensors &tensors_;
    at::Tensor room_;
};

struct Reduction {
    tutti_op op;
    double factor;
};
Reduction reduction_of(const char *call, const c10d::ReduceOp &op, const Buffer &buffer);

const at::Tensor &only_tensor(const char *call, const Tensors &tensors);
std::string type_name(at::ScalarType type); /* as torch prints it, without "torch." */
/* Refuses buffers of different types. */
void check_same_type(const char *call, const Buffer &one, Role role, const Buffer &other, Role other_role);
bool overlap(const char *one, size_t one_bytes, const char *other, size_t other_bytes);
/* The rows of a tensor's first dimension, dealt out to the ranks: counts and offsets in elements. `splits` empty:
 * evenly. */
void split_rows(const char *call, const char *role, const at::Tensor &tensor, const Buffer &buffer,
    const std::vector<int64_t> &splits, size_t ranks, std::vector<size_t> &counts, std::vector<size_t> &offsets);

} // namespace tutti
