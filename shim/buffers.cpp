/* The checks and the packing of buffers.hpp. Nothing here communicates. */
#include "shim/buffers.hpp"
#include <ATen/ATen.h>
#include <cstring>
#include <numeric>

namespace tutti {

/* ---- one tensor ---- */
struct Element {
    tutti_dtype dtype;
    size_t factor;
};
/* Complex numbers are pairs; what the core cannot reduce travels as bytes. */
static Element element_of(at::ScalarType type)
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
static std::string type_name(at::ScalarType type) { return std::string(c10::getDtypeNames(type).first); }
static bool travels_as_bytes(at::ScalarType type) { return element_of(type).dtype == TUTTI_UINT8 && type != at::kByte; }

template <typename... Pieces> [[noreturn]] static void refuse(const char *call, const Pieces &...pieces)
{
    fail(TUTTI_INVALID_ARGUMENT, c10::str(call, ": ", pieces...));
}
static void check_device(const char *call, const std::string &role, const at::Tensor &tensor)
{
    if (tensor.device().is_cpu()) return;
    if (tensor.is_meta())
        refuse(call, "the ", role, " tensor is on the meta device: it has a shape, but nothing to send or to write to");
    fail(TUTTI_UNSUPPORTED, c10::str(call, ": the ", role, " tensor is on ", tensor.device().str(),
                                "; this version of tutti moves CPU tensors. Copy it with tensor.cpu(), or use another "
                                "backend for this device, as in "
                                "init_process_group(\"cpu:tutti,cuda:nccl\")"));
}
Buffer buffer_of(const char *call, const std::string &role, const at::Tensor &tensor)
{
    if (!tensor.defined()) refuse(call, "the ", role, " tensor is undefined");
    if (tensor.layout() != at::kStrided)
        refuse(call, "the ", role, " tensor has layout ", tensor.layout(),
            "; only dense tensors are supported: use tensor.to_dense()");
    check_device(call, role, tensor);
    if (c10::isQIntType(tensor.scalar_type()))
        fail(TUTTI_UNSUPPORTED,
            c10::str(call, ": the ", role, " tensor is quantized; use tensor.int_repr() or tensor.dequantize()"));
    if (tensor.is_conj()) refuse(call, "the ", role, " tensor is a lazy conjugate; use tensor.resolve_conj()");
    if (tensor.is_neg()) refuse(call, "the ", role, " tensor is a lazy negation; use tensor.resolve_neg()");
    if (!tensor.is_contiguous())
        refuse(call, "the ", role, " tensor is not contiguous (sizes ", tensor.sizes(), ", strides ", tensor.strides(),
            "); use tensor.contiguous() and, for an output, copy the result back");
    Element element = element_of(tensor.scalar_type());
    auto count = static_cast<size_t>(tensor.numel());
    char *data = count ? static_cast<char *>(tensor.data_ptr()) : nullptr;
    return { data, count * element.factor, element.dtype, tensor.scalar_type() };
}
const at::Tensor &only_tensor(const char *call, const std::vector<at::Tensor> &tensors)
{
    if (tensors.size() != 1) refuse(call, "takes one tensor, not a list of ", tensors.size());
    return tensors[0];
}
void check_same_type(
    const char *call, const Buffer &one, const std::string &role, const Buffer &other, const std::string &other_role)
{
    if (one.type != other.type)
        refuse(
            call, "the ", role, " is ", type_name(one.type), ", but the ", other_role, " is ", type_name(other.type));
}
bool overlap(const char *one, size_t one_bytes, const char *other, size_t other_bytes)
{
    return one_bytes && other_bytes && one < other + other_bytes && other < one + one_bytes;
}

/* ---- reductions ---- */
static double premul_factor(const char *call, const c10d::ReduceOp &op)
{
    auto *supplement = dynamic_cast<c10d::NCCLPreMulSumSupplement *>(op.supplement_.get());
    if (!supplement)
        refuse(
            call, "PREMUL_SUM comes without its factor; make it with torch.distributed._make_nccl_premul_sum(factor)");
    return supplement->tensor_factor.defined() ? supplement->tensor_factor.item<double>() : supplement->double_factor;
}
Reduction reduction_of(const char *call, const c10d::ReduceOp &op, const Buffer &buffer)
{
    if (c10::isComplexType(buffer.type) && !c10d::isComplexViewAsRealAllowed(op))
        refuse(call, "this reduction of ", type_name(buffer.type),
            " is not defined: complex numbers are only summed or averaged");
    if (travels_as_bytes(buffer.type))
        fail(TUTTI_UNSUPPORTED, c10::str(call, ": ", type_name(buffer.type), " tensors can be moved, but not reduced"));
    switch (op.op_) {
    case c10d::ReduceOp::SUM: return { TUTTI_SUM, 0 };
    case c10d::ReduceOp::AVG: return { TUTTI_AVG, 0 };
    case c10d::ReduceOp::PRODUCT: return { TUTTI_PROD, 0 };
    case c10d::ReduceOp::MIN: return { TUTTI_MIN, 0 };
    case c10d::ReduceOp::MAX: return { TUTTI_MAX, 0 };
    case c10d::ReduceOp::BAND: return { TUTTI_BAND, 0 };
    case c10d::ReduceOp::BOR: return { TUTTI_BOR, 0 };
    case c10d::ReduceOp::BXOR: return { TUTTI_BXOR, 0 };
    case c10d::ReduceOp::PREMUL_SUM: return { TUTTI_PREMUL_SUM, premul_factor(call, op) };
    default: refuse(call, "unknown reduction ", static_cast<int>(op.op_));
    }
}

/* ---- lists ---- */
Packed::Packed(const char *call, const char *role, const std::vector<at::Tensor> &tensors)
    : options_(tensors.at(0).options())
{
    const char *end = nullptr;
    bool adjacent = true;
    size_t total = 0;
    for (size_t q = 0; q < tensors.size(); q++) {
        Buffer part = buffer_of(call, c10::str(role, " ", q), tensors[q]);
        if (q) check_same_type(call, parts[0], c10::str(role, " 0"), part, c10::str(role, " ", q));
        parts.push_back(part);
        counts.push_back(part.count);
        offsets.push_back(total);
        total += part.count;
        if (!part.count) continue;
        if (!data) data = part.data;
        else adjacent = adjacent && part.data == end;
        end = part.data + part.bytes();
    }
    bytes = total * tutti_dtype_bytes(parts[0].dtype);
    if (!adjacent) move();
}
bool Packed::even() const
{
    for (size_t count : counts)
        if (count != counts[0]) return false;
    return true;
}
void Packed::move()
{
    if (room.defined() || !bytes) return;
    room = at::empty({ static_cast<int64_t>(bytes) }, options_.dtype(at::kByte).requires_grad(false));
    data = static_cast<char *>(room.data_ptr());
}
void Packed::load()
{
    size_t size = tutti_dtype_bytes(parts[0].dtype);
    for (size_t q = 0; room.defined() && q < parts.size(); q++)
        if (parts[q].count) std::memcpy(data + offsets[q] * size, parts[q].data, parts[q].bytes());
}
std::vector<Part> Packed::unpack() const
{
    std::vector<Part> copies;
    size_t size = tutti_dtype_bytes(parts[0].dtype);
    for (size_t q = 0; room.defined() && q < parts.size(); q++)
        if (parts[q].count) copies.push_back({ parts[q].data, data + offsets[q] * size, parts[q].bytes() });
    return copies;
}

void split_rows(const char *call, const char *role, const at::Tensor &tensor, const Buffer &buffer,
    const std::vector<int64_t> &splits, size_t ranks, std::vector<size_t> &counts, std::vector<size_t> &offsets)
{
    int64_t rows = tensor.dim() ? tensor.size(0) : 1;
    auto among = static_cast<int64_t>(ranks);
    if (splits.empty() && rows % among)
        refuse(call, "the ", role, " tensor has ", rows, " rows, which ", ranks,
            " ranks cannot share evenly; give the split sizes");
    if (!splits.empty() && splits.size() != ranks)
        refuse(call, "there are ", splits.size(), " ", role, " split sizes for ", ranks, " ranks");
    int64_t sum = std::accumulate(splits.begin(), splits.end(), int64_t{ 0 });
    if (!splits.empty() && sum != rows)
        refuse(call, "the ", role, " split sizes ", splits, " add up to ", sum, ", but the ", role, " tensor has ",
            rows, " rows");
    size_t row = rows ? buffer.count / static_cast<size_t>(rows) : 0, offset = 0;
    for (size_t q = 0; q < ranks; q++) {
        int64_t mine = splits.empty() ? rows / among : splits[q];
        if (mine < 0) refuse(call, "split size ", mine, " of the ", role, " for rank ", q, " is negative");
        counts.push_back(static_cast<size_t>(mine) * row);
        offsets.push_back(offset);
        offset += counts.back();
    }
}

} // namespace tutti
