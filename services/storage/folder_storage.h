// FolderStorage: folders and files of a disk. Durable: what a function has
// done is on the device when it returns.

#ifndef SERVICES_STORAGE_FOLDER_STORAGE_H_
#define SERVICES_STORAGE_FOLDER_STORAGE_H_

#include "services/storage/storage.h"

namespace gshard {

// Lives as long as the process.
const Storage& FolderStorage();

}  // namespace gshard

#endif  // SERVICES_STORAGE_FOLDER_STORAGE_H_
