/* Communicators that are open for CUDA streams, over the fake driver. Ranks are processes, because each needs a driver
   of its own. The results of calls on streams are compared with those of the same calls on the host. */
#pragma once
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <stdatomic.h>

enum { CUDA_STREAMS = 2 };
/* A rank, and its own streams. */
struct cuda_rank {
    struct rank *me;
    CUstream streams[CUDA_STREAMS];
};
typedef void cuda_body(struct cuda_rank *rank);
/* The settings of tests in which ranks fail, because then they access slots without order. */
#define UNORDERED "FAKE_CUDA_ORDER=0 FAKE_CUDA_DELAY=shuffled FAKE_CUDA_DELAY_US=300"
/* Runs `body` on `size` processes, each with a communicator that is open for CUDA. The devices are used in turn.
   `settings`: those of the fake and of tutti, as in "A=1 B=2", or NULL. Returns how many processes have not ended
   well. */
int cuda_ranks_run(int size, const char *settings, cuda_body *body);
/* Asserts that all end well. */
void assert_cuda_ranks(int size, const char *settings, cuda_body *body);
/* Does the same, but does not open the communicators. */
void assert_cuda_ranks_unopened(int size, const char *settings, cuda_body *body);
/* The same with ranks that are threads of one process. */
void assert_cuda_threads(int size, const char *settings, cuda_body *body);
void assert_cuda_threads_unopened(int size, const char *settings, cuda_body *body);
/* Opens a communicator on the device of this rank. */
void cuda_rank_open(struct cuda_rank *rank);
/* Makes the context of the rank's device current, and creates its streams. */
void cuda_rank_use_device(struct cuda_rank *rank);

/* Makes a stream wait for a word of the host, which is returned; a 1 in it lets the stream go on. */
_Atomic uint32_t *cuda_stream_block(CUstream stream);
/* Requires that the streams of the rank have ended, and that its device works. */
void cuda_rank_check_device(struct cuda_rank *rank);

/* ---- calls ---- */
/* A call of all ranks. `collective` is a name of tutti_collective_name. `uneven`: the call ends in _v, and parts have
   between 0 and 1.5 times `count` elements, the last rank's first. */
struct cuda_call {
    const char *collective, *algorithm;
    tutti_dtype dtype;
    tutti_op op;
    size_t count;
    int root;
    bool in_place, uneven;
    /* On stream number `stream` of the rank. */
    int stream;
};
/* Returns the elements that rank `from` sends to rank `to`, or that are the part of a rank if both are it. */
size_t cuda_call_count(const struct cuda_call *call, int from, int to);
/* A call that runs, with its tensors on the device. */
struct cuda_run {
    struct cuda_call call;
    CUdeviceptr memory, input, output;
    size_t input_bytes, output_bytes;
    unsigned char *sent;
    tutti_request request;
};
/* Allocates and fills the tensors. */
void cuda_run_prepare(struct cuda_rank *rank, const struct cuda_call *call, struct cuda_run *out);
/* Calls the operation with the request of the run, which the caller may have changed. */
tutti_status cuda_run_start(struct cuda_rank *rank, struct cuda_run *run);
/* Waits for the end, and returns the result. */
tutti_status cuda_run_wait(struct cuda_run *run);
/* Compares the output with that of a call on the host, which all ranks make. */
void cuda_run_check(struct cuda_rank *rank, const struct cuda_run *run);
/* Waits for the device and frees the tensors. */
void cuda_run_free(struct cuda_run *run);
/* Does all of it, and requires success. */
void cuda_call_and_check(struct cuda_rank *rank, const struct cuda_call *call);
/* Requires that the last error has this text. */
#define REQUIRE_TEXT(text) REQUIRE(strstr(tutti_get_last_error(), text))
/* Returns a sum of `count` numbers of float32 on a stream. */
static inline struct cuda_call cuda_call_sum(size_t count, int stream)
{
    return (struct cuda_call){ .collective = "allreduce", .dtype = TUTTI_FLOAT32, .count = count, .stream = stream };
}
