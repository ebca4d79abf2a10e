/* Device memory: files of memory (memfd), mapped twice. The program's address has no access, so a host that touches
   device memory crashes. The fake itself uses the shadow, at a constant distance. */
#pragma once
#include "tests/fake_cuda/contexts.h"
#include "tests/fake_cuda/machine.h"
#include "tests/fake_cuda/streams.h"

/* Allocations are rounded to this, and small ones share blocks of it. */
enum { GRANULE = 2 << 20, IMPORTERS = 16 };
/* Describes a file of device memory, behind its last byte, to the processes that import it. */
struct trailer {
    uint64_t magic, file, bytes;
    int32_t device, owner;
    uint32_t handle_types, is_freed;
    int32_t importers[IMPORTERS];
};
/* A file of device memory. Handles of cuMemCreate are pointers to it. */
struct physical {
    struct physical *next;
    unsigned references;
    int fd;
    size_t bytes;
    int device;
    uint64_t file;
    unsigned handle_types;
    bool is_imported;
    struct trailer *trailer;
};
enum mapping_kind { MAPPING_BLOCK, MAPPING_IPC, MAPPING_VIRTUAL };
/* Mapped device memory. Bits of `readers` and `writers` are devices with access, for MAPPING_VIRTUAL. */
struct mapping {
    CUdeviceptr begin;
    size_t bytes;
    struct physical *physical;
    enum mapping_kind kind;
    unsigned readers, writers, opened;
    uint64_t buffer;
};
/* The lock of all tables of memory. */
void memory_lock(void);
void memory_unlock(void);
/* Returns a number that no other allocation of the process has. */
uint64_t buffer_number(void);

/* The callers of these functions hold the lock. space_take reserves addresses, at the hint if it is free, and returns 0
   if they are used up; space_give returns what was taken at that address, which must be all of it. */
CUdeviceptr space_take(size_t bytes, size_t alignment, CUdeviceptr hint);
bool space_give(CUdeviceptr address, size_t bytes);
bool space_contains(CUdeviceptr address, size_t bytes);
/* Makes a file of device memory, or opens one that another process made; NULL if it is none or memory is short. */
struct physical *physical_create(int device, size_t bytes, unsigned handle_types);
struct physical *physical_import(int fd);
bool physical_exists(const struct physical *physical);
void physical_drop(struct physical *physical);
/* Maps a whole file; false if memory is short. mapping_remove drops the reference that mapping_add has taken. */
bool mapping_add(CUdeviceptr address, struct physical *physical, enum mapping_kind kind);
void mapping_remove(struct mapping *mapping);
/* Returns the mapping that contains the address, or the first one above it, or NULL. */
struct mapping *mapping_find(CUdeviceptr address);
struct mapping *mapping_from(CUdeviceptr address);
struct mapping *mapping_of_file(uint64_t file, enum mapping_kind kind);
size_t device_bytes_used(int device);

bool memory_is_device(CUdeviceptr address);
/* Returns where the fake accesses the memory of a device or host address. */
void *memory_shadow(CUdeviceptr address);
/* Declares the accesses of an operation to device or host memory. Fails if device memory is not mapped. */
CUresult memory_declare(struct operation *operation, CUdeviceptr address, size_t bytes, bool writes);
/* Returns true if kernels of the context may access all these bytes. */
bool memory_allows(CUcontext context, CUdeviceptr address, size_t bytes, bool writes);
struct location memory_location(CUdeviceptr address);
/* Before these bytes are freed, or only unmapped here: reports operations that use them, and waits for all streams of
   this process, as drivers do. memory_forget is for bytes that have been freed. */
void memory_check_free(CUdeviceptr address, size_t bytes, const char *call);
void memory_check_unmap(CUdeviceptr address, size_t bytes, const char *call);
void memory_forget(CUdeviceptr address, size_t bytes);

/* Legacy allocations (allocations.c). The first two need the lock. */
bool allocation_find(CUdeviceptr address, CUdeviceptr *base, size_t *bytes, uint64_t *buffer);
void allocations_free(int device);

/* Host memory that the device can access (host.c). */
struct host_range {
    char *begin;
    size_t bytes;
    unsigned flags;
    bool is_allocated;
    /* Where the range is in a file that several processes map; private memory has the file of its process. */
    struct location location;
};
bool host_range_find(CUdeviceptr address, struct host_range *out);
