/* Turns the kernel's report of an RDMA port that goes down into one of a device that has failed (IBV_EVENT_DEVICE_FATAL), which no driver in the
 * guest makes. Loaded before the C library (LD_PRELOAD) into a server under test: libibverbs reads such reports with read(2), 16 bytes each. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <unistd.h>

/* struct ib_uverbs_async_event_desc of <rdma/ib_user_verbs.h>. */
struct report {
    uint64_t element;
    uint32_t event;
    uint32_t reserved;
};

ssize_t read(int file, void *target, size_t bytes) {
    static ssize_t (*next)(int, void *, size_t);
    if (!next)
        next = (ssize_t (*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
    ssize_t count = next(file, target, bytes);
    struct report *report = target;
    if (count == sizeof *report && bytes == sizeof *report && report->event == IBV_EVENT_PORT_ERR && report->reserved == 0)
        report->event = IBV_EVENT_DEVICE_FATAL;
    return count;
}
