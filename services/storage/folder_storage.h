// FolderStorage: folders and files on disk. Durable: a function's changes are
// on the device when it returns.

#ifndef SERVICES_STORAGE_FOLDER_STORAGE_H_
#define SERVICES_STORAGE_FOLDER_STORAGE_H_

#include "services/storage/storage.h"

namespace gshard {

// Lives as long as the process.
const Storage& FolderStorage();

}  // namespace gshard

#endif  // SERVICES_STORAGE_FOLDER_STORAGE_H_
