/* The memory that one operation touches, as buffers on the host. A tensor that the core cannot use is refused here, and
 * the error names the tensor and a remedy. A tensor on another device gets a staging buffer on the host: its contents
 * are fetched before the operation starts, and results are delivered to the device afterwards. So does a tensor on the
 * host that is not contiguous; its elements travel in the order of its indices. */
#pragma once
#include "shim/communicator.hpp"
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/StringUtil.h>
#include <memory>
#include <ostream>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

namespace tutti {

/* Throws the error of a wrong argument. Its text begins with the name of the call. */
template <typename... Pieces> [[noreturn]] void call_refuse(const char *call, const Pieces &...pieces)
{
    error_throw(TUTTI_INVALID_ARGUMENT, c10::str(call, ": ", pieces...));
}

/* Hides the shim's own calls of torch from autograd, and from a Python mode that is active on the thread. */
struct WithoutObservers {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    c10::impl::ExcludeDispatchKeyGuard below_python{
        c10::DispatchKeySet({ c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot })
    };
};
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;

/* The role of a tensor in its call, for messages: "input", or "output 3" in a list. */
struct Role {
    Role(const char *of) : name(of) {}
    template <typename Index> Role(const char *of, Index in_list) : name(of), index(static_cast<int64_t>(in_list)) {}
    const char *name;
    /* -1 stands for a tensor outside of any list. */
    int64_t index = -1;
};
std::ostream &operator<<(std::ostream &to, const Role &role);

/* The contents of a tensor, as the core sees them. A complex tensor of n numbers has 2 * n elements of dtype. */
struct Buffer {
    char *data;
    size_t count; /* elements */
    tutti_dtype dtype;
    /* The type of the tensor itself. */
    at::ScalarType type;
    size_t bytes() const { return count * tutti_dtype_bytes(dtype); }
};
/* One copy on the host. */
struct Part {
    void *to;
    const void *from;
    size_t bytes;
};
/* One copy between a tensor and its staging buffer, in either direction. */
struct Copy { at::Tensor to, from; };
/* The address range of a tensor on its device, from the first element to the last one. */
struct Extent {
    c10::Device device;
    const char *data;
    size_t bytes;
};
Extent tensor_get_extent(const at::Tensor &tensor);

class Footprint {
  public:
    Footprint() = default;
    /* Messages begin with the name `call`. */
    explicit Footprint(const char *call) : call_(call) {}
    /* Each of the three adds a tensor that the operation reads (input), writes (output), or both (update). */
    Buffer input(const at::Tensor &tensor, Role role = { "input" }) { return add(tensor, role, true, false); }
    Buffer output(const at::Tensor &tensor, Role role = { "output" }) { return add(tensor, role, false, true); }
    Buffer update(const at::Tensor &tensor, Role role = { "input" }) { return add(tensor, role, true, true); }
    /* Refuses an unsuitable tensor without adding any. The buffer has data = NULL if the core cannot use the tensor in
     * place: on another device, and if it is not contiguous. */
    Buffer check(const at::Tensor &tensor, Role role);
    /* Refuses as well a tensor that cannot receive a result, because its elements share memory. */
    Buffer check_output(const at::Tensor &tensor, Role role);
    const char *call() const { return call_; }

    /* True if a tensor is on another device than the host, or is not contiguous. */
    bool staged() const { return !fetches_.empty() || !returns_.empty(); }
    /* Copies inputs to their buffers before the operation. It synchronizes the current streams of all devices. */
    void fetch();
    /* Copies results from their buffers to tensors on the host, on any thread, after the operation has succeeded. */
    void unpack() const;
    /* Enqueues the copies to the devices on their current streams, then adds an event for each device to `events`. The
     * caller has called unpack() before. */
    void deliver(std::vector<c10::Event> &events) const;
    /* Returns the devices of the tensors, without the host. */
    std::vector<c10::Device> devices() const;
    /* Returns the memory of the tensors that get their results by a copy. */
    std::vector<Extent> written_by_copy() const;
    bool touches(const std::vector<Extent> &written) const;

    /* The tensors as the caller gave them. */
    Tensors inputs, outputs;

  private:
    friend class PartList;
    Buffer add(const at::Tensor &tensor, Role role, bool is_read, bool is_written);
    at::Tensor make_staging_buffer(const at::Tensor &like, at::IntArrayRef sizes, at::ScalarType type);

    const char *call_ = "";
    /* The device of the first tensor. All others must be on devices of the same type. */
    std::optional<c10::Device> device_;
    /* The staging buffers on the host. */
    Tensors staging_buffers_;
    std::vector<Part> parts_;
    std::vector<Copy> fetches_, returns_;
};

/* A tensor of a collective that treats every element alike, so any order of elements is right that is the same on all
 * ranks. A tensor that fills its range of memory in another order than a contiguous one (channels_last, transposed) is
 * used as it lies, as a flat view. Every other tensor stays as it is. */
class FlatTensor {
  public:
    /* With `as_it_lies` false, as for a call that cannot have a label, the tensor stays as it is. */
    explicit FlatTensor(const at::Tensor &given, bool as_it_lies = true) : given_(given)
    {
        if (as_it_lies && given.defined() && given.layout() == at::kStrided && !given.is_contiguous()) flatten();
    }
    const at::Tensor &tensor() const { return label ? flat_ : given_; }
    /* The label of the request, by which the ranks compare the order. 0: the order is that of the indices. */
    uint64_t label = 0;

  private:
    void flatten();
    const at::Tensor &given_;
    at::Tensor flat_;
};

/* A list of tensors as one buffer of the core. The buffer begins at the lowest address of the list, and offsets lead to
 * the other tensors. If the core cannot address the list so, the list is packed: a buffer of its own holds the
 * contents of all tensors, one after the other. */
class PartList {
  public:
    PartList(Footprint &of, const char *role, const Tensors &tensors);
    /* Packs the list unless each tensor begins where the one before it ends. Calls of the core without offsets need
     * this. */
    void pack_unless_adjacent();
    /* Compares the list with the rank's single tensor, which must have the type of the list and the size of the rank's
     * part. Packs the list if the tensor overlaps any part, except the rank's own at the same address. */
    void pack_if_overlapping(const Buffer &mine, int rank);
    /* Packs this list if the two lists overlap. */
    void pack_if_overlapping(const PartList &other);
    /* Refuses parts with different counts. */
    void check_even() const;
    /* Adds the tensors to the inputs of the footprint, and fills the buffer of a packed list. */
    void add_inputs();
    /* Adds the tensors to the outputs of the footprint, so that they receive the results. Refuses tensors that overlap
     * one another. */
    void add_outputs();

    char *data = nullptr;
    /* The distance from the beginning to the end of the buffer, gaps included. */
    size_t bytes = 0;
    std::vector<Buffer> parts;
    /* The size of each part and its place in the buffer. */
    std::vector<size_t> counts, offsets; /* elements */
  private:
    bool make_addressable();
    void pack();
    void check_disjoint() const;
    /* Returns the place of a part in the packed buffer as a tensor of the part's type and sizes. */
    at::Tensor part_view(size_t part) const;
    Footprint &of_;
    const char *role_;
    const Tensors &tensors_;
    at::Tensor packed_;
};

struct Reduction {
    tutti_op op;
    double factor;
};
/* False if requests with the reduction cannot have a label. */
bool reduction_takes_label(const c10d::ReduceOp &op);
Reduction reduction_from_torch(const char *call, const c10d::ReduceOp &op, const Buffer &buffer);

/* Refuses a tensor whose elements share memory, as those of an expanded tensor do, so that it cannot take a result. */
void tensor_check_elements_apart(const char *call, Role role, const at::Tensor &tensor);
/* Refuses a tensor that is not contiguous. */
void tensor_check_contiguous(const char *call, Role role, const at::Tensor &tensor);
const at::Tensor &tensors_get_single(const char *call, const Tensors &tensors);
/* Returns torch's name of a type without "torch.". */
std::string type_get_name(at::ScalarType type);
/* Refuses buffers of different types. */
void buffers_check_same_type(const char *call, const Buffer &one, Role role, const Buffer &other, Role other_role);
bool ranges_overlap(const char *one, size_t one_bytes, const char *other, size_t other_bytes);
bool extents_overlap(const Extent &one, const Extent &other);
/* Divides the rows of a tensor's first dimension among the ranks. `splits` gives the rows of each rank; if it is empty,
 * all ranks get equally many. Appends the count and the offset of each rank, in elements. */
void rows_split_among_ranks(const char *call, const char *role, const at::Tensor &tensor, const Buffer &buffer,
    const std::vector<int64_t> &splits, size_t ranks, std::vector<size_t> &counts, std::vector<size_t> &offsets);

} // namespace tutti
