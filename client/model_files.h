// Checkpoints named on the command line, and where the object store of s3://
// paths is.

#ifndef CLIENT_MODEL_FILES_H_
#define CLIENT_MODEL_FILES_H_

#include <string>

#include "absl/status/statusor.h"
#include "services/config/flags.h"
#include "services/storage/object_client.h"

namespace gshard {

// Declares the flags of a command that reads s3:// paths: --s3_endpoint,
// --s3_region and, unless it has that of AddClientSecurityFlags(), --insecure.
// Pass what they give to ConfigureObjectStore().
void AddStoreFlags(Flags& flags, ObjectStoreOptions* store, bool has_insecure);

// The absolute path of the checkpoint that `path` refers to: itself, or the
// newest checkpoint in it; with `best`, the one in it with the lowest
// validation loss.
//
// Errors: InvalidArgument for a URL but s3://, and for a file; NotFound if
// there is neither; DataLoss if none can be read; PermissionDenied if the
// caller may not look there, and others of FileError.
absl::StatusOr<std::string> FindCheckpoint(const std::string& path,
                                           bool best = false);

}  // namespace gshard

#endif  // CLIENT_MODEL_FILES_H_
