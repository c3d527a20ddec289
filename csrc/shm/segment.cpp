#include "shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>

namespace ringcomm::shm {
namespace {

constexpr std::uint64_t kMagic = 0x72696e67636f6d31;  // "ringcom1"
const std::string kSegmentIs = "segment:";            // otherwise rank 0 tells why there is none

std::size_t round_up(std::size_t nbytes, std::size_t to) { return (nbytes + to - 1) / to * to; }

std::size_t by_world_size(int world_size, std::size_t up_to_8, std::size_t up_to_16,
                          std::size_t up_to_32, std::size_t more) {
  if (world_size <= 8) return up_to_8;
  if (world_size <= 16) return up_to_16;
  return world_size <= 32 ? up_to_32 : more;
}

[[noreturn]] void fail(const std::string& call, int code) {
  throw Error(ErrorKind::kSystem,
              call + " failed: " + std::strerror(code) + " (errno " + std::to_string(code) + ")");
}

std::string random_name() {
  std::random_device device;
  std::string name = "/ringcomm-";
  for (int i = 0; i < 4; ++i) {
    static constexpr char kDigits[] = "0123456789abcdef";
    for (unsigned bits = device(), d = 0; d < 8; ++d, bits >>= 4) name += kDigits[bits & 15];
  }
  return name;
}

// The same for two processes exactly if they can share memory through /dev/shm.
std::string host_identity() {
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(boot, id);
  struct stat shm {};
  if (stat("/dev/shm", &shm) == 0) id += ":" + std::to_string(shm.st_dev);
  return id;
}

std::string mib(std::size_t nbytes) {
  return std::to_string((nbytes + (1 << 20) - 1) >> 20) + " MiB (" + std::to_string(nbytes) +
         " bytes)";
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

Geometry::Geometry(int n)
    : world_size(n),
      eager_nbytes(by_world_size(n, 32 << 10, 16 << 10, 16 << 10, 8 << 10)),
      outbox_nbytes(by_world_size(n, 512 << 10, 512 << 10, 256 << 10, 128 << 10)),
      mail_slot_nbytes(n <= 4 ? 64 << 10 : by_world_size(n, 32 << 10, 16 << 10, 4 << 10, 1 << 10)) {
  const std::size_t ranks = static_cast<std::size_t>(n);
  const std::size_t pairs = ranks * ranks;
  std::size_t end = 0;
  auto place = [&](std::size_t nbytes_each, std::size_t number) {
    const std::size_t offset = round_up(end, 4096);
    end = offset + nbytes_each * number;
    return offset;
  };
  place(sizeof(GroupHeader), 1);
  states_at = place(sizeof(RankState), ranks);
  device_calls_at = place(sizeof(DeviceCall), kDeviceCalls * ranks);
  device_greetings_at = place(sizeof(DeviceGreeting), pairs);
  announcements_at = place(sizeof(Announcement) + eager_nbytes, 2 * ranks);
  edges_at = place(sizeof(Edge), pairs * kLanes);
  outboxes_at = place(outbox_nbytes, ranks * kLanes);
  mail_edges_at = place(sizeof(MailEdge), pairs);
  mail_slots_at = place(sizeof(MailSlot) + mail_slot_nbytes, pairs * kMailSlots);
  nbytes = round_up(end, 4096);
}

void Segment::create(const std::string& name) {
  const int fd = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) fail("shm_open(" + name + ", O_CREAT)", errno);
  Descriptor descriptor(fd);
  int code;
  do {
    code = posix_fallocate(fd, 0, static_cast<off_t>(geometry_.nbytes));
  } while (code == EINTR);
  if (code == ENOSPC || code == EFBIG) {
    struct statvfs shm {};
    statvfs("/dev/shm", &shm);
    throw Error(ErrorKind::kSystem,
                "/dev/shm is too small for a group of " + std::to_string(geometry_.world_size) +
                    " ranks: " + mib(geometry_.nbytes) + " needed, " +
                    mib(static_cast<std::size_t>(shm.f_bavail) * shm.f_frsize) +
                    " free. Give it more (mount -o remount,size=1G /dev/shm; with docker run, "
                    "--shm-size=1g or --ipc=host), or delete what other jobs left there.");
  }
  if (code != 0) fail("posix_fallocate(" + name + ")", code);
  map(fd, name);
  header().magic = kMagic;
  header().nbytes = geometry_.nbytes;
}

void Segment::open(const std::string& name) {
  const int fd = shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) fail("shm_open(" + name + ")", errno);
  Descriptor descriptor(fd);
  struct stat file {};
  if (fstat(fd, &file) != 0) fail("fstat(" + name + ")", errno);
  if (static_cast<std::size_t>(file.st_size) != geometry_.nbytes) {
    throw Error(ErrorKind::kSystem, "the shared memory of rank 0 has " +
                                        std::to_string(file.st_size) + " bytes and this rank's " +
                                        std::to_string(geometry_.nbytes) +
                                        ": the ranks do not run the same build of ringcomm");
  }
  map(fd, name);
  if (header().magic != kMagic || header().nbytes != geometry_.nbytes) {
    throw Error(ErrorKind::kSystem, name + " is not the shared memory of this build of ringcomm");
  }
}

void Segment::map(int fd, const std::string& name) {
  void* base = mmap(nullptr, geometry_.nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) fail("mmap(" + name + ")", errno);
  base_ = static_cast<std::byte*>(base);
}

void Segment::introduce(int rank) {
  state(rank).process = Process::self();
  state(rank).waits_for.store(-1, std::memory_order_relaxed);
}

Segment::Segment(Store& store, int rank, int world_size, std::chrono::milliseconds timeout)
    : geometry_(world_size) {
  const std::string host = host_identity();
  auto mapped_key = [](int r) { return "mapped/" + std::to_string(r); };
  std::string name;
  try {
    if (rank == 0) {
      name = random_name();
      create(name);
      introduce(rank);
      store.set("segment", kSegmentIs + host + "\n" + name);
      for (int r = 1; r < world_size; ++r) {
        const std::string answer = store.get(mapped_key(r), timeout);
        if (answer != "ok") {
          throw Error(ErrorKind::kSystem,
                      "rank " + std::to_string(r) + " could not join the group: " + answer);
        }
      }
      shm_unlink(name.c_str());
      name.clear();
      store.set("ready", "ok");
    } else {
      try {
        std::string answer = store.get("segment", timeout);
        if (!answer.starts_with(kSegmentIs)) throw Error(ErrorKind::kSystem, answer);
        answer.erase(0, kSegmentIs.size());
        const std::size_t line = answer.find('\n');
        if (answer.substr(0, line) != host) {
          throw Error(ErrorKind::kInvalidArgument,
                      "rank " + std::to_string(rank) +
                          " and rank 0 do not share memory: they run on different hosts, or in "
                          "containers with a /dev/shm each. ringcomm's CPU groups span one host "
                          "(between containers: --ipc=host).");
        }
        open(answer.substr(line + 1));
        introduce(rank);
      } catch (const Error& error) {
        store.set(mapped_key(rank), error.what());
        throw;
      }
      store.set(mapped_key(rank), "ok");
      const std::string ready = store.get("ready", timeout);
      if (ready != "ok") throw Error(ErrorKind::kSystem, ready);
    }
  } catch (const std::exception& error) {
    if (rank == 0) {
      if (!name.empty()) shm_unlink(name.c_str());
      const std::string text = std::string("rank 0 could not set up the group: ") + error.what();
      store.set("segment", text);
      store.set("ready", text);
    }
    if (base_ != nullptr) munmap(base_, geometry_.nbytes);
    throw;
  }
}

Segment::~Segment() { munmap(base_, geometry_.nbytes); }

}  // namespace ringcomm::shm
