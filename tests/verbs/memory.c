/* Protection domains, registered memory, and how the wire finds bytes in it. A key consists of the index of the region
   in a table and of the number of uses of that entry. The lkey and the rkey of a region differ, so a program that
   confuses them gets an error. */
#include "tests/verbs/machine.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#undef ibv_reg_mr

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    int error = call_fails(FAKE_ALLOC_PD);
    struct domain *d = error ? NULL : calloc(1, sizeof *d);
    if (!d) { errno = error; return NULL; }
    d->ibv.context = context;
    machine_lock();
    ((struct context *)context)->children++;
    machine_unlock();
    machine.alive[FAKE_DOMAIN]++;
    return &d->ibv;
}
int ibv_dealloc_pd(struct ibv_pd *pd)
{
    struct domain *d = (struct domain *)pd;
    machine_lock();
    bool busy = d->children;
    if (!busy) ((struct context *)pd->context)->children--;
    machine_unlock();
    if (busy) return EBUSY;
    free(d);
    machine.alive[FAKE_DOMAIN]--;
    return 0;
}

/* ---- registration ---- */
static int region_place(struct region *r)
{
    uint32_t place = 0;
    while (place < machine.regions_end && machine.regions[place]) place++;
    if (place >= (uint32_t)machine.limits.max_mr || place >= REGIONS_MOST) return ENOMEM;
    if (machine.pinned + r->ibv.length > machine.limits.pinned_most) return ENOMEM;
    if (place == machine.regions_end) machine.regions_end++;
    machine.regions[place] = r;
    machine.pinned += r->ibv.length;
    uint32_t uses = ++machine.region_uses[place] & 0x7f;
    r->ibv.handle = place;
    r->ibv.lkey = place << 8 | uses << 1;
    r->ibv.rkey = r->ibv.lkey | 1;
    ((struct domain *)r->ibv.pd)->children++;
    return 0;
}
static int region_register(struct region *r)
{
    if (r->access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) && !(r->access & IBV_ACCESS_LOCAL_WRITE))
        return EINVAL;
    machine_lock();
    int error = ((struct context *)r->ibv.context)->device->broken ? EIO : region_place(r);
    machine_unlock();
    return error;
}
static bool is_mapped(void *at, size_t bytes)
{
    uintptr_t page = (uintptr_t)at & ~(uintptr_t)4095;
    return !bytes || !msync((void *)page, (uintptr_t)at + bytes - page, MS_ASYNC);
}
static struct ibv_mr *region_create(struct ibv_pd *pd, struct region made, size_t bytes)
{
    int error = call_fails(FAKE_REG_MR);
    struct region *r = error ? NULL : malloc(sizeof *r);
    if (!r) { errno = error; return NULL; }
    *r = made;
    r->ibv.context = pd->context;
    r->ibv.pd = pd;
    r->ibv.addr = (void *)(uintptr_t)made.begin;
    r->ibv.length = bytes;
    if ((error = region_register(r))) { free(r); errno = error; return NULL; }
    machine.alive[FAKE_REGION]++;
    machine_count(FAKE_REGISTRATIONS, 1);
    return &r->ibv;
}
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *at, size_t bytes, uint64_t iova, unsigned access)
{
    if (!is_mapped(at, bytes)) { errno = EFAULT; return NULL; }
    return region_create(pd, (struct region){ .begin = iova, .memory = at, .access = access }, bytes);
}
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *at, size_t bytes, int access)
{
    return ibv_reg_mr_iova2(pd, at, bytes, (uintptr_t)at, (unsigned)access);
}
/* Takes the descriptor of anything that can be mapped as memory of another device. */
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova, int descriptor,
    int access)
{
    unsigned char *mapping = mmap(NULL, offset + bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (mapping == MAP_FAILED) return NULL;
    struct region made = { .begin = iova,
        .memory = mapping + offset,
        .access = (unsigned)access,
        .mapping = mapping,
        .mapping_bytes = offset + bytes };
    struct ibv_mr *mr = region_create(pd, made, bytes);
    int error = errno;
    if (!mr) munmap(mapping, offset + bytes);
    errno = error;
    return mr;
}
int ibv_dereg_mr(struct ibv_mr *mr)
{
    struct region *r = (struct region *)mr;
    machine_lock();
    machine.regions[mr->handle] = NULL;
    machine.pinned -= mr->length;
    ((struct domain *)mr->pd)->children--;
    machine_unlock();
    if (r->mapping) munmap(r->mapping, r->mapping_bytes);
    free(r);
    machine.alive[FAKE_REGION]--;
    return 0;
}

/* ---- for the wire ---- */
static struct region *region_find(uint32_t key)
{
    uint32_t place = key >> 8;
    struct region *r = place < machine.regions_end ? machine.regions[place] : NULL;
    return r && (r->ibv.lkey | 1) == (key | 1) ? r : NULL;
}
static bool region_holds(const struct region *r, const struct ibv_pd *pd, const struct ibv_sge *s, unsigned access)
{
    return r && r->ibv.pd == pd && (r->access & access) == access && s->addr >= r->begin && s->length <= r->ibv.length
        && s->addr - r->begin <= r->ibv.length - s->length;
}
bool local_is_allowed(const struct ibv_pd *pd, const struct work *w, bool written)
{
    for (int i = 0; i < w->count && !w->inlined; i++) {
        const struct ibv_sge *s = &w->sges[i];
        struct region *r = s->lkey & 1 ? NULL : region_find(s->lkey);
        if (s->length && !region_holds(r, pd, s, written ? IBV_ACCESS_LOCAL_WRITE : 0)) return false;
    }
    return true;
}
bool remote_is_allowed(const struct ibv_pd *pd, const struct ibv_sge *s, unsigned access)
{
    return !s->length || (s->lkey & 1 && region_holds(region_find(s->lkey), pd, s, access));
}

/* Returns the address of the byte at `offset` of the place, and lowers *bytes to those that lie together from there. */
static unsigned char *piece_find(struct place p, uint64_t offset, uint64_t *bytes)
{
    if (p.bytes) return p.bytes + offset;
    int i = 0;
    while (offset >= p.sges[i].length) offset -= p.sges[i++].length;
    if (*bytes > p.sges[i].length - offset) *bytes = p.sges[i].length - offset;
    const struct region *r = region_find(p.sges[i].lkey);
    return r->memory + (p.sges[i].addr - r->begin) + offset;
}
void bytes_move(struct place to, uint64_t to_offset, struct place from, uint64_t from_offset, uint64_t bytes)
{
    while (bytes) {
        uint64_t piece = bytes;
        unsigned char *source = piece_find(from, from_offset, &piece), *target = piece_find(to, to_offset, &piece);
        memmove(target, source, piece);
        to_offset += piece;
        from_offset += piece;
        bytes -= piece;
    }
}
