/* Finds results that differ between ranks, and NaN in inputs. An exchange that fails is ignored: the ranks stop to
 * check, and the group itself reports why. */
#include "shim/checks.hpp"
#include "shim/gil.hpp"
#include "shim/recorder.hpp"
#include "shim/signals.hpp"
#include <ATen/ATen.h>
#include <cstring>
#include <map>

namespace tutti {

PyObject *ResultError::python_type()
{
    try {
        /* The module keeps the class alive. */
        return pybind11::object(pybind11::module_::import("torch_tutti.exceptions").attr("ResultError")).ptr();
    } catch (const std::exception &) {
        return PyExc_RuntimeError;
    }
}
static std::atomic<CheckMode> check_mode{ CheckMode::off };
void check_mode_set(CheckMode mode) { check_mode = mode; }
CheckMode check_mode_get() { return check_mode; }

/* ---- the contents of tensors ---- */
/* Returns the checksum of `sum` and the bytes. Another value of any word changes it. */
static uint64_t bytes_get_checksum(const char *data, size_t bytes, uint64_t sum)
{
    constexpr uint64_t factor = 0x9e3779b97f4a7c15;
    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, data + at, std::min(sizeof word, bytes - at));
        sum = (sum ^ word) * factor;
        sum ^= sum >> 29;
    }
    return sum;
}
/* Returns the checksum of the first `count` tensors, or 0 if one cannot be compared: it is on a device, or its elements
 * lie in memory in an order that the ranks have not compared. */
static uint64_t tensors_get_checksum(const Tensors &tensors, size_t count, bool has_label)
{
    uint64_t sum = 1;
    for (size_t i = 0; i < std::min(count, tensors.size()); i++) {
        const at::Tensor &tensor = tensors[i];
        bool is_whole = tensor.is_contiguous() || (has_label && tensor.is_non_overlapping_and_dense());
        if (!tensor.is_cpu() || tensor.layout() != at::kStrided || !is_whole) return 0;
        sum = bytes_get_checksum(static_cast<const char *>(tensor.const_data_ptr()), tensor.nbytes(), sum);
    }
    return sum ? sum : 1;
}
/* Returns the index of the first NaN, or -1. `infinity`: the bits of infinity in this type. */
template <typename Bits> static int64_t bits_find_nan(const void *data, int64_t count, Bits infinity)
{
    constexpr Bits without_sign = static_cast<Bits>(static_cast<Bits>(~Bits{ 0 }) >> 1);
    const auto *bits = static_cast<const Bits *>(data);
    for (int64_t i = 0; i < count; i++)
        if (static_cast<Bits>(bits[i] & without_sign) > infinity) return i;
    return -1;
}
/* Returns the index of the tensor's first NaN, or -1. */
static int64_t tensor_find_nan(const at::Tensor &given)
{
    if (!given.is_cpu() || given.layout() != at::kStrided) return -1;
    WithoutObservers unobserved;
    bool is_complex = given.is_complex();
    at::Tensor tensor = (is_complex ? at::view_as_real(given) : given).contiguous();
    const void *data = tensor.const_data_ptr();
    int64_t count = tensor.numel(), found = -1;
    switch (tensor.scalar_type()) {
    case at::kHalf: found = bits_find_nan<uint16_t>(data, count, 0x7c00); break;
    case at::kBFloat16: found = bits_find_nan<uint16_t>(data, count, 0x7f80); break;
    case at::kFloat: found = bits_find_nan<uint32_t>(data, count, 0x7f800000); break;
    case at::kDouble: found = bits_find_nan<uint64_t>(data, count, 0x7ff0000000000000); break;
    default: break;
    }
    return is_complex && found > 0 ? found / 2 : found;
}

/* ---- the kinds of calls ---- */
static bool call_reduces(c10d::OpType type)
{
    using c10d::OpType;
    return type == OpType::ALLREDUCE || type == OpType::REDUCE || type == OpType::REDUCE_SCATTER
        || type == OpType::_REDUCE_SCATTER_BASE;
}
/* Returns how many outputs of the call are equal on all ranks. The outputs of all_reduce_norm after the first one
 * differ. */
static size_t call_count_equal_results(c10d::OpType type, const Footprint &footprint)
{
    using c10d::OpType;
    if (type == OpType::ALLREDUCE || type == OpType::BROADCAST) return 1;
    return type == OpType::ALLGATHER || type == OpType::_ALLGATHER_BASE ? footprint.outputs.size() : 0;
}
/* Returns where the input has its first NaN, as text, or "". */
static std::string footprint_find_nan(c10d::OpType type, const Footprint &footprint)
{
    bool is_in_place = type == c10d::OpType::ALLREDUCE || type == c10d::OpType::REDUCE;
    for (const Tensors *tensors : { &footprint.inputs, is_in_place ? &footprint.outputs : &footprint.inputs })
        for (const at::Tensor &tensor : *tensors)
            if (int64_t element = tensor_find_nan(tensor); element >= 0)
                return c10::str(footprint.call(), " of ", tensor.sizes(), " ", type_get_name(tensor.scalar_type()),
                    ", element ", element);
    return "";
}

/* ---- what a rank knows ---- */
uint64_t CheckState::add_call(const char *name, size_t result_tensors, PythonStack stack)
{
    uint64_t operation = ++count_;
    std::lock_guard<std::mutex> lock(mutex_);
    /* The old call moves to the parameter, which is destroyed after the lock is released. */
    KnownCall call{ operation, result_tensors, name, nullptr };
    std::swap(call_at(operation), call);
    std::swap(call_at(operation).stack, stack);
    return operation;
}
void CheckState::add_result(uint64_t operation, const Footprint &footprint, bool has_label)
{
    size_t tensors;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (call_at(operation).operation != operation) return;
        tensors = call_at(operation).result_tensors;
    }
    if (!tensors) return;
    uint64_t checksum = tensors_get_checksum(footprint.outputs, tensors, has_label);
    std::lock_guard<std::mutex> lock(mutex_);
    auto &result = message_.results[operation % CheckMessage::kResults];
    if (result.operation < operation) result = { operation, checksum };
}
void CheckState::add_nan(uint64_t operation, const std::string &place)
{
    std::lock_guard<std::mutex> lock(mutex_);
    if (message_.nan_operation) return;
    message_.nan_operation = operation;
    place.copy(message_.nan_place.data(), message_.nan_place.size() - 1);
}
bool CheckState::looks_for_nan()
{
    std::lock_guard<std::mutex> lock(mutex_);
    return !nan_was_found_ && !message_.nan_operation;
}
CheckMessage CheckState::make_message()
{
    std::lock_guard<std::mutex> lock(mutex_);
    return message_;
}
PythonStack CheckState::find_stack(uint64_t operation)
{
    std::lock_guard<std::mutex> lock(mutex_);
    const KnownCall &call = call_at(operation);
    return call.operation == operation ? call.stack : nullptr;
}

/* ---- judging ---- */
/* Returns ranks as text: "rank 1" or "ranks 0, 2". Names at most eight. */
static std::string ranks_to_text(const std::vector<size_t> &ranks)
{
    constexpr size_t most = 8;
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (size_t i = 0; i < std::min(most, ranks.size()); i++) text += c10::str(i ? ", " : "", ranks[i]);
    return ranks.size() > most ? c10::str(text, " and ", ranks.size() - most, " more") : text;
}
void CheckState::judge_nan(const std::vector<CheckMessage> &of_rank)
{
    if (nan_was_found_) return;
    uint64_t first = 0;
    for (const CheckMessage &one : of_rank)
        if (one.nan_operation && (!first || one.nan_operation < first)) first = one.nan_operation;
    if (!first) return;
    nan_was_found_ = true;
    std::vector<size_t> ranks;
    for (size_t rank = 0; rank < of_rank.size(); rank++)
        if (of_rank[rank].nan_operation == first) ranks.push_back(rank);
    findings_.push_back({ first,
        c10::str("operation ", first, ": the first NaN of this group is in the input of ", ranks_to_text(ranks), ": ",
            of_rank[ranks[0]].nan_place.data(), ". Look for its cause before that line, on ",
            ranks.size() == 1 ? "that rank" : "those ranks", "; TUTTI_DEBUG=warn only warns of it") });
}
/* Compares the results at this place of the messages, once they are of the same operation. */
void CheckState::judge_result(size_t index, const std::vector<CheckMessage> &of_rank)
{
    uint64_t operation = of_rank[0].results[index].operation;
    if (!operation || operation == compared_[index]) return;
    std::map<uint64_t, std::vector<size_t>> ranks_of;
    for (size_t rank = 0; rank < of_rank.size(); rank++) {
        const auto &result = of_rank[rank].results[index];
        if (result.operation != operation) return;
        ranks_of[result.checksum].push_back(rank);
    }
    compared_[index] = operation;
    if (ranks_of.size() == 1 || ranks_of.count(0)) return;
    std::string name = call_at(operation).operation == operation ? call_at(operation).name : "a collective", seen;
    for (const auto &[checksum, ranks] : ranks_of)
        seen +=
            c10::str(seen.empty() ? "" : "; ", ranks_to_text(ranks), ranks.size() == 1 ? " has " : " have ", checksum);
    findings_.push_back({ operation,
        c10::str("operation ", operation, " (", name, "): its results must be equal on all ranks, but their checksums ",
            "differ: ", seen, ". Another thread wrote to the tensor, or the memory of a rank is broken: check the ",
            "threads that use the tensor, and the memory of the host that differs again and again") });
}
void CheckState::judge(const std::vector<CheckMessage> &of_rank)
{
    std::lock_guard<std::mutex> lock(mutex_);
    judge_nan(of_rank);
    for (size_t i = 0; i < CheckMessage::kResults; i++) judge_result(i, of_rank);
}
void CheckState::end_exchange()
{
    std::lock_guard<std::mutex> lock(mutex_);
    open_exchanges_--;
    changed_.notify_all();
}
void CheckState::wait_for_finding()
{
    constexpr auto limit = std::chrono::seconds(1);
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, limit, [this] { return !findings_.empty() || open_exchanges_ == 0; });
}
CheckState::Finding CheckState::take_finding()
{
    std::lock_guard<std::mutex> lock(mutex_);
    if (findings_.empty()) return {};
    Finding first = std::move(findings_.front());
    findings_.erase(findings_.begin());
    return first;
}

/* ---- the checks of a group ---- */
/* An exchange. The state stays until its end. */
struct ResultChecks::Exchange {
    tutti_request request = TUTTI_REQUEST_INIT;
    CheckMessage sent;
    std::vector<CheckMessage> received;
    std::shared_ptr<CheckState> state;
};
uint64_t ResultChecks::begin(Communicator &group, c10d::OpType type, const Footprint &footprint,
    const PythonStack &stack)
{
    std::string text = take_error();
    if (!text.empty()) {
        group.abort();
        throw ResultError(text);
    }
    uint64_t operation = state_->add_call(footprint.call(), call_count_equal_results(type, footprint), stack);
    if (!call_reduces(type) || !state_->looks_for_nan()) return operation;
    std::string nan = footprint_find_nan(type, footprint);
    if (nan.empty()) return operation;
    std::string place = recorder::stack_get_place(stack);
    state_->add_nan(operation, place.empty() ? nan : c10::str(nan, ", called at ", place));
    return operation;
}
void ResultChecks::on_done(tutti_request *request, void *context)
{
    std::unique_ptr<Exchange> exchange(static_cast<Exchange *>(context));
    if (tutti_test(request) == TUTTI_OK) exchange->state->judge(exchange->received);
    exchange->state->end_exchange();
}
void ResultChecks::exchange(bool blocking)
{
    if (communicator_->is_closed() || communicator_->has_failed()) return;
    auto exchange = std::make_unique<Exchange>();
    exchange->sent = state_->make_message();
    exchange->received.resize(static_cast<size_t>(tutti_comm_count(communicator_->get())));
    exchange->state = state_;
    tutti_request &request = exchange->request;
    request.blocking = blocking;
    if (!blocking) {
        request.done = on_done;
        request.context = exchange.get();
        state_->begin_exchange();
    }
    /* on_done() owns an exchange that has started. It may run before the call returns. */
    Exchange *started = exchange.release();
    tutti_status status = tutti_all_gather(&started->sent, started->received.data(), sizeof started->sent, TUTTI_UINT8,
        communicator_->get(), &request);
    if (!blocking && status == TUTTI_OK) return;
    exchange.reset(started);
    if (!blocking) state_->end_exchange();
    signals_throw_raised();
    if (status != TUTTI_OK) return;
    state_->judge(exchange->received);
    std::string text = take_error();
    if (!text.empty()) throw ResultError(text);
}
std::string ResultChecks::take_error()
{
    for (;;) {
        CheckState::Finding finding = state_->take_finding();
        if (finding.text.empty()) return "";
        std::string place = recorder::stack_get_place(state_->find_stack(finding.operation));
        if (!place.empty()) finding.text += c10::str(" (this rank's call is at ", place, ")");
        if (mode_ == CheckMode::raise) return finding.text;
        TORCH_WARN("tutti: ", finding.text);
    }
}
void ResultChecks::report_after_failure(tutti_status status, const std::string &error)
{
    if (communicator_->is_inherited()) return;
    /* A rank that has found something aborts the group. This rank may find the same a little later. */
    if (status == TUTTI_ABORTED) state_->wait_for_finding();
    std::string text = take_error();
    if (!text.empty()) throw ResultError(c10::str(text, ". Then the group failed: ", error));
    /* A rank for which the operation has succeeded may wait for an exchange. */
    communicator_->abort();
}
void ResultChecks::close()
{
    communicator_->close();
    if (communicator_->is_inherited()) return;
    for (CheckState::Finding left = state_->take_finding(); !left.text.empty(); left = state_->take_finding())
        TORCH_WARN("tutti: found by TUTTI_DEBUG when the group ended: ", left.text);
}

} // namespace tutti
