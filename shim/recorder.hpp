/* The flight recorder: what the last operations of this process were, of all its groups, for whoever wants to know why
 * ranks wait for one another. Off, it costs an operation a look at a field of its group; on, a lock, some allocations
 * and, if asked for, the Python stack, for which the GIL is taken. What must stay true: all ranks of a group number its
 * collectives alike, whatever else they do, so an operation that the core refused is not one; and what ends an
 * operation waits for nothing but the lock, because that is also done on the core's progress thread. */
#pragma once
#include "include/tutti.h"
#include <ATen/core/Tensor.h>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/profiler/combined_traceback.h>
#include <vector>

namespace tutti {

/* Of one call: operations that are coalesced share it. Counted from 1, for each group on its own. */
struct RecordedNumbers {
    uint64_t collective = 0; /* up to and with this one */
    uint64_t message = 0;    /* the same of sends and receives */
    bool taken = false;
    bool message_first = false; /* the first operation was a send or a receive */
    size_t group = 0;
};
/* What describes the tensors of one side. */
struct RecordedTensors {
    std::vector<std::vector<int64_t>> sizes;
    std::vector<at::ScalarType> types;
    RecordedTensors() = default;
    explicit RecordedTensors(const std::vector<at::Tensor> &tensors);
};
struct Record {
    uint64_t id = 0;        /* 1, 2, … in this process */
    size_t group = 0;       /* in Recording::groups */
    uint64_t operation = 0; /* of the group, each of those that are coalesced for itself */
    RecordedNumbers numbers;
    std::string name;       /* "tutti:all_reduce", "tutti:send 0->1" */
    bool message = false;   /* it is a send or a receive */
    bool counted = false;   /* the numbers are those of this one, not of an earlier one of its call */
    bool part = false;      /* of a coalesced call, whose end has a record too */
    bool refused = false;   /* the call raised and nothing was sent: the other ranks know of no such operation */
    bool fatal = false;     /* it has failed, and its group with it */
    RecordedTensors inputs, outputs;
    int64_t timeout_ms = 0;
    int64_t began_ns = 0, ended_ns = 0; /* since 1970; ended: 0 while it runs */
    tutti_status outcome = TUTTI_IN_PROGRESS;
    std::string text;       /* why it failed */
    std::shared_ptr<torch::CapturedTraceback> stack;
};
struct RecordedGroup {
    const c10d::Backend *live = nullptr; /* null: it is gone */
    std::string name, description;
    std::vector<uint64_t> members;       /* ranks of the program */
    uint64_t collectives = 0, messages = 0, operations = 0, completed = 0;
    uint64_t newest = 0; /* record */
    bool failed = false; /* and `report` was called for it */
};
struct Recording {
    std::vector<RecordedGroup> groups;
    std::vector<Record> records; /* the oldest first */
};

namespace recorder {

/* Called with the error's text. */
using Report = void (*)(const std::string &text);
/* From now on the last `capacity` operations are kept. `report` is called once for each group that fails, by a thread
 * that is about to tell the program. */
void start(size_t capacity, bool stacks, Report report);
bool on();

/* A group; what is returned stands for it from then on. Of groups that are gone, as many are known as operations are
 * kept, and those whose operations are. */
size_t join(const c10d::Backend *group, std::string name, std::vector<uint64_t> members);
void leave(size_t group);

/* The Python stack of this thread, if stacks are kept: takes the GIL, so hold nothing that others wait for. */
std::shared_ptr<torch::CapturedTraceback> stack();
/* Numbers it, and returns its id. */
uint64_t begin(Record record, RecordedNumbers &numbers);
/* The same for the end of a coalesced call, which torch's reader looks for. */
uint64_t begin_end(RecordedNumbers &numbers);
/* What has just begun was refused: it was no operation, and has no number. */
void refuse(uint64_t id, RecordedNumbers &numbers);
/* alone: if it failed, its group did not. source: a receive's sender. */
void end(uint64_t id, tutti_status outcome, bool alone, const std::string &text, int source);
/* The program is about to learn that this one (0: it is not recorded) failed, or that it has aborted it itself. */
void tell(uint64_t id);
/* The last so many records, of those that are kept. */
Recording copy(size_t most);

} // namespace recorder
} // namespace tutti
