// Database: an SQLite file, and statements on it.
//
//   ASSIGN_OR_RETURN(auto database, Database::Open(path));
//   RETURN_IF_ERROR(database->Run("DELETE FROM t WHERE name = ?", {name}));

#ifndef SERVICES_COORDINATOR_STORE_DATABASE_H_
#define SERVICES_COORDINATOR_STORE_DATABASE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct sqlite3;
struct sqlite3_stmt;

namespace gshard {

// A parameter for a '?': strings are bytes.
using DatabaseValue = std::variant<int64_t, std::string>;

// A row of a result, valid only during the callback.
class DatabaseRow {
 public:
  int64_t Integer(int column) const;
  std::string Text(int column) const;

 private:
  friend class Database;
  explicit DatabaseRow(sqlite3_stmt* statement) : statement_(statement) {}
  sqlite3_stmt* const statement_;
};

// Not thread-safe. Errors of all methods name the file: DataLoss if it is
// damaged or not a database, ResourceExhausted if the disk is full, Unavailable
// if the file was removed or its disk has vanished, otherwise Unavailable with
// SQLite's message.
class Database {
 public:
  // Opens or creates the file; an empty path is a database in memory. Each
  // statement, or transaction, is durable and atomic when it returns, whenever
  // the process or the machine stops. The file is fully checked, and locked for
  // this process until the database is closed.
  //
  // Errors: also Aborted if another process has it open, or has died with its
  // machine and a file server keeps the lock.
  static absl::StatusOr<std::unique_ptr<Database>> Open(
      const std::string& path);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // Runs one statement; `row` is called for each row of its result, and must
  // not run the same statement. Prepared statements are cached: use few
  // distinct `sql`.
  absl::Status Run(
      const std::string& sql, const std::vector<DatabaseValue>& values = {},
      const std::function<absl::Status(const DatabaseRow&)>& row = nullptr);

  // Runs `body` in a transaction, which is rolled back if it fails.
  absl::Status Transact(const std::function<absl::Status()>& body);

 private:
  explicit Database(std::string path) : path_(std::move(path)) {}
  absl::Status Error(int code) const;
  // Prepares each statement once.
  absl::StatusOr<sqlite3_stmt*> Prepare(const std::string& sql);
  // SQLite would keep writing to a deleted file.
  absl::Status CheckFileIsThere() const;

  const std::string path_;
  uint64_t device_ = 0, inode_ = 0;  // identify the open file
  sqlite3* handle_ = nullptr;
  std::map<std::string, sqlite3_stmt*> prepared_;  // by SQL
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_STORE_DATABASE_H_
