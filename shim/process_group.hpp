/* The backend of torch.distributed. Every method checks its tensors, turns them into buffers, and makes one call of
 * include/tutti.h for each operation. All communication happens in the core. All ranks of the group must call a method
 * unless its comment says otherwise. */
#pragma once
#include "shim/calls.hpp"
#include "shim/member.hpp"
#include "shim/work.hpp"
#include <mutex>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unordered_map>

namespace tutti {

using WorkPointer = c10::intrusive_ptr<c10d::Work>;
using BackendPointer = c10::intrusive_ptr<c10d::Backend>;

struct Options final : c10d::Backend::Options {
    explicit Options(std::string algorithms = "", std::chrono::milliseconds limit = c10d::kUnsetTimeout)
        : c10d::Backend::Options("tutti", limit), algorithm(std::move(algorithms))
    {}
    /* Overrides a virtual function of torch 2.14, which clones the options for the groups that it splits off. */
    c10::intrusive_ptr<c10d::Backend::Options> clone() const { return c10::make_intrusive<Options>(*this); }
    /* A list such as "allreduce=ring,broadcast=chain". The core chooses for every other collective. */
    std::string algorithm;
    /* A future is complete when the caller gets it. */
    bool blocking_futures = false;
    /* Marks a split-off group of one rank, which meets no other rank in the store. */
    bool is_alone = false;
#ifndef C10D_BACKEND_HAS_RECONFIGURE
    /* The group has no members before its first reconfigure. From torch 2.14 on the base class has this member. */
    bool enable_reconfigure = false;
#endif
};

/* The name of a call, for errors and profiles, and how the call runs. The title is "tutti:" and the name. */
struct Call {
    const char *title;
    c10d::OpType type;
    bool async;
    std::chrono::milliseconds timeout;
    /* The other rank of a message. */
    int peer = 0;
    const char *name() const { return title + sizeof("tutti:") - 1; }
};
/* How the rows of a sum are normalised: tutti_norm with tensors, each of which may be undefined. */
struct Norm {
    at::Tensor weight, bias, residual;
    double epsilon;
    bool centred, own_rows;
};
/* The choices of a `with torch_tutti.options(...)` block for the calls of its thread. */
struct CallOptions {
    /* A name or a list as in Options. An empty text makes no choice. */
    std::string algorithm;
    std::chrono::milliseconds timeout; /* or kUnsetTimeout */
};
/* Applies the options to the calls of this thread until the block is closed. The caller numbers the blocks. */
void call_options_open_block(uint64_t block, CallOptions options);
/* Closes this thread's last entry of the block. Returns false if the thread has no open entry of it. */
bool call_options_close_block(uint64_t block);

class ProcessGroupTutti final : public c10d::Backend {
  public:
    using Options = tutti::Options;

    /* Joins the group, and returns when all ranks have joined. With options->enable_reconfigure it joins no rank.
     * options may be null. Messages name the `group`. */
    ProcessGroupTutti(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
        std::chrono::milliseconds timeout, const std::string &group, const c10::intrusive_ptr<Options> &options);
    /* Takes over the membership of `old` after a change, because rank and size of a group are constant before torch
     * 2.14. */
    ProcessGroupTutti(ProcessGroupTutti &old, const Roster &roster, c10::intrusive_ptr<Communicator> communicator);
    ~ProcessGroupTutti() override;
    void release_resources() final;

    const std::string getBackendName() const override { return "tutti"; }
    /* Returns a copy, because torch before 2.14 changes these options for the groups that it splits off. */
    c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_->clone(); }
    c10::intrusive_ptr<Options> options() const { return options_; }
    /* Up to torch 2.14 these functions override virtual ones. Later, torch reads capabilities and ignores them. */
    bool supportsSplitting() const { return true; }
    bool supportsCoalescing() const { return true; }

    /* ---- changing the members (reconfigure.cpp) ---- */
    /* The group is not a part of another one. */
    bool supportsReconfigure() const { return options_->global_ranks_in_group.empty(); }
    /* Returns the text that other members need to name this one in their next change. Local. */
    std::string get_reconfigure_handle() const { return reconfigure_handle(); }
    std::string reconfigure_handle() const;
    /* Replaces the members by those of the handles, which all of them give. Ends running calls of this group with an
     * error, and refuses those of other threads until it returns. Returns the changed group: this one, or before torch
     * 2.14 a new one. After an error the group is refused until the next change. */
    c10::intrusive_ptr<ProcessGroupTutti> change_members(const Change &change);
#ifdef C10D_BACKEND_HAS_RECONFIGURE
    WorkPointer reconfigure(const c10d::ReconfigureOptions &options) override;
#endif
    /* A text that names the present members, the same on all of them; empty before the first change. */
    const std::string &membership() const { return membership_; }
    const c10::intrusive_ptr<c10d::Store> &store() const { return member_->store(); }
    /* Returns the number of changes, also of failed ones, before a part is made. AbortedError if none can be made. */
    uint64_t begin_part();
    /* Makes `part` fail when the members of this group change. `at`: the number of begin_part(). */
    void adopt_part(const c10::intrusive_ptr<ProcessGroupTutti> &part, uint64_t at);

    WorkPointer allreduce(Tensors &tensors, const c10d::AllreduceOptions &options) override;
    /* Runs a blocking all-reduce without a Work. Returns false, without any effect, if the call needs a Work. */
    bool allreduce_directly(const at::Tensor &tensor, const c10d::ReduceOp &op);
    /* Returns when the operation is over. */
    void allreduce_norm(const at::Tensor &tensor, const Norm &norm);
    WorkPointer allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &options) override;
    WorkPointer allreduce_coalesced(Tensors &tensors, const c10d::AllreduceCoalescedOptions &options) override;
    WorkPointer broadcast(Tensors &tensors, const c10d::BroadcastOptions &options) override;
    WorkPointer reduce(Tensors &tensors, const c10d::ReduceOptions &options) override;
    WorkPointer allgather(TensorLists &outputs, Tensors &inputs, const c10d::AllgatherOptions &options) override;
    WorkPointer allgather_coalesced(TensorLists &outputs, Tensors &inputs,
        const c10d::AllgatherOptions &options) override;
    WorkPointer _allgather_base(at::Tensor &output, at::Tensor &input, const c10d::AllgatherOptions &options) override;
    WorkPointer allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
        const c10d::AllgatherOptions &options) override;
    WorkPointer reduce_scatter(Tensors &outputs, TensorLists &inputs,
        const c10d::ReduceScatterOptions &options) override;
    WorkPointer _reduce_scatter_base(at::Tensor &output, at::Tensor &input,
        const c10d::ReduceScatterOptions &options) override;
    WorkPointer reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
        const c10d::ReduceScatterOptions &options) override;
    WorkPointer alltoall_base(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &output_splits,
        std::vector<int64_t> &input_splits, const c10d::AllToAllOptions &options) override;
    WorkPointer alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &options) override;
    WorkPointer gather(TensorLists &outputs, Tensors &inputs, const c10d::GatherOptions &options) override;
    /* The output counts on the root only. Torch 2.14 has this collective, and the new names below. */
    WorkPointer gather_single(at::Tensor &output, at::Tensor &input, const c10d::GatherOptions &options);
    WorkPointer scatter(Tensors &outputs, TensorLists &inputs, const c10d::ScatterOptions &options) override;
    WorkPointer barrier(const c10d::BarrierOptions &options) override;
#ifdef C10D_BACKEND_HAS_RECONFIGURE
    /* Torch 2.14 calls these collectives by new names. Its base class would forward each of them to the old name, but
     * refuses a second call of the thread inside of the first, for example from a debugging wrapper. */
    WorkPointer all_gather_single(at::Tensor &output, at::Tensor &input, const c10d::AllgatherOptions &options) override
    {
        return _allgather_base(output, input, options);
    }
    WorkPointer all_gather_single_coalesced(Tensors &outputs, Tensors &inputs,
        const c10d::AllgatherOptions &options) override
    {
        return allgather_into_tensor_coalesced(outputs, inputs, options);
    }
    WorkPointer reduce_scatter_single(at::Tensor &output, at::Tensor &input,
        const c10d::ReduceScatterOptions &options) override
    {
        return _reduce_scatter_base(output, input, options);
    }
    WorkPointer reduce_scatter_single_coalesced(Tensors &outputs, Tensors &inputs,
        const c10d::ReduceScatterOptions &options) override
    {
        return reduce_scatter_tensor_coalesced(outputs, inputs, options);
    }
    WorkPointer all_to_all_single(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &output_splits,
        std::vector<int64_t> &input_splits, const c10d::AllToAllOptions &options) override
    {
        return alltoall_base(output, input, output_splits, input_splits, options);
    }
#endif
#ifdef C10D_BACKEND_HAS_WINDOW
    /* One-sided writes; see window.hpp. Without a tensor new_window is local. */
    bool supportsWindow() const;
    c10::intrusive_ptr<c10d::Window> new_window(const std::optional<at::Tensor> &tensor) override;
#endif
    /* Fails on all ranks and aborts the group if a rank is missing. The error of rank 0 names the missing ranks. */
    void monitoredBarrier(const c10d::BarrierOptions &options, bool wait_all_ranks) override;

    /* Messages between two ranks. */
    WorkPointer send(Tensors &tensors, int destination, int tag) override;
    WorkPointer recv(Tensors &tensors, int source, int tag) override;
    WorkPointer recvAnysource(Tensors &tensors, int tag) override;

    /* Calls of this thread between start and end only start their operations. endCoalescing returns a Work for all of
     * them. Both calls are local. */
    void startCoalescing() override;
    WorkPointer endCoalescing() override;
    /* Ends coalescing without a Work. It has no effect if coalescing has not started. */
    void drop_coalescing();

    /* Sequence numbers begin at 0 on every rank, so the ranks need no agreement. */
    void setSequenceNumberForGroup() override {}
    uint64_t getSequenceNumberForGroup() override { return sequence_; }
    /* Returns the core's communicator for other users of tutti.h. It is valid as long as the group, but after a change
     * of the members its calls end with TUTTI_ABORTED. Local. */
    uintptr_t address();
    void setTimeout(std::chrono::milliseconds timeout) override;
    /* Lengthens the timeouts of the operations that start from now on, until the first of their Works is over. Several
     * extensions add up. Overrides a virtual function of torch 2.14. Local. */
    void addEphemeralTimeout(const std::chrono::milliseconds &timeout);
    void enableCollectivesTiming() override { timing_ = true; }
    BackendPointer split(const c10::intrusive_ptr<c10d::Store> &store, const std::vector<int> &ranks,
        const c10::intrusive_ptr<c10d::Backend::Options> &options) override;
    BackendPointer merge(const c10::intrusive_ptr<c10d::Store> &store,
        const c10::intrusive_ptr<c10d::Backend::Options> &options, const int &rank, const int &size) override;
    /* If asked to, as by FSDP2, torch allocates the buffers of its operations here. Local. */
    bool supportsTensorAlloc(c10::DeviceIndex device) override { return device < 0; }
    at::Tensor allocateTensor(long size, at::TensorOptions options) override;
    /* Each of these overrides a virtual function where torch has it. Abort hooks run once for each failure, on a thread
     * that raises its error, or on one of the shim. A completion hook runs on the thread that ends the operation. */
    bool supportsAbortHooks() const { return true; }
    void registerAbortHook(int64_t id, std::function<void()> hook);
    void unregisterAbortHook(int64_t id);
    bool supportsCompletionHooks() const { return true; }
#if TORCH_HAS_COMPLETION_HOOKS
    void registerCompletionHook(int64_t id, c10d::CompletionHook hook) override;
    void unregisterCompletionHook(int64_t id) override;
#endif
    /* Between start and end, collectives of this thread do not run: endTimeEstimate returns their predicted time in
     * microseconds. A barrier, and a group of one rank, have no prediction and add nothing. All four are local. */
    bool supportsTimeEstimation() const { return true; }
    void startTimeEstimate();
    float endTimeEstimate();
    /* Ends the estimate, if there is one, without a result. */
    void drop_time_estimate();
    c10d::ErrorType getError() override;
    void abort() override;
    void shutdown() override;

  private:
    friend class WindowTutti;
    using Start = c10::function_ref<tutti_status(tutti_comm *, tutti_request *)>;
    /* Collects the operations that `calls` starts under one Work, which is an outer one if this thread already
     * coalesces. */
    WorkPointer coalesce(const Call &call, const Tensors &inputs, c10::function_ref<void()> calls);
    WorkPointer launch(const Call &call, Footprint footprint, Start begin);
    WorkPointer start(const Call &call, Footprint footprint, Start begin);
    /* Makes a blocking call without a Work. Returns false, without any effect, if the group is closed. */
    bool run_directly(Start begin);
    WorkPointer start_recorded(const Call &call, Footprint footprint, Start begin);
    void take_back_number(const Call &call, Work &work, const Operation &operation);
    c10::intrusive_ptr<Work> make_work(const Call &call, const Tensors &inputs);
    /* Returns by how much the timeouts of the operations of a new Work are longer. */
    std::chrono::milliseconds extend_timeout(const c10::intrusive_ptr<Work> &work);
    void record(Operation &operation, const Call &call, Work &work, std::shared_ptr<torch::CapturedTraceback> stack);
    /* Returns the global ranks of the group's members. */
    std::vector<uint64_t> members() const;
    /* Counts a call until it returns. Every function that uses the communicator, rank or size begins with it. */
    CallGuard enter(const char *call) { return CallGuard(calls_, call); }
    /* Returns the present communicator, or null before the first reconfigure, to a caller outside of a counted call. */
    c10::intrusive_ptr<Communicator> find_communicator() const;
    bool is_inherited() const { return process_ != process_count_forks(); }
    /* Makes this the communicator of the membership that begins. */
    void take_communicator(c10::intrusive_ptr<Communicator> communicator);
    void begin_recording();
    /* The steps of change_members(). */
    void check_may_change(const char *call) const;
    void end_membership(const Roster &roster, Member::Time deadline);
    c10::intrusive_ptr<Communicator> join_members(const Roster &roster, Member::Time deadline);
    c10::intrusive_ptr<ProcessGroupTutti> begin_membership(const Roster &roster,
        c10::intrusive_ptr<Communicator> communicator);
    [[noreturn]] void fail_change(const Roster &roster, tutti_status status, const std::string &why);
    /* Ends this part of a group whose members change, and its own parts. */
    void end_part(const std::string &why);
    void end_parts();
    bool is_coalescing() const { return open_work(); }
    /* Returns the Work that this thread coalesces calls into, or null. take_work() also closes and removes it. */
    Work *open_work() const;
    c10::intrusive_ptr<Work> take_work();
    bool is_estimating() const;
    WorkPointer estimate(const Call &call, const Footprint &footprint);
    /* True if options, coalescing, timing, a profiler, the recorder or an estimate rule out a call without a Work. */
    bool needs_work() const;
    WorkPointer message(const Call &call, Tensors &tensors, int tag);
    /* Returns torch's root, which has 64 bits, as an int of the core. Refuses a root outside of the group. */
    int root_of(const Call &call, int64_t root) const;
    size_t size() const { return static_cast<size_t>(getSize()); }

    c10::intrusive_ptr<Options> options_;
    /* Groups of one process have different numbers. Works that a thread coalesces are found by it. */
    const uint64_t number_ = process_number_group();
    const unsigned process_ = process_count_forks();
    std::shared_ptr<Member> member_;
    Calls calls_;
    /* Null before the first reconfigure. A counted call may read the pointer; others take the lock. */
    c10::intrusive_ptr<Communicator> communicator_;
    mutable std::mutex communicator_mutex_;
    /* Earlier communicators whose address a caller has. */
    std::vector<c10::intrusive_ptr<Communicator>> kept_;
    bool address_given_ = false;
    std::atomic<bool> changing_{ false }, shut_down_{ false };
    std::string membership_;
    /* Why a running change must end. */
    std::atomic<const char *> interrupted_{ nullptr };
    std::shared_ptr<Hooks> hooks_ = std::make_shared<Hooks>();
    std::atomic<uint64_t> sequence_{ 0 };
    std::atomic<bool> timing_{ false };
    struct TimeoutExtension {
        std::chrono::milliseconds timeout;
        /* The first Work after the extension. */
        std::optional<c10::weak_intrusive_ptr<Work>> first;
    };
    /* Protects the extensions. */
    std::mutex extensions_mutex_;
    std::vector<TimeoutExtension> extensions_;
    std::atomic<bool> extended_{ false };
    /* The number of the group in the flight recorder. */
    std::optional<size_t> recorded_as_;
    /* The last group of a name that was split off from this group or merged from it. */
    struct Derived {
        /* Held while a group of this name joins. Groups of other names may join at the same time. */
        std::mutex making;
        c10::intrusive_ptr<c10d::Store> store;
        c10::weak_intrusive_ptr<c10d::Backend> group{ BackendPointer() };
    };
    BackendPointer derived(const std::string &name, const c10::intrusive_ptr<c10d::Store> &store,
        c10::function_ref<BackendPointer()> make);
    /* Protects the table, but not its entries. */
    std::mutex derived_mutex_;
    std::unordered_map<std::string, std::shared_ptr<Derived>> derived_;
    /* The parts of this group, also those that torch made; under derived_mutex_. */
    std::vector<c10::weak_intrusive_ptr<ProcessGroupTutti>> parts_;
};

} // namespace tutti
