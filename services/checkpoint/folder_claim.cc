#include "services/checkpoint/folder_claim.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/base/utf8.h"
#include "services/checkpoint/json_text.h"
#include "services/storage/file.h"
#include "services/storage/object_lease.h"
#include "services/storage/object_path.h"

namespace gshard {
namespace {

std::string LockPath(const std::string& root) {
  return absl::StrCat(root, "/owner.lock");
}

// A lock of the whole file, owned by the open file, not the process: two jobs
// of one process exclude each other, too.
struct flock WriteLock() {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

bool MeansNoLocks(int error_number) {
  return error_number == ENOLCK || error_number == EOPNOTSUPP ||
         error_number == EINVAL || error_number == ENOSYS;
}

absl::Status HeldBy(const std::string& root,
                    const std::optional<FolderOwner>& owner) {
  return absl::FailedPreconditionError(
      absl::StrCat("checkpoint folder ", root, " is in use by ",
                   owner.has_value() ? Describe(*owner) : "another process",
                   "; end that job first, or choose another folder"));
}

// The name of this machine, in printable ASCII.
std::string HostName() {
  char name[256] = {};
  if (::gethostname(name, sizeof(name) - 1) != 0) return "unknown";
  return IsUtf8(name) ? name : "unknown";
}

FolderOwner NextOwner(const std::string& job,
                      const std::optional<FolderOwner>& before) {
  return {.job = job,
          .epoch = before.has_value() ? before->epoch + 1 : 1,
          .host = HostName(),
          .process = ::getpid(),
          .claim = UniqueDigits()};
}

bool IsThisProcess(const std::optional<FolderOwner>& owner) {
  return owner.has_value() && owner->process == ::getpid() &&
         owner->host == HostName();
}

// The owner.json of a folder in an object store: the object, and its content.
struct LeaseState {
  std::optional<LeaseObject> object;
  std::optional<FolderOwner> owner;
  bool is_held = false;
};

absl::StatusOr<LeaseState> ReadLease(const std::string& root) {
  LeaseState state;
  ASSIGN_OR_RETURN(state.object, ObjectLease::Read(OwnerPath(root)));
  if (!state.object.has_value()) return state;
  absl::StatusOr<FolderOwner> owner = ParseOwner(state.object->text);
  if (!owner.ok()) return Annotate(owner.status(), OwnerPath(root));
  state.is_held =
      owner->renewals.has_value() && state.object->age < kLeaseLasts;
  state.owner = *std::move(owner);
  return state;
}

}  // namespace

absl::StatusOr<std::shared_ptr<FolderClaim>> FolderClaim::TakeLease(
    const std::string& root, const std::string& job, FaultPoints* faults) {
  ASSIGN_OR_RETURN(const LeaseState before, ReadLease(root));
  if (before.is_held) return HeldBy(root, before.owner);
  const std::shared_ptr<FolderClaim> claim(new FolderClaim(root, -1, faults));
  const FolderOwner owner = claim->owner_ = NextOwner(job, before.owner);
  if (faults != nullptr) {
    RETURN_IF_ERROR(
        faults->Reach({DiskChange::Kind::kCreate, OwnerPath(root)}));
  }
  auto lease = ObjectLease::Take(OwnerPath(root), before.object,
                                 [owner](std::optional<int64_t> renewals) {
                                   FolderOwner now = owner;
                                   now.renewals = renewals;
                                   return FormatOwner(now);
                                 });
  if (absl::IsAborted(lease.status())) {
    ASSIGN_OR_RETURN(const LeaseState now, ReadLease(root));
    return HeldBy(root, now.owner);
  }
  ASSIGN_OR_RETURN(claim->lease_, std::move(lease));
  return claim;
}

absl::StatusOr<std::shared_ptr<FolderClaim>> FolderClaim::Take(
    const std::string& root, const std::string& job, FaultPoints* faults) {
  if (IsObjectPath(root)) {
    ASSIGN_OR_RETURN(auto claim, TakeLease(root, job, faults));
    LogInfo("checkpoint folder claimed",
            {{"path", root}, {"owner", Describe(claim->owner_)}});
    return claim;
  }
  RETURN_IF_ERROR(MakeDirectories(root, faults));
  const std::string path = LockPath(root);
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return FileError(errno, "open", path);
  // From here on the destructor closes `fd`.
  const std::shared_ptr<FolderClaim> claim(new FolderClaim(root, fd, faults));
  struct flock lock = WriteLock();
  const bool locked = ::fcntl(fd, F_OFD_SETLK, &lock) == 0;
  const int error_number = errno;
  ASSIGN_OR_RETURN(const std::optional<FolderOwner> before, ReadOwner(root));
  if (!locked && (error_number == EAGAIN || error_number == EACCES)) {
    return HeldBy(root, before);
  }
  if (!locked && !MeansNoLocks(error_number)) {
    return FileError(error_number, "lock", path);
  }
  if (!locked) {
    LogWarning(
        "no locks on the disk of a checkpoint folder: nothing keeps "
        "rivals out, who will only notice each other",
        {{"path", path}, {"status", FileError(error_number, "lock", path)}});
  }
  claim->owner_ = NextOwner(job, before);
  RETURN_IF_ERROR(
      WriteFileAtomically(OwnerPath(root), FormatOwner(claim->owner_), faults));
  // Without locks a rival may have done the same concurrently.
  RETURN_IF_ERROR(claim->Check());
  LogInfo("checkpoint folder claimed",
          {{"path", root}, {"owner", Describe(claim->owner_)}});
  return claim;
}

absl::Status FolderClaim::CheckFree(const std::string& root) {
  if (IsObjectPath(root)) {
    ASSIGN_OR_RETURN(const LeaseState state, ReadLease(root));
    return state.is_held && !IsThisProcess(state.owner)
               ? HeldBy(root, state.owner)
               : absl::OkStatus();
  }
  const std::string path = LockPath(root);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return errno == ENOENT ? absl::OkStatus() : FileError(errno, "open", path);
  }
  struct flock lock = WriteLock();
  // Only queries: a lock held even briefly could refuse a rival.
  const bool held =
      ::fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  ::close(fd);
  ASSIGN_OR_RETURN(const std::optional<FolderOwner> owner, ReadOwner(root));
  return held && !IsThisProcess(owner) ? HeldBy(root, owner) : absl::OkStatus();
}

FolderClaim::~FolderClaim() {
  if (lock_ >= 0) ::close(lock_);
}

absl::Status FolderClaim::Check() const {
  ASSIGN_OR_RETURN(std::optional<FolderOwner> owner, ReadOwner(root_));
  if (owner.has_value()) owner->renewals.reset();
  if (owner == owner_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "checkpoint folder ", root_, " is no longer that of ", Describe(owner_),
      owner.has_value()
          ? absl::StrCat(": it was taken over by ", Describe(*owner))
          : ": its owner.json was removed",
      "; nothing more is changed there"));
}

absl::Status FolderClaim::Reach(const DiskChange& change) {
  // Bytes of a file that this owner created are written by nobody else.
  const bool of_bytes = change.kind == DiskChange::Kind::kWrite ||
                        change.kind == DiskChange::Kind::kSync ||
                        change.kind == DiskChange::Kind::kSyncDirectory;
  // First, since in tests it may let time pass.
  if (faults_ != nullptr) RETURN_IF_ERROR(faults_->Reach(change));
  return of_bytes ? absl::OkStatus() : Check();
}

std::string FolderClaim::tag() const {
  return absl::StrCat(owner_.epoch, "-", owner_.claim);
}

}  // namespace gshard
