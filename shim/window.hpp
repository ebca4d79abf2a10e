/* Windows of torch 2.14: memory of each rank that the other ranks write without a call of its owner (tutti_window.h).
 * The file is empty for an older torch. */
#pragma once
#include "shim/process_group.hpp"
#ifdef C10D_BACKEND_HAS_WINDOW
#include "include/tutti_window.h"
#include <torch/csrc/distributed/c10d/Window.hpp>

namespace tutti {

class WindowTutti final : public c10d::Window {
  public:
    /* The window has no tensor before tensor_register(). */
    explicit WindowTutti(c10::intrusive_ptr<ProcessGroupTutti> group) : group_(std::move(group)) {}
    /* Frees the window, without a call of the other ranks. If the window still has a tensor, their later puts, signals
     * and maps are refused. */
    ~WindowTutti() override { forget(); }

    /* All ranks must call these two. With `owning` the window keeps the tensor alive. */
    void tensor_register(const at::Tensor &tensor, bool owning) override;
    void tensor_deregister() override;
    /* Writes the tensor into the window of `peer`. `offset` counts elements of that window. */
    WorkPointer put(const at::Tensor &tensor, int64_t peer, int64_t offset, bool async,
        const c10d::PutOptions &options) override;
    WorkPointer signal(int64_t peer, bool async, const c10d::SignalOptions &options) override;
    WorkPointer wait_signal(int64_t peer, bool async, const c10d::WaitSignalOptions &options) override;
    /* The tensor shows the peer's memory for as long as it exists, also after the window and the group. */
    at::Tensor map_remote_tensor(int64_t rank) override;
    c10d::WindowAttr get_attr(int64_t rank) override;

  private:
    /* Frees the core's window and drops the tensor, without the other ranks. */
    void forget();
    /* Refuses a window without a tensor. */
    void check_registered(const char *call) const;
    /* Returns `peer` as an int. Refuses a window without a tensor or of an earlier membership of the group, and a rank
     * outside of the group. The caller has entered the call. */
    int check_peer(const char *call, int64_t peer) const;
    /* Starts an operation without the GIL and returns its Work. `begin` makes the call of the core. */
    WorkPointer launch(const Call &call, Footprint footprint, c10::function_ref<tutti_status(tutti_request *)> begin);
    c10::intrusive_ptr<ProcessGroupTutti> group_;
    /* The communicator of the membership in which the tensor was registered. */
    c10::intrusive_ptr<Communicator> communicator_;
    tutti_window *window_ = nullptr;
    /* The registered tensor, if the window owns it. */
    std::optional<at::Tensor> owned_;
    /* The type and sizes of the registered tensor. */
    at::ScalarType type_ = at::ScalarType::Undefined;
    std::vector<int64_t> sizes_;
    /* The number of the core's elements in one element of the tensor: 2 if it is complex. */
    size_t factor_ = 1;
};

} // namespace tutti
#endif
