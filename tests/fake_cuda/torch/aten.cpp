/* Runs torch's CUDA operations on the host. Each replaced operation takes its turn in the current stream and calls the
 * CPU's kernel with tensors that alias the fake device's memory. New results reach the device by a copy that the stream
 * makes later, as those of a GPU's kernel. Copies that need no kernel stay torch's own. */
extern "C" {
#include "tests/fake_cuda/fake_cuda.h"
}
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/copy_native.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pybind11/pybind11.h>
#include <torch/library.h>
#include <unistd.h>

namespace {
using at::Tensor;
using Stack = torch::jit::Stack;

void driver_check(CUresult result, const char *what)
{
    const char *text = "unknown";
    if (result) cuGetErrorString(result, &text);
    TORCH_CHECK(!result, "fake CUDA: ", what, ": ", text);
}
CUstream stream_of(c10::Device device)
{
    c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
    return static_cast<CUstream>(stream.native_handle());
}
CUdeviceptr address_of(const void *pointer) { return reinterpret_cast<uintptr_t>(pointer); }
size_t extent_of(const Tensor &tensor)
{
    return tensor.numel() ? at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size())
                          : 0;
}

/* The runtime gives a thread a context at its first call. Threads of torch's autograd may come here before that. */
void context_ensure(c10::Device device)
{
    CUcontext context = nullptr;
    driver_check(cuCtxGetCurrent(&context), "the current context");
    if (context) return;
    driver_check(cuDevicePrimaryCtxRetain(&context, device.index()), "a context");
    driver_check(cuCtxSetCurrent(context), "a context");
}

/* One operation: its turn in a stream, and the host's aliases of the device's tensors. */
class Turn {
  public:
    Turn(c10::Device device, const char *name)
    {
        context_ensure(device);
        driver_check(fake_cuda_begin(stream_of(device), name, &launch_), name);
    }
    ~Turn() { end(); }
    Turn(const Turn &) = delete;
    void end()
    {
        if (launch_) fake_cuda_end(launch_);
        launch_ = nullptr;
    }
    /* Returns the host's alias of a tensor of the device. The operation writes it, or only reads it. */
    Tensor alias(const Tensor &tensor, bool writes)
    {
        for (auto &[device, host] : pairs)
            if (device.is_same(tensor)) return writes && !tensor.is_sparse() ? access(tensor, true), host : host;
        Tensor host = tensor.is_sparse() ? alias_sparse(tensor, writes) : alias_dense(tensor, writes);
        pairs.emplace_back(tensor, host);
        return host;
    }
    std::vector<std::pair<Tensor, Tensor>> pairs;

  private:
    /* Declares the access, and returns the distance from the device's addresses to the host's. */
    ptrdiff_t access(const Tensor &tensor, bool writes)
    {
        size_t bytes = extent_of(tensor);
        if (!bytes) return 0;
        auto *pointer = static_cast<const char *>(tensor.const_data_ptr());
        const void *host = writes ? fake_cuda_write(launch_, address_of(pointer), bytes)
                                  : fake_cuda_read(launch_, address_of(pointer), bytes);
        TORCH_CHECK(host, "fake CUDA: an operation uses memory that its device cannot access");
        return static_cast<const char *>(host) - pointer;
    }
    Tensor alias_dense(const Tensor &tensor, bool writes)
    {
        ptrdiff_t distance = access(tensor, writes);
        c10::StorageImpl *device = tensor.storage().unsafeGetStorageImpl();
        auto known = std::find_if(storages_.begin(), storages_.end(), [&](auto &pair) { return pair.first == device; });
        if (known == storages_.end()) {
            auto *base = static_cast<char *>(device->mutable_data());
            at::DataPtr data(
                base ? base + distance : nullptr, new at::Storage(tensor.storage()),
                [](void *kept) { delete static_cast<at::Storage *>(kept); }, c10::kCPU);
            at::Storage host(c10::Storage::use_byte_size_t(), device->nbytes(), std::move(data),
                c10::GetAllocator(c10::kCPU), /*resizable=*/true);
            known = storages_.emplace(storages_.end(), device, std::move(host));
        }
        Tensor host = at::detail::make_tensor<c10::TensorImpl>(at::Storage(known->second),
            c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
        host.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
        host._set_conj(tensor.is_conj());
        host._set_neg(tensor.is_neg());
        return host;
    }
    Tensor alias_sparse(const Tensor &tensor, bool writes)
    {
        Tensor indices = alias(tensor._indices(), writes), values = alias(tensor._values(), writes);
        return at::_sparse_coo_tensor_unsafe(indices, values, tensor.sizes())._coalesced_(tensor.is_coalesced());
    }
    struct fake_cuda_launch *launch_ = nullptr;
    std::vector<std::pair<c10::StorageImpl *, at::Storage>> storages_;
};

/* Replaces the tensors in a value. */
template <typename Replace> c10::IValue tensors_replace(const c10::IValue &value, const Replace &replace)
{
    if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(replace(value.toTensor())) : value;
    if (value.isTensorList()) {
        c10::List<Tensor> list;
        for (const Tensor &tensor : value.toTensorVector()) list.push_back(tensor.defined() ? replace(tensor) : tensor);
        return list;
    }
    if (value.isOptionalTensorList()) {
        c10::List<std::optional<Tensor>> list;
        for (std::optional<Tensor> tensor : value.toOptionalTensorList())
            list.push_back(tensor && tensor->defined() ? std::optional<Tensor>(replace(*tensor)) : tensor);
        return list;
    }
    return value;
}

/* ---- results ---- */
/* Enqueues a copy of the host's bytes. The driver takes bytes of pageable memory at the call. */
void bytes_send(const Tensor &to, const Tensor &from)
{
    size_t bytes = extent_of(from);
    if (!bytes) return;
    c10::DeviceGuard guard(to.device());
    CUdeviceptr address = address_of(to.mutable_data_ptr());
    driver_check(cuMemcpyHtoDAsync_v2(address, from.const_data_ptr(), bytes, stream_of(to.device())), "a result");
}
Tensor result_send(const Tensor &host, c10::Device device)
{
    if (!host.device().is_cpu()) return host;
    if (host.is_sparse()) {
        Tensor indices = result_send(host._indices(), device), values = result_send(host._values(), device);
        return at::_sparse_coo_tensor_unsafe(indices, values, host.sizes())._coalesced_(host.is_coalesced());
    }
    auto options = host.options().device(device).pinned_memory(false);
    Tensor result = at::empty_strided(host.sizes(), host.strides(), options);
    bytes_send(result, host);
    return result;
}
/* Gives a tensor of the device the size of its alias, which the operation has resized, and the bytes if they moved. */
void argument_update(const Tensor &device, const Tensor &host, const void *before)
{
    if (device.is_sparse()) {
        if (host._values().const_data_ptr() == before && host.sizes() == device.sizes()) return;
        Tensor sent = result_send(host, device.device());
        device.sparse_resize_(host.sizes(), host.sparse_dim(), host.dense_dim());
        device.copy_(sent);
        return;
    }
    bool moved = host.storage().data() != before;
    if (moved) device.resize_(host.sizes());
    if (moved || host.sizes() != device.sizes() || host.strides() != device.strides())
        device.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    if (moved) bytes_send(device, host);
}
/* Returns the device's tensor for one that the CPU's kernel returned: an argument, a view of one, or a new tensor. */
Tensor result_find(const Turn &turn, const Tensor &host, c10::Device device)
{
    for (auto &[argument, alias] : turn.pairs)
        if (alias.is_same(host)) return argument;
    for (auto &[argument, alias] : turn.pairs)
        if (!host.is_sparse() && !alias.is_sparse() && alias.storage().is_alias_of(host.storage()) && host.numel())
            return argument.as_strided(host.sizes(), host.strides(), host.storage_offset());
    return result_send(host, device);
}

/* ---- operations ---- */
/* Returns the device of an operation: that of its first CUDA tensor, or the one it names, or the current one. */
c10::Device device_find(at::ArrayRef<c10::IValue> arguments)
{
    std::optional<c10::Device> found;
    auto look = [&](const Tensor &tensor) {
        if (tensor.is_cuda() && !found) found = tensor.device();
        return tensor;
    };
    for (const c10::IValue &value : arguments) tensors_replace(value, look);
    for (const c10::IValue &value : arguments)
        if (value.isDevice() && value.toDevice().is_cuda() && !found) found = value.toDevice();
    bool named = found && found->has_index();
    return named ? *found : c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice();
}
const void *alias_place(const Tensor &host)
{
    return host.is_sparse() ? host._values().const_data_ptr() : host.storage().data();
}
void operation_run(const c10::OperatorHandle &operation, Stack *stack)
{
    const c10::FunctionSchema &schema = operation.schema();
    size_t count = schema.arguments().size(), begin = stack->size() - count;
    c10::Device device = device_find(at::ArrayRef<c10::IValue>(stack->data() + begin, count));
    c10::DeviceGuard guard(device);
    c10::DispatchKeySet keys(c10::DispatchKey::CPU);
    Turn turn(device, schema.name().c_str());
    for (size_t i = 0; i < count; i++) {
        const c10::Argument &argument = schema.arguments()[i];
        bool writes = argument.alias_info() && argument.alias_info()->isWrite();
        c10::IValue &value = (*stack)[begin + i];
        value = tensors_replace(value, [&](const Tensor &tensor) {
            if (tensor.is_sparse()) keys = keys | c10::DispatchKeySet(c10::DispatchKey::SparseCPU);
            return tensor.is_cuda() ? turn.alias(tensor, writes) : tensor;
        });
        if (value.isDevice() && value.toDevice().is_cuda()) value = c10::Device(c10::kCPU);
        if (argument.name() == "pin_memory") value = c10::IValue();
    }
    std::vector<const void *> places;
    for (auto &pair : turn.pairs) places.push_back(alias_place(pair.second));
    operation.redispatchBoxed(keys, stack);
    /* The turn ends first, because the code below may allocate memory, which may wait for the stream. */
    turn.end();
    for (size_t i = 0; i < places.size(); i++) argument_update(turn.pairs[i].first, turn.pairs[i].second, places[i]);
    for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); i++)
        (*stack)[i] = tensors_replace((*stack)[i], [&](const Tensor &host) { return result_find(turn, host, device); });
}
bool is_plain_copy(const Tensor &to, const Tensor &from)
{
    return to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() && to.is_contiguous()
        && from.is_contiguous() && to.is_conj() == from.is_conj() && to.is_neg() == from.is_neg();
}
/* torch's own copy between a device and the host splits into plain copies and copies within the device. */
void copy_run(const c10::OperatorHandle &operation, Stack *stack)
{
    size_t begin = stack->size() - 3;
    Tensor to = (*stack)[begin].toTensor(), from = (*stack)[begin + 1].toTensor();
    bool later = (*stack)[begin + 2].toBool(), strided = !to.is_sparse() && !from.is_sparse();
    if (to.device() == from.device() && !(strided && is_plain_copy(to, from))) return operation_run(operation, stack);
    if (strided && to.is_cuda() && from.is_cuda() && !is_plain_copy(to, from)) {
        Tensor sent = from.to(to.scalar_type()).expand(to.sizes()).resolve_conj().resolve_neg().contiguous();
        Tensor arrived = at::empty(to.sizes(), to.options());
        at::native::copy_(arrived, sent, later);
        to.copy_(arrived);
    } else at::native::copy_(to, from, later);
    stack->resize(begin);
    stack->emplace_back(to);
}

/* ---- installation ---- */
/* These allocate, make views, or copy bytes: they need no kernel. */
const std::vector<std::string> kept = { "empty", "empty_strided", "_empty_affine_quantized", "_efficientzerotensor",
    "set_", "resize_", "as_strided", "view", "_reshape_alias", "unfold", "view_as_real", "view_as_complex", "is_set_to",
    "record_stream", "is_pinned", "_pin_memory", "_has_same_storage_numel", "_local_scalar_dense", "_indices",
    "_values", "indices", "values", "_nnz", "is_coalesced", "_coalesced_", "sparse_dim", "_dimI", "dense_dim", "_dimV",
    "_sparse_coo_tensor_with_dims", "_sparse_coo_tensor_with_dims_and_tensors", "sparse_resize_",
    "sparse_resize_and_clear_", "copy_", "copy_sparse_to_sparse_" };

void operations_replace(torch::Library &library, c10::DispatchKey from, c10::DispatchKey to)
{
    auto &dispatcher = c10::Dispatcher::singleton();
    for (const auto &name : dispatcher.getRegistrationsForDispatchKey(from)) {
        auto operation = dispatcher.findSchema(name);
        std::string base = name.name.substr(name.name.rfind(':') + 1);
        if (name.name.rfind("aten::", 0) != 0 || std::find(kept.begin(), kept.end(), base) != kept.end()) continue;
        if (!operation || !operation->hasComputedKernelForDispatchKey(to)) continue;
        std::string full = base + (name.overload_name.empty() ? "" : "." + name.overload_name);
        library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&operation_run>());
    }
}
/* torch.cuda._sleep */
void sleep_run(struct fake_cuda_launch *launch)
{
    constexpr int64_t cycles_per_us = 2000;
    usleep(static_cast<useconds_t>(*static_cast<int64_t *>(launch->parameters[0]) / cycles_per_us));
}
/* torch warns of each operation that is registered again. */
struct Silence : c10::WarningHandler {
    void process(const c10::Warning &) override {}
};
void install()
{
    static torch::Library dense(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
    static torch::Library sparse(torch::Library::IMPL, "aten", c10::DispatchKey::SparseCUDA, __FILE__, __LINE__);
    const struct fake_cuda_kernel sleep = { "spin_kernel", sleep_run, { sizeof(int64_t) } };
    Silence silence;
    c10::WarningUtils::WarningHandlerGuard guard(&silence);
    operations_replace(dense, c10::DispatchKey::CUDA, c10::DispatchKey::CPU);
    operations_replace(sparse, c10::DispatchKey::SparseCUDA, c10::DispatchKey::SparseCPU);
    dense.impl("copy_", torch::CppFunction::makeFromBoxedFunction<&copy_run>());
    fake_cuda_register_kernel(&sleep);
}
} // namespace

PYBIND11_MODULE(fake_cuda_aten, module) { module.def("install", &install); }
