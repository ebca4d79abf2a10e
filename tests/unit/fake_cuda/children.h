/* Runs the bodies of tests of the fake CUDA driver in child processes, because each needs settings of its own and a
   driver that is not initialized yet. A body ends by returning, and its process by exit, which checks for reports. */
#pragma once
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/support/unit.h"

/* The statuses of children: FAILED after a wrong result, REPORTED if the fake has reported a fault. */
enum { CHILD_FAILED = 3, CHILD_REPORTED = 86, CHILD_KILLED = 1000 };
/* `peer` is a socket to the other child, or -1. */
typedef void child_body(int peer);
/* Runs a body with settings, a list "NAME=VALUE NAME=VALUE" or NULL. Returns the exit status of the child, or
   CHILD_KILLED plus the number of the signal that killed it. */
int child_run(child_body *body, const char *settings);
/* Runs two bodies in two processes. Returns the first status that is not 0. */
int children_run(child_body *first, child_body *second, const char *settings);
/* For other ways to run children: sets the variables of a list of settings; turns a status of wait() into what
   child_run returns. */
void child_apply_settings(const char *settings);
int child_status_code(int status);
/* The text that the last child, or both, wrote to standard error. */
extern char child_said[1 << 16];
/* Asserts that the bodies of one or two children end well, and prints what they said otherwise. */
void assert_child(child_body *body, const char *settings);
void assert_children(child_body *first, child_body *second, const char *settings);
/* Asserts that the body of a child ends with a report that has this text. */
void assert_reported(child_body *body, const char *settings, const char *text);

/* For bodies. They end the process with CHILD_FAILED after a wrong result, and print a call stack. */
void expect_true(bool holds);
void expect_result(CUresult result, CUresult expected);
void expect_success(CUresult result);
/* Initializes the driver and makes the context of a device current. */
CUcontext device_use(int device);
/* Creates a stream that is not ordered with the legacy stream. */
CUstream stream_new(void);
CUdeviceptr memory_new(size_t bytes);
/* Allocates host memory that the device can access. */
void *host_new(size_t bytes);
/* Returns the first 32 bits of device memory, after all work of the device. */
uint32_t word_at(CUdeviceptr address);
/* Sends or receives bytes over the socket to the other child. */
void peer_send(int peer, const void *bytes, size_t count);
void peer_receive(int peer, void *bytes, size_t count);
