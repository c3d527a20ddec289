// Cables with a length: each joins two TAP devices, and a frame comes out `delay` after it went in.
//
//     relay DELAY_NS LOSS_PER_MILLION PID:DEVICE PID:DEVICE [PID:DEVICE PID:DEVICE ...]
//
// Makes the devices, each in the network namespace of a process, says "ready" and moves frames
// until its standard input ends. What is lost is drawn frame by frame, and the same in each run.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum {
  MOST_ENDS = 64,
  LONGEST_FRAME = 1 << 17,  // a TAP gives what TCP has not cut yet: 64 KiB and headers
  FRAMES_AT_ONCE = 32,
  CAPACITY = 64 << 20,  // bytes under way in one direction; when full, the device's queue fills
};

typedef struct {
  int64_t due;  // ns
  int64_t length;
  char bytes[];
} Frame;

// What is under way from one end to the other. Only touched memory is used.
typedef struct {
  char* memory;
  size_t head, tail, used;
} Queue;

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static void fail(const char* what) {
  fprintf(stderr, "relay: %s: %s\n", what, strerror(errno));
  exit(1);
}

static int open_tap(char* end, int lossy) {
  char* colon = strchr(end, ':');
  if (colon == NULL) fail(end);
  *colon = 0;
  char path[64];
  snprintf(path, sizeof(path), "/proc/%s/ns/net", end);
  int space = open(path, O_RDONLY | O_CLOEXEC);
  if (space < 0 || setns(space, CLONE_NEWNET) < 0) fail(path);
  close(space);
  int tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (tap < 0) fail("/dev/net/tun");
  struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
  strncpy(request.ifr_name, colon + 1, IFNAMSIZ - 1);
  if (ioctl(tap, TUNSETIFF, &request) < 0) fail("TUNSETIFF");
  // Large frames cost little. Where some are lost, each is to be one packet.
  unsigned offload = TUN_F_CSUM | (lossy ? 0 : TUN_F_TSO4 | TUN_F_TSO6);
  if (ioctl(tap, TUNSETOFFLOAD, offload) < 0) fail("TUNSETOFFLOAD");
  return tap;
}

static size_t size_of(int64_t length) { return (sizeof(Frame) + length + 15) / 16 * 16; }

// Room for the longest frame at the tail, or NULL. A frame is never split at the end of the memory.
static Frame* room(Queue* queue) {
  size_t needed = size_of(LONGEST_FRAME);
  if (CAPACITY - queue->tail < needed) {
    size_t rest = CAPACITY - queue->tail;
    if (CAPACITY - queue->used < rest + needed) return NULL;
    if (rest >= sizeof(Frame)) ((Frame*)(queue->memory + queue->tail))->length = -1;
    queue->used += rest;
    queue->tail = 0;
  }
  return CAPACITY - queue->used < needed ? NULL : (Frame*)(queue->memory + queue->tail);
}

static Frame* first(Queue* queue) {
  if (queue->used == 0) return NULL;
  Frame* frame = (Frame*)(queue->memory + queue->head);
  if (CAPACITY - queue->head < sizeof(Frame) || frame->length < 0) {
    queue->used -= CAPACITY - queue->head;
    queue->head = 0;
    return first(queue);
  }
  return frame;
}

static void receive(int tap, Queue* queue, int64_t delay, int64_t loss) {
  for (int i = 0; i < FRAMES_AT_ONCE; ++i) {
    Frame* frame = room(queue);
    if (frame == NULL) return;
    ssize_t length = read(tap, frame->bytes, LONGEST_FRAME);
    if (length <= 0) return;
    if (random() % 1000000 < loss) continue;
    frame->due = now() + delay;
    frame->length = length;
    size_t size = size_of(length);
    queue->tail += size;
    queue->used += size;
  }
}

// Sends what is due; returns when the next will be, or `latest`.
static int64_t deliver(int tap, Queue* queue, int64_t latest) {
  int64_t time = now();
  for (Frame* frame; (frame = first(queue)) != NULL;) {
    if (frame->due > time) return frame->due < latest ? frame->due : latest;
    // A device that is down refuses the frame, as an unplugged cable loses it.
    ssize_t written = write(tap, frame->bytes, frame->length);
    (void)written;
    size_t size = size_of(frame->length);
    queue->head += size;
    queue->used -= size;
  }
  queue->head = queue->tail = 0;
  return latest;
}

int main(int count, char** arguments) {
  int ends = count - 3;
  if (ends < 2 || ends % 2 != 0 || ends > MOST_ENDS) {
    errno = EINVAL;
    fail("the arguments");
  }
  int64_t delay = atoll(arguments[1]), loss = atoll(arguments[2]);
  srandom(1);
  prctl(PR_SET_TIMERSLACK, 1);  // ns, by which a wait may be late
  struct pollfd waits[MOST_ENDS + 1];
  Queue from[MOST_ENDS];
  for (int i = 0; i < ends; ++i) {
    waits[i] = (struct pollfd){.fd = open_tap(arguments[3 + i], loss > 0), .events = POLLIN};
    void* memory = mmap(NULL, CAPACITY, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fail("mmap");
    from[i] = (Queue){.memory = memory};
  }
  waits[ends] = (struct pollfd){.fd = 0, .events = POLLIN};
  puts("ready");
  fflush(stdout);
  for (;;) {
    int64_t next = INT64_MAX;
    for (int i = 0; i < ends; ++i) {
      next = deliver(waits[i ^ 1].fd, &from[i], next);
      // A full queue is not read: the wait is for what will empty it.
      waits[i].events = room(&from[i]) == NULL ? 0 : POLLIN;
    }
    int64_t rest = next == INT64_MAX ? 0 : next - now();
    if (rest < 0) rest = 0;
    struct timespec patience = {rest / 1000000000, rest % 1000000000};
    if (ppoll(waits, ends + 1, next == INT64_MAX ? NULL : &patience, NULL) < 0 && errno != EINTR)
      fail("ppoll");
    if (waits[ends].revents) return 0;
    for (int i = 0; i < ends; ++i) {
      if (waits[i].revents & POLLIN) receive(waits[i].fd, &from[i], delay, loss);
    }
  }
}
