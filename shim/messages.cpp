/* Sends and receives, and the barrier made of them that tells who is missing. */
#include "shim/process_group.hpp"
#include <c10/util/Exception.h>
#include <thread>

namespace tutti {

WorkPointer ProcessGroupTutti::message(const Call &call, Tensors &tensors, int tag)
{
    bool sends = call.type == c10d::OpType::SEND;
    if (tag < 0) fail(TUTTI_INVALID_ARGUMENT, c10::str(call.name(), ": tag ", tag, " is negative"));
    Footprint footprint(call.name());
    const at::Tensor &tensor = only_tensor(call.name(), tensors);
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
    if (source < 0) fail(TUTTI_INVALID_ARGUMENT, c10::str("recv: source ", source, " is not a rank"));
    return message({ "tutti:recv", c10d::OpType::RECV, true, c10d::kUnsetTimeout, source }, tensors, tag);
}
WorkPointer ProcessGroupTutti::recvAnysource(Tensors &tensors, int tag)
{
    return message({ "tutti:recvAnySource", c10d::OpType::RECVANYSOURCE, true, c10d::kUnsetTimeout, TUTTI_ANY_SOURCE },
        tensors, tag);
}

/* ---- the monitored barrier ---- */
/* Tags above those of users, which are not negative. */
constexpr uint32_t here_tag = UINT32_MAX - 1, all_here_tag = UINT32_MAX;

struct Message { /* of one byte */
    tutti_request request = TUTTI_REQUEST_INIT;
    char byte = 0;
    tutti_status status = TUTTI_IN_PROGRESS;
};
constexpr auto margin = std::chrono::seconds(1); /* so that rank 0 is the first to give up */
constexpr auto for_ever = std::chrono::hours(24 * 36500); /* 64 bits hold the nanoseconds of 292 years */

/* Rank 0 waits for a message of each other rank; the ranks whose message did not come in time. If there are any, the
 * group is aborted, which ends the receives. If it fails before that, `cause` and `text` tell how. */
static std::vector<int> missing_ranks(tutti_comm *comm, int size, std::chrono::milliseconds timeout,
    tutti_status &cause, std::string &text)
{
    auto until = std::chrono::steady_clock::now() + timeout;
    std::vector<Message> arrivals(static_cast<size_t>(size));
    for (int rank = 1; rank < size; rank++) {
        Message &m = arrivals[static_cast<size_t>(rank)];
        m.request.timeout_ms = (timeout + 2 * margin).count();
        m.status = tutti_recv(&m.byte, 1, TUTTI_UINT8, rank, here_tag, comm, &m.request);
        if (m.status == TUTTI_OK) m.status = TUTTI_IN_PROGRESS; /* it has started */
    }
    std::vector<int> missing;
    for (bool late = false; cause == TUTTI_OK; late = std::chrono::steady_clock::now() >= until) {
        missing.clear();
        for (int rank = 1; rank < size; rank++) {
            Message &m = arrivals[static_cast<size_t>(rank)];
            if (m.status == TUTTI_IN_PROGRESS) m.status = tutti_test(&m.request);
            if (m.status != TUTTI_OK) missing.push_back(rank);
            if (m.status >= TUTTI_OK) continue;
            cause = m.status;
            text = tutti_get_last_error();
        }
        if (missing.empty()) return missing;
        if (late) break;
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    tutti_comm_abort(comm);
    for (Message &m : arrivals)
        if (m.status == TUTTI_IN_PROGRESS && &m != &arrivals[0]) tutti_wait(&m.request, 0);
    return missing;
}
static tutti_status exchange_blocking(bool sends, int peer, uint32_t tag, std::chrono::milliseconds timeout,
    tutti_comm *comm)
{
    Message m;
    m.request.blocking = true;
    m.request.timeout_ms = std::max<int64_t>(timeout.count(), 1);
    return sends ? tutti_send(&m.byte, 1, TUTTI_UINT8, peer, tag, comm, &m.request)
                 : tutti_recv(&m.byte, 1, TUTTI_UINT8, peer, tag, comm, &m.request);
}
static std::string list_of_ranks(const std::vector<int> &ranks)
{
    std::string text = ranks.size() == 1 ? "Rank " : "Ranks ";
    for (size_t i = 0; i < ranks.size(); i++) text += (i ? ", " : "") + std::to_string(ranks[i]);
    return text;
}
/* The texts begin as gloo's do, because programs and tests look for them. */
void ProcessGroupTutti::monitoredBarrier(const c10d::BarrierOptions &options, bool wait_all_ranks)
{
    auto timeout = options.timeout == c10d::kUnsetTimeout ? options_->timeout : options.timeout;
    if (timeout.count() < 0)
        fail(TUTTI_INVALID_ARGUMENT, c10::str("monitoredBarrier: a timeout of ", timeout.count(), " ms is negative"));
    timeout = std::min<std::chrono::milliseconds>(timeout, for_ever);
    tutti_comm *comm = communicator_->get();
    if (communicator_->closed())
        fail(TUTTI_ABORTED, "monitoredBarrier: this group was shut down or destroyed; make a new one");
    if (getRank() != 0) {
        tutti_status status = exchange_blocking(true, 0, here_tag, timeout, comm);
        if (status == TUTTI_OK) status = exchange_blocking(false, 0, all_here_tag, 2 * timeout + margin, comm);
        if (status == TUTTI_OK) return;
        fail(status,
            c10::str("Rank ", getRank(), " successfully reached monitoredBarrier, but received errors while ",
                "waiting for send/recv from rank 0; rank 0's error tells which ranks are missing (here: ",
                tutti_get_last_error(), ")"));
    }
    tutti_status cause = TUTTI_OK;
    std::string text;
    std::vector<int> missing = missing_ranks(comm, getSize(), timeout, cause, text);
    if (!missing.empty() && !wait_all_ranks) missing.resize(1);
    if (!missing.empty()) {
        std::string who = list_of_ranks(missing) + " failed to pass monitoredBarrier";
        if (cause != TUTTI_OK) fail(cause, who + ": " + text);
        fail(TUTTI_TIMEOUT,
            c10::str("Rank 0 timed out in monitoredBarrier: ", who, " in ", timeout.count(),
                " ms. The group is aborted; destroy it and make a new one"));
    }
    for (int rank = 1; rank < getSize(); rank++) {
        tutti_status status = exchange_blocking(true, rank, all_here_tag, timeout, comm);
        if (status != TUTTI_OK) fail_last(status);
    }
}

} // namespace tutti
