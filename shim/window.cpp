/* Checks the arguments of windows, and makes one call of tutti_window.h for each operation. */
#include "shim/window.hpp"
#include "shim/gil.hpp"
#ifdef C10D_BACKEND_HAS_WINDOW
#include <c10/util/Exception.h>

namespace tutti {

bool ProcessGroupTutti::supportsWindow() const { return true; }
c10::intrusive_ptr<c10d::Window> ProcessGroupTutti::new_window(const std::optional<at::Tensor> &tensor)
{
    auto window = c10::make_intrusive<WindowTutti>(c10::intrusive_ptr<ProcessGroupTutti>::reclaim_copy(this));
    if (tensor) window->tensor_register(*tensor, true);
    return window;
}

/* ---- registering ---- */
void WindowTutti::forget()
{
    tutti_window_free(std::exchange(window_, nullptr));
    owned_.reset();
}
void WindowTutti::check_registered(const char *call) const
{
    if (!window_) call_refuse(call, "the window has no tensor; call tensor_register first, on all ranks");
}
int WindowTutti::check_peer(const char *call, int64_t peer) const
{
    check_registered(call);
    if (communicator_ != group_->communicator_)
        error_throw(TUTTI_ABORTED,
            c10::str(call, ": the members of the group have changed since tensor_register; make a new window"));
    if (peer < 0 || peer >= group_->getSize())
        call_refuse(call, "rank ", peer, " is not a rank of the group, which has ranks 0 to ", group_->getSize() - 1);
    return static_cast<int>(peer);
}
void WindowTutti::tensor_register(const at::Tensor &tensor, bool owning)
{
    if (window_) call_refuse("tensor_register", "the window has a tensor already; call tensor_deregister first");
    CallGuard guard = group_->enter("tensor_register");
    Footprint footprint("tensor_register");
    tensor_check_contiguous("tensor_register", { "window" }, tensor);
    Buffer buffer = footprint.check(tensor, { "window" });
    if (!tensor.is_cpu()) call_refuse("tensor_register", "the tensor is on ", tensor.device(), ", not on the CPU");
    communicator_ = group_->communicator_;
    communicator_->check_process();
    if (communicator_->is_closed())
        error_throw(TUTTI_ABORTED, "tensor_register: this group was shut down or destroyed; make a new one");
    {
        GilRelease release;
        tutti_status status =
            tutti_window_register(buffer.data, buffer.count, buffer.dtype, communicator_->get(), &window_);
        if (status != TUTTI_OK) error_throw_last(status);
    }
    type_ = tensor.scalar_type();
    sizes_ = tensor.sizes().vec();
    factor_ = tensor.numel() ? buffer.count / static_cast<size_t>(tensor.numel()) : 1;
    if (owning) owned_ = tensor;
}
void WindowTutti::tensor_deregister()
{
    check_registered("tensor_deregister");
    tutti_status status;
    std::string text;
    {
        GilRelease release;
        status = tutti_window_deregister(window_);
        text = tutti_get_last_error();
    }
    /* The memory belongs to the tensor alone again, also after an error. */
    forget();
    if (status != TUTTI_OK) error_throw(status, text);
}

/* ---- operations ---- */
WorkPointer WindowTutti::launch(const Call &call, Footprint footprint,
    c10::function_ref<tutti_status(tutti_request *)> begin)
{
    GilRelease release;
    return group_->launch(call, std::move(footprint),
        [&](tutti_comm *, tutti_request *request) { return begin(request); });
}
WorkPointer WindowTutti::put(const at::Tensor &tensor, int64_t peer, int64_t offset, bool async,
    const c10d::PutOptions &options)
{
    CallGuard guard = group_->enter("put");
    int rank = check_peer("put", peer);
    Footprint footprint("put");
    Buffer buffer = footprint.input(tensor);
    if (buffer.type != type_)
        call_refuse("put", "the input is ", type_get_name(buffer.type), ", but the window of rank ", rank, " is ",
            type_get_name(type_));
    if (offset < 0) call_refuse("put", "the offset is ", offset, "; it counts elements and is at least 0");
    auto at = static_cast<size_t>(offset);
    if (at > SIZE_MAX / factor_) call_refuse("put", "the offset ", offset, " passes the end of the window");
    Call call{ "tutti:put", c10d::OpType::SEND, async, options.timeout, rank };
    return launch(call, std::move(footprint), [&](tutti_request *request) {
        return tutti_window_put(window_, buffer.data, buffer.count, buffer.dtype, rank, at * factor_, request);
    });
}
WorkPointer WindowTutti::signal(int64_t peer, bool async, const c10d::SignalOptions &options)
{
    CallGuard guard = group_->enter("signal");
    int rank = check_peer("signal", peer);
    Call call{ "tutti:signal", c10d::OpType::SEND, async, options.timeout, rank };
    return launch(call, Footprint("signal"),
        [&](tutti_request *request) { return tutti_window_signal(window_, rank, request); });
}
WorkPointer WindowTutti::wait_signal(int64_t peer, bool async, const c10d::WaitSignalOptions &options)
{
    CallGuard guard = group_->enter("wait_signal");
    int rank = check_peer("wait_signal", peer);
    Call call{ "tutti:wait_signal", c10d::OpType::RECV, async, options.timeout, rank };
    return launch(call, Footprint("wait_signal"),
        [&](tutti_request *request) { return tutti_window_wait_signal(window_, rank, request); });
}

/* ---- memory of peers ---- */
at::Tensor WindowTutti::map_remote_tensor(int64_t peer)
{
    CallGuard guard = group_->enter("map_remote_tensor");
    int rank = check_peer("map_remote_tensor", peer);
    if (rank == group_->getRank()) {
        if (owned_) return *owned_;
        call_refuse("map_remote_tensor", "rank ", rank, " has registered its tensor with owning=False; use the tensor");
    }
    void *memory = nullptr;
    tutti_status status = tutti_window_map(window_, rank, &memory);
    if (status != TUTTI_OK) error_throw_last(status);
    tutti_window *window = window_;
    tutti_window_retain(window);
    return at::from_blob(
        memory, sizes_, [window](void *) { tutti_window_release(window); }, at::TensorOptions().dtype(type_));
}
c10d::WindowAttr WindowTutti::get_attr(int64_t peer)
{
    CallGuard guard = group_->enter("get_attr");
    void *memory = nullptr;
    tutti_status status = tutti_window_map(window_, check_peer("get_attr", peer), &memory);
    if (status == TUTTI_OK) return { c10d::WindowAccessType::UNIFIED };
    if (status == TUTTI_UNSUPPORTED) return { c10d::WindowAccessType::SEPARATE };
    error_throw_last(status);
}

} // namespace tutti
#endif
