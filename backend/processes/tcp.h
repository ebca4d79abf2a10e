/* Sockets between hosts. They never block and are closed on exec; an error is a negative errno. Their kernels find out
 * about each other's hosts: what is sent is to be acknowledged, and a probe answered, in less than TUTTI_SILENCE_MS. */
#pragma once
#include "backend/processes/links.h"

int tcp_listen(const struct contact *at);
/* Under way: it is writable when it is there, or when tcp_error says why not. `near`: where link-local addresses of
   this process are; may be nowhere. */
int tcp_call(const struct contact *at, const struct contact *near);
int tcp_accept(int listener);
int tcp_error(int socket);                              /* 0 or -errno, once */
struct contact tcp_here(int socket);                    /* its own address */
struct contact tcp_there(int socket);
double tcp_way_ns(int socket);                          /* half the least round trip so far; 0: not known */
void tcp_drain(int socket); /* what is unread when it is closed would cut off what we said */
