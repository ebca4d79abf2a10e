/* Child processes of tests. */
#include "tests/unit/fake_cuda/children.h"
#include "tests/unit/fake_cuda/layouts.h"
#include <execinfo.h>
#include <sys/socket.h>
#include <sys/wait.h>

char child_said[1 << 16];

void child_apply_settings(const char *settings)
{
    char *text = settings ? strdup(settings) : NULL, *rest = text, *setting;
    while (rest && (setting = strsep(&rest, " "))) putenv(setting);
}
/* Each child closes the other's end, so that it sees when the other ends. */
static pid_t child_start(child_body *body, const char *settings, int peer, int other, int said)
{
    fflush(NULL);
    pid_t child = fork();
    if (child) return child;
    child_apply_settings(settings);
    close(other);
    dup2(said, STDERR_FILENO);
    alarm(600);
    body(peer);
    exit(0);
}
int child_status_code(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : CHILD_KILLED + WTERMSIG(status); }
static int child_await_end(pid_t child)
{
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return child_status_code(status);
}
int children_run(child_body *first, child_body *second, const char *settings)
{
    int peers[2], said = fileno(tmpfile());
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, peers), 0);
    pid_t a = child_start(first, settings, peers[0], peers[1], said);
    pid_t b = second ? child_start(second, settings, peers[1], peers[0], said) : 0;
    close(peers[0]);
    close(peers[1]);
    int status = child_await_end(a), other = b ? child_await_end(b) : 0;
    ssize_t bytes = pread(said, child_said, sizeof child_said - 1, 0);
    child_said[bytes < 0 ? 0 : bytes] = 0;
    close(said);
    return status ? status : other;
}
int child_run(child_body *body, const char *settings) { return children_run(body, NULL, settings); }
void assert_children(child_body *first, child_body *second, const char *settings)
{
    int status = children_run(first, second, settings);
    if (status) fail_msg("a child ended with status %d and said: %s", status, child_said);
}
void assert_child(child_body *body, const char *settings) { assert_children(body, NULL, settings); }
void assert_reported(child_body *body, const char *settings, const char *text)
{
    int status = child_run(body, settings);
    if (status != CHILD_REPORTED || !strstr(child_said, text))
        fail_msg("expected a report with \"%s\"; status %d, said: %s", text, status, child_said);
}

static _Noreturn void child_fail(void)
{
    void *frames[16];
    backtrace_symbols_fd(frames, backtrace(frames, 16), STDERR_FILENO);
    _exit(CHILD_FAILED);
}
void expect_true(bool holds)
{
    if (holds) return;
    fprintf(stderr, "an expectation does not hold\n");
    child_fail();
}
void expect_result(CUresult result, CUresult expected)
{
    if (result == expected) return;
    fprintf(stderr, "a call returned %d, not %d\n", result, expected);
    child_fail();
}
void expect_success(CUresult result) { expect_result(result, CUDA_SUCCESS); }

CUcontext device_use(int device)
{
    CUcontext context;
    expect_success(cuInit(0));
    expect_success(cuDevicePrimaryCtxRetain(&context, device));
    expect_success(cuCtxSetCurrent(context));
    return context;
}
CUstream stream_new(void)
{
    CUstream stream;
    expect_success(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}
CUdeviceptr memory_new(size_t bytes)
{
    CUdeviceptr address;
    expect_success(cuMemAlloc_v2(&address, bytes));
    return address;
}
void *host_new(size_t bytes)
{
    void *host;
    expect_success(cuMemHostAlloc(&host, bytes, CU_MEMHOSTALLOC_PORTABLE));
    return host;
}
uint32_t word_at(CUdeviceptr address)
{
    uint32_t word;
    expect_success(cuCtxSynchronize());
    expect_success(cuMemcpyDtoH_v2(&word, address, sizeof word));
    return word;
}
void peer_send(int peer, const void *bytes, size_t count)
{
    expect_true(send(peer, bytes, count, MSG_NOSIGNAL) == (ssize_t)count);
}
void peer_receive(int peer, void *bytes, size_t count)
{
    expect_true(recv(peer, bytes, count, MSG_WAITALL) == (ssize_t)count);
}
