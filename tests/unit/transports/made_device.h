/* A device in place of an RDMA device: it keeps the first word of each page that is registered with it. One file of a
   test program includes this header, and sets `page`. */
#pragma once
#include "backend/transports/verbs/memory/registration.h"
#include <errno.h>
#include <stdlib.h>

struct region {
    struct ibv_mr mr;
    int access;
    uint64_t words[];
};
static struct ibv_device device = { .name = "made0" };
static struct ibv_context context = { .device = &device };
static struct ibv_pd domain = { .context = &context };
/* The number of regions, the calls of ibv_reg_mr since asked_since, and the arguments of the last call. */
static _Atomic int regions, asked, last_access, last_descriptor;
/* limit: the bytes that may be registered, as RLIMIT_MEMLOCK; 0: no limit. */
static _Atomic size_t registered_bytes, limit;
/* Memory that the device refuses to register for writing. */
static void *read_only;
static size_t page;
static const char *device_name(struct ibv_device *d) { return d->name; }
static struct ibv_mr *register_memory(struct ibv_pd *pd, void *at, size_t bytes, int access)
{
    size_t pages = bytes / page;
    asked++;
    last_access = access;
    if (at == read_only && access & IBV_ACCESS_LOCAL_WRITE) { errno = EFAULT; return NULL; }
    if (limit && registered_bytes + bytes > limit) { errno = ENOMEM; return NULL; }
    struct region *r = malloc(sizeof *r + pages * sizeof *r->words);
    if (!r) { errno = ENOMEM; return NULL; }
    r->access = access;
    r->mr = (struct ibv_mr){ .context = pd->context, .pd = pd, .addr = at, .length = bytes };
    for (size_t i = 0; i < pages; i++) r->words[i] = *(const volatile uint64_t *)((unsigned char *)at + i * page);
    regions++;
    registered_bytes += bytes;
    return &r->mr;
}
static int memory_deregister(struct ibv_mr *mr)
{
    regions--;
    registered_bytes -= mr->length;
    free(mr);
    return 0;
}
static struct ibv_mr *register_dmabuf(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova, int descriptor,
    int access)
{
    (void)offset;
    if (descriptor < 0) { errno = EBADF; return NULL; }
    last_descriptor = descriptor;
    last_access = access;
    struct region *r = malloc(sizeof *r);
    r->mr = (struct ibv_mr){ .context = pd->context, .pd = pd, .addr = (void *)(uintptr_t)iova, .length = bytes };
    regions++;
    registered_bytes += bytes;
    return &r->mr;
}
/* Returns the word that the device sees at the beginning of this page. */
static uint64_t device_read_word(const struct registered *t, const void *at)
{
    const struct region *r = (const struct region *)(const void *)t->region;
    return r->words[((uintptr_t)at - (uintptr_t)t->region->addr) / page];
}
