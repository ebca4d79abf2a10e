/* Checks of tensors, reductions, and lists of tensors. devices.cpp has the copies of a footprint. */
#include "shim/footprint.hpp"
#include <ATen/ATen.h>
#include <algorithm>
#include <cstring>

namespace tutti {

/* ---- one tensor ---- */
/* How an element of torch's type is passed to the core: as `factor` elements of `dtype`. */
struct Element {
    tutti_dtype dtype;
    size_t factor;
};
/* A complex number travels as a pair of floats. A type that the core cannot reduce travels as bytes. */
static Element type_get_element(at::ScalarType type)
{
    switch (type) {
    case at::kChar: return { TUTTI_INT8, 1 };
    case at::kByte: return { TUTTI_UINT8, 1 };
    case at::kShort: return { TUTTI_INT16, 1 };
    case at::kUInt16: return { TUTTI_UINT16, 1 };
    case at::kInt: return { TUTTI_INT32, 1 };
    case at::kUInt32: return { TUTTI_UINT32, 1 };
    case at::kLong: return { TUTTI_INT64, 1 };
    case at::kUInt64: return { TUTTI_UINT64, 1 };
    case at::kHalf: return { TUTTI_FLOAT16, 1 };
    case at::kBFloat16: return { TUTTI_BFLOAT16, 1 };
    case at::kFloat: return { TUTTI_FLOAT32, 1 };
    case at::kDouble: return { TUTTI_FLOAT64, 1 };
    case at::kBool: return { TUTTI_BOOL, 1 };
    case at::kFloat8_e4m3fn: return { TUTTI_FLOAT8_E4M3, 1 };
    case at::kFloat8_e5m2: return { TUTTI_FLOAT8_E5M2, 1 };
    case at::kComplexHalf: return { TUTTI_FLOAT16, 2 };
    case at::kComplexFloat: return { TUTTI_FLOAT32, 2 };
    case at::kComplexDouble: return { TUTTI_FLOAT64, 2 };
    default: return { TUTTI_UINT8, c10::elementSize(type) };
    }
}
std::string type_get_name(at::ScalarType type) { return std::string(c10::getDtypeNames(type).first); }
static bool type_travels_as_bytes(at::ScalarType type)
{
    return type_get_element(type).dtype == TUTTI_UINT8 && type != at::kByte;
}

/* Prints "input", or "output 3" for a tensor in a list. */
std::ostream &operator<<(std::ostream &to, const Role &role)
{
    to << role.name;
    return role.index < 0 ? to : to << ' ' << role.index;
}
/* Refuses a tensor whose contents the core cannot read: undefined, sparse, on the meta device, quantized or lazy. */
static void tensor_check_usable(const char *call, Role role, const at::Tensor &tensor)
{
    if (!tensor.defined()) call_refuse(call, "the ", role, " tensor is undefined");
    if (tensor.layout() != at::kStrided)
        call_refuse(call, "the ", role, " tensor has layout ", tensor.layout(),
            "; only all_reduce takes sparse tensors: use tensor.to_dense()");
    if (tensor.is_meta())
        call_refuse(call, "the ", role,
            " tensor is on the meta device: it has a shape, but nothing to send or to write to");
    if (c10::isQIntType(tensor.scalar_type()))
        error_throw(TUTTI_UNSUPPORTED,
            c10::str(call, ": the ", role, " tensor is quantized; use tensor.int_repr() or tensor.dequantize()"));
    if (tensor.is_conj()) call_refuse(call, "the ", role, " tensor is a lazy conjugate; use tensor.resolve_conj()");
    if (tensor.is_neg()) call_refuse(call, "the ", role, " tensor is a lazy negation; use tensor.resolve_neg()");
}
void tensor_check_contiguous(const char *call, Role role, const at::Tensor &tensor)
{
    if (tensor.layout() == at::kStrided && !tensor.is_contiguous())
        call_refuse(call, "the ", role, " tensor is not contiguous (sizes ", tensor.sizes(), ", strides ",
            tensor.strides(), "); use tensor.contiguous() and, for an output, copy the result back");
}
/* Returns the distance from the first element to the end of the last one, in elements. */
static int64_t tensor_get_span(const at::Tensor &tensor)
{
    if (tensor.numel() == 0 || tensor.is_contiguous()) return tensor.numel();
    int64_t span = 1;
    for (int64_t d = 0; d < tensor.dim(); d++) span += (tensor.size(d) - 1) * tensor.stride(d);
    return span;
}
Extent tensor_get_extent(const at::Tensor &tensor)
{
    auto elements = static_cast<size_t>(tensor_get_span(tensor));
    return { tensor.device(), static_cast<const char *>(tensor.const_data_ptr()), elements * tensor.itemsize() };
}
/* Returns the dimensions with several elements, the one with the longest stride first. */
static std::vector<int64_t> tensor_get_order(const at::Tensor &tensor)
{
    std::vector<int64_t> order;
    for (int64_t d = 0; d < tensor.dim(); d++)
        if (tensor.size(d) > 1) order.push_back(d);
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return tensor.stride(a) > tensor.stride(b); });
    return order;
}
/* Refuses a tensor whose elements share memory: each dimension must step over all elements of those with shorter
 * strides. */
void tensor_check_elements_apart(const char *call, Role role, const at::Tensor &tensor)
{
    if (tensor.is_contiguous()) return;
    std::vector<int64_t> order = tensor_get_order(tensor);
    int64_t last = 0;
    for (auto d = order.rbegin(); d != order.rend(); ++d) {
        if (tensor.stride(*d) <= last)
            call_refuse(call, "the ", role, " tensor receives a result, but several of its elements share memory ",
                "(sizes ", tensor.sizes(), ", strides ", tensor.strides(), "); use tensor.clone()");
        last += (tensor.size(*d) - 1) * tensor.stride(*d);
    }
}
/* Returns the address of the first element. Refuses a tensor whose storage is too small for its shape: a fake tensor,
 * or one freed by resize_. */
static char *tensor_get_memory(const char *call, Role role, const at::Tensor &tensor)
{
    auto *data = static_cast<char *>(tensor.data_ptr());
    size_t needed = static_cast<size_t>(tensor.storage_offset() + tensor_get_span(tensor)) * tensor.itemsize();
    if (data && tensor.storage().nbytes() >= needed) return data;
    call_refuse(call, "the ", role, " tensor has no memory: it needs ", needed, " bytes of a storage that has ",
        data ? tensor.storage().nbytes() : 0, "; was it freed by resize_, or is it a fake tensor?");
}
Buffer Footprint::check(const at::Tensor &tensor, Role role)
{
    tensor_check_usable(call_, role, tensor);
    if (!device_) device_ = tensor.device();
    else if (device_->type() != tensor.device().type())
        call_refuse(call_, "the ", role, " tensor is on ", tensor.device(), ", but another one of this call is on ",
            *device_, "; move one of them to the other's device");
    if (run_ && tensor.device() != run_->stream.device())
        call_refuse(call_, "the ", role, " tensor is on ", tensor.device(), ", but this group runs on ",
            run_->stream.device(),
            " of this rank: a group uses one GPU of each rank; use another group for the other "
            "GPU, or set TUTTI_CUDA=0 on all ranks");
    Element element = type_get_element(tensor.scalar_type());
    auto count = static_cast<size_t>(tensor.numel());
    char *memory = count && addresses(tensor.device()) ? tensor_get_memory(call_, role, tensor) : nullptr;
    return { tensor.is_contiguous() ? memory : nullptr, count * element.factor, element.dtype, tensor.scalar_type() };
}
Buffer Footprint::check_output(const at::Tensor &tensor, Role role)
{
    Buffer buffer = check(tensor, role);
    tensor_check_elements_apart(call_, role, tensor);
    return buffer;
}
Buffer Footprint::add(const at::Tensor &tensor, Role role, bool is_read, bool is_written)
{
    Buffer buffer = is_written ? check_output(tensor, role) : check(tensor, role);
    (is_written ? outputs : inputs).push_back(tensor);
    is_written_ |= is_written;
    if (!buffer.count || buffer.data) return buffer;
    at::Tensor staging = make_staging_buffer(tensor, tensor.sizes(), tensor.scalar_type());
    if (is_read) fetches_.push_back({ staging, tensor });
    if (is_written) returns_.push_back({ tensor, staging });
    buffer.data = static_cast<char *>(staging.data_ptr());
    return buffer;
}
/* Sets the flat view, and the label with 4 bits for each dimension. A label has room for 14 dimensions. */
void FlatTensor::flatten()
{
    constexpr int64_t most_dimensions = 14;
    bool plain = !given_.is_conj() && !given_.is_neg() && !given_.is_meta();
    if (!plain || given_.dim() > most_dimensions || !given_.is_non_overlapping_and_dense()) return;
    WithoutObservers unobserved;
    flat_ = given_.as_strided({ given_.numel() }, { 1 });
    for (int64_t d : tensor_get_order(given_)) label = label << 4 | static_cast<uint64_t>(d + 1);
    label |= TUTTI_LABEL_ORDER;
}
const at::Tensor &tensors_get_single(const char *call, const std::vector<at::Tensor> &tensors)
{
    if (tensors.size() != 1) call_refuse(call, "takes one tensor, not a list of ", tensors.size());
    return tensors[0];
}
void buffers_check_same_type(const char *call, const Buffer &one, Role role, const Buffer &other, Role other_role)
{
    if (one.type != other.type)
        call_refuse(call, "the ", role, " is ", type_get_name(one.type), ", but the ", other_role, " is ",
            type_get_name(other.type));
}
bool ranges_overlap(const char *one, size_t one_bytes, const char *other, size_t other_bytes)
{
    return one_bytes && other_bytes && one < other + other_bytes && other < one + one_bytes;
}
bool extents_overlap(const Extent &one, const Extent &other)
{
    return one.device == other.device && ranges_overlap(one.data, one.bytes, other.data, other.bytes);
}
static bool ranges_overlap(const Buffer &one, const Buffer &other)
{
    return ranges_overlap(one.data, one.bytes(), other.data, other.bytes());
}

/* ---- reductions ---- */
/* Returns the factor that torch keeps beside a PREMUL_SUM. */
static double reduction_get_premul_factor(const char *call, const c10d::ReduceOp &op)
{
    auto *supplement = dynamic_cast<c10d::NCCLPreMulSumSupplement *>(op.supplement_.get());
    if (!supplement)
        call_refuse(call,
            "PREMUL_SUM comes without its factor; make it with torch.distributed._make_nccl_premul_sum(factor)");
    return supplement->tensor_factor.defined() ? supplement->tensor_factor.item<double>() : supplement->double_factor;
}
bool reduction_takes_label(const c10d::ReduceOp &op) { return op.op_ != c10d::ReduceOp::PREMUL_SUM; }
Reduction reduction_from_torch(const char *call, const c10d::ReduceOp &op, const Buffer &buffer)
{
    if (c10::isComplexType(buffer.type) && !c10d::isComplexViewAsRealAllowed(op))
        call_refuse(call, "this reduction of ", type_get_name(buffer.type),
            " is not defined: complex numbers are only summed or averaged");
    if (type_travels_as_bytes(buffer.type))
        error_throw(TUTTI_UNSUPPORTED,
            c10::str(call, ": ", type_get_name(buffer.type), " tensors can be moved, but not reduced"));
    switch (op.op_) {
    case c10d::ReduceOp::SUM: return { TUTTI_SUM, 0 };
    case c10d::ReduceOp::AVG: return { TUTTI_AVG, 0 };
    case c10d::ReduceOp::PRODUCT: return { TUTTI_PROD, 0 };
    case c10d::ReduceOp::MIN: return { TUTTI_MIN, 0 };
    case c10d::ReduceOp::MAX: return { TUTTI_MAX, 0 };
    case c10d::ReduceOp::BAND: return { TUTTI_BAND, 0 };
    case c10d::ReduceOp::BOR: return { TUTTI_BOR, 0 };
    case c10d::ReduceOp::BXOR: return { TUTTI_BXOR, 0 };
    case c10d::ReduceOp::PREMUL_SUM: return { TUTTI_PREMUL_SUM, reduction_get_premul_factor(call, op) };
    default: call_refuse(call, "unknown reduction ", static_cast<int>(op.op_));
    }
}

/* ---- lists ---- */
PartList::PartList(Footprint &footprint, const char *role, const Tensors &tensors)
    : footprint_(footprint), role_(role), tensors_(tensors)
{
    parts.reserve(tensors.size());
    counts.reserve(tensors.size());
    offsets.reserve(tensors.size());
    for (size_t q = 0; q < tensors.size(); q++) {
        Role here{ role, q };
        Buffer part = footprint.check(tensors[q], here);
        if (q) buffers_check_same_type(footprint.call(), parts[0], { role, 0 }, part, here);
        parts.push_back(part);
        counts.push_back(part.count);
    }
    if (!make_addressable()) pack();
}
/* Sets data, bytes and offsets to use the tensors in place. Returns false if a part is on a device or not contiguous,
 * or if its distance from the lowest address is no multiple of the size of an element. */
bool PartList::make_addressable()
{
    size_t element = tutti_dtype_bytes(parts[0].dtype);
    for (const Buffer &part : parts)
        if (part.count && (!data || part.data < data)) data = part.data;
    for (const Buffer &part : parts) {
        if (part.count && !part.data) return false;
        size_t at = part.count ? static_cast<size_t>(part.data - data) : 0;
        if (at % element) return false;
        offsets.push_back(at / element);
        bytes = std::max(bytes, at + part.bytes());
    }
    return true;
}
void PartList::pack()
{
    if (packed_.defined()) return;
    bytes = 0;
    offsets.clear();
    for (const Buffer &part : parts) {
        offsets.push_back(bytes / tutti_dtype_bytes(part.dtype));
        bytes += part.bytes();
    }
    if (!bytes) return;
    packed_ = footprint_.make_staging_buffer(tensors_[0], { static_cast<int64_t>(bytes) }, at::kByte);
    data = static_cast<char *>(packed_.data_ptr());
}
void PartList::pack_unless_adjacent()
{
    size_t end = 0;
    for (size_t q = 0; q < parts.size(); end += counts[q++])
        if (counts[q] && offsets[q] != end) return pack();
}
void PartList::pack_if_overlapping(const Buffer &own, int rank)
{
    auto at = static_cast<size_t>(rank);
    buffers_check_same_type(footprint_.call(), own, { "tensor of this rank" }, parts[0], { role_, 0 });
    if (counts[at] != own.count)
        call_refuse(footprint_.call(), "this rank's tensor has ", own.count, " elements, but ", Role{ role_, rank },
            ", its place in the list, has ", counts[at]);
    for (size_t q = 0; q < parts.size(); q++)
        if ((q != at || parts[q].data != own.data) && ranges_overlap(parts[q], own)) return pack();
}
void PartList::pack_if_overlapping(const PartList &other)
{
    if (packed_.defined() || other.packed_.defined() || !ranges_overlap(data, bytes, other.data, other.bytes)) return;
    for (const Buffer &part : parts)
        for (const Buffer &theirs : other.parts)
            if (ranges_overlap(part, theirs)) return pack();
}
void PartList::check_even() const
{
    for (size_t q = 0; q < counts.size(); q++)
        if (counts[q] != counts[0])
            call_refuse(footprint_.call(), Role{ role_, q }, " has ", counts[q], " elements, but ", role_, " 0 has ",
                counts[0]);
}
/* True if two tensors overlap. Tensors with gaps may interleave without overlapping, as columns of a matrix do, so for
 * them only the addresses of the first elements are compared. */
static bool tensors_overlap(const at::Tensor &one, const at::Tensor &other)
{
    Extent here = tensor_get_extent(one), there = tensor_get_extent(other);
    bool dense = one.is_non_overlapping_and_dense() && other.is_non_overlapping_and_dense();
    return extents_overlap(here, there) && (dense || here.data == there.data);
}
/* Refuses tensors that overlap one another. A list in the order of addresses needs no comparison of pairs. */
void PartList::check_disjoint() const
{
    const char *end = nullptr;
    for (size_t q = 0; q < parts.size(); q++) {
        tensor_check_elements_apart(footprint_.call(), { role_, q }, tensors_[q]);
        Extent part = tensor_get_extent(tensors_[q]);
        for (size_t earlier = 0; part.data < end && earlier < q; earlier++)
            if (tensors_overlap(tensors_[q], tensors_[earlier]))
                call_refuse(footprint_.call(), Role{ role_, earlier }, " and ", Role{ role_, q },
                    " overlap in memory, so what one rank sends would overwrite what another sends; give each rank a "
                    "tensor of its own");
        end = std::max(end, part.data + part.bytes);
    }
}
at::Tensor PartList::part_view(size_t part) const
{
    auto from = static_cast<int64_t>(offsets[part] * tutti_dtype_bytes(parts[part].dtype));
    at::Tensor bytes_of_part = packed_.narrow(0, from, static_cast<int64_t>(parts[part].bytes()));
    return bytes_of_part.view(tensors_[part].scalar_type()).view(tensors_[part].sizes());
}
void PartList::add_inputs()
{
    footprint_.inputs.insert(footprint_.inputs.end(), tensors_.begin(), tensors_.end());
    for (size_t q = 0; packed_.defined() && q < parts.size(); q++) {
        const Buffer &part = parts[q];
        if (!part.count) continue;
        if (part.data && !footprint_.run_)
            std::memcpy(data + offsets[q] * tutti_dtype_bytes(part.dtype), part.data, part.bytes());
        else footprint_.fetches_.push_back({ part_view(q), tensors_[q] });
    }
}
void PartList::add_outputs()
{
    check_disjoint();
    footprint_.is_written_ = true;
    footprint_.outputs.insert(footprint_.outputs.end(), tensors_.begin(), tensors_.end());
    for (size_t q = 0; packed_.defined() && q < parts.size(); q++) {
        const Buffer &part = parts[q];
        if (!part.count) continue;
        if (part.data && !footprint_.run_)
            footprint_.host_returns_.push_back({ part.data, data + offsets[q] * tutti_dtype_bytes(part.dtype),
                part.bytes() });
        else footprint_.returns_.push_back({ tensors_[q], part_view(q) });
    }
}

void rows_split_among_ranks(const char *call, const char *role, const at::Tensor &tensor, const Buffer &buffer,
    const std::vector<int64_t> &splits, size_t ranks, std::vector<size_t> &counts, std::vector<size_t> &offsets)
{
    int64_t rows = tensor.dim() ? tensor.size(0) : 1;
    auto rank_count = static_cast<int64_t>(ranks);
    if (splits.empty() && rows % rank_count)
        call_refuse(call, "the ", role, " tensor has ", rows, " rows, which ", ranks,
            " ranks cannot share evenly; give the split sizes");
    if (!splits.empty() && splits.size() != ranks)
        call_refuse(call, "there are ", splits.size(), " ", role, " split sizes for ", ranks, " ranks");
    for (size_t q = 0; q < splits.size(); q++)
        if (splits[q] < 0)
            call_refuse(call, "split size ", splits[q], " of the ", role, " for rank ", q, " is negative");
    int64_t sum = 0;
    for (int64_t split : splits) {
        if (split > rows - sum)
            call_refuse(call, "the ", role, " split sizes ", splits, " add up to more than the ", rows, " rows of the ",
                role, " tensor");
        sum += split;
    }
    if (!splits.empty() && sum != rows)
        call_refuse(call, "the ", role, " split sizes ", splits, " add up to ", sum, ", but the ", role, " tensor has ",
            rows, " rows");
    size_t row_elements = rows ? buffer.count / static_cast<size_t>(rows) : 0, offset = 0;
    for (size_t q = 0; q < ranks; q++) {
        int64_t rows_of_rank = splits.empty() ? rows / rank_count : splits[q];
        counts.push_back(static_cast<size_t>(rows_of_rank) * row_elements);
        offsets.push_back(offset);
        offset += counts.back();
    }
}

} // namespace tutti
