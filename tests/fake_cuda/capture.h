/* Capture: streams that record operations in a graph instead of running them. */
#pragma once
#include "tests/fake_cuda/calls.h"
#include "tests/fake_cuda/graph_calls.h"
#include "tests/fake_cuda/order.h"

enum { BRANCHES = 16 };
/* Each stream of a capture is a branch; branch 0 is the stream in which it began. A step runs an operation in a branch,
   or records or awaits a mark, which an event is while it is captured. */
enum step_kind { STEP_RUN, STEP_RECORD, STEP_WAIT };
struct step {
    struct step *next;
    enum step_kind kind;
    unsigned branch, mark;
    struct operation *operation;
    struct declared *accesses;
    size_t access_count;
};
/* The steps, in the order of their calls. */
struct CUgraph_st {
    unsigned references, branches, marks;
    size_t operations;
    CUcontext contexts[BRANCHES];
    struct step *first, **last;
};
/* A point of a capture, as an event has it; `capture` is 0 if the event's last record was no capture's. */
struct mark {
    uint64_t capture;
    unsigned number;
};
/* Returns the error of a call that no capture allows at this time, which makes the captures invalid. */
CUresult capture_error(enum call call);
/* Returns the error of a call that needs a stream which does not capture: such a call makes the capture invalid. */
CUresult capture_refuse(CUstream stream);
/* Returns the error of using the legacy stream while a stream captures that is ordered with it. */
CUresult capture_refuse_legacy(CUstream stream);
/* Records an operation if the stream captures, and returns whether it does. */
bool capture_add(CUstream stream, struct operation *operation);
/* Record a mark in a stream, if it captures; make a stream wait for a mark, which adds the stream to the capture. */
bool capture_record(CUstream stream, struct mark *out);
CUresult capture_wait(CUstream stream, struct mark mark);
bool stream_captures(CUstream stream);

/* graphs.c */
void graph_drop(CUgraph graph);
