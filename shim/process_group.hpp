/* The backend that torch.distributed sees: every method checks its tensors, turns them into buffers and makes one
 * call of include/tutti.h for each operation. No logic of communication lives here. Collective over the ranks of the
 * group unless said otherwise. */
#pragma once
#include "shim/work.hpp"
#include <c10/util/FunctionRef.h>
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
    std::string algorithm;         /* "allreduce=ring,broadcast=chain"; "": the core chooses */
    bool blocking_futures = false; /* a future is handed out when it is complete */
    bool is_alone = false;         /* a part of one rank that was split off: it has nobody to meet in the store */
};

/* Which call this is: for messages and profiles (title is "tutti:" and a name), and how it is to run. */
struct Call {
    const char *title;
    c10d::OpType type;
    bool async;
    std::chrono::milliseconds timeout;
    int peer = 0; /* of a message */
    const char *name() const { return title + sizeof("tutti:") - 1; }
};
/* What becomes of the rows of a sum: tutti_norm, with tensors, which may be undefined. */
struct Norm {
    at::Tensor weight, bias, residual;
    double epsilon;
    bool centred, own_rows;
};
/* What `with torch_tutti.options(...)` asks of the calls of this thread. */
struct CallOptions {
    std::string algorithm; /* a name, or a list as in Options; "": nothing is asked */
    std::chrono::milliseconds timeout; /* or kUnsetTimeout */
};
uint64_t call_options_number(); /* of a new block */
void call_options_open(uint64_t block, CallOptions options);
bool call_options_close(uint64_t block); /* that this thread has opened last; false: it has opened none */

class ProcessGroupTutti final : public c10d::Backend {
  public:
    using Options = tutti::Options;

    /* Joins the group: returns when all ranks have. options may be null. `group` is for messages. */
    ProcessGroupTutti(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
        std::chrono::milliseconds timeout, const std::string &group, const c10::intrusive_ptr<Options> &options);
    ~ProcessGroupTutti() override;

    const std::string getBackendName() const override { return "tutti"; }
    /* A copy: torch changes what it gets, for the groups it splits off. */
    c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override
    {
        return c10::make_intrusive<Options>(*options_);
    }
    c10::intrusive_ptr<Options> options() const { return options_; }
    /* Virtual up to torch 2.14, so these override there, and are merely hidden by capabilities later. */
    bool supportsSplitting() const { return true; }
    bool supportsCoalescing() const { return true; }

    WorkPointer allreduce(Tensors &tensors, const c10d::AllreduceOptions &options) override;
    /* Blocks, and makes no Work: the shortest way. False, and nothing has happened, if it takes the longer one. */
    bool allreduce_directly(const at::Tensor &tensor, const c10d::ReduceOp &op);
    void allreduce_norm(const at::Tensor &tensor, const Norm &norm); /* blocks */
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
    WorkPointer scatter(Tensors &outputs, TensorLists &inputs, const c10d::ScatterOptions &options) override;
    WorkPointer barrier(const c10d::BarrierOptions &options) override;
    /* Fails on all ranks when one does not come; rank 0's text says which. Aborts the group then. */
    void monitoredBarrier(const c10d::BarrierOptions &options, bool wait_all_ranks) override;

    WorkPointer send(Tensors &tensors, int destination, int tag) override;
    WorkPointer recv(Tensors &tensors, int source, int tag) override;
    WorkPointer recvAnysource(Tensors &tensors, int tag) override;

    /* What this thread calls in between only starts; the Work of the end covers all of it. */
    void startCoalescing() override;
    WorkPointer endCoalescing() override;
    void drop_coalescing() { take_work(); } /* instead of the end, also where nothing has started */

    void setSequenceNumberForGroup() override {} /* ours begin at 0 on every rank */
    uint64_t getSequenceNumberForGroup() override { return sequence_; }
    /* What a collective would run as, and take; algorithm empty: the core's choice. Local. */
    tutti_prediction predict(const std::string &collective, const std::string &algorithm, size_t bytes) const;
    uintptr_t address() const; /* of the core's communicator, for what is built on tutti.h; valid while the group is */
    std::string parameters() const; /* what the group goes by when it chooses, as JSON; local */
    void setTimeout(std::chrono::milliseconds timeout) override;
    void enableCollectivesTiming() override { timing_ = true; }
    BackendPointer split(const c10::intrusive_ptr<c10d::Store> &store, const std::vector<int> &ranks,
        const c10::intrusive_ptr<c10d::Backend::Options> &options) override;
    BackendPointer merge(const c10::intrusive_ptr<c10d::Store> &store,
        const c10::intrusive_ptr<c10d::Backend::Options> &options, const int &rank, const int &size) override;
    /* Torch takes memory that operations will use from here if it is told to (FSDP2 is). */
    bool supportsTensorAlloc(c10::DeviceIndex device) override { return device < 0; }
    at::Tensor allocateTensor(long size, at::TensorOptions options) override;
    c10d::ErrorType getError() override;
    void abort() override;
    void shutdown() override { communicator_->close(); }

  private:
    using Start = c10::function_ref<tutti_status(tutti_comm *, tutti_request *)>;
    /* Several operations under one Work; part of an outer one if this thread is coalescing already. */
    class Batch {
      public:
        Batch(ProcessGroupTutti &group, const Call &call, const Tensors &inputs);
        ~Batch();
        Batch(const Batch &) = delete;
        Batch &operator=(const Batch &) = delete;
        WorkPointer finish();
      private:
        ProcessGroupTutti &group_;
        Call call_;
        Work *outer_;
        bool over_ = false;
    };
    WorkPointer launch(const Call &call, Footprint footprint, Start begin);
    WorkPointer start(const Call &call, Footprint footprint, Start begin);
    WorkPointer start_recorded(const Call &call, Footprint footprint, Start begin);
    void uncount(const Call &call, Work &work, const Operation &operation); /* that was refused */
    c10::intrusive_ptr<Work> make_work(const Call &call, const Tensors &inputs);
    void record(Operation &operation, const Call &call, Work &work, std::shared_ptr<torch::CapturedTraceback> stack);
    std::vector<uint64_t> members() const; /* ranks of the program */
    bool is_coalescing() const { return open_work(); }
    Work *open_work() const; /* of what this thread coalesces, or null */
    c10::intrusive_ptr<Work> take_work(); /* the same, and closes it */
    bool asks_for_work() const; /* this thread, or somebody who listens, needs more than a blocking call */
    WorkPointer message(const Call &call, Tensors &tensors, int tag);
    int root_of(const Call &call, int64_t root) const; /* torch's roots have 64 bits, those of the core are ints */
    size_t size() const { return static_cast<size_t>(getSize()); }

    c10::intrusive_ptr<Options> options_;
    c10::intrusive_ptr<Communicator> communicator_;
    std::atomic<uint64_t> sequence_{ 0 };
    std::atomic<bool> timing_{ false };
    std::optional<size_t> recorded_as_; /* by the flight recorder */
    /* The last group of each name that was split off from this, or merged from it. */
    struct Derived {
        std::mutex making; /* held while one joins: for this name only, others may join meanwhile */
        c10::intrusive_ptr<c10d::Store> store;
        c10::weak_intrusive_ptr<c10d::Backend> group{ BackendPointer() };
    };
    BackendPointer derived(const std::string &name, const c10::intrusive_ptr<c10d::Store> &store,
        c10::function_ref<BackendPointer()> make);
    std::mutex derived_mutex_; /* of the table, not of what is in it */
    std::unordered_map<std::string, std::shared_ptr<Derived>> derived_;
};

} // namespace tutti
