/* Ranks as processes. All use one mapping of shared memory, because the fake's table of words only grows. */
#include "tests/unit/streams/ranks.h"
#include "tests/unit/cuda_kernels/twin.h"
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

static struct shared {
    struct stream_address addresses[RANKS_MOST];
    pid_t processes[RANKS_MOST];
    _Atomic int arrivals;
} *shared;
static void *words;
enum { SLOT_BYTES = 1 << 20, PAUSE_US = 100, CHILD_SECONDS = 600 };

static void *memory_map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    return memory;
}
static void shared_reset(void)
{
    if (!shared) shared = memory_map(sizeof *shared);
    if (!words) words = memory_map(stream_words_count_bytes(RANKS_MOST));
    memset(shared, 0, sizeof *shared);
    memset(words, 0, stream_words_count_bytes(RANKS_MOST));
}
void ranks_meet(const struct stream_rank *rank)
{
    int turn = atomic_fetch_add(&shared->arrivals, 1) / rank->ranks;
    while (atomic_load(&shared->arrivals) < (turn + 1) * rank->ranks) usleep(PAUSE_US);
}
void rank_await_end(int rank)
{
    while (!(kill(shared->processes[rank], 0) && errno == ESRCH)) usleep(PAUSE_US);
}
static void expect_ok(tutti_status status)
{
    if (status) fprintf(stderr, "status %d: %s\n", status, status_detail());
    expect_true(status == TUTTI_OK);
}
static void rank_open(struct stream_rank *rank, const struct ranks_setup *setup)
{
    struct stream_settings settings = {
        .rank = rank->rank,
        .ranks = rank->ranks,
        .device = rank->rank % setup->devices,
        .slot_bytes = setup->slot_bytes ? setup->slot_bytes : SLOT_BYTES,
        .words = words,
        .image = "image",
    };
    struct layout *layout;
    expect_ok(cuda_driver_load(FAKE_CUDA));
    twin_register();
    expect_ok(layout_create(NULL, rank->ranks, &layout));
    rank->layout = layout;
    expect_ok(cuda_context_enter(settings.device));
    expect_ok(stream_site_create(&settings, &rank->site));
    expect_ok(stream_site_export_address(rank->site, &shared->addresses[rank->rank]));
    ranks_meet(rank);
    expect_ok(stream_site_connect_peers(rank->site, shared->addresses));
    ranks_meet(rank);
}
void rank_close(struct stream_rank *rank)
{
    expect_success(cuCtxSynchronize());
    ranks_meet(rank);
    stream_site_disconnect_peers(rank->site);
    ranks_meet(rank);
    stream_site_destroy(rank->site);
    expect_true(fake_cuda_reports() == 0);
}
static pid_t rank_start(const struct ranks_setup *setup, int number, rank_body *body, int said)
{
    fflush(NULL);
    pid_t child = fork();
    if (child) return child;
    struct stream_rank rank = { .rank = number, .ranks = setup->ranks };
    child_apply_settings(setup->settings);
    dup2(said, STDERR_FILENO);
    alarm(CHILD_SECONDS);
    shared->processes[number] = getpid();
    rank_open(&rank, setup);
    body(&rank);
    exit(0);
}
/* Kills the other ranks after the first one has failed, because they would wait for it. */
int ranks_run(const struct ranks_setup *setup, rank_body *body)
{
    FILE *file = tmpfile();
    int said = fileno(file), first = 0, status;
    pid_t children[RANKS_MOST];
    shared_reset();
    for (int i = 0; i < setup->ranks; i++) children[i] = rank_start(setup, i, body, said);
    for (int left = setup->ranks; left; left--) {
        pid_t ended = wait(&status);
        int code = child_status_code(status);
        for (int i = 0; i < setup->ranks; i++) {
            if (children[i] == ended) children[i] = 0;
            else if (code && !first && children[i]) kill(children[i], SIGKILL);
        }
        if (!first) first = code;
    }
    ssize_t bytes = pread(said, child_said, sizeof child_said - 1, 0);
    child_said[bytes < 0 ? 0 : bytes] = 0;
    fclose(file);
    return first;
}
void assert_ranks(const struct ranks_setup *setup, rank_body *body)
{
    int status = ranks_run(setup, body);
    if (status)
        fail_msg("%d ranks on %d devices (%s): a rank ended with status %d and said: %s", setup->ranks, setup->devices,
            setup->settings ? setup->settings : "", status, child_said);
}
tutti_status site_poll_once(struct stream_site *site)
{
    int rank, finder;
    tutti_status status = stream_site_poll_group(site, &rank, &finder);
    return rank < 0 ? status : stream_site_check_group(site);
}
tutti_status site_test_operation(struct stream_site *site, uint64_t number)
{
    if (number <= stream_site_get_completed_number(site)) return TUTTI_OK;
    TRY(site_poll_once(site));
    return number <= stream_site_get_completed_number(site) ? TUTTI_OK : TUTTI_IN_PROGRESS;
}
tutti_status rank_wait(struct stream_rank *rank, uint64_t number)
{
    tutti_status status;
    while ((status = site_test_operation(rank->site, number)) == TUTTI_IN_PROGRESS) usleep(PAUSE_US);
    return status;
}
void rank_drain(struct stream_rank *rank)
{
    while (!stream_site_is_idle(rank->site)) {
        site_poll_once(rank->site);
        usleep(PAUSE_US);
    }
    expect_success(cuCtxSynchronize());
}
void expect_detail(const char *text)
{
    if (strstr(status_detail(), text)) return;
    fprintf(stderr, "the error lacks \"%s\": %s\n", text, status_detail());
    expect_true(false);
}
uint64_t rank_enqueue(struct stream_rank *rank, const struct stream_operation *operation, CUstream stream)
{
    uint64_t number = 0;
    tutti_status status;
    while ((status = stream_site_enqueue_operation(rank->site, operation, stream, &number)) == TUTTI_IN_PROGRESS)
        usleep(PAUSE_US);
    expect_ok(status);
    return number;
}
void rank_plan(const struct stream_rank *rank, const struct algorithm *algorithm, int root, int slots, struct plan *out)
{
    *out = (struct plan){
        .algorithm = algorithm,
        .layout = rank->layout,
        .root = root,
        .slots = slots,
        .in_place = algorithm->collective == ALL_TO_ALL ? NULL : mask_all,
    };
    if (plan_build_staging(out)) fprintf(stderr, "%s: %s\n", algorithm->name, out->error);
    expect_true(out->count == rank->ranks && !out->error[0]);
}
