/* Descriptors of files, sockets and the like. */
#pragma once

/* Moves a descriptor to a number above those of standard input, output and error. In a process that was started with
 * these closed, their numbers are free, and a new descriptor could get one. Output to standard error would then go into
 * a segment, a tensor or a connection. A negative number is returned unchanged. If no number is free, the function
 * closes the descriptor and returns -1 with errno. */
int descriptor_move_above_stderr(int descriptor);
