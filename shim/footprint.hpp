/* The memory that one operation touches, as buffers on the host, or on the device of an operation on a stream. A tensor
 * that the core cannot use is refused here: the function throws an error that names the tensor and a remedy. Without a
 * stream, a tensor on another device gets a staging buffer on the host: its contents are fetched before the operation
 * starts, and results are delivered to the device afterwards. A tensor that is not contiguous gets a staging buffer,
 * too, on the host or on the device of the stream; its elements travel in the order of its indices. */
#pragma once
#include "shim/communicator.hpp"
#include "shim/streams.hpp"
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

/* Refuses a call because of a wrong argument: throws ValueError with the text "<call>: <pieces>". */
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

/* The role of a tensor in its call, for error texts: "input", or "output 3" in a list. */
struct Role {
    Role(const char *kind) : name(kind) {}
    template <typename Index> Role(const char *kind, Index in_list) : name(kind), index(static_cast<int64_t>(in_list))
    {}
    const char *name;
    /* The index in the list, or -1 for a tensor outside of any list. */
    int64_t index = -1;
};
std::ostream &operator<<(std::ostream &to, const Role &role);

/* The contents of a tensor, as the core sees them. A complex tensor of n numbers has 2 * n elements of dtype. */
struct Buffer {
    char *data;
    size_t count; /* elements of dtype */
    tutti_dtype dtype;
    /* The tensor's own type. */
    at::ScalarType type;
    size_t bytes() const { return count * tutti_dtype_bytes(dtype); }
};
/* One copy of a result from a packed list to a contiguous tensor on the host. */
struct HostCopy {
    void *to;
    const void *from;
    size_t bytes;
};
/* One copy between a tensor and its staging buffer, in either direction. */
struct Copy { at::Tensor to, from; };
Extent tensor_get_extent(const at::Tensor &tensor);

class Footprint {
  public:
    Footprint() = default;
    /* `call`: the name of the call, with which error texts begin. `run`: set if the operation runs on a stream. Then
     * all tensors must be on the device of the stream. */
    explicit Footprint(const char *call, std::shared_ptr<StreamRun> run = nullptr) : call_(call), run_(std::move(run))
    {}
    /* Each of the three adds a tensor that the operation reads (input), writes (output), or both (update). It returns
     * the tensor's own memory, or a staging buffer. */
    Buffer input(const at::Tensor &tensor, Role role = { "input" }) { return add(tensor, role, true, false); }
    Buffer output(const at::Tensor &tensor, Role role = { "output" }) { return add(tensor, role, false, true); }
    Buffer update(const at::Tensor &tensor, Role role = { "input" }) { return add(tensor, role, true, true); }
    /* Returns the tensor's own memory, and refuses a tensor that the core cannot use. Adds nothing. `data` of the
     * buffer is NULL if the tensor is empty, not contiguous, or on a device without a stream for the operation. */
    Buffer check(const at::Tensor &tensor, Role role);
    /* Like check(), and also refuses a tensor whose elements share memory, because it cannot receive a result. */
    Buffer check_output(const at::Tensor &tensor, Role role);
    const char *call() const { return call_; }
    /* The stream of the operation, or null. */
    const std::shared_ptr<StreamRun> &run() const { return run_; }

    /* True if a tensor has a staging buffer, because it is on another device or not contiguous. */
    bool is_staged() const { return !fetches_.empty() || !returns_.empty(); }
    /* Copies inputs to their staging buffers before the operation. Synchronizes the current streams of devices(). */
    void fetch();
    /* Both enqueue copies on the stream of the operation, to staging buffers before it and from them after it. The host
     * does not wait. */
    void fetch_on_stream() const;
    void deliver_on_stream() const;
    /* Makes the memory of all tensors stay until the work that the operation's stream has now is over, although the
     * tensors are dropped. */
    void record_stream() const;
    /* Copies results from their staging buffers to tensors on the host. Any thread may call it after the operation has
     * succeeded. */
    void unpack() const;
    /* Enqueues the copies of results to the devices on their current streams, then adds an event for each device to
     * `events`. The caller has called unpack() before. */
    void deliver(std::vector<c10::Event> &events) const;
    /* Returns the devices of the tensors, without the host. */
    std::vector<c10::Device> devices() const;
    /* Returns the extents of the tensors that receive their results from staging buffers. */
    std::vector<Extent> written_by_copy() const;
    /* True if a tensor of the footprint overlaps one of the extents. */
    bool touches(const std::vector<Extent> &written) const;
    /* Returns the extents of all tensors. */
    Extents extents() const;
    /* True if this operation and one with these extents must run in order, because one writes what the other uses. */
    bool conflicts_with(const Extents &other) const;

    /* The tensors as the caller gave them. */
    Tensors inputs, outputs;
    /* The number of the operation in the ResultChecks of its group, or 0. */
    uint64_t checked_as = 0;

  private:
    friend class PartList;
    Buffer add(const at::Tensor &tensor, Role role, bool is_read, bool is_written);
    /* Returns a new tensor, which this object keeps, for the contents of `like`. With a stream it is on the device.
     * Otherwise it is on the host, and pinned if the device of `like` supports that. */
    at::Tensor make_staging_buffer(const at::Tensor &like, at::IntArrayRef sizes, at::ScalarType type);

    /* True if the core can address the tensors of this device. */
    bool addresses(c10::Device device) const { return device.is_cpu() || run_; }

    const char *call_ = "";
    std::shared_ptr<StreamRun> run_;
    /* The device of the first tensor. All others must be on devices of the same type. */
    std::optional<c10::Device> device_;
    /* False: the operation only reads. Then `outputs` may name what it reads, as the tensors of its result. */
    bool is_written_ = false;
    Tensors staging_buffers_;
    /* unpack() makes these copies from packed lists. */
    std::vector<HostCopy> host_returns_;
    /* The copies to staging buffers, which fetch() makes, and from them, which unpack() and deliver() make. */
    std::vector<Copy> fetches_, returns_;
};

/* A tensor of a collective for which the order of elements does not matter, if all ranks use the same order. A tensor
 * that fills its range of memory in another order than a contiguous one (channels_last, transposed) is used in the
 * order of its memory, as a flat view. Every other tensor is used as given. */
class FlatTensor {
  public:
    /* `may_flatten` is false if the call's request cannot have a label; then the tensor is used as given. */
    explicit FlatTensor(const at::Tensor &given, bool may_flatten = true) : given_(given)
    {
        if (may_flatten && given.defined() && given.layout() == at::kStrided && !given.is_contiguous()) flatten();
    }
    /* Returns the tensor for the operation: the flat view, or the given tensor. */
    const at::Tensor &tensor() const { return label ? flat_ : given_; }
    /* The label of the request, by which the ranks compare the order of elements. 0: the order of the indices. */
    uint64_t label = 0;

  private:
    /* Sets flat_ and label, if the tensor is suitable. */
    void flatten();
    const at::Tensor &given_;
    at::Tensor flat_;
};

/* A list of tensors as one buffer of the core. The buffer begins at the lowest address of the list, and offsets lead to
 * the other tensors. If the core cannot address the list so, the list is packed: a separate buffer holds the
 * contents of all tensors, one after the other. */
class PartList {
  public:
    /* `role`: the role of the tensors, for error texts. `tensors` is not empty and outlives this object. */
    PartList(Footprint &footprint, const char *role, const Tensors &tensors);
    /* Packs the list unless each tensor begins where the one before it ends. Calls of the core that take no offsets
     * need adjacent tensors. */
    void pack_unless_adjacent();
    /* `own` is the rank's single tensor of the call. Refuses it unless it has the type of the list and the count of the
     * part with index `rank`. Packs the list if `own` overlaps a part, unless it is exactly the part with index
     * `rank`. */
    void pack_if_overlapping(const Buffer &own, int rank);
    /* Packs this list if the two lists overlap. */
    void pack_if_overlapping(const PartList &other);
    /* Refuses parts with different counts. */
    void check_even() const;
    /* Adds the tensors to the inputs of the footprint, and fills the buffer of a packed list: with contiguous
     * tensors of the host at once, with all others in fetch() or fetch_on_stream(). */
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
    /* Gives the list a buffer of its own for all parts, unless it has one. Copies nothing. */
    void pack();
    /* Refuses tensors that overlap one another or whose own elements share memory. */
    void check_disjoint() const;
    /* Returns the place of a part in the packed buffer as a tensor of the part's type and sizes. */
    at::Tensor part_view(size_t part) const;
    Footprint &footprint_;
    const char *role_;
    const Tensors &tensors_;
    /* The buffer of a packed list, otherwise undefined. */
    at::Tensor packed_;
};

struct Reduction {
    tutti_op op;
    /* The factor of PREMUL_SUM, or 0 for other reductions. */
    double factor;
};
/* Returns false for PREMUL_SUM, whose requests cannot have a label. */
bool reduction_takes_label(const c10d::ReduceOp &op);
/* Returns the reduction as the core names it. Refuses one that the core cannot apply to the buffer. */
Reduction reduction_from_torch(const char *call, const c10d::ReduceOp &op, const Buffer &buffer);

/* Refuses a tensor whose elements share memory, such as an expanded one, because it cannot receive a result. */
void tensor_check_elements_apart(const char *call, Role role, const at::Tensor &tensor);
/* Refuses a tensor that is not contiguous. */
void tensor_check_contiguous(const char *call, Role role, const at::Tensor &tensor);
/* Throws NotImplementedError while the device's current stream captures a graph. */
void device_check_not_capturing(const char *call, c10::Device device);
/* Returns the only tensor of a list. Refuses a list of any other length. */
const at::Tensor &tensors_get_single(const char *call, const Tensors &tensors);
/* Returns torch's name of a type without "torch.". */
std::string type_get_name(at::ScalarType type);
/* Refuses buffers of different types. */
void buffers_check_same_type(const char *call, const Buffer &one, Role role, const Buffer &other, Role other_role);
/* True if two ranges of addresses overlap. An empty range overlaps nothing. */
bool ranges_overlap(const char *one, size_t one_bytes, const char *other, size_t other_bytes);
bool extents_overlap(const Extent &one, const Extent &other);
/* Divides the rows of a tensor's first dimension among the ranks. `splits` has the number of rows of each rank; if it
 * is empty, all ranks get the same number. Appends the count and the offset of each rank, in elements of the core. */
void rows_split_among_ranks(const char *call, const char *role, const at::Tensor &tensor, const Buffer &buffer,
    const std::vector<int64_t> &splits, size_t ranks, std::vector<size_t> &counts, std::vector<size_t> &offsets);

} // namespace tutti
