/* The watch thread, the only thread that reads from the sockets of peers and links. It accepts connections, handles
 * packets, delivers control messages, and calls the watchers of a peer that is gone. */
#pragma once

/* Runs the watch thread until registry.stop. It is a start routine of pthread_create. */
void *watch_run_thread(void *unused);
