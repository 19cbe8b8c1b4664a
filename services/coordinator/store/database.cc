#include "services/coordinator/store/database.h"

#include <sqlite3.h>
#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

// How long an ending process may keep the file locked.
constexpr int kBusyMilliseconds = 5'000;

}  // namespace

int64_t DatabaseRow::Integer(int column) const {
  return sqlite3_column_int64(statement_, column);
}

std::string DatabaseRow::Text(int column) const {
  const void* const bytes = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return size == 0 ? std::string()
                   : std::string(static_cast<const char*>(bytes), size);
}

absl::Status Database::Error(int code) const {
  const std::string message = absl::StrCat(
      "database ", path_.empty() ? "in memory" : path_, ": ",
      handle_ == nullptr ? sqlite3_errstr(code) : sqlite3_errmsg(handle_));
  switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(message);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::AbortedError(
          absl::StrCat(message, "; does another coordinator use it?"));
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(
          absl::StrCat(message, "; make room there"));
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
      return absl::UnavailableError(absl::StrCat(
          message, "; is its disk there, and its folder writable?"));
    default:
      return absl::UnavailableError(message);
  }
}

absl::StatusOr<std::unique_ptr<Database>> Database::Open(
    const std::string& path) {
  std::unique_ptr<Database> database(new Database(path));
  const int code = sqlite3_open_v2(
      path.empty() ? ":memory:" : path.c_str(), &database->handle_,
      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  if (code != SQLITE_OK) return database->Error(code);
  sqlite3_busy_timeout(database->handle_, kBusyMilliseconds);
  struct stat info = {};
  if (!path.empty() && stat(path.c_str(), &info) == 0) {
    database->device_ = info.st_dev;
    database->inode_ = info.st_ino;
  }
  // Locked exclusively from the first transaction until closed.
  for (const char* sql :
       {"PRAGMA locking_mode = EXCLUSIVE", "PRAGMA synchronous = FULL",
        "BEGIN EXCLUSIVE", "COMMIT"}) {
    RETURN_IF_ERROR(database->Run(sql));
  }
  std::string check;
  RETURN_IF_ERROR(
      database->Run("PRAGMA quick_check(1)", {}, [&](const DatabaseRow& row) {
        check = row.Text(0);
        return absl::OkStatus();
      }));
  if (check != "ok") {
    return absl::DataLossError(
        absl::StrCat("database ", path, " is damaged: ", check));
  }
  return database;
}

Database::~Database() {
  for (const auto& [sql, statement] : prepared_) sqlite3_finalize(statement);
  sqlite3_close(handle_);
}

absl::Status Database::CheckFileIsThere() const {
  struct stat info = {};
  if (inode_ == 0 || (stat(path_.c_str(), &info) == 0 &&
                      info.st_dev == device_ && info.st_ino == inode_)) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrCat(
      "database ", path_,
      ": the file was removed or replaced while it was in use; is its disk "
      "there? What is not in it now is lost: start the process again"));
}

absl::StatusOr<sqlite3_stmt*> Database::Prepare(const std::string& sql) {
  sqlite3_stmt*& statement = prepared_[sql];
  if (statement != nullptr) return statement;
  const int code = sqlite3_prepare_v2(
      handle_, sql.c_str(), static_cast<int>(sql.size()), &statement, nullptr);
  if (code != SQLITE_OK) return Error(code);
  return statement;
}

absl::Status Database::Run(
    const std::string& sql, const std::vector<DatabaseValue>& values,
    const std::function<absl::Status(const DatabaseRow&)>& row) {
  RETURN_IF_ERROR(CheckFileIsThere());
  ASSIGN_OR_RETURN(sqlite3_stmt* const prepared, Prepare(sql));
  const std::unique_ptr<sqlite3_stmt, int (*)(sqlite3_stmt*)> running(
      prepared, sqlite3_reset);
  int code = SQLITE_OK;
  for (size_t i = 0; i < values.size(); ++i) {
    const int place = static_cast<int>(i) + 1;
    if (const auto* number = std::get_if<int64_t>(&values[i])) {
      code = sqlite3_bind_int64(prepared, place, *number);
    } else {
      const std::string& text = std::get<std::string>(values[i]);
      code = sqlite3_bind_blob64(prepared, place, text.data(), text.size(),
                                 SQLITE_TRANSIENT);
    }
    if (code != SQLITE_OK) return Error(code);
  }
  while ((code = sqlite3_step(prepared)) == SQLITE_ROW) {
    if (row) RETURN_IF_ERROR(row(DatabaseRow(prepared)));
  }
  return code == SQLITE_DONE ? absl::OkStatus() : Error(code);
}

absl::Status Database::Transact(const std::function<absl::Status()>& body) {
  RETURN_IF_ERROR(Run("BEGIN IMMEDIATE"));
  absl::Status status = body();
  if (status.ok()) status = Run("COMMIT");
  // Not by Run(), which does nothing while the file is away: writes that follow
  // would join the open transaction, and be lost with it.
  if (!status.ok() && sqlite3_get_autocommit(handle_) == 0) {
    sqlite3_exec(handle_, "ROLLBACK", nullptr, nullptr, nullptr);
  }
  return status;
}

}  // namespace gshard
