/* Sends, receives, and the monitored barrier, whose errors name the missing ranks with gloo's texts. */
#include "shim/process_group.hpp"
#include <c10/util/Exception.h>
#include <memory>

namespace tutti {

/* Starts the send or receive that `call` describes. */
WorkPointer ProcessGroupTutti::message(const Call &call, Tensors &tensors, int tag)
{
    CallGuard guard = enter(call.name());
    bool sends = call.type == c10d::OpType::SEND;
    if (tag < 0) call_refuse(call.name(), "tag ", tag, " is negative");
    Footprint footprint(call.name());
    const at::Tensor &tensor = tensors_get_single(call.name(), tensors);
    Buffer b = sends ? footprint.input(tensor) : footprint.output(tensor);
    footprint.outputs = tensors;
    return launch(call, std::move(footprint), [&](tutti_comm *comm, tutti_request *request) {
        if (sends) return tutti_send(b.data, b.count, b.dtype, call.peer, static_cast<uint32_t>(tag), comm, request);
        return tutti_recv(b.data, b.count, b.dtype, call.peer, static_cast<uint32_t>(tag), comm, request);
    });
}
WorkPointer ProcessGroupTutti::send(Tensors &tensors, int destination, int tag)
{
    return message({ "tutti:send", c10d::OpType::SEND, true, c10d::kUnsetTimeout, destination }, tensors, tag);
}
WorkPointer ProcessGroupTutti::recv(Tensors &tensors, int source, int tag)
{
    if (source < 0) call_refuse("recv", "source ", source, " is not a rank");
    return message({ "tutti:recv", c10d::OpType::RECV, true, c10d::kUnsetTimeout, source }, tensors, tag);
}
WorkPointer ProcessGroupTutti::recvAnysource(Tensors &tensors, int tag)
{
    return message({ "tutti:recvAnySource", c10d::OpType::RECVANYSOURCE, true, c10d::kUnsetTimeout, TUTTI_ANY_SOURCE },
        tensors, tag);
}

/* ---- the monitored barrier ---- */
/* The error texts begin like gloo's, because programs and tests look for these words. */
void ProcessGroupTutti::monitoredBarrier(const c10d::BarrierOptions &options, bool wait_all_ranks)
{
    CallGuard guard = enter("monitoredBarrier");
    auto timeout = options.timeout == c10d::kUnsetTimeout ? options_->timeout : options.timeout;
    if (timeout.count() < 0) call_refuse("monitoredBarrier", "a timeout of ", timeout.count(), " ms is negative");
    if (communicator_->is_closed())
        error_throw(TUTTI_ABORTED, "monitoredBarrier: this group was shut down or destroyed; make a new one");
    auto is_missing = std::make_unique<bool[]>(size());
    int64_t limit = std::max<int64_t>(timeout.count(), 1);
    tutti_status status = tutti_monitored_barrier(communicator_->get(), limit, is_missing.get());
    if (status == TUTTI_OK) return;
    std::string text = tutti_get_last_error();
    if (!tutti_last_error_is_refusal()) communicator_->report_failure();
    if (getRank() != 0)
        error_throw(status,
            c10::str("Rank ", getRank(), " successfully reached monitoredBarrier, but received errors while ",
                "waiting for send/recv from rank 0; rank 0's error tells which ranks are missing (here: ", text, ")"));
    std::vector<int> missing;
    for (int rank = 1; rank < getSize() && (wait_all_ranks || missing.empty()); rank++)
        if (is_missing[static_cast<size_t>(rank)]) missing.push_back(rank);
    if (missing.empty()) error_throw(status, text);
    std::string who = c10::str(missing.size() == 1 ? "Rank " : "Ranks ", c10::Join(", ", missing),
        " failed to pass monitoredBarrier");
    if (status != TUTTI_TIMEOUT) error_throw(status, who + ": " + text);
    error_throw(status,
        c10::str("Rank 0 timed out in monitoredBarrier: ", who, " in ", timeout.count(),
            " ms. The group is aborted; reconfigure it, or destroy it and make a new one"));
}

} // namespace tutti
