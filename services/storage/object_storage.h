// ObjectStorage: objects of a store that speaks S3, at "s3://bucket/key". A
// folder is a prefix. See storage.h for how it differs from a disk's.

#ifndef SERVICES_STORAGE_OBJECT_STORAGE_H_
#define SERVICES_STORAGE_OBJECT_STORAGE_H_

#include "services/storage/storage.h"

namespace gshard {

// Uses the client of the process, and lives as long.
const Storage& ObjectStorage();

}  // namespace gshard

#endif  // SERVICES_STORAGE_OBJECT_STORAGE_H_
