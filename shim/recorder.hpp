/* The flight recorder keeps the last operations of all groups of this process, to show why ranks wait for one another.
 * Switched off, it costs an operation one check of a field. Switched on, it costs a lock, some allocations and, if
 * requested, the Python stack, which needs the GIL.
 *
 * Invariants: all ranks of a group give a collective the same number, so a refused operation gets no number.
 * record_set_outcome() waits for the lock only, because the core's progress thread calls it. */
#pragma once
#include "include/tutti.h"
#include <ATen/core/Tensor.h>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/profiler/combined_traceback.h>
#include <vector>

namespace tutti {

/* The numbers of one call, which coalesced operations share. */
struct RecordedNumbers {
    /* How many collectives and messages (sends and receives) the group has had, up to and including this call. */
    uint64_t collective = 0;
    uint64_t message = 0;
    /* The numbers have been assigned. */
    bool taken = false;
    /* The first operation of the call is a send or a receive. */
    bool message_first = false;
    /* The number of the group in the recorder. */
    size_t group = 0;
};
/* The sizes and torch's type names of the input tensors, or of the output tensors, of one operation. */
struct RecordedTensors {
    std::vector<std::vector<int64_t>> sizes;
    std::vector<const char *> types;
    RecordedTensors() = default;
    explicit RecordedTensors(const std::vector<at::Tensor> &tensors);
};
/* One operation in the recorder. */
struct Record {
    uint64_t id = 0; /* from 1 in this process */
    /* The number of the group in the recorder. In a Recording, the index of the group in Recording::groups. */
    size_t group = 0;
    /* The number of the operation in its group, from 1. Coalesced operations are counted one by one. */
    uint64_t operation = 0;
    RecordedNumbers numbers;
    /* Examples: "tutti:all_reduce", "tutti:send 0->1". */
    std::string name;
    /* The operation is a send or a receive. */
    bool is_message = false;
    /* The numbers of the call were assigned for this operation. Later coalesced operations share them. */
    bool counted = false;
    /* The operation is part of a coalesced call. The end of the call has a record of its own. */
    bool is_part = false;
    /* The core has refused the operation, so the other ranks do not have it. */
    bool refused = false;
    /* The operation has failed and has broken its group. */
    bool fatal = false;
    RecordedTensors inputs, outputs;
    /* The tag of the options block, or empty. */
    std::string tag;
    int64_t timeout_ms = 0;
    /* Nanoseconds since 1970. ended_ns is 0 while the operation runs. */
    int64_t began_ns = 0, ended_ns = 0;
    tutti_status outcome = TUTTI_IN_PROGRESS;
    /* The text of the error, empty without one. */
    std::string text;
    /* The Python stack of the call, or null. */
    std::shared_ptr<torch::CapturedTraceback> stack;
};
struct RecordedGroup {
    /* The group, or null after it has been destroyed. */
    const c10d::Backend *live = nullptr;
    std::string name, description;
    std::vector<uint64_t> members; /* global ranks */
    /* The numbers of calls and operations so far. `completed` is the number of the last successful collective. */
    uint64_t collectives = 0, messages = 0, operations = 0, completed = 0;
    /* The id of the group's newest record. */
    uint64_t newest = 0;
    /* The group has failed, and `report` has been called for it. */
    bool failed = false;
};
/* A copy of what the recorder has. The records are in the order of their ids. */
struct Recording {
    std::vector<RecordedGroup> groups;
    std::vector<Record> records;
};

namespace recorder {

using Report = void (*)(const std::string &text);
/* Returns the line of the program in a Python stack, such as "code/train.py:9 (step)", or "". */
using Place = std::string (*)(const std::shared_ptr<torch::CapturedTraceback> &stack);
/* Starts to keep the last `capacity` operations, with Python stacks if `stacks` is true. `report` gets the error text
 * once for each group that fails, on the thread that is about to raise the error. A second call has no effect. */
void recording_start(size_t capacity, bool stacks, Report report, Place place);
bool recording_is_on();
/* Set and return the rank of this process in its newest default group. It is -1 before the first one. */
void rank_set(int rank);
int rank_get();

/* Adds a group and returns its number. `members`: its global ranks. The recorder keeps at most `capacity` destroyed
 * groups, and every group that still has records. */
size_t recorded_group_add(const c10d::Backend *group, std::string name, std::vector<uint64_t> members);
/* Records that the group with this number has been destroyed. Its records stay. */
void recorded_group_mark_gone(size_t group);

/* Returns the Python stack of this thread, or null if stacks are switched off. It takes the GIL, so the caller must not
 * hold a lock. */
std::shared_ptr<torch::CapturedTraceback> python_stack_capture();
/* Return the line of the program that made the call of a stack or a record, or "" if it is unknown. They take the GIL,
 * so the caller must not hold a lock. */
std::string stack_get_place(const std::shared_ptr<torch::CapturedTraceback> &stack);
std::string record_get_place(uint64_t id);
/* Adds the record of an operation and returns its id, or 0 if its group is forgotten. Assigns `numbers`, those of the
 * call, unless an earlier operation of the call has done so. */
uint64_t record_add_operation(Record record, RecordedNumbers &numbers);
/* Adds the record that ends a coalesced call, which torch's reader expects. */
uint64_t record_add_coalesced_end(RecordedNumbers &numbers);
/* Marks a record whose operation the core has refused, and takes back its numbers. */
void record_mark_refused(uint64_t id, RecordedNumbers &numbers);
/* Stores how an operation ended. `alone`: its failure leaves the group intact. `source`: the sender of a received
 * message. An id of 0, or of a record that was overwritten, is ignored. */
void record_set_outcome(uint64_t id, tutti_status outcome, bool alone, const std::string &text, int source);
/* Calls `report` if the operation has broken its group and no report was made for the group. The caller then raises the
 * error. An id of 0 is ignored. */
void record_report_broken_group(uint64_t id);
/* Copies all groups, and the operations among the newest `max_records` records that were not refused. */
Recording recording_copy_newest(size_t max_records);

} // namespace recorder
} // namespace tutti
