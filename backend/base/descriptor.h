/* Descriptors of files, sockets and the like. */
#pragma once

/* The same thing under a number above those of standard input, output and error, which are free in a process that was
 * started with them closed: whatever anybody writes to standard error there would go into a segment, a tensor or a
 * connection. What is negative stays as it is; if no other number can be had, it is closed, and -1 with errno. */
int descriptor_raised(int descriptor);
