/* Estimates of time: while a thread estimates, its collectives of the group do not run. The cost model predicts them
 * from the measured parameters of the machine, and their times are added up. */
#include "shim/process_group.hpp"
#include <algorithm>

namespace tutti {

/* An estimate that has started and not ended. */
struct OpenEstimate {
    /* The group's communicator. It stays alive, so that no other communicator has its address. */
    c10::intrusive_ptr<Communicator> communicator;
    /* The sum of the predicted times so far. */
    double ns;
};
static thread_local std::vector<OpenEstimate> open_estimates;

/* Returns this thread's estimate for a communicator, or the end of open_estimates. */
static std::vector<OpenEstimate>::iterator estimate_find_on_thread(const Communicator *communicator)
{
    return std::find_if(open_estimates.begin(), open_estimates.end(),
        [communicator](const OpenEstimate &one) { return one.communicator.get() == communicator; });
}
/* Returns the core's name of a collective, or NULL if the core does not predict the call. */
static const char *call_get_collective(c10d::OpType type)
{
    switch (type) {
    case c10d::OpType::ALLREDUCE:
    case c10d::OpType::ALLREDUCE_COALESCED: return "allreduce";
    case c10d::OpType::BROADCAST: return "broadcast";
    case c10d::OpType::REDUCE: return "reduce";
    case c10d::OpType::ALLGATHER:
    case c10d::OpType::_ALLGATHER_BASE: return "allgather";
    case c10d::OpType::REDUCE_SCATTER:
    case c10d::OpType::_REDUCE_SCATTER_BASE: return "reduce_scatter";
    case c10d::OpType::GATHER: return "gather";
    case c10d::OpType::SCATTER: return "scatter";
    case c10d::OpType::ALLTOALL:
    case c10d::OpType::ALLTOALL_BASE: return "all_to_all";
    case c10d::OpType::BARRIER: return "barrier";
    default: return nullptr;
    }
}
static size_t tensors_count_bytes(const Tensors &tensors)
{
    size_t sum = 0;
    for (const at::Tensor &tensor : tensors) sum += tensor.nbytes();
    return sum;
}
bool ProcessGroupTutti::is_estimating() const
{
    return !open_estimates.empty() && estimate_find_on_thread(communicator_.get()) != open_estimates.end();
}
void ProcessGroupTutti::startTimeEstimate()
{
    CallGuard guard = enter("start_time_estimate");
    if (communicator_->is_closed())
        error_throw(TUTTI_ABORTED, "start_time_estimate: this group was shut down or destroyed; make a new one");
    drop_time_estimate();
    open_estimates.push_back({ communicator_, 0 });
}
float ProcessGroupTutti::endTimeEstimate()
{
    CallGuard guard = enter("end_time_estimate");
    auto found = estimate_find_on_thread(communicator_.get());
    if (found == open_estimates.end())
        error_throw(TUTTI_INVALID_ARGUMENT, "end_time_estimate without start_time_estimate on this thread");
    double ns = found->ns;
    open_estimates.erase(found);
    return static_cast<float>(ns / 1000);
}
void ProcessGroupTutti::drop_time_estimate()
{
    auto found = estimate_find_on_thread(find_communicator().get());
    if (found != open_estimates.end()) open_estimates.erase(found);
}
/* Adds the predicted time of the call to this thread's estimate, and returns a Work that is over and has no results. A
 * coalesced call returns the Work of all coalesced calls. */
WorkPointer ProcessGroupTutti::estimate(const Call &call, const Footprint &footprint)
{
    const char *collective = call_get_collective(call.type);
    if (!collective)
        error_throw(TUTTI_UNSUPPORTED,
            c10::str(call.name(), ": time estimates cover collectives, not messages; make this call outside of them"));
    size_t bytes = std::max(tensors_count_bytes(footprint.inputs), tensors_count_bytes(footprint.outputs));
    /* Only the root has the larger buffer of a gather and a scatter. */
    if (call.type == c10d::OpType::GATHER) bytes = tensors_count_bytes(footprint.inputs) * size();
    if (call.type == c10d::OpType::SCATTER) bytes = tensors_count_bytes(footprint.outputs) * size();
    tutti_prediction predicted = TUTTI_PREDICTION_INIT;
    tutti_status status = tutti_comm_predict(communicator_->get(), collective, nullptr, bytes, &predicted);
    if (status != TUTTI_OK) error_throw_last(status);
    estimate_find_on_thread(communicator_.get())->ns += predicted.ns;
    if (Work *coalesced = open_work()) return WorkPointer::reclaim_copy(coalesced);
    auto work = c10::make_intrusive<Work>(communicator_, getRank(), call.type, nullptr, Tensors(), sequence_.load());
    work->open();
    work->close();
    return work;
}

} // namespace tutti
