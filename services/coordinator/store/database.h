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

// What stands for a '?': text is bytes.
using DatabaseValue = std::variant<int64_t, std::string>;

// One row of a result, valid during the call that is given it.
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
// damaged or no database, ResourceExhausted if the disk is full, Unavailable if
// the file was removed or its disk has vanished, otherwise Unavailable with
// SQLite's words.
class Database {
 public:
  // Opens or makes the file; an empty path is a database in memory. Each
  // statement, or transaction, is on the disk when it returns, as a whole or
  // not at all, whenever the process or the machine stops. The file is checked
  // in full, and is this process's alone until the database is closed.
  //
  // Errors: also FailedPrecondition if another process has it.
  static absl::StatusOr<std::unique_ptr<Database>> Open(
      const std::string& path);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // Runs one statement; `row` is called with each row of its result, and must
  // not run the same one. The parsed statement is kept: `sql` is one of few.
  absl::Status Run(
      const std::string& sql, const std::vector<DatabaseValue>& values = {},
      const std::function<absl::Status(const DatabaseRow&)>& row = nullptr);

  // Runs `body` in a transaction, which is undone if it fails.
  absl::Status Transact(const std::function<absl::Status()>& body);

 private:
  explicit Database(std::string path) : path_(std::move(path)) {}
  absl::Status Error(int code) const;
  // Each statement once.
  absl::StatusOr<sqlite3_stmt*> Prepare(const std::string& sql);
  // SQLite writes on into a file that is gone.
  absl::Status CheckFileIsThere() const;

  const std::string path_;
  uint64_t device_ = 0, inode_ = 0;  // of the file, once it is open
  sqlite3* handle_ = nullptr;
  std::map<std::string, sqlite3_stmt*> prepared_;  // by SQL
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_STORE_DATABASE_H_
