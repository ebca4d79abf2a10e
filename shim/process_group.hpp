/* The backend of torch.distributed. Every method checks its tensors, turns them into buffers, and makes one call of
 * include/tutti.h for each operation. All communication happens in the core. All ranks of the group must call a method
 * that communicates, unless its comment says otherwise. */
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
    /* A list such as "allreduce=ring,broadcast=chain". For a collective that is not in the list the core chooses. */
    std::string algorithm;
    /* getFuture waits until the operation is over, so its future is complete when the caller gets it. */
    bool blocking_futures = false;
    /* True for a split-off group of one rank. Its list of members is not compared with other ranks. */
    bool is_alone = false;
    /* In a merged group, and in groups that are split from it: the size of the merged group, whose ranks their members
     * are. 0 in other groups. */
    int merged_size = 0;
#ifndef C10D_BACKEND_HAS_RECONFIGURE
    /* The group has no members before its first reconfigure. From torch 2.14 on the base class has this field. */
    bool enable_reconfigure = false;
#endif
};

/* The name of a call, for errors and profiles, and how the call runs. */
struct Call {
    /* "tutti:" and the name. */
    const char *title;
    c10d::OpType type;
    /* False: the call returns when the operation is over. */
    bool async;
    /* kUnsetTimeout: the timeout of the options block or of the group. */
    std::chrono::milliseconds timeout;
    /* The other rank of a message, or TUTTI_ANY_SOURCE. */
    int peer = 0;
    const char *name() const { return title + sizeof("tutti:") - 1; }
};
/* How the rows of a sum are normalised: the options of tutti_norm. */
struct Norm {
    /* Each may be undefined if the call has no such tensor. */
    at::Tensor weight, bias, residual;
    double epsilon;
    /* True: layer norm. False: RMS norm. */
    bool centred;
    /* The residual has only the rows that this rank normalises. */
    bool own_rows;
};
/* The choices of a `with torch_tutti.options(...)` block for the calls of its thread. */
struct CallOptions {
    /* A name or a list as in Options. An empty text makes no choice. */
    std::string algorithm;
    std::chrono::milliseconds timeout; /* or kUnsetTimeout */
    /* A text of text_keep() for the flight recorder, errors and profiles, or null. */
    const char *tag;
};
/* Returns the text at an address that stays valid as long as the process lives, or null for an empty text. */
const char *text_keep(const std::string &text);
/* Applies the options to the calls of this thread until the block is closed. The caller chooses the number `block`. */
void call_options_open_block(uint64_t block, CallOptions options);
/* Closes this thread's last entry of the block. Returns false if the thread has no open entry of it. */
bool call_options_close_block(uint64_t block);

class ProcessGroupTutti final : public c10d::Backend {
  public:
    using Options = tutti::Options;

    /* Joins the group, and returns when all ranks have joined. With options->enable_reconfigure it joins no rank.
     * `options` may be null. Error texts name the `group`. */
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
    /* True if the group is not a part of another group. */
    bool supportsReconfigure() const { return options_->global_ranks_in_group.empty(); }
    /* Returns the text that other members need to name this one in their next change. Local. */
    std::string get_reconfigure_handle() const { return reconfigure_handle(); }
    std::string reconfigure_handle() const;
    /* Replaces the members by those of the handles. All new members call it with the same handles. Ends running calls
     * of this group with an error, and refuses calls of other threads until it returns. Returns the changed group: this
     * one, or before torch 2.14 a new one. Wrong arguments leave the group unchanged. After any other error all calls
     * of the group are refused until the next change. */
    c10::intrusive_ptr<ProcessGroupTutti> change_members(const Change &change);
#ifdef C10D_BACKEND_HAS_RECONFIGURE
    WorkPointer reconfigure(const c10d::ReconfigureOptions &options) override;
#endif
    /* A text that names the present members, the same on all of them; empty before the first change. */
    const std::string &membership() const { return membership_; }
    const c10::intrusive_ptr<c10d::Store> &store() const { return member_->store(); }
    /* A caller that is about to make a part of this group (new_group, split) calls this first. Returns the number of
     * changes so far, with failed ones, for adopt_part(). Throws AbortedError while calls of the group are refused. */
    uint64_t begin_part();
    /* Makes `part` fail when the members of this group change, and at once if they have changed since begin_part().
     * `changes`: the number that begin_part() returned. */
    void adopt_part(const c10::intrusive_ptr<ProcessGroupTutti> &part, uint64_t changes);

    WorkPointer allreduce(Tensors &tensors, const c10d::AllreduceOptions &options) override;
    /* Runs a blocking all-reduce without a Work. Returns false, without any effect, if the call needs a Work. */
    bool allreduce_directly(const at::Tensor &tensor, const c10d::ReduceOp &op);
    /* Sums the tensor over the ranks and normalises its rows, in place. Waits until the operation is over. */
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
    /* Only the root uses its output. From torch 2.14 on, torch has this collective and the new names below. */
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
    /* Windows, for one-sided writes (window.hpp). new_window without a tensor is local. */
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
    /* Ends coalescing on this thread and returns no Work. It has no effect if coalescing has not started. */
    void drop_coalescing();

    /* Sequence numbers begin at 0 on every rank, so the ranks need no agreement. */
    void setSequenceNumberForGroup() override {}
    uint64_t getSequenceNumberForGroup() override { return sequence_; }
    /* Returns the address of the core's communicator, for code that calls tutti.h itself. The address is valid as long
     * as the group exists. After a change of the members, calls with it end with TUTTI_ABORTED. Local. */
    uintptr_t address();
    /* Returns the stream on which asynchronous operations with tensors of a CUDA device run, or nothing if they pass
     * through the host. Local. */
    std::optional<c10::Stream> stream(c10::Device device);
    void setTimeout(std::chrono::milliseconds timeout) override;
    /* Lengthens the timeouts of the operations that start from now on, until the first of their Works is over. Several
     * extensions add up. Overrides a virtual function of torch 2.14. Local. */
    void addEphemeralTimeout(const std::chrono::milliseconds &timeout);
    void enableCollectivesTiming() override { timing_ = true; }
    BackendPointer split(const c10::intrusive_ptr<c10d::Store> &store, const std::vector<int> &ranks,
        const c10::intrusive_ptr<c10d::Backend::Options> &options) override;
    BackendPointer merge(const c10::intrusive_ptr<c10d::Store> &store,
        const c10::intrusive_ptr<c10d::Backend::Options> &options, const int &rank, const int &size) override;
    /* Allocates a tensor in shared memory. Torch calls it for buffers of its operations if the program asks for that,
     * as FSDP2 does. Local. */
    bool supportsTensorAlloc(c10::DeviceIndex device) override { return device < 0; }
    at::Tensor allocateTensor(long size, at::TensorOptions options) override;
    /* Each of these overrides a virtual function if torch has that function. Abort hooks run once for each failure, on
     * a thread that raises the error, or on a thread of the shim. A completion hook runs on the thread that ends the
     * operation. */
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
    /* Makes the call of the core that starts an operation. */
    using Start = c10::function_ref<tutti_status(tutti_comm *, tutti_request *)>;
    /* Runs `calls` and collects the operations that they start under one Work, which it returns: a new Work, or if this
     * thread already coalesces calls of the group, the Work of that coalescing. */
    WorkPointer coalesce(const Call &call, const Tensors &inputs, c10::function_ref<void()> calls);
    /* Starts an operation on the memory of the footprint and returns its Work. If this thread estimates times, it only
     * estimates the operation; if a profiler runs, it records the operation. A blocking call returns after the end. */
    WorkPointer launch(const Call &call, Footprint footprint, Start begin);
    /* Starts an operation without estimates and profilers. */
    WorkPointer start(const Call &call, Footprint footprint, Start begin)
    {
        if (recorded_as_) return start_in_recorder(call, std::move(footprint), begin);
        return start_operation(call, std::move(footprint), begin, nullptr);
    }
    /* Starts an operation that the flight recorder keeps. With TUTTI_DEBUG its result is checked. */
    WorkPointer start_in_recorder(const Call &call, Footprint footprint, Start begin);
    /* `stack`: the Python stack of the call, for the flight recorder, or null. */
    WorkPointer start_operation(const Call &call, Footprint footprint, Start begin,
        std::shared_ptr<torch::CapturedTraceback> stack);
    /* Returns the empty footprint of a call that can run on a stream. It does if `tensor`, which every rank has, is a
     * CUDA tensor and the group is open for CUDA. The first such call opens it. */
    Footprint make_footprint(const Call &call, const at::Tensor &tensor)
    {
        if (!tensor.defined() || !tensor.is_cuda()) return Footprint(call.name());
        return make_footprint_of_cuda(call, tensor.device());
    }
    Footprint make_footprint_of_cuda(const Call &call, c10::Device device);
    /* Returns a footprint that only checks the tensors of coalesced calls of this type before the first one starts. If
     * they will run on streams, it refuses tensors on another device than that of the group. */
    Footprint make_checking_footprint(const Call &call, c10d::OpType type, const Tensors &tensors)
    {
        Call one = call;
        one.type = type;
        return tensors.empty() ? Footprint(call.name()) : make_footprint(one, tensors[0]);
    }
    /* Waits for earlier operations that the next one depends on. Without a stream, it copies the inputs to staging
     * buffers. */
    void prepare_tensors(Footprint &footprint);
    /* Enqueues the copies of the results of an operation that has started on a stream. Returns what its caller gets. */
    WorkPointer finish_on_stream(const Call &call, const c10::intrusive_ptr<Work> &work, uint64_t key,
        Operation &operation);
    /* Waits on the host until the operations on streams so far are over, and throws the error of a failed one. */
    void finish_streams(const char *call);
    /* Makes a blocking call without a Work. Returns false, without any effect, if the group is closed. */
    bool run_directly(Start begin);
    /* Starts an operation inside a range of the profiler. */
    WorkPointer start_recorded(const Call &call, Footprint footprint, Start begin);
    /* Takes back the group's sequence number and the flight recorder's numbers, which a refused operation has used. */
    void take_back_number(const Call &call, Work &work, const Operation &operation);
    /* Returns a new Work for a call on this thread. A profiler records the inputs. */
    c10::intrusive_ptr<Work> make_work(const Call &call, const Tensors &inputs);
    /* Returns the sum of the timeout extensions that apply to a new Work. */
    std::chrono::milliseconds extend_timeout(const c10::intrusive_ptr<Work> &work);
    /* Adds the operation to the flight recorder. */
    void record(Operation &operation, const Call &call, Work &work, std::shared_ptr<torch::CapturedTraceback> stack);
    /* Returns the global ranks of the group's members, in the order of their ranks in the group. */
    std::vector<uint64_t> members() const;
    /* Counts a call until it returns. Every function that uses the communicator, rank or size begins with it. */
    CallGuard enter(const char *call) { return CallGuard(calls_, call); }
    /* Returns the present communicator, or null before the first reconfigure. A caller outside of a counted call needs
     * this, because the communicator may change at any time. */
    c10::intrusive_ptr<Communicator> find_communicator() const;
    c10::intrusive_ptr<Communicator> interrupt_change(const char *why);
    bool is_inherited() const { return process_ != process_count_forks(); }
    /* Stores the communicator of a new membership, and connects it to this group. */
    void take_communicator(c10::intrusive_ptr<Communicator> communicator);
    /* Adds this group to the flight recorder, if that is on. */
    void begin_recording();
    /* The steps of change_members(). The first throws if this thread may not change the members now. */
    void check_may_change(const char *call) const;
    /* Refuses new calls, closes the communicator and the parts, and waits until the running calls have returned. */
    void end_membership(ChangeCheck &check, Member::Time deadline);
    /* Waits for the other members, joins them, and returns the new communicator. */
    c10::intrusive_ptr<Communicator> join_members(ChangeCheck &check, Member::Time deadline);
    /* If another thread has interrupted the change: aborts the new communicator, on all members, and throws. The caller
     * holds communicator_mutex_. */
    void abort_if_interrupted(const Roster &roster, Communicator &communicator) const;
    /* Lets calls in again, with the new communicator. Returns the changed group. */
    c10::intrusive_ptr<ProcessGroupTutti> begin_membership(const Roster &roster,
        c10::intrusive_ptr<Communicator> communicator);
    /* Publishes the error `why`, refuses calls until the next change, and throws. */
    [[noreturn]] void fail_change(const Roster &roster, tutti_status status, const std::string &why);
    /* Ends this group, which is a part of a group whose members change, and the parts of this group. Later calls fail
     * with the text `why`. */
    void end_part(const std::string &why);
    void end_parts();
    /* True if this thread coalesces calls of the group. */
    bool is_coalescing() const { return open_work(); }
    /* Returns the Work that this thread coalesces calls of the group into, or null. take_work() also closes it and ends
     * coalescing. */
    Work *open_work() const;
    c10::intrusive_ptr<Work> take_work();
    /* True if this thread estimates times of the group's calls. */
    bool is_estimating() const;
    /* Adds the predicted time of the call to this thread's estimate. Returns a Work that is over. */
    WorkPointer estimate(const Call &call, const Footprint &footprint);
    /* True if the next call needs a Work, because of options, coalescing, timing, a longer timeout, a profiler, the
     * recorder or an estimate. */
    bool needs_work() const;
    /* Starts the send or receive that `call` describes. */
    WorkPointer message(const Call &call, Tensors &tensors, int tag);
    /* Returns torch's root, which has 64 bits, as an int of the core. Refuses a root outside of the group. */
    int check_root(const Call &call, int64_t root) const;
    size_t size() const { return static_cast<size_t>(getSize()); }

    c10::intrusive_ptr<Options> options_;
    /* Groups of one process have different numbers, by which a thread finds the Work into which it coalesces calls. */
    const uint64_t number_ = process_take_group_number();
    /* The number of forks in the process that made the group. */
    const unsigned process_ = process_count_forks();
    std::shared_ptr<Member> member_;
    Calls calls_;
    /* Null before the first reconfigure. A counted call may read the pointer; others take the lock. */
    c10::intrusive_ptr<Communicator> communicator_;
    mutable std::mutex communicator_mutex_;
    /* The communicators of earlier memberships whose address a caller has. */
    std::vector<c10::intrusive_ptr<Communicator>> kept_;
    /* A caller has the address of the present communicator. */
    bool address_given_ = false;
    /* True while the members change, and true after shutdown(). */
    std::atomic<bool> changing_{ false }, shut_down_{ false };
    std::string membership_;
    /* The reason why a running change must end, or null. */
    std::atomic<const char *> interrupted_{ nullptr };
    std::shared_ptr<Hooks> hooks_ = std::make_shared<Hooks>();
    std::atomic<uint64_t> sequence_{ 0 };
    /* Works measure their durations. */
    std::atomic<bool> timing_{ false };
    /* One call of addEphemeralTimeout(). */
    struct TimeoutExtension {
        /* The time that is added. */
        std::chrono::milliseconds timeout;
        /* The first Work after the call. The extension ends with it. */
        std::optional<c10::weak_intrusive_ptr<Work>> first;
    };
    /* Protects the extensions. */
    std::mutex extensions_mutex_;
    std::vector<TimeoutExtension> extensions_;
    /* There are extensions. */
    std::atomic<bool> extended_{ false };
    /* The number of the group in the flight recorder, if that is on. */
    std::optional<size_t> recorded_as_;
    /* The last group of a name that split() or merge() has made, and the store that torch gave. */
    struct Derived {
        /* Held while a group of this name joins. Groups of other names may join at the same time. */
        std::mutex making;
        c10::intrusive_ptr<c10d::Store> store;
        c10::weak_intrusive_ptr<c10d::Backend> group{ BackendPointer() };
    };
    /* Returns the group that an earlier call has made for this name and store, or a new one from make(). */
    BackendPointer derived(const std::string &name, const c10::intrusive_ptr<c10d::Store> &store,
        c10::function_ref<BackendPointer()> make);
    /* Protects the table, but not its entries. */
    std::mutex derived_mutex_;
    std::unordered_map<std::string, std::shared_ptr<Derived>> derived_;
    /* The parts of this group that adopt_part() has added; under derived_mutex_. */
    std::vector<c10::weak_intrusive_ptr<ProcessGroupTutti>> parts_;
};

} // namespace tutti
