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
        types.push_back(tensor.scalar_type());
    }
}

namespace recorder {

struct Ring {
    std::mutex mutex;
    /* Keys are the groups' numbers in the order of creation. */
    std::map<size_t, RecordedGroup> groups;
    size_t groups_made = 0;
    std::deque<size_t> groups_gone;
    /* The record with id i is at index (i - 1) % capacity. `last` is the highest id. */
    std::vector<Record> records;
    size_t capacity = 0;
    uint64_t last = 0;
    bool stacks = false;
    Report report = nullptr;
    /* Returns null for a record that has been overwritten. The caller holds the lock, here and in drop_groups(). */
    Record *find(uint64_t id)
    {
        if (!id || id > last || last - id >= capacity) return nullptr;
        return &records[(id - 1) % capacity];
    }
    void drop_groups()
    {
        while (groups_gone.size() > capacity) {
            auto silent = [this](size_t group) { return !find(groups.at(group).newest); };
            /* The ring has at most `capacity` records, so at least one of the groups has none. */
            auto first = std::find_if(groups_gone.begin(), groups_gone.end(), silent);
            groups.erase(*first);
            groups_gone.erase(first);
        }
    }
};
/* The ring is never destroyed, because threads may outlive main(). */
static Ring &ring()
{
    static auto *the_ring = new Ring;
    return *the_ring;
}
static int64_t now_ns()
{
    return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}
void start(size_t capacity, bool stacks, Report report)
{
    std::lock_guard<std::mutex> lock(ring().mutex);
    if (ring().capacity) return;
    ring().capacity = capacity;
    ring().stacks = stacks;
    ring().report = report;
    /* The lock is held during a fork, so that no thread that the child lacks can hold it. */
    pthread_atfork([] { ring().mutex.lock(); }, [] { ring().mutex.unlock(); }, [] { ring().mutex.unlock(); });
}
bool on()
{
    std::lock_guard<std::mutex> lock(ring().mutex);
    return ring().capacity > 0;
}

/* ---- groups ---- */
size_t join(const c10d::Backend *group, std::string name, std::vector<uint64_t> members)
{
    RecordedGroup made;
    made.live = group;
    made.name = std::move(name);
    made.members = std::move(members);
    std::lock_guard<std::mutex> lock(ring().mutex);
    ring().groups.emplace(ring().groups_made, std::move(made));
    return ring().groups_made++;
}
void leave(size_t group)
{
    std::lock_guard<std::mutex> lock(ring().mutex);
    RecordedGroup &left = ring().groups.at(group);
    left.description = left.live->getGroupDesc();
    left.live = nullptr;
    ring().groups_gone.push_back(group);
    ring().drop_groups();
}

/* ---- operations ---- */
std::shared_ptr<torch::CapturedTraceback> stack()
{
    return ring().stacks ? torch::CapturedTraceback::gather(true, false, false) : nullptr;
}
uint64_t begin(Record record, RecordedNumbers &numbers)
{
    record.began_ns = now_ns();
    std::lock_guard<std::mutex> lock(ring().mutex);
    auto known = ring().groups.find(record.group);
    /* A coalesced call may end long after its group. */
    if (known == ring().groups.end()) return 0;
    RecordedGroup &group = known->second;
    record.counted = !numbers.taken;
    if (record.counted) {
        ++(record.message ? group.messages : group.collectives);
        numbers = { group.collectives, group.messages, true, record.message, record.group };
    }
    record.numbers = numbers;
    record.operation = ++group.operations;
    record.id = group.newest = ++ring().last;
    if (ring().records.size() < ring().capacity) ring().records.emplace_back();
    /* The old record moves to the parameter, which is destroyed after the lock is released. */
    std::swap(*ring().find(record.id), record);
    return ring().last;
}
uint64_t begin_end(RecordedNumbers &numbers)
{
    Record record;
    record.group = numbers.group;
    record.name = "tutti:coalesced";
    record.message = numbers.message_first;
    return begin(std::move(record), numbers);
}
void refuse(uint64_t id, RecordedNumbers &numbers)
{
    std::lock_guard<std::mutex> lock(ring().mutex);
    Record *record = ring().find(id);
    if (!record) return;
    record->refused = true;
    if (!record->counted) return;
    RecordedGroup &group = ring().groups.at(record->group);
    --(record->message ? group.messages : group.collectives);
    numbers.taken = false;
}
void end(uint64_t id, tutti_status outcome, bool alone, const std::string &text, int source)
{
    std::lock_guard<std::mutex> lock(ring().mutex);
    Record *record = ring().find(id);
    if (!record || record->ended_ns) return;
    RecordedGroup &group = ring().groups.at(record->group);
    record->outcome = outcome;
    record->text = text;
    record->ended_ns = now_ns();
    record->fatal = outcome < TUTTI_OK && !alone && outcome != TUTTI_ABORTED && outcome != TUTTI_FORKED;
    if (outcome != TUTTI_OK) return;
    if (!record->message && !record->part) group.completed = std::max(group.completed, record->numbers.collective);
    if (size_t any = record->name.rfind("<-any"); any != std::string::npos)
        record->name.replace(any, std::string::npos, "<-" + std::to_string(source));
}
void tell(uint64_t id)
{
    std::string text;
    {
        std::lock_guard<std::mutex> lock(ring().mutex);
        Record *record = ring().find(id);
        if (!record || !record->fatal) return;
        if (std::exchange(ring().groups.at(record->group).failed, true)) return;
        text = record->text;
    }
    ring().report(text);
}
Recording copy(size_t most)
{
    std::lock_guard<std::mutex> lock(ring().mutex);
    Recording all;
    std::map<size_t, size_t> place;
    for (const auto &[number, group] : ring().groups) {
        place[number] = all.groups.size();
        all.groups.push_back(group);
        if (group.live) all.groups.back().description = group.live->getGroupDesc();
    }
    for (uint64_t id = ring().last - std::min(most, ring().records.size()) + 1; id <= ring().last; id++) {
        if (ring().find(id)->refused) continue;
        all.records.push_back(*ring().find(id));
        all.records.back().group = place.at(all.records.back().group);
    }
    return all;
}

} // namespace recorder
} // namespace tutti
