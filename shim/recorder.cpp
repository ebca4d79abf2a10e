/* The ring of records and its lock. A thread builds a record before it takes the lock, and frees the overwritten record
 * after it has released the lock. */
#include "shim/recorder.hpp"
#include "shim/communicator.hpp"
#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <pthread.h>

namespace tutti {

RecordedTensors::RecordedTensors(const std::vector<at::Tensor> &tensors)
{
    for (const at::Tensor &tensor : tensors) {
        sizes.push_back(tensor.sizes().vec());
        types.push_back(c10::toString(tensor.scalar_type()));
    }
}

namespace recorder {

/* All that the recorder keeps. */
struct Ring {
    std::mutex mutex;
    /* Keys are the groups' numbers in the order of creation. */
    std::map<size_t, RecordedGroup> groups;
    size_t groups_made = 0;
    /* The numbers of the destroyed groups that are kept, in the order of their ends. */
    std::deque<size_t> groups_gone;
    /* The record with id i is at index (i - 1) % capacity. `last` is the highest id. */
    std::vector<Record> records;
    size_t capacity = 0;
    uint64_t last = 0;
    bool stacks = false;
    Report report = nullptr;
    Place place = nullptr;
    /* Returns null for id 0 and for a record that has been overwritten. The caller holds the lock. */
    Record *find(uint64_t id)
    {
        if (!id || id > last || last - id >= capacity) return nullptr;
        return &records[(id - 1) % capacity];
    }
    /* Forgets destroyed groups without records until at most `capacity` destroyed groups are kept. The caller holds the
     * lock. */
    void drop_groups()
    {
        while (groups_gone.size() > capacity) {
            auto has_no_record = [this](size_t group) { return !find(groups.at(group).newest); };
            /* The ring has at most `capacity` records, so at least one of these groups has no record. */
            auto first = std::find_if(groups_gone.begin(), groups_gone.end(), has_no_record);
            groups.erase(*first);
            groups_gone.erase(first);
        }
    }
};
/* The ring is never destroyed, because threads may outlive main(). */
static Ring &recorder_ring_get()
{
    static auto *the_ring = new Ring;
    return *the_ring;
}
/* Returns the nanoseconds since 1970. */
static int64_t clock_now_ns()
{
    return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}
void recording_start(size_t capacity, bool stacks, Report report, Place place)
{
    std::lock_guard<std::mutex> lock(recorder_ring_get().mutex);
    if (recorder_ring_get().capacity) return;
    recorder_ring_get().capacity = capacity;
    recorder_ring_get().stacks = stacks;
    recorder_ring_get().report = report;
    recorder_ring_get().place = place;
    /* The lock is held during a fork, so that no thread that the child lacks can hold it. */
    pthread_atfork([] { recorder_ring_get().mutex.lock(); }, [] { recorder_ring_get().mutex.unlock(); },
        [] { recorder_ring_get().mutex.unlock(); });
}
bool recording_is_on()
{
    std::lock_guard<std::mutex> lock(recorder_ring_get().mutex);
    return recorder_ring_get().capacity > 0;
}

static std::atomic<int> newest_rank{ -1 };
void rank_set(int rank) { newest_rank = rank; }
int rank_get() { return newest_rank; }

/* ---- groups ---- */
/* Adds a group to the recorder and returns its number. */
size_t recorded_group_add(const c10d::Backend *group, std::string name, std::vector<uint64_t> members)
{
    RecordedGroup made;
    made.live = group;
    made.name = std::move(name);
    made.members = std::move(members);
    std::lock_guard<std::mutex> lock(recorder_ring_get().mutex);
    recorder_ring_get().groups.emplace(recorder_ring_get().groups_made, std::move(made));
    return recorder_ring_get().groups_made++;
}
/* Records that a group was destroyed. Its records stay until newer ones replace them. */
void recorded_group_mark_gone(size_t group)
{
    std::lock_guard<std::mutex> lock(recorder_ring_get().mutex);
    RecordedGroup &gone = recorder_ring_get().groups.at(group);
    gone.description = gone.live->getGroupDesc();
    gone.live = nullptr;
    recorder_ring_get().groups_gone.push_back(group);
    recorder_ring_get().drop_groups();
}

/* ---- operations ---- */
std::shared_ptr<torch::CapturedTraceback> python_stack_capture()
{
    return recorder_ring_get().stacks ? torch::CapturedTraceback::gather(true, false, false) : nullptr;
}
std::string stack_get_place(const std::shared_ptr<torch::CapturedTraceback> &stack)
{
    return stack ? recorder_ring_get().place(stack) : "";
}
std::string record_get_place(uint64_t id)
{
    std::shared_ptr<torch::CapturedTraceback> stack;
    {
        std::lock_guard<std::mutex> lock(recorder_ring_get().mutex);
        if (const Record *record = recorder_ring_get().find(id)) stack = record->stack;
    }
    return stack_get_place(stack);
}
/* Adds an operation to the ring and returns its id, or 0 if its group is forgotten. `numbers` are those of its call,
 * which the operations of a coalesced call share. The first of these operations assigns them. */
uint64_t record_add_operation(Record record, RecordedNumbers &numbers)
{
    record.began_ns = clock_now_ns();
    std::lock_guard<std::mutex> lock(recorder_ring_get().mutex);
    auto known = recorder_ring_get().groups.find(record.group);
    /* A coalesced call may end long after its group. */
    if (known == recorder_ring_get().groups.end()) return 0;
    RecordedGroup &group = known->second;
    record.counted = !numbers.taken;
    if (record.counted) {
        ++(record.is_message ? group.messages : group.collectives);
        numbers = { group.collectives, group.messages, true, record.is_message, record.group };
    }
    record.numbers = numbers;
    record.operation = ++group.operations;
    record.id = group.newest = ++recorder_ring_get().last;
    if (recorder_ring_get().records.size() < recorder_ring_get().capacity) recorder_ring_get().records.emplace_back();
    /* The old record moves to the parameter, which is destroyed after the lock is released. */
    std::swap(*recorder_ring_get().find(record.id), record);
    return recorder_ring_get().last;
}
/* Adds the record that stands for a whole coalesced call. */
uint64_t record_add_coalesced_end(RecordedNumbers &numbers)
{
    Record record;
    record.group = numbers.group;
    record.name = "tutti:coalesced";
    record.is_message = numbers.message_first;
    return record_add_operation(std::move(record), numbers);
}
/* Marks an operation that the core has refused, and takes back its numbers. */
void record_mark_refused(uint64_t id, RecordedNumbers &numbers)
{
    std::lock_guard<std::mutex> lock(recorder_ring_get().mutex);
    Record *record = recorder_ring_get().find(id);
    if (!record) return;
    record->refused = true;
    if (!record->counted) return;
    RecordedGroup &group = recorder_ring_get().groups.at(record->group);
    --(record->is_message ? group.messages : group.collectives);
    numbers.taken = false;
}
/* Stores how an operation ended. `alone`: its failure leaves the group intact. `source`: the sender of a message that
 * was received from any rank. */
void record_set_outcome(uint64_t id, tutti_status outcome, bool alone, const std::string &text, int source)
{
    std::lock_guard<std::mutex> lock(recorder_ring_get().mutex);
    Record *record = recorder_ring_get().find(id);
    if (!record || record->ended_ns) return;
    RecordedGroup &group = recorder_ring_get().groups.at(record->group);
    record->outcome = outcome;
    record->text = text;
    record->ended_ns = clock_now_ns();
    record->fatal = outcome < TUTTI_OK && !alone && outcome != TUTTI_ABORTED && outcome != TUTTI_FORKED;
    if (outcome != TUTTI_OK) return;
    if (!record->is_message && !record->is_part)
        group.completed = std::max(group.completed, record->numbers.collective);
    if (size_t any = record->name.rfind("<-any"); any != std::string::npos)
        record->name.replace(any, std::string::npos, "<-" + std::to_string(source));
}
/* Reports the operation if it is the first that has broken its group. Calls `report` without the lock, because that
 * runs Python. */
void record_report_broken_group(uint64_t id)
{
    std::string text;
    {
        std::lock_guard<std::mutex> lock(recorder_ring_get().mutex);
        Record *record = recorder_ring_get().find(id);
        if (!record || !record->fatal) return;
        if (std::exchange(recorder_ring_get().groups.at(record->group).failed, true)) return;
        text = record->text;
    }
    recorder_ring_get().report(text);
}
/* Copies all groups, and the operations among the newest `max_records` records that were not refused. */
Recording recording_copy_newest(size_t max_records)
{
    std::lock_guard<std::mutex> lock(recorder_ring_get().mutex);
    Recording all;
    std::map<size_t, size_t> index_of;
    for (const auto &[number, group] : recorder_ring_get().groups) {
        index_of[number] = all.groups.size();
        all.groups.push_back(group);
        if (group.live) all.groups.back().description = group.live->getGroupDesc();
    }
    for (uint64_t id = recorder_ring_get().last - std::min(max_records, recorder_ring_get().records.size()) + 1;
        id <= recorder_ring_get().last; id++) {
        if (recorder_ring_get().find(id)->refused) continue;
        all.records.push_back(*recorder_ring_get().find(id));
        all.records.back().group = index_of.at(all.records.back().group);
    }
    return all;
}

} // namespace recorder
} // namespace tutti
